//! The machine of a run. Figures mean nothing without it.

use std::{fs, thread};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{cuda, nvml::Witness};

pub(crate) fn facts(witness: &Witness) -> Result<Value> {
    let gpus = witness.uuids()?;
    let names = gpus.iter().map(|uuid| witness.name(uuid)).collect::<Result<Vec<_>>>()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(json!({
        "gpus": names,
        "driver": witness.driver_version()?,
        "cuda_driver_api": cuda::driver_version()?,
        "kernel": kernel.trim(),
        "cores": thread::available_parallelism()?.get(),
    }))
}
