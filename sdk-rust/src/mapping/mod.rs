//! What this session maps, and where.

mod changed;
mod copy;
mod region;
mod reservation;
mod space;
mod table;

pub(crate) use copy::CHUNK_BYTES as COPY_CHUNK_BYTES;
pub(crate) use region::Mode;
pub use region::RawPart;
pub(crate) use space::Base;
pub(crate) use table::{Answer, Ending, Table};

#[cfg(test)]
mod tests;
