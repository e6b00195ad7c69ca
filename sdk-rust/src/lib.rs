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
//! weights.copy_from_host(0, b"hello")?;
//! let sealed = weights.seal()?;
//! println!("{} {}", sealed.id(), sealed.digest());
//!
//! // Any other process of the tenant, or of its readers, maps the same bytes.
//! let other = Client::connect()?;
//! let attached = other.attach("llama")?;
//! let mut start = [0; 5];
//! attached.copy_to_host(0, &mut start)?;
//! assert_eq!(&start, b"hello");
//! // A kernel takes `attached.as_device_ptr()`; where devices are simulated, the CPU takes `attached.as_slice()`.
//! attached.detach()?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] is one session: a channel, on which the daemon sends memory and takes it back, and calls beside it.
//! It blocks, and needs no runtime, nor minds one; the same as futures is [`aio`]. A [`Pool`] hands out small blocks
//! without a call. Mappings keep their address for as long as their handle
//! lives, across sealing and revocation. Dropping a handle never blocks or fails: the work is queued, and
//! [`Client::flush`] waits for it where that matters.
//!
//! **Pins.** A handle holds what it maps, unless told otherwise. With [`Allocation::unpin`] the daemon may take it back
//! whenever nobody pins it, and [`Allocation::pin`] brings it again to the same address:
//!
//! ```no_run
//! # use vramd_client::{Access, Client};
//! # fn main() -> Result<(), vramd_client::Error> {
//! # let client = Client::connect()?;
//! let (mut weights, mut cache) = (client.attach("llama")?, client.attach("cache")?);
//! weights.unpin()?;
//! cache.unpin()?;
//! // All or none: two programs that need both do not wait for one another.
//! let both = client.pin_set(&[(&weights, Access::Read), (&cache, Access::Read)])?;
//! // … launch on `both.guards()[0].as_device_ptr()`; a kernel outlives its launch, so the pin ends after the stream.
//! let stream = 0;
//! for guard in both.into_guards() {
//!     guard.unpin_after(&[stream])?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! To pin and to unpin what is here costs two atomic instructions each, and no system call.
//!
//! **Who writes pins to write** ([`Access::Write`]), kernels too. What is written under a pin to read, or under none, is
//! lost without a word once the memory has left its device: by its pins the daemon knows whether it must be copied. Nothing
//! needs to be said of memory that is held. The guide is `docs/guides/moving.md`.
//!
//! **On a GPU** an allocation has a device pointer, in the primary context of its device, which is the one that the
//! CUDA runtime and PyTorch use. [`Allocation::copy_from_host`] and [`Sealed::copy_to_host`] move bytes wherever they
//! lie; slices are for memory that the CPU can follow. Kernels must have ended before their memory is sealed or let go.
//! `CUDA_VISIBLE_DEVICES` is respected; `VRAMD_VISIBLE_DEVICES` or the builder may say more, and `VRAMD_LIBCUDA` names
//! another driver library.
//!
//! **Pressure** is how full a device is, in four levels, and where that is going. [`Client::pressure`] answers what the daemon
//! told last, without a call; [`ClientBuilder::on_pressure`] is called with each change, on a thread of its own.
//!
//! **When the daemon goes away**, what is mapped stays usable, calls answer [`Error::BrokerGone`] within a second, and
//! a new client can be connected once it is back ([`Client::reconnect`]).
//!
//! **After a fork** (or a raw `clone`) the child has none of it: mappings are not inherited, handles and guards refuse
//! ([`Error::Forked`]), and their drops do nothing to the parent. The child may connect a client of its own.
//!
//! **Traces** go on in the daemon with the feature `trace-context`: a call carries the OpenTelemetry context of the thread
//! that makes it, or what `enter_trace` was told; so does a pin that the daemon is asked for.
//!
//! **Descriptors** are closed as soon as a part is mapped; at most 128 are open at a time, so `RLIMIT_NOFILE` should
//! leave room for that many. Where it does not, allocating fails with [`Error::MapFailed`] and leaves nothing
//! behind; so does a pin, which may be tried again.

#[macro_use]
mod fault_points;

pub mod admin;
pub mod aio;
mod channel;
mod client;
mod cuda;
mod error;
mod handles;
mod mapping;
mod pins;
mod pool;
mod process;
mod rpc;
mod session;

/// What the worker reads packets with. Only for the fuzz targets of this repository, which are another crate.
#[doc(hidden)]
pub use channel::frame::decode as decode_daemon_frame;

pub use client::{Client, ClientBuilder};
pub use cuda::cuda_ordinal;
pub use error::{Error, Refusal, Result};
#[cfg(feature = "fault-points")]
pub use fault_points::{FaultPoint, on_fault_point};
pub use handles::{
    advice::Advice,
    allocation::{Allocation, FreeFailed, SealFailed, Sealed},
    info::{AllocationInfo, AllocationKind, AllocationState, Lifetime, PartInfo, Tier},
    raw::{RawAllocation, RawClient},
    request::{AllocationRequest, Target},
};
pub use mapping::RawPart;
pub use pins::{Pinnable, Pinned, PinnedRef, PinnedSet, UnpinFailed};
pub use pool::{Pool, PoolBlock, PoolConfig};
pub use rpc::request_id::RequestId;
#[cfg(feature = "trace-context")]
pub use rpc::trace::{TraceGuard, TraceparentInvalid, enter_trace};
pub use session::{
    Released,
    pressure::{Pressure, PressureLevel},
    socket_paths::socket_dir,
};
pub use vramd_proto::v1::{Device, HandleType};
pub use vramd_types::{AllocationId, Bytes, PartIndex, Reason, SessionId, StatusCode};
pub use vramd_words::Access;
