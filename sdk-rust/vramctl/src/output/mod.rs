//! Where results go: text for people, or one JSON object. Commands build both; this module prints one of them.

pub(crate) mod device_names;
pub(crate) mod failure;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod text;

use std::{
    io::{self, Write as _},
    ops::ControlFlow,
};

use serde_json::{Map, Value};

use self::{failure::Failure, text::plain};

/// Grows when a field is removed or changes its meaning, not when one is added.
const JSON_VERSION: u32 = 1;

/// The form of output that the command line asks for.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    uuids: bool,
}

impl Output {
    pub(crate) fn new(json: bool, uuids: bool) -> Self {
        Self { json, uuids }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether tables show UUIDs of devices.
    pub(crate) fn has_uuids(&self) -> bool {
        self.uuids
    }

    /// Prints a result. `fields` is an object.
    pub(crate) fn show(&self, text: impl FnOnce() -> String, fields: Value) -> Result<(), Failure> {
        let text = if self.json { versioned(fields).to_string() } else { text() };
        print(text.trim_end()).map(|_| ())
    }

    /// Prints one result of a stream at once. Breaks once the reader of standard output has gone.
    pub(crate) fn show_line(&self, text: &str, fields: Value) -> Result<ControlFlow<()>, Failure> {
        if self.json { print(&versioned(fields).to_string()) } else { print(&plain(text)) }
    }

    /// Prints a failure to standard error.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.is_printed() {
            return;
        }
        let text = if self.json {
            versioned(serde_json::json!({ "error": failure.to_json() })).to_string()
        } else {
            plain(&format!("vramctl: {}: {failure}", failure.reason()))
        };
        // No stream is left that could report a failure here.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }
}

fn print(text: &str) -> Result<ControlFlow<()>, Failure> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        // A reader that has seen enough is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(Failure::Output(error)),
    }
}

fn versioned(fields: Value) -> Value {
    let mut object = Map::from_iter([("version".to_owned(), Value::from(JSON_VERSION))]);
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    Value::Object(object)
}
