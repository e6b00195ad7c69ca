//! A client process that does one step at a time, so that a test can kill, stop or fork it between any two.
//!
//! It reads one command a line, and answers each with a line of JSON. `src/bin/probe` is the other side.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    proc,
    programs::{copied, program},
    refusal::Refused,
};

#[derive(Debug)]
pub struct Probe {
    child: Child,
    /// Closed to tell the process that there are no more commands.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Probe {
    /// Starts a probe, as another user if a uid is given.
    #[track_caller]
    pub fn start(socket_dir: &Path, uid: Option<u32>) -> Self {
        Self::start_program("probe", &[], socket_dir, uid)
    }

    /// The same with another program that speaks as the probe does.
    #[track_caller]
    pub fn start_program(name: &str, arguments: &[&str], socket_dir: &Path, uid: Option<u32>) -> Self {
        let mut command = match uid {
            None => Command::new(program(name)),
            Some(uid) => {
                let folder = socket_dir.parent().expect("the sockets lie in a folder");
                let mut command = Command::new(copied(name, folder).expect("the probe can be copied"));
                command.uid(uid).gid(uid).current_dir("/");
                command
            }
        };
        command.args(arguments);
        command.env("VRAMD_SOCKET_DIR", socket_dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the probe starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        Self { child, input, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command that must succeed.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> Value {
        let answer = self.answer(command);
        assert!(answer.get("refused").is_none(), "{command}: {answer}");
        answer
    }

    /// Gives a command that must be refused.
    #[track_caller]
    pub fn refused(&mut self, command: &str) -> Refused {
        let answer = self.answer(command);
        let refused =
            answer.get("refused").unwrap_or_else(|| panic!("`{command}` was to be refused: {answer}"));
        let text = |key: &str| refused[key].as_str().unwrap_or_default().to_owned();
        let facts = refused["facts"].as_object().into_iter().flatten();
        Refused::from_frame(vramd_proto::v1::Refused {
            code: refused["code"].as_i64().and_then(|code| code.try_into().ok()).unwrap_or_default(),
            reason: text("reason"),
            message: text("message"),
            metadata: facts
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
        })
    }

    /// Gives a command, whatever its outcome.
    #[track_caller]
    pub fn answer(&mut self, command: &str) -> Value {
        self.tell(command);
        self.listen(command)
    }

    /// Gives a command whose answer may take long.
    #[track_caller]
    pub fn tell(&mut self, command: &str) {
        let input = self.input.as_mut().expect("open until it leaves");
        writeln!(input, "{command}").expect("the probe reads its commands");
    }

    #[track_caller]
    pub fn listen(&mut self, command: &str) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the probe's output is text");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the probe said `{line}` to `{command}`"))
    }

    /// Whether the process has ended by itself.
    #[track_caller]
    pub fn check_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the probe can be signalled");
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("the probe can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Stops it with SIGSTOP, and waits until it has stopped.
    #[track_caller]
    pub fn freeze(&self) {
        proc::stop(self.pid());
    }

    /// Waits for its end.
    #[track_caller]
    pub fn leave(mut self) {
        drop(self.input.take());
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "the probe ended with {status}");
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Harmless if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
