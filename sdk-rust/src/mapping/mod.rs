//! What this session maps, and where.

mod import;
mod region;
mod reservation;
mod table;

pub(crate) use region::Mode;
pub use region::RawPart;
pub(crate) use table::{Answer, Ending, Table};
