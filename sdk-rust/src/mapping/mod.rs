//! Mappings: what this session maps, and where.
//!
//! `table` owns the state of all allocations and is the only way in. A `region` is one allocation; `region_words`
//! changes its pin words and unmaps it; `space` and `reservation` own its addresses; `pin_calls` holds the pin calls
//! that wait; `pinning` is the table's part for pins; `presence` takes all of it away at once, and lets it come back. Every change happens under the table's lock. The lock is never
//! held across a call of the daemon, but it is held across `mmap` and driver calls.

mod changed;
mod copy;
mod pin_calls;
mod pinning;
mod prefetches;
mod presence;
mod region;
mod region_words;
mod reservation;
mod sequences;
mod space;
mod table;
mod turns;

pub(crate) use copy::{CHUNK_BYTES as COPY_CHUNK_BYTES, Window};
pub(crate) use pin_calls::{PinTarget, refusal};
pub(crate) use pinning::{Caller, PinStart, Until, millis_until};
pub(crate) use presence::{Label, Obstacles};
pub(crate) use region::Mode;
pub use region::RawPart;
pub(crate) use space::{Base, Space};
pub(crate) use table::{Ending, Report, Table};
pub(crate) use turns::Progress as TurnProgress;

#[cfg(test)]
mod tests;
