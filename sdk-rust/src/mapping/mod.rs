//! What this session maps, and where.

mod calls;
mod changed;
mod copy;
mod pinning;
mod region;
mod region_words;
mod reservation;
mod space;
mod table;

pub(crate) use calls::{PinTarget, refusal};
pub(crate) use copy::{CHUNK_BYTES as COPY_CHUNK_BYTES, Window};
pub(crate) use pinning::{PinStart, Until};
pub(crate) use region::Mode;
pub use region::RawPart;
pub(crate) use space::Base;
pub(crate) use table::{Ending, Report, Table};

#[cfg(test)]
mod tests;
