//! Why a file is not read as a trace.

use std::{fmt, io};

#[derive(Debug)]
pub enum TraceError {
    /// The file cannot be read.
    Io(io::Error),
    /// A line is not as the format says.
    Line { line: u64, problem: String },
}

impl TraceError {
    pub(super) fn at(line: u64, problem: impl Into<String>) -> Self {
        Self::Line { line, problem: problem.into() }
    }

    pub(super) fn not_a_trace(line: u64) -> Self {
        Self::at(
            line,
            "this is no trace: a trace of vramd begins with `# vramd-trace 1`, and a line of libCacheSim's CSV has a \
             time, an object and its size",
        )
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Line { line, problem } => write!(f, "line {line}: {problem}"),
        }
    }
}

impl std::error::Error for TraceError {}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
