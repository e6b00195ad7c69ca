//! An allocation from its request to the return of its memory.
//!
//! - `admission`: checks of a batch before anything is created
//! - `allocate`: `AllocateBatch`: reserve, order extents, answer
//! - `load_file`: `LoadFile`: an allocation whose bytes are a file's
//! - `created`: the driver's answers to ordered extents
//! - `attach`: `Attach`
//! - `seal`: `Seal`
//! - `managed`: orders for managed memory, which its client executes
//! - `release`: `FreeBatch`, `Detach`, and the release of memory
//! - `unmap`: mappings of an allocation that begin or end for good
//! - `after_move`: the work that follows from a part's move

mod admission;
mod after_move;
mod allocate;
pub(super) mod attach;
mod created;
pub(super) mod load_file;
mod managed;
mod release;
mod seal;
mod unmap;
