//! What the driver answered, and whether there is one.

use std::path::PathBuf;

/// A call that failed. The code stays a number, since a driver may know more of them than this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub(crate) struct Fault {
    pub(super) call: &'static str,
    pub(super) code: u32,
    /// As the driver itself names it.
    pub(super) name: String,
}

/// Why this process cannot use CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("no CUDA driver: {problem}")]
    Missing { problem: String },
    #[error("{} is too old a CUDA driver{version}: it has no function {symbol}", library.display())]
    TooOld {
        library: PathBuf,
        symbol: &'static str,
        /// ` (of CUDA 12.2)`, if it says.
        version: String,
    },
    #[error("{} cannot be used: {fault}", library.display())]
    Unusable { library: PathBuf, fault: Fault },
    #[error("CUDA was initialised before this process was forked: it can be used in the parent alone")]
    Forked,
}
