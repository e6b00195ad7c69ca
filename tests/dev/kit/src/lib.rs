//! What the developer tools, the tests and the benchmarks share. It depends on nothing of the project, so that the simulator and
//! the benchmark of the core are built without the daemon.

pub mod filter;
mod page;
mod provenance;

pub use page::Page;
pub use provenance::{machine, said_by};

/// The root of the checkout that this was built in.
pub fn repository() -> std::path::PathBuf {
    std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}
