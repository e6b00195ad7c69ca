//! Where results go: text for people, or one JSON object.

use std::io::{self, Write as _};

use serde_json::{Map, Value};

use crate::failure::Failure;

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
        let mut stdout = io::stdout().lock();
        match writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush()) {
            // A reader that has seen enough is no failure.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
            _ => Ok(()),
        }
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

fn versioned(fields: Value) -> Value {
    let mut object = Map::from_iter([("version".to_owned(), Value::from(JSON_VERSION))]);
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    Value::Object(object)
}
