//! Code that developer tools, tests and benchmarks share. It depends on no other crate of the project, so that the simulator and the
//! benchmark of the core build without the daemon.

pub mod filter;
mod page;
mod provenance;

pub use page::Page;
pub use provenance::{machine, output_of};

/// Returns the root of the checkout in which this crate was built.
pub fn repository() -> std::path::PathBuf {
    std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}
