//! Facts from NVML that CUDA does not have: the memory of each process on a device, and MIG instances.
//!
//! Every answer may be missing. In a container the list of processes is often empty, or has pids of another
//! namespace.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use nvml_wrapper::{Device, enums::device::UsedGpuMemory};
use vramd_types::Bytes;

use crate::cuda::api::chain;

#[derive(Debug)]
pub(crate) struct Nvml(nvml_wrapper::Nvml);

/// A MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// `MIG-…`.
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) total: Bytes,
}

impl Nvml {
    /// Opens each library once and keeps it open, so that device handles stay valid.
    pub(crate) fn open(library: Option<&Path>) -> Result<&'static Self, String> {
        static OPEN: Mutex<BTreeMap<Option<PathBuf>, &'static Nvml>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let key = library.map(Path::to_owned);
        if let Some(nvml) = open.get(&key) {
            return Ok(nvml);
        }
        let mut builder = nvml_wrapper::Nvml::builder();
        if let Some(library) = library {
            builder.lib_path(library.as_os_str());
        }
        let nvml: &'static Self = Box::leak(Box::new(Self(builder.init().map_err(|error| chain(&error))?)));
        open.insert(key, nvml);
        Ok(nvml)
    }

    /// All instances of the node, whether this process may open them or not.
    pub(crate) fn instances(&self) -> Vec<Instance> {
        const ENABLED: u32 = 1;
        let devices =
            (0..self.0.device_count().unwrap_or(0)).filter_map(|index| self.0.device_by_index(index).ok());
        let divided = devices.filter(|device| device.mig_mode().is_ok_and(|mode| mode.current == ENABLED));
        let mut found = Vec::new();
        for device in divided {
            for index in 0..device.mig_device_count().unwrap_or(0) {
                let Ok(instance) = device.mig_device_by_index(index) else { continue };
                let Ok(uuid) = instance.uuid() else { continue };
                found.push(Instance {
                    uuid,
                    name: instance.name().unwrap_or_default(),
                    total: Bytes::new(instance.memory_info().map_or(0, |memory| memory.total)),
                });
            }
        }
        found
    }

    pub(crate) fn card(&'static self, uuid: &str) -> Option<Card> {
        self.0.device_by_uuid(uuid).ok().map(Card)
    }
}

/// A device, as NVML sees it.
#[derive(Debug)]
pub(crate) struct Card(Device<'static>);

impl Card {
    /// Memory used by all processes, without the driver's own reserve.
    pub(crate) fn used(&self) -> Option<Bytes> {
        self.0.memory_info().ok().map(|memory| Bytes::new(memory.used))
    }

    /// The processes that have a context there, each with its memory, context included. Empty if NVML does not
    /// say.
    pub(crate) fn processes(&self) -> Vec<(u32, Bytes)> {
        let mut processes: BTreeMap<u32, Bytes> = BTreeMap::new();
        for process in self.0.running_compute_processes().unwrap_or_default() {
            if let UsedGpuMemory::Used(used) = process.used_gpu_memory {
                let sum = processes.entry(process.pid).or_insert(Bytes::ZERO);
                *sum = sum.saturating_add(Bytes::new(used));
            }
        }
        processes.into_iter().collect()
    }
}
