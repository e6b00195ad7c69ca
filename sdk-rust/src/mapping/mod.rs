//! What this session maps, and where.

mod calls;
mod changed;
mod copy;
mod held;
mod pinning;
mod region;
mod reservation;
mod space;
mod table;

pub(crate) use calls::{Wanted, refusal};
pub(crate) use copy::{CHUNK_BYTES as COPY_CHUNK_BYTES, Window};
pub(crate) use pinning::{Asked, Until};
pub(crate) use region::Mode;
pub use region::RawPart;
pub(crate) use space::Base;
pub(crate) use table::{Answer, Ending, Table};

#[cfg(test)]
mod tests;
