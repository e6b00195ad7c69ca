//! The bare processes that the daemon is compared with: this program under another command. They end when their input ends.

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
    /// Starts a process and waits until its socket exists.
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
        // If closing its input is not enough, the process is killed. Errors have no receiver here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends this process when its parent has ended, for any reason.
pub(crate) fn end_with_input() {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}
