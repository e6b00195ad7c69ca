//! The async style: the same operations as futures, on the program's own tokio runtime.
//!
//! ```no_run
//! use vramd_client::{AllocationRequest, Bytes, aio};
//!
//! # async fn run() -> Result<(), vramd_client::Error> {
//! let client = aio::Client::connect().await?;
//! let mut weights = client.allocate(AllocationRequest::new(Bytes::gib(2)).name("llama").persistent()).await?;
//! weights.copy_from_host_async(0, b"hello").await?;
//! let sealed = weights.seal_async().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Handles are those of the blocking style, and what does not wait is called as there. What waits has an `_async` beside
//! it: [`Allocation::seal_async`](crate::Allocation::seal_async), for one. The runtime, of one thread or of many, needs IO and time; each has a
//! connection of its own, and a client may be used on several.
//!
//! **A future may be dropped at any time**, by a timeout or a `select!`, and nothing is lost by it. Of an allocation or
//! an attachment nothing stays: what the daemon makes all the same goes back. A handle that was on its way to be freed or
//! detached is, a while later. A persistent allocation that was being sealed is sealed in the end, and stays with its
//! tenant; any other goes, as if it had been dropped. Of a copy some bytes may have been copied.
//!
//! Mapping and unmapping are done by threads of the SDK or of tokio. Copies are done by the task, in small pieces.

mod client;
mod handles;

pub use client::Client;
pub(crate) use client::blocking;
