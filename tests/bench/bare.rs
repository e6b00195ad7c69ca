//! The processes that ours is compared with: this program under another command, which ends when its input does.

use std::{
    env,
    ffi::OsStr,
    io::{self, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result};
use vramd_tests::wait::until;

/// A process that listens on a socket.
#[derive(Debug)]
pub(crate) struct Bare(Child);

impl Bare {
    /// Starts one and waits until its socket is there.
    pub(crate) fn start(command: &str, socket: &Path, more: &[&OsStr]) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?);
        process.arg(command).arg(socket).args(more).stdin(Stdio::piped());
        let bare = Self(process.spawn().with_context(|| format!("start {command}"))?);
        until("the bare process listens", || socket.exists());
        Ok(bare)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It is killed where that is not enough, and there is nobody to tell.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends this process when who started it has gone, however that came about.
pub(crate) fn end_with_input() {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}
