//! A CUDA driver and NVML without a GPU, for tests.
//!
//! This library is loaded instead of `libcuda.so.1` and `libnvidia-ml.so.1`. Device memory is memfds. Other
//! processes export, import and map them like CUDA memory. They live while any process maps them or holds their
//! descriptor, and a survey of `/proc` counts them. A script beside the library, `NAME.script`, sets what a
//! test may not do to a card: compute modes, MIG instances, old drivers, errors. It has one `key = value` on
//! each line:
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `node` | `fake` | names the memory: one node for each test |
//! | `devices`, `memory_mib`, `context_mib` | 1, 1024, 8 | |
//! | `host_mib` | 1024 | how much host memory can be pinned |
//! | `register_mib` | 1 TiB | how much of the process's memory can be registered |
//! | `version` | 13000 | |
//! | `init` | 0 | the result of `cuInit` |
//! | `compute_mode` | 0 | |
//! | `mig` | 0 | instances that device 0 is divided in; CUDA shows the first |
//! | `dirty` | 0 | 1: fresh memory is not zero |
//! | `lists` | 1 | 0: NVML lists no processes |
//! | `attribute.N`, `attribute.N.DEVICE` | 1 | 134, the nearest node of the host: 0; 18, 88, 100, 101, of coherent devices: 0 |
//! | `carries` | | MiB a second of each direction of a device; without it copies take no time |
//! | `held` | 0 | 1: with `carries`, copies go no further while [`Fake::trigger`] is on |
//! | `still` | 0 | 1: copies between devices and the host leave all bytes in place |
//! | `link.N` | | `DIRECTIONS DEVICES @ MIB`, as `in 0 1 @ 300`: a shared link of that speed, `in`, `out` or `both`; N from 0 on |
//! | `cut` | 0 | 1: blocks of `cuMemAlloc` are pieces of larger ones |
//! | `tables_mib` | 0 | page tables, from the first `cuMemRelease` on that is called while [`Fake::trigger`] is on |
//! | `note` | 0 | 1: calls are noted, see [`Fake::threads_calling`] |
//! | `hang.FUNCTION` | 0 | 1: after its work the function does not return while [`Fake::trigger`] is on |
//! | `fail.FUNCTION` | | `CODE@N`: from its Nth call on the function returns CODE; `CODE@triggered`: while [`Fake::trigger`] is on |
//!
//! For host memory `cuMemCreate` is also `cuMemCreate(host)`, and is noted with its node:
//! `cuMemCreate(host:0)`.
//!
//! It suffices for this project's drivers, and is wrong in everything else.

#[cfg(not(target_os = "linux"))]
compile_error!("memfds and /proc are Linux's");

/// First step of every function: the script may set another result, or a late return.
macro_rules! begin {
    ($function:literal) => {
        let _delay = $crate::script::script().delay($function);
        if let Some(code) = $crate::script::script().failure($function) {
            return code;
        }
    };
}

mod cuda;
mod echo;
mod fake;
mod holders;
mod links;
mod managed;
mod memory;
mod nvml;
mod programs;
mod script;
mod transfers;

pub use fake::Fake;
