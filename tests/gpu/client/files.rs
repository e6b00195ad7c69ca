//! Files that a client has its device read in place, or copies where the device cannot.

use anyhow::Result;
use serde_json::{Value, json};
use vramd_client::{AllocationRequest, Client, LoadedFile};

use crate::cuda::Gpu;

/// Loads a whole file for the device to read in place, and has a kernel read all of it.
pub(super) fn read(client: &Client, gpu: &Gpu, path: &str) -> Result<Value> {
    let loaded = client.load_in_place(path, AllocationRequest::whole_file())?;
    let (address, bytes, reason) = match &loaded {
        LoadedFile::Mapped(file) => (file.as_device_ptr(), file.size().get(), None),
        LoadedFile::Copied(sealed, why) => {
            (sealed.as_device_ptr(), sealed.info().size.get(), Some(why.reason.name()))
        }
    };
    let used: u64 = client.quota()?.iter().map(|place| place.used.get()).sum();
    let sum = gpu.sum(address, bytes)?;
    drop(loaded);
    client.flush()?;
    Ok(json!({ "copied_because": reason, "bytes": bytes, "charged": used, "sum": sum }))
}
