//! Where in the configuration something is wrong.

use std::{fmt, io, path::PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path}:{place}")]
    Wrong { path: PathBuf, place: Place },
}

/// A place in the text, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// From 1, in characters.
    pub line: usize,
    pub column: usize,
    /// Like `memory.device_share`; empty where the text is no TOML.
    pub field: String,
    pub problem: String,
}

impl Place {
    pub(super) fn of(error: &toml::de::Error, path: String, text: &str) -> Self {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            // What serde_path_to_error says of the whole text.
            field: if path == "." { String::new() } else { path },
            problem: error.message().trim_end().replace('\n', " "),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, field, problem } = self;
        write!(f, "{line}:{column}: ")?;
        if !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        f.write_str(problem)
    }
}
