//! The native half of the Python package `vramd`: the Rust SDK in Python's words.
//!
//! The other half, in `python/vramd`, has what is better said in Python: the tree of errors, names, types.
//!
//! Three rules keep an interpreter whole:
//! - **Nobody waits with the GIL.** Whatever may block (a call, a copy, a lock) runs detached.
//! - **Under a lock nobody touches Python**, so that who holds it always gets done.
//! - **Who looks keeps.** A buffer, capsule, tensor or pin that Python holds is a `View`: as long as one lives the
//!   memory stays mapped, and is neither sealed nor freed, whatever became of the object that it was taken of.

use pyo3::prelude::*;

mod allocation;
mod arguments;
mod buffer;
mod client;
mod copy;
mod dlpack;
mod dtype;
mod error;
mod info;
mod memory;
mod pin;
mod pin_set;
mod pressure_stream;
mod reasons;
mod sealed;
mod shared;
mod tensor;
mod view;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(client::connect, module)?)?;
    module.add_function(wrap_pyfunction!(client::socket_dir, module)?)?;
    module.add_function(wrap_pyfunction!(reasons::reasons, module)?)?;
    module.add_class::<client::Client>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<allocation::Allocation>()?;
    module.add_class::<sealed::Sealed>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<pin::Pin>()?;
    module.add_class::<pin_set::PinSet>()?;
    module.add_class::<info::AllocationInfo>()?;
    module.add_class::<info::Device>()?;
    module.add_class::<info::Released>()?;
    module.add_class::<info::Pressure>()?;
    module.add_class::<pressure_stream::PressureStream>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
