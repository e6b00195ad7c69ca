//! Bookkeeping of physical memory. No driver calls.

mod extent;

pub(crate) use extent::{Extent, ExtentState, Pool};
