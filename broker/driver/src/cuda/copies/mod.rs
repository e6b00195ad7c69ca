//! Moves and hashes bytes: copies between memories, copies to and from disk, digests, and the pinned buffers
//! for them.

pub(crate) mod buffers;
pub(crate) mod copier;
pub(crate) mod digester;
pub(crate) mod disk_side;
pub(crate) mod io_memory;
pub(crate) mod pinned;
