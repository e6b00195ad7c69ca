//! Where results go: text for people, or one JSON object.

pub(crate) mod failure;
pub(crate) mod progress;
pub(crate) mod table;

use std::{
    io::{self, Write as _},
    ops::ControlFlow,
};

use serde_json::{Map, Value};

use self::failure::Failure;
use crate::commands::Told;

/// Grows when a field changes its meaning or goes; not when one is added.
const JSON_VERSION: u32 = 1;

#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a result. `fields` is an object.
    pub(crate) fn show(&self, text: impl FnOnce() -> String, fields: Value) -> Result<(), Failure> {
        let text = if self.json { versioned(fields).to_string() } else { text() };
        print(text.trim_end()).map(|_| ())
    }

    /// Prints one of many, at once. It breaks where nobody reads any more.
    pub(crate) fn line(&self, told: &Told) -> Result<ControlFlow<()>, Failure> {
        if self.json { print(&versioned(told.fields.clone()).to_string()) } else { print(&told.line) }
    }

    pub(crate) fn failure(&self, failure: &Failure) {
        let text = if self.json {
            versioned(serde_json::json!({ "error": failure.to_json() })).to_string()
        } else {
            format!("vramctl: {}: {failure}", failure.reason())
        };
        // There is nowhere left to say that this failed.
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
