//! Tools of other makers, as `tests/dev/install-tools` installs them. A missing tool fails the test.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

use crate::programs::repository;

/// A `grpcurl` for one Unix socket.
#[derive(Debug)]
pub struct Grpcurl {
    socket: PathBuf,
}

impl Grpcurl {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The output of `list` or `describe SYMBOL`.
    #[track_caller]
    pub fn reflect(&self, what: &[&str]) -> String {
        let output = self.output(&[], what);
        assert!(output.status.success(), "grpcurl {what:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("grpcurl prints text")
    }

    /// The answer to one call, with default values and 64-bit numbers as text.
    #[track_caller]
    pub fn call(&self, method: &str, request: &Value) -> Value {
        let output = self.output(&["-emit-defaults", "-d", &request.to_string()], &[method]);
        assert!(output.status.success(), "grpcurl {method}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("grpcurl prints JSON")
    }

    /// The messages of a streaming call within this time.
    #[track_caller]
    pub fn stream(&self, method: &str, request: &Value, during: Duration) -> Vec<Value> {
        let seconds = during.as_secs_f64().to_string();
        let output = self.output(&["-max-time", &seconds, "-d", &request.to_string()], &[method]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("DeadlineExceeded"), "the stream ended by itself: {said}");
        serde_json::Deserializer::from_slice(&output.stdout)
            .into_iter()
            .map(|object| object.expect("grpcurl prints JSON"))
            .collect()
    }

    /// The text about a call that is refused.
    #[track_caller]
    pub fn refused(&self, method: &str, request: &Value) -> String {
        let output = self.output(&["-format-error", "-d", &request.to_string()], &[method]);
        assert!(!output.status.success(), "{method} was to be refused");
        String::from_utf8(output.stderr).expect("grpcurl prints text")
    }

    fn output(&self, options: &[&str], what: &[&str]) -> Output {
        // By default `grpcurl` sends the socket's path as the authority, which HTTP/2 refuses.
        let mut command = Command::new(tool("bin/grpcurl"));
        command.args(["-plaintext", "-authority", "localhost", "-max-time", "30"]).args(options);
        command.arg(format!("unix://{}", self.socket.display())).args(what).output().expect("grpcurl starts")
    }
}

/// The folder of `grpcurl`.
pub fn folder() -> PathBuf {
    tool("bin/grpcurl").with_file_name("")
}

/// The Python with gRPC.
pub fn python() -> Command {
    Command::new(tool("venv/bin/python"))
}

pub(crate) fn tool(path: &str) -> PathBuf {
    let tool = repository().join(".tools").join(path);
    assert!(tool.exists(), "{} is missing: run tests/dev/install-tools", tool.display());
    tool
}
