//! The native half of the Python package `vramd`: Python classes over the Rust SDK.
//!
//! The other half, in `python/vramd`, has the parts that are simpler in Python: the tree of errors, names, types.
//!
//! Three rules keep an interpreter whole:
//! - **No wait holds the GIL.** Calls, copies and locks that may block run detached (`interrupt.rs`: Ctrl-C ends them).
//! - **No lock is held while Python runs**, so that its holder always finishes.
//! - **A view keeps its memory.** A buffer, capsule, tensor or pin that Python holds is a `View`: as long as one lives the
//!   memory stays mapped, and is neither sealed nor freed, even if its Python object is gone.

use pyo3::prelude::*;

mod allocation;
mod allocator;
mod arguments;
mod buffer;
mod client;
mod copy;
mod dlpack;
mod dtype;
mod error;
mod held;
mod info;
mod interrupt;
mod mapped_file;
mod memory;
mod pin;
mod pin_set;
mod prefetch;
mod pressure_stream;
mod reasons;
mod scope;
mod sealed;
mod sequence;
mod shared;
mod staging;
mod tensor;
mod turns;
mod view;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(client::connect, module)?)?;
    module.add_function(wrap_pyfunction!(client::socket_dir, module)?)?;
    module.add_function(wrap_pyfunction!(reasons::reasons, module)?)?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Away>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<allocation::Allocation>()?;
    module.add_class::<sealed::Sealed>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<mapped_file::FileCheck>()?;
    module.add_class::<mapped_file::MappedFile>()?;
    module.add_class::<mapped_file::NotInPlace>()?;
    module.add_class::<pin::Pin>()?;
    module.add_class::<pin_set::PinSet>()?;
    module.add_class::<prefetch::Prefetch>()?;
    module.add_class::<sequence::Sequence>()?;
    module.add_class::<turns::WorkingSet>()?;
    module.add_class::<turns::Turn>()?;
    module.add_class::<staging::StagingBuffer>()?;
    module.add_class::<info::AdvisedParts>()?;
    module.add_class::<info::AllocationInfo>()?;
    module.add_class::<info::Device>()?;
    module.add_class::<info::Released>()?;
    module.add_class::<info::Pressure>()?;
    module.add_class::<info::OwnQuota>()?;
    module.add_class::<pressure_stream::PressureStream>()?;
    module.add_class::<allocator::PoolObject>()?;
    module.add_class::<allocator::ManagedPoolObject>()?;
    module.add_class::<allocator::SignalWatch>()?;
    module.add_class::<interrupt::Interrupt>()?;
    module.add_class::<scope::Scope>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
