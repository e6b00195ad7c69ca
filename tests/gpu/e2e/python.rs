//! Python programs that use PyTorch, in stages. Each reports its observations and waits for permission to go on.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::Value;
use vramd_tests::Daemon;

use crate::bundle::beside;

pub(super) struct Program {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Starts a file of the bundle's folder `torch`, with the bundle's Python package in its path.
    pub(super) fn start<S: AsRef<OsStr>>(
        daemon: &Daemon,
        file: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut command = Command::new("python3");
        command.arg(beside("torch").join(file)).args(arguments);
        command.env("VRAMD_SOCKET_DIR", daemon.sockets()).env("PYTHONPATH", beside("python"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 starts");
        let input = child.stdin.take().expect("its input is a pipe");
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        Self { child, input, output }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the report of the next stage, in which the program stays until it is let on.
    #[track_caller]
    pub(super) fn stage(&mut self) -> Value {
        let line = self.output.next().expect("it says what it has seen, or why it ends, on standard error");
        serde_json::from_str(&line.expect("its output can be read")).expect("it speaks JSON")
    }

    #[track_caller]
    pub(super) fn continue_program(&mut self) {
        self.input.write_all(b"\n").expect("it waits for that");
    }

    /// Lets the program go on from its last stage.
    #[track_caller]
    pub(super) fn end_well(mut self) {
        self.continue_program();
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
