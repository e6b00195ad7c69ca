//! GPU memory that the node's daemon, `vramd`, owns: allocated, written, sealed, and shared with other processes.
//!
//! ```no_run
//! use vramd_client::{AllocationRequest, Bytes, Client};
//!
//! # fn main() -> Result<(), vramd_client::Error> {
//! // One process writes and seals; then no process can write it any more.
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
//! Its calls block and need no runtime; a thread of a runtime may make them too. [`aio`] offers the same calls as
//! futures. A [`Pool`] hands out small blocks without a call. An allocation keeps its address as long as its handle
//! lives, across sealing and revocation. Dropping a handle never blocks or fails: the work is queued, and
//! [`Client::flush`] waits for it where that matters.
//!
//! **Pins.** A handle pins what it maps, unless it was requested as unpinned. After [`Allocation::unpin`] the daemon
//! may take the memory away while no guard pins it, and [`Allocation::pin`] brings it back to the same address:
//!
//! ```no_run
//! # use vramd_client::{Access, Client};
//! # fn main() -> Result<(), vramd_client::Error> {
//! # let client = Client::connect()?;
//! let (mut weights, mut cache) = (client.attach("llama")?, client.attach("cache")?);
//! weights.unpin()?;
//! cache.unpin()?;
//! // All or none: two programs that need both do not wait for each other.
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
//! Pinning and unpinning mapped memory costs two atomic instructions each, and no system call.
//!
//! **Code that writes must pin to write** ([`Access::Write`]), kernels too. The daemon decides by the kind of pin
//! whether it must copy the memory. Bytes that are written under a pin to read, or under none, are lost silently once
//! the memory has left its device. Memory with a handle pin needs no further pin. The guide is
//! `docs/guides/moving.md`.
//!
//! **On a GPU** an allocation has a device pointer, in the primary context of its device, which is the one that the
//! CUDA runtime and PyTorch use. [`Allocation::copy_from_host`] and [`Sealed::copy_to_host`] move bytes wherever they
//! lie; slices exist only for memory that the CPU can access. Kernels must have ended before their memory is sealed,
//! freed or detached. `CUDA_VISIBLE_DEVICES` is respected; `VRAMD_VISIBLE_DEVICES` or the builder may name other
//! devices, and `VRAMD_LIBCUDA` names another driver library.
//!
//! **Pressure** says how full a device is, in four levels, and how soon it will be full. [`Client::pressure`] returns
//! the daemon's last report without a call; [`ClientBuilder::on_pressure`] registers a callback for each change, on a
//! thread of its own.
//!
//! **When the daemon goes away**, mapped memory stays usable, calls return [`Error::BrokerGone`] within a second, and
//! a new client can connect once the daemon is back ([`Client::reconnect`]).
//!
//! **After a fork** (or a raw `clone`) the child can use none of it: mappings are not inherited, handles and guards
//! refuse ([`Error::Forked`]), and dropping them in the child does nothing to the parent. The child may connect a
//! client of its own.
//!
//! **Traces** continue in the daemon with the feature `trace-context`: a call carries the OpenTelemetry context of
//! its thread, or the one that `enter_trace` set; so do a prefetch request and a pin that needs the daemon.
//!
//! **Descriptors** are closed as soon as a part is mapped; at most 128 are open at a time, so `RLIMIT_NOFILE` should
//! leave room for that many. Where it does not, allocating fails with [`Error::MapFailed`] and leaves nothing behind.
//! A pin fails likewise, and may be tried again.

#[macro_use]
mod fault_points;

pub mod admin;
pub mod aio;
mod away;
mod channel;
mod client;
mod cuda;
mod error;
mod handles;
mod interrupt;
mod mapping;
mod pins;
mod pool;
mod prefetch;
mod process;
mod rpc;
mod sequence;
mod session;
mod turns;

/// Decodes a packet of the daemon. Public only for this repository's fuzz targets, which are another crate.
#[doc(hidden)]
pub use channel::frame::decode as decode_daemon_frame;

pub use client::{Client, ClientBuilder};
pub use cuda::cuda_ordinal;
pub use error::{Error, Refusal, Result, Sentence};
#[cfg(feature = "fault-points")]
pub use fault_points::{FaultPoint, on_fault_point};
pub use handles::{
    addresses::{Addresses, AllocateAtFailed},
    advice::{AccessPattern, Advice, AdvisedParts, MemoryClass, Preset},
    allocation::{Allocation, FreeFailed, SealFailed, Sealed},
    charge::Charge,
    info::{AllocationInfo, AllocationKind, AllocationState, Lifetime, ManagedPlace, PartInfo, Tier},
    load::LoadedFile,
    managed::{ManagedFailure, ManagedMemory, ManagedRequest},
    mapped_file::{FileAccess, FileCheck, FileMapping, MappedFile, NotInPlace},
    quota::OwnQuota,
    raw::{RawAllocation, RawClient},
    request::{AllocationRequest, Target},
    staging::StagingBuffer,
};
pub use interrupt::interruptible;
pub use mapping::RawPart;
pub use pins::{Pinnable, Pinned, PinnedRef, PinnedSet, UnpinFailed};
pub use pool::{Pool, PoolBlock, PoolConfig};
pub use prefetch::{Prefetch, PrefetchDeferral, PrefetchRequest, PrefetchState};
pub use rpc::request_id::RequestId;
#[cfg(feature = "trace-context")]
pub use rpc::trace::{TraceGuard, TraceparentInvalid, enter_trace};
pub use sequence::{Sequence, SequenceRequest, SequenceState, SequenceWindow};
pub use session::{
    Released,
    pressure::{Pressure, PressureLevel},
    socket_paths::socket_dir,
};
pub use turns::{Turn, TurnState, WorkingSet};
pub use vramd_proto::v1::{Device, HandleType};
pub use vramd_types::{AllocationId, Bytes, FallBack, PartIndex, Reason, SessionId, StatusCode};
pub use vramd_words::Access;
