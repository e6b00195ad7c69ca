//! Bookkeeping of physical memory. No driver calls.

mod cache;
mod extent;

pub(crate) use cache::{Age, Cache, Cached};
pub(crate) use extent::{Extent, ExtentState, Pool};
