//! Errors in the configuration, with their location in the file.

use std::{fmt, io, path::PathBuf, str::Utf8Error};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path}:{location}")]
    Wrong { path: PathBuf, location: ErrorLocation },
}

/// A location in the text, with the error there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorLocation {
    /// Line and column count from 1, in characters.
    pub line: usize,
    pub column: usize,
    /// A key like `memory.device_share`; empty if the text is not TOML.
    pub field: String,
    pub problem: String,
}

impl ErrorLocation {
    pub(super) fn of(error: &toml::de::Error, path: String, text: &str) -> Self {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        // serde_path_to_error calls the whole text `.`. If a value is read together with its location, the path has one
        // more step, which the text does not have.
        let path = path.split_once(".$").map_or(&*path, |(field, _)| field);
        let field = if path == "." { String::new() } else { path.to_owned() };
        let problem = error.message().trim_end().replace('\n', " ");
        Self::after(text.get(..start).unwrap_or_default(), field, problem)
    }

    /// The location of the first byte that is not UTF-8.
    pub(super) fn of_bytes(error: &Utf8Error, bytes: &[u8]) -> Self {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        Self::after(&before, String::new(), "this byte is not UTF-8".to_owned())
    }

    pub(crate) fn after(before: &str, field: String, problem: String) -> Self {
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        Self { line, column: before[line_start..].chars().count() + 1, field, problem }
    }
}

impl fmt::Display for ErrorLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, field, problem } = self;
        write!(f, "{line}:{column}: ")?;
        if !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        f.write_str(problem)
    }
}
