//! How a driver fails.

use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DriverError {
    /// An ordinary event: something else has the memory.
    #[error("out of memory")]
    OutOfMemory,
    #[error("{0}")]
    Failed(String),
}
