//! Errors of the driver, and of loading it.

use std::path::PathBuf;

/// A failed driver call. The code stays a number, since a driver may know more codes than this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub(crate) struct Fault {
    pub(super) call: &'static str,
    pub(super) code: u32,
    /// The driver's own name for the code.
    pub(super) name: String,
}

/// Why this process cannot use CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the CUDA driver could not be loaded: {problem}")]
    Missing { problem: String },
    #[error("{} is too old a CUDA driver{version}: it has no function {symbol}", library.display())]
    TooOld {
        library: PathBuf,
        symbol: &'static str,
        /// ` (of CUDA 12.2)`, if the driver reports a version.
        version: String,
    },
    #[error("{} cannot be used: {fault}", library.display())]
    Unusable { library: PathBuf, fault: Fault },
    #[error("CUDA was initialised before this process was forked: only the parent can use it")]
    Forked,
}
