//! The extents of the node and the cache of freed ones. The pool only keeps records; it calls no driver.

mod cache;
mod error;
mod extent;

pub(crate) use cache::{Age, Cache, Cached};
pub(crate) use error::ExtentError;
pub(crate) use extent::{Extent, ExtentState, Pool};
