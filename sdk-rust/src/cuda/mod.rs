//! GPU memory in this process: the few driver calls that mapping and copying need.
//!
//! **No CUDA crate.** Programs that use this SDK bring their own, in a version of their own, and two versions do not
//! mix. So the SDK opens `libcuda.so.1` at run time ([`api`]) and reads results as plain numbers: a driver may be
//! newer than this build and return codes that no present header has. `VRAMD_LIBCUDA` names another library.
//!
//! **Only when needed.** The library is loaded when the first part of a GPU arrives, or when a session opens on a
//! node of several devices (`session::visible_devices`). From then on the rules of CUDA hold: a forked child of this
//! process cannot use the GPU. Fork children before.
//!
//! **Primary contexts.** The SDK uses a device through its primary context, which it retains while the session lives.
//! The CUDA runtime, PyTorch and others use the same context, so pointers work there as they are. The context that
//! the calling thread had is current again afterwards. Nothing here waits for the device as a whole.
//!
//! **Addresses.** An allocation reserves addresses of its whole span once ([`Arena`]); each part is imported, mapped
//! at its offset, and its imported handle released at once, so that the mapping alone holds the memory. Access is set
//! once for each run of neighbouring parts of a packet: that call costs the most, and hardly more for many parts.
//!
//! **Captures.** Each call here is made in the relaxed capture mode, and the thread's own mode is restored. The
//! worker, or a thread that waits for memory, may map while another thread captures a stream, and a strict mode would
//! end that capture.
//!
//! **Unmapping does not wait for kernels.** A kernel that still uses unmapped memory faults and ends its context, so
//! a program ends its kernels before it seals, frees, detaches or drops a handle. An operator who frees the memory or
//! ends the session does not wait for kernels either.

mod api;
mod arena;
mod calls;
mod context;
mod driver;
mod event;
mod fault;
mod gpus;
mod legacy;
mod managed;
mod mapped;
mod stream;
#[cfg(test)]
mod tests;

/// The ordinal of a device in this process's CUDA, for a UUID as the daemon prints it: for libraries that name
/// devices by number (`cudaSetDevice`, DLPack). `None` if CUDA does not show the device, or is not installed.
pub fn cuda_ordinal(uuid: &str) -> Option<i32> {
    Driver::of_process().ok()?.ordinal(uuid)
}

pub(crate) use arena::{Arena, Imported};
pub(crate) use context::Context;
pub(crate) use driver::Driver;
pub(crate) use event::{Event, NotRecorded};
pub(crate) use gpus::Gpus;
pub(crate) use legacy::{HANDLE_BYTES, LegacyBlock};
pub(crate) use managed::{Failure, ManagedRange, MoveTo, Step};
