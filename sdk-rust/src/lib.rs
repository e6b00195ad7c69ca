//! GPU memory that the node's daemon, `vramd`, owns: allocated, written, sealed, and shared with other processes.
//!
//! ```no_run
//! use vramd_client::{AllocationRequest, Bytes, Client};
//!
//! # fn main() -> Result<(), vramd_client::Error> {
//! // One process writes, and seals: from then on nobody can write.
//! let client = Client::connect()?;
//! let request = AllocationRequest::new(Bytes::gib(2)).name("llama").persistent().reader("team-b");
//! let mut weights = client.allocate(request)?;
//! weights.as_mut_slice()[..5].copy_from_slice(b"hello");
//! let sealed = weights.seal()?;
//! println!("{} {}", sealed.id(), sealed.digest());
//!
//! // Any other process of the tenant, or of its readers, maps the same bytes.
//! let other = Client::connect()?;
//! let attached = other.attach("llama")?;
//! assert_eq!(&attached.as_slice()[..5], b"hello");
//! attached.detach()?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] is one session: a channel, on which the daemon sends memory and takes it back, and calls beside it.
//! All of it blocks; none of it needs a runtime, or minds one. Mappings keep their address for as long as their handle
//! lives, across sealing and revocation. Dropping a handle never blocks or fails: the work is queued, and
//! [`Client::flush`] waits for it where that matters.
//!
//! **When the daemon goes away**, what is mapped stays usable, calls answer [`Error::BrokerGone`] within a second, and
//! a new client can be connected once it is back.
//!
//! **After a fork** the child has none of it: mappings are not inherited, handles refuse (`SESSION_FOREIGN`) or panic,
//! and their drops do nothing to the parent. The child may connect a client of its own.
//!
//! **Descriptors** are closed as soon as a part is mapped; at most 128 are open at a time, so `RLIMIT_NOFILE` should
//! leave room for that many. Where it does not, allocating fails with [`Error::MapFailed`] and leaves nothing behind.

pub mod admin;
mod allocation;
mod channel;
mod client;
mod error;
mod fork;
mod handle;
mod info;
mod mapping;
mod past;
mod paths;
mod raw;
mod release;
mod request;
mod request_id;
mod retry;
mod rpc;
mod session;
mod status;

pub use allocation::{Allocation, SealFailed, Sealed};
pub use client::{Client, ClientBuilder};
pub use error::{Error, Refusal, Result};
pub use info::{AllocationInfo, AllocationState, Lifetime, PartInfo, Tier};
pub use mapping::RawPart;
pub use paths::socket_dir;
pub use raw::{RawAllocation, RawClient};
pub use request::{AllocationRequest, Target};
pub use request_id::RequestId;
pub use session::Released;
pub use vramd_proto::v1::{Device, HandleType};
pub use vramd_types::{AllocationId, Bytes, PartIndex, Reason, SessionId, StatusCode};
