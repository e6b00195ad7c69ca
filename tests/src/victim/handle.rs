//! A victim, as its watcher controls it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result};

use super::{Fate, Order, Report};
use crate::programs::copied;

/// Killed when it is dropped.
#[derive(Debug)]
pub struct Victim {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Victim {
    /// Copies the program to where every user can run it: beside the sockets.
    pub fn install(socket_dir: &Path) -> Result<PathBuf> {
        let folder = socket_dir.parent().context("the sockets lie in a folder")?;
        Ok(copied("victim", folder)?)
    }

    /// Starts a victim, as another user if a uid is given.
    pub fn start(installed: &Path, socket_dir: &Path, uid: Option<u32>, fate: &Fate) -> Result<Self> {
        let mut command = Command::new(installed);
        command.args(fate.arguments()).env("VRAMD_SOCKET_DIR", socket_dir).current_dir("/");
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("its input is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        Ok(Self { child, input, output })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its next report; `None` once it has ended.
    pub fn next_report(&mut self) -> Result<Option<Report>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        line.trim_end().parse().map(Some)
    }

    pub fn order(&mut self, order: Order) -> Result<()> {
        Ok(writeln!(self.input, "{order}")?)
    }

    /// Kills it with SIGKILL, and returns its unread reports.
    pub fn kill(&mut self) -> Result<Vec<Report>> {
        self.child.kill()?;
        let mut said = Vec::new();
        while let Some(word) = self.next_report()? {
            said.push(word);
        }
        self.child.wait()?;
        Ok(said)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Harmless if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
