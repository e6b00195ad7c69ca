//! NVML's figures, as `nvidia-smi` prints them, in bytes: the outside witness.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory};
use serde_json::{Value, json};

/// How long the driver may take to tear down a dead process's context and to scrub its memory.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Witness {
    nvml: Nvml,
}

impl Witness {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { nvml: Nvml::init().context("NVML")? })
    }

    pub(crate) fn driver_version(&self) -> Result<String> {
        Ok(self.nvml.sys_driver_version()?)
    }

    pub(crate) fn uuids(&self) -> Result<Vec<String>> {
        (0..self.nvml.device_count()?).map(|index| Ok(self.nvml.device_by_index(index)?.uuid()?)).collect()
    }

    pub(crate) fn name(&self, uuid: &str) -> Result<String> {
        Ok(self.nvml.device_by_uuid(uuid)?.name()?)
    }

    /// Returns the memory in use on a device.
    pub(crate) fn used(&self, uuid: &str) -> Result<u64> {
        Ok(self.nvml.device_by_uuid(uuid)?.memory_info()?.used)
    }

    /// Waits until the memory in use is at most `expected`, or the patience ends. Returns the memory in use then.
    pub(crate) fn used_once_down_to(&self, uuid: &str, expected: u64) -> Result<u64> {
        let end = Instant::now() + PATIENCE;
        loop {
            let used = self.used(uuid)?;
            if used <= expected || Instant::now() > end {
                return Ok(used);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the bytes that NVML charges to a process, or `None` if it does not list the process.
    pub(crate) fn of_process(&self, uuid: &str, pid: u32) -> Result<Option<u64>> {
        let processes = self.nvml.device_by_uuid(uuid)?.running_compute_processes()?;
        Ok(processes.iter().find(|process| process.pid == pid).and_then(|process| {
            match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            }
        }))
    }

    /// Returns all figures, for the report.
    pub(crate) fn figures(&self, uuid: &str) -> Result<Value> {
        let device = self.nvml.device_by_uuid(uuid)?;
        let memory = device.memory_info()?;
        let processes = device.running_compute_processes()?.into_iter().map(|process| {
            let used = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            json!({ "pid": process.pid, "used_bytes": used })
        });
        Ok(json!({
            "total_bytes": memory.total, "used_bytes": memory.used, "free_bytes": memory.free,
            "processes": processes.collect::<Vec<_>>(),
        }))
    }
}
