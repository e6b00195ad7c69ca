//! An allocation from its request to the return of its memory.
//!
//! - `admission`: checks of a batch before anything is created
//! - `allocate`: `AllocateBatch`: reserve, order extents, answer
//! - `load_file`: `LoadFile`: an allocation whose bytes are a file's
//! - `create_extent`: ordering extents from the driver, and its answers
//! - `attach`: `Attach`
//! - `seal`: `Seal`
//! - `release`: `FreeBatch`, `Detach`, and the release of memory
//! - `cache`: freed extents that their tenant keeps
//! - `discardable`: parts that are dropped instead of copied

pub(super) mod admission;
mod allocate;
pub(super) mod attach;
mod cache;
pub(super) mod create_extent;
mod discardable;
pub(super) mod load_file;
mod release;
mod seal;
