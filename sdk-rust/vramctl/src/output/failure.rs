//! A failure of a command: for people, for programs, and as an exit status.

use std::{collections::BTreeMap, fmt, io, path::Path, process::ExitCode};

use serde_json::{Value, json};
use vramd_client::{Error, FreeFailed, Reason, Refusal, SealFailed};

#[derive(Debug)]
pub(crate) enum Failure {
    Daemon(Error),
    /// A file of the command line cannot be read.
    File {
        path: String,
        error: io::Error,
    },
    /// A file of the command line cannot be written.
    Unwritable {
        path: String,
        problem: String,
    },
    /// A trace is damaged, is none, or cannot be played.
    Trace {
        path: String,
        problem: String,
    },
    /// A file has no readings of a node.
    Readings {
        path: String,
        problem: String,
    },
    /// An allocation has other tensors than a checkpoint, or is none.
    Content {
        path: String,
        problem: String,
    },
    /// A live view has no terminal, or has lost it.
    Terminal {
        problem: String,
    },
    /// A program could not be run, with the exit status that says so.
    Run {
        status: u8,
        problem: String,
    },
    /// A dry run found differences, which are printed already.
    Differs,
    Output(io::Error),
}

/// Facts of the registry that are numbers. All others stay text, even if they look like numbers.
const NUMBERS: [&str; 17] = [
    "asked",
    "capacity",
    "client_major",
    "column",
    "committed",
    "daemon_major",
    "free",
    "guarantee",
    "guaranteed",
    "held",
    "items",
    "items_max",
    "limit",
    "limit_count",
    "line",
    "pid",
    "uid",
];

impl Failure {
    /// Turns an error of this file into a failure.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |error| Self::File { path, error }
    }

    /// An object that is missing from the daemon's list. `noun` is both the fact's name and the subcommand that lists them.
    pub(crate) fn not_found(reason: Reason, noun: &str, id: &dyn fmt::Display) -> Self {
        let facts = BTreeMap::from([(noun.to_owned(), id.to_string())]);
        let message = format!("this node has no {noun} {id}; `vramctl {noun} list` shows all");
        Self::Daemon(Error::Refused(Refusal { reason, message, facts, retry_after: None }))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Daemon(error) if error.reason() == Some(Reason::BrokerGone) => 3,
            Self::Daemon(_) | Self::Content { .. } | Self::Output(_) => 1,
            Self::File { .. }
            | Self::Unwritable { .. }
            | Self::Trace { .. }
            | Self::Readings { .. }
            | Self::Terminal { .. } => 2,
            Self::Differs => 4,
            Self::Run { status, .. } => *status,
        })
    }

    /// Whether the command has printed all there is to say.
    pub(crate) fn is_printed(&self) -> bool {
        matches!(self, Self::Differs)
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "reason": self.reason(),
            "code": self.code(),
            "message": self.to_string(),
            "facts": self.facts(),
        })
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Daemon(Error::Unknown { reason, .. }) if !reason.is_empty() => reason.clone(),
            Self::Daemon(error) => error.reason().map_or("UNKNOWN", Reason::name).to_owned(),
            Self::File { .. } => "FILE_UNREADABLE".to_owned(),
            Self::Unwritable { .. } => "FILE_UNWRITABLE".to_owned(),
            Self::Trace { .. } => "TRACE_INVALID".to_owned(),
            Self::Readings { .. } => "READINGS_INVALID".to_owned(),
            Self::Content { .. } => "CONTENT_DIFFERS".to_owned(),
            Self::Terminal { .. } => "TERMINAL_UNUSABLE".to_owned(),
            Self::Run { .. } => "PROGRAM_NOT_RUN".to_owned(),
            Self::Differs => "DIFFERS".to_owned(),
            Self::Output(_) => "OUTPUT_FAILED".to_owned(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Daemon(error) => error.code().map_or("UNKNOWN", |code| code.name()),
            Self::File { .. }
            | Self::Unwritable { .. }
            | Self::Trace { .. }
            | Self::Readings { .. }
            | Self::Content { .. }
            | Self::Terminal { .. }
            | Self::Run { .. }
            | Self::Differs
            | Self::Output(_) => "LOCAL",
        }
    }

    fn facts(&self) -> BTreeMap<String, Value> {
        let Self::Daemon(error) = self else { return BTreeMap::new() };
        let value = |key: &str, text: String| match text.parse::<u64>() {
            Ok(number) if NUMBERS.contains(&key) => Value::from(number),
            _ => Value::from(text),
        };
        error.facts().into_iter().map(|(key, text)| (key.clone(), value(&key, text))).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon(error) => error.fmt(f),
            Self::File { path, error } => write!(f, "cannot read {path}: {error}"),
            Self::Unwritable { path, problem } => write!(f, "cannot write {path}: {problem}"),
            Self::Trace { path, problem } => write!(f, "cannot play {path}: {problem}"),
            Self::Readings { path, problem } => write!(f, "cannot judge {path}: {problem}"),
            Self::Content { path, problem } => write!(f, "it is not what {path} has: {problem}"),
            Self::Terminal { problem } | Self::Run { problem, .. } => f.write_str(problem),
            Self::Differs => f.write_str("the file differs from what is in force"),
            Self::Output(error) => write!(f, "cannot write to standard output: {error}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Daemon(error)
    }
}

impl<H> From<FreeFailed<H>> for Failure {
    fn from(failed: FreeFailed<H>) -> Self {
        Self::Daemon(failed.into())
    }
}

impl From<SealFailed> for Failure {
    fn from(failed: SealFailed) -> Self {
        Self::Daemon(failed.error)
    }
}

#[cfg(test)]
mod tests {
    use vramd_client::Bytes;

    use super::*;

    #[test]
    fn json_has_numbers_for_figures_and_text_for_names() {
        let failure = Failure::Daemon(Error::QuotaLimit {
            tenant: "42".to_owned(),
            device: "GPU-1".to_owned(),
            tier: "device".to_owned(),
            limit: Bytes::gib(1),
            held: Bytes::ZERO,
            asked: Bytes::gib(2),
            said: vramd_client::Sentence::default(),
        });
        let json = failure.to_json();
        assert_eq!(json["reason"], "QUOTA_LIMIT");
        assert_eq!(json["code"], "RESOURCE_EXHAUSTED");
        assert_eq!(json["facts"]["limit"], 1u64 << 30);
        assert_eq!(json["facts"]["tenant"], "42");
    }
}
