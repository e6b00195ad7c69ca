//! The async API: the same operations as futures, on the program's own tokio runtime.
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
//! Handles are those of the blocking API; methods that do not wait are the same. Each method that waits has an
//! `_async` twin, such as [`Allocation::seal_async`](crate::Allocation::seal_async). The runtime may have one thread
//! or many, and needs IO and time. Each runtime has a connection of its own, and a client may be used on several.
//!
//! **A future may be dropped at any time**, by a timeout or a `select!`, and nothing leaks. An allocation or
//! attachment that the daemon still makes is given back. A handle that was being freed or detached is freed or
//! detached a while later. A persistent allocation that was being sealed is sealed in the end, and stays with its
//! tenant; any other is released as by a drop. Of a copy some bytes may have been copied.
//!
//! Threads of the SDK or of tokio map and unmap. The task itself copies, in small pieces.

mod client;
mod handles;

pub use client::Client;
pub(crate) use client::blocking;
