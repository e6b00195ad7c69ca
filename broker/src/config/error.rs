//! Errors in the configuration, with their location in the file.

use std::{fmt, io, path::PathBuf, str::Utf8Error};

use serde_path_to_error::Segment;
use thiserror::Error;

/// How keys begin with which `toml` reads a value together with its location, or a date. The text has no such step.
const PRIVATE: [&str; 2] = ["$__serde_spanned_private_", "$__toml_private_"];

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
    pub(super) fn of(error: &toml::de::Error, field: String, text: &str) -> Self {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
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

/// The path of a field, as the text has it: empty for the whole text.
pub(super) fn field(path: &serde_path_to_error::Path) -> String {
    let is_private = |key: &str| PRIVATE.iter().any(|begin| key.starts_with(begin));
    let written = |segment: &&Segment| !matches!(segment, Segment::Map { key } if is_private(key));
    let mut field = String::new();
    for (depth, segment) in path.iter().take_while(written).enumerate() {
        if depth > 0 && !matches!(segment, Segment::Seq { .. }) {
            field.push('.');
        }
        field.push_str(&segment.to_string());
    }
    field
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
