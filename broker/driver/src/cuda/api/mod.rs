//! The functions of the CUDA driver, in a table of this crate.
//!
//! Types and constants are cudarc's, but not its functions. These panic if the library or a symbol is missing.
//! They also convert a code that only a newer driver returns into a Rust enum without it, which is undefined
//! behaviour. Here each function is looked up by name when the library is loaded, its result is a plain number,
//! and an error names what is missing.
//!
//! ```text
//! functions   the table, and the only place that looks up symbols
//! context     devices, primary contexts
//! physical    extents that are sent as descriptors, and mappings of them
//! block       memory with a legacy handle
//! host        host memory mapped in this process
//! registered  memory of this process that the driver has pinned
//! copy        streams, events
//! ```
//!
//! Nothing here calls a function that synchronises a device or a context. `cuMemFree` waits for the process's
//! work by itself, so blocks are dropped by a thread of their own (`freer`); `cuMemcpy` waits for its own copy.
//! All `unsafe` calls of the CUDA driver are in this folder.

mod block;
mod context;
mod copy;
mod error;
mod functions;
mod host;
mod physical;
mod registered;

use std::{
    ffi::CStr,
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use vramd_types::Bytes;

pub use self::error::CudaError;
pub(crate) use self::{
    block::{Block, OpenBlock},
    context::{Attribute, Context, Ordinal},
    copy::{KeepAlive, Stream, Transfer, TransferKind},
    functions::chain,
    host::HostView,
    physical::{Access, Mapping, Physical},
    registered::Pinned,
};
use self::{
    error::Code,
    functions::{First, Functions, Missing},
};
use super::{ProbeError, start::probe::Version};

/// The usual name of the driver's library.
pub(crate) const LIBRARY: &str = "libcuda.so.1";

/// A loaded driver.
pub(crate) struct Api {
    functions: Functions,
    version: Version,
    /// The first error that ended a context.
    poison: OnceLock<CudaError>,
    /// Bytes of this process that are registered with the driver.
    registered: AtomicU64,
}

impl Api {
    /// Loads and initialises the driver.
    pub(crate) fn load(library: Option<&Path>) -> Result<Arc<Self>, ProbeError> {
        let path = library.map_or_else(|| PathBuf::from(LIBRARY), Path::to_owned);
        let loaded = functions::open(&path)?;
        let first = First::of(&loaded).map_err(|missing| missing.why(&path, None))?;
        first
            .init()
            .map_err(|code| ProbeError::of_init(&path, code.number(), &functions::name_of(&loaded, code)))?;
        let version = Version::of(first.version().map_err(|code| {
            ProbeError::Failed(CudaError::new("cuDriverGetVersion", code, functions::name_of(&loaded, code)))
        })?);
        let functions =
            Functions::all(loaded).map_err(|missing: Missing| missing.why(&path, Some(version)))?;
        Ok(Arc::new(Self { functions, version, poison: OnceLock::new(), registered: AtomicU64::new(0) }))
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The first error that ended a context.
    pub(crate) fn poison(&self) -> Option<&CudaError> {
        self.poison.get()
    }

    /// The memory of this process that the driver has pinned.
    pub(crate) fn registered(&self) -> Bytes {
        Bytes::new(self.registered.load(Ordering::Relaxed))
    }

    /// Checks a result, and remembers one that ends a context.
    fn check(&self, call: &'static str, code: u32) -> Result<(), CudaError> {
        let code = Code::new(code);
        if code.is_success() {
            return Ok(());
        }
        let error = CudaError::new(call, code, self.functions.name(code));
        if error.ends_context() {
            // The first one says why; later ones repeat it.
            let _ = self.poison.set(error.clone());
        }
        Err(error)
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The text that the driver wrote into a buffer.
fn text(buffer: &[u8]) -> String {
    CStr::from_bytes_until_nul(buffer)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
