//! Memory of a GPU in this process: the few driver calls that mapping and copying need.
//!
//! **No CUDA crate.** Programs that use this SDK bring their own, in a version of their own; two of them do not mix.
//! So the SDK opens `libcuda.so.1` at run time ([`api`]) and reads results as plain numbers: a driver may be newer
//! than this build and answer with codes that no header of today has. `VRAMD_LIBCUDA` names another library.
//!
//! **Only when needed.** The library is loaded when the first part of a GPU arrives, or when a session opens on a node
//! of several devices ([`crate::visible`]). From then on the rules of CUDA hold: what this process forks cannot use the
//! GPU. Children should be forked before.
//!
//! **Primary contexts.** A device is used by way of its primary context, which is retained while the session lives
//! and is the one that the CUDA runtime, PyTorch and others use: pointers work there as they are. Whatever context the
//! calling thread had is current again afterwards. Nothing here waits for the device as a whole.
//!
//! **Addresses.** An allocation reserves addresses of its whole span once ([`Arena`]); each part is imported, mapped
//! at its offset, and its imported handle released at once, so that the mapping alone holds the memory. Access is set
//! once for each run of neighbouring parts of a packet: that call costs the most, and hardly more for many parts.
//!
//! **Captures.** Each call here is made in the relaxed capture mode, and the thread's own mode is restored: the worker,
//! or a thread that waits for memory, may map while another captures a stream, and a strict mode would end that capture.
//!
//! **Unmapping does not wait for kernels.** A kernel that still uses memory which is unmapped faults and takes the
//! context along, so a program ends its kernels before it seals, frees, detaches or drops a handle. Only an operator
//! who frees the memory or ends the session does not ask.

mod api;
mod arena;
mod calls;
mod context;
mod driver;
mod event;
mod fault;
mod gpus;
mod legacy;
mod stream;
#[cfg(test)]
mod tests;

/// The number that CUDA has, in this process, for the device of a UUID as the daemon prints it: where libraries that go by
/// numbers find it (`cudaSetDevice`, DLPack). `None` if CUDA does not show it, or is not there.
pub fn cuda_ordinal(uuid: &str) -> Option<i32> {
    Driver::of_process().ok()?.ordinal(uuid)
}

pub(crate) use arena::{Arena, Imported};
pub(crate) use context::Context;
pub(crate) use driver::Driver;
pub(crate) use event::{Event, NotRecorded};
pub(crate) use gpus::Gpus;
pub(crate) use legacy::{HANDLE_BYTES, LegacyBlock};
