//! A CUDA driver and NVML without a GPU, for tests.
//!
//! Built as a library that is loaded in the place of `libcuda.so.1` and `libnvidia-ml.so.1`. Device memory is memfds:
//! exported, imported and mapped by other processes like CUDA's, alive while any process maps it or holds its
//! descriptor, and counted by a look through `/proc`. What a card may not be set to for a test (compute modes, MIG
//! instances, old drivers, errors) is said in a text beside the library, `NAME.script`, a `key = value` a line:
//!
//! | key | default | |
//! |---|---|---|
//! | `node` | `fake` | names the memory: one node a test |
//! | `devices`, `memory_mib`, `context_mib` | 1, 1024, 8 | |
//! | `host_mib` | 1024 | what of the host can be pinned |
//! | `register_mib` | 1 TiB | what of the process's memory can be registered |
//! | `version` | 13000 | |
//! | `init` | 0 | what `cuInit` answers |
//! | `compute_mode` | 0 | |
//! | `mig` | 0 | instances that device 0 is divided in; CUDA shows the first |
//! | `dirty` | 0 | 1: fresh memory is not zero |
//! | `lists` | 1 | 0: NVML lists no processes |
//! | `attribute.N`, `attribute.N.DEVICE` | 1 | 134, the nearest node of the host: 0 |
//! | `carries` | | MiB a second that each way of a device carries; without it copies take no time |
//! | `still` | 0 | 1: copies between devices and the host leave all bytes where they are |
//! | `road.N` | | `WAYS DEVICES @ MIB`, as `in 0 1 @ 300`: they share what carries so much, `in`, `out` or `both`; N from 0 on |
//! | `cut` | 0 | 1: blocks of `cuMemAlloc` are pieces of larger ones |
//! | `note` | 0 | 1: calls are noted, see [`Fake::callers`] |
//! | `hang.FUNCTION` | 0 | 1: what has done its work does not return while [`Fake::tell`] says so |
//! | `fail.FUNCTION` | | `CODE@N`: from its Nth call on it answers CODE; `CODE@triggered`: while [`Fake::tell`] says so |
//!
//! Of memory of the host, `cuMemCreate` is `cuMemCreate(host)` too, and noted with its node: `cuMemCreate(host:0)`.
//!
//! It is enough for this project's drivers, and wrong in everything else.

#[cfg(not(target_os = "linux"))]
compile_error!("memfds and /proc are Linux's");

/// What every function does first: the script may have another answer, or want it to return late.
macro_rules! begin {
    ($function:literal) => {
        let _delay = $crate::script::script().delay($function);
        if let Some(code) = $crate::script::script().failure($function) {
            return code;
        }
    };
}

mod cuda;
mod fake;
mod holders;
mod links;
mod memory;
mod nvml;
mod script;
mod transfers;

pub use fake::Fake;
