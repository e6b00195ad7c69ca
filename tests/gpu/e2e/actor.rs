//! A client process as cases use it. `client/` is the other side.

use std::path::Path;

use serde_json::Value;
use vramd_tests::{Daemon, Probe, Refused};

#[derive(Debug)]
pub(super) struct Actor(Probe);

impl Actor {
    #[track_caller]
    pub(super) fn start(daemon: &Daemon) -> Self {
        Self::launch(&daemon.sockets(), None)
    }

    /// Starts a client as another user, if the suite may become one.
    #[track_caller]
    pub(super) fn start_as(daemon: &Daemon, uid: u32) -> Self {
        Self::launch(&daemon.sockets(), Some(uid))
    }

    /// Starts a client with a session and a context of its own on the first device.
    #[track_caller]
    pub(super) fn ready(daemon: &Daemon) -> Self {
        let mut actor = Self::start(daemon);
        actor.ask("open");
        actor.ask("gpu");
        actor
    }

    fn launch(sockets: &Path, uid: Option<u32>) -> Self {
        Self(Probe::start_program("gpu-suite", &["client"], sockets, uid))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(super) fn ask(&mut self, command: &str) -> Value {
        let answer = self.0.answer(command);
        let bad = ["refused", "failed", "problem"].iter().any(|key| answer.get(key).is_some());
        assert!(!bad, "{command}: {answer}");
        answer
    }

    #[track_caller]
    pub(super) fn refused(&mut self, command: &str) -> Refused {
        self.0.refused(command)
    }

    /// Runs a command that the driver must refuse. Returns the driver's name of the error.
    #[track_caller]
    pub(super) fn failed(&mut self, command: &str) -> String {
        let answer = self.0.answer(command);
        let name = answer["failed"]["name"].as_str();
        name.unwrap_or_else(|| panic!("the driver was to fail `{command}`: {answer}")).to_owned()
    }

    /// Runs a command that must succeed, and returns one field of its answer as text.
    #[track_caller]
    pub(super) fn text(&mut self, command: &str, field: &str) -> String {
        let answer = self.ask(command);
        answer[field].as_str().unwrap_or_else(|| panic!("no {field} in {answer}")).to_owned()
    }

    /// Runs a command that must succeed, and returns one field of its answer as a number.
    #[track_caller]
    pub(super) fn number(&mut self, command: &str, field: &str) -> u64 {
        let answer = self.ask(command);
        answer[field].as_u64().unwrap_or_else(|| panic!("no {field} in {answer}"))
    }

    pub(super) fn kill(self) {
        self.0.kill();
    }

    #[track_caller]
    pub(super) fn leave(self) {
        self.0.leave();
    }
}
