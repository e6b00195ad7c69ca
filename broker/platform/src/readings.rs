//! The readings of a node: facts, without any judgement.
//!
//! A reading that could not be had is `None` or left out. Names follow the source: attributes of a device have
//! CUDA's names, parameters those of the kernel module.

use serde::{Deserialize, Serialize};

use crate::Platform;

/// Grows when a reading is removed or changes its meaning.
pub const VERSION: u32 = 1;

/// Everything that is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Readings {
    pub version: u32,
    /// Where the readings come from, for people.
    pub source: String,
    #[serde(default)]
    pub arch: String,
    #[serde(default)]
    pub kernel: String,
    #[serde(default)]
    pub memory: MemoryReadings,
    /// In the kernel's order.
    #[serde(default)]
    pub numa_nodes: Vec<NumaNode>,
    #[serde(default)]
    pub nvidia: NvidiaReadings,
    /// As the driver shows them. `None` if no driver was asked.
    #[serde(default)]
    pub devices: Option<Vec<DeviceReadings>>,
    /// The process that runs the daemon, or would.
    #[serde(default)]
    pub process: ProcessReadings,
    /// `vm.max_map_count`.
    #[serde(default)]
    pub max_map_count: Option<u64>,
    /// The choices of a running daemon, if one answered.
    #[serde(default)]
    pub daemon: Option<DaemonReadings>,
}

/// `/proc/meminfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryReadings {
    pub total_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
}

/// One NUMA node of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    pub id: u32,
    /// A list like `0-71`; empty for a node without CPUs.
    pub cpus: String,
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl NumaNode {
    /// Whether it has memory and no CPU, like the memory of a coherent GPU.
    pub fn is_device_memory(&self) -> bool {
        self.cpus.is_empty() && self.total_bytes > 0
    }

    /// The node for the host memory of a device: the nearest one, unless it has no CPU. The memory of a coherent GPU is
    /// such a node, and host memory must not lie there. Then it is the first node with CPUs.
    pub fn for_host_memory(nearest: u32, nodes: &[Self]) -> u32 {
        let first_with_cpus = || nodes.iter().find(|node| !node.cpus.is_empty());
        match nodes.iter().find(|node| node.id == nearest) {
            Some(found) if found.cpus.is_empty() => first_with_cpus().map_or(nearest, |node| node.id),
            _ => nearest,
        }
    }
}

/// NVIDIA's kernel module, and the devices that it or the PCI bus shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvidiaReadings {
    #[serde(default)]
    pub driver_version: Option<String>,
    /// Whether it is the open kernel module.
    #[serde(default)]
    pub open_module: Option<bool>,
    /// `CoherentGPUMemoryMode` of `/proc/driver/nvidia/params`.
    #[serde(default)]
    pub coherent_gpu_memory_mode: Option<String>,
    /// `uvm_disable_hmm` of the module `nvidia_uvm`.
    #[serde(default)]
    pub uvm_disable_hmm: Option<bool>,
    /// The models of `/proc/driver/nvidia/gpus`.
    #[serde(default)]
    pub models: Vec<String>,
    /// NVIDIA's display controllers on the PCI bus.
    #[serde(default)]
    pub pci_devices: Vec<String>,
}

/// One device as the driver shows it. An attribute that the driver does not know is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceReadings {
    pub uuid: String,
    pub name: String,
    pub total_bytes: u64,
    #[serde(default)]
    pub integrated: Option<bool>,
    #[serde(default)]
    pub pageable_memory_access: Option<bool>,
    #[serde(default)]
    pub pageable_memory_access_uses_host_page_tables: Option<bool>,
    #[serde(default)]
    pub concurrent_managed_access: Option<bool>,
    #[serde(default)]
    pub direct_managed_mem_access_from_host: Option<bool>,
    #[serde(default)]
    pub host_register_supported: Option<bool>,
    #[serde(default)]
    pub read_only_host_register_supported: Option<bool>,
    /// The host node whose memory is nearest.
    #[serde(default)]
    pub host_numa_id: Option<u32>,
    /// `Addressing Mode` of `nvidia-smi -q`: `None`, `HMM` or `ATS`.
    #[serde(default)]
    pub addressing_mode: Option<String>,
    /// The platform that a simulated device plays.
    #[serde(default)]
    pub simulated: Option<Platform>,
}

/// A process's limits and surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessReadings {
    /// Its name, like `vramd`.
    #[serde(default)]
    pub program: String,
    #[serde(default)]
    pub open_files_soft: Option<u64>,
    #[serde(default)]
    pub open_files_hard: Option<u64>,
    /// RLIMIT_MEMLOCK; `None` means no limit.
    #[serde(default)]
    pub locked_memory_bytes: Option<u64>,
    /// Whether it has CAP_IPC_LOCK, which lifts that limit.
    #[serde(default)]
    pub may_lock_all: bool,
    #[serde(default)]
    pub cgroup: Option<String>,
    /// The lowest `memory.max` of its cgroup and those above; `None` means no limit.
    #[serde(default)]
    pub cgroup_memory_bytes: Option<u64>,
    /// The least that any of them has left.
    #[serde(default)]
    pub cgroup_memory_left_bytes: Option<u64>,
    /// Kinds of namespaces that are not the host's: `cgroup`, `ipc`, `pid`, `user`.
    #[serde(default)]
    pub own_namespaces: Vec<String>,
}

/// The choices of a running daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DaemonReadings {
    pub version: String,
    /// `sim` or `cuda`.
    pub driver: String,
    pub driver_reason: String,
    /// Bytes that the daemon hands out of each device, in the order of `devices`.
    pub device_bytes: Vec<u64>,
    /// The host tier of each device.
    pub host_bytes: u64,
    /// Why it has that size: one sentence.
    pub host_reason: String,
    /// Whether the daemon pins it from its start; otherwise with use.
    pub host_pinned_from_start: bool,
    /// Whether the driver pins it in the daemon's name, so that RLIMIT_MEMLOCK counts.
    pub host_locked_by_daemon: bool,
    /// The disk tier of each device.
    pub disk_bytes: u64,
    /// Parts that one client may have mapped.
    pub words_per_session_max: u64,
    /// Extents that the limit of open files allows.
    pub extents_max: u64,
    /// Files that clients copied to a device instead of reading them in place, since the start.
    #[serde(default)]
    pub fall_backs: Vec<FallBackReadings>,
}

/// Copies for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FallBackReadings {
    /// Its name in metrics, like `file_mutable`.
    pub reason: String,
    /// The reason in words, with the remedy.
    pub meaning: String,
    pub loads: u64,
    pub copied_bytes: u64,
}

impl DeviceReadings {
    /// A simulated device, with the attributes of its platform.
    pub fn simulated(uuid: String, name: String, total_bytes: u64, platform: Platform) -> Self {
        let is = |platforms: &[Platform]| Some(platforms.contains(&platform));
        let coherent = [Platform::CoherentNuma, Platform::CoherentCdmm, Platform::OnePool];
        Self {
            uuid,
            name,
            total_bytes,
            integrated: is(&[Platform::OnePool]),
            pageable_memory_access: Some(coherent.contains(&platform) || platform == Platform::Hmm),
            pageable_memory_access_uses_host_page_tables: is(&coherent),
            concurrent_managed_access: Some(true),
            direct_managed_mem_access_from_host: is(&coherent),
            host_register_supported: Some(true),
            read_only_host_register_supported: Some(true),
            host_numa_id: Some(0),
            addressing_mode: None,
            simulated: Some(platform),
        }
    }
}

/// The nodes that simulated devices play: in NUMA mode the memory of each device is one, and the last has the CPUs.
/// Elsewhere they play none.
pub fn simulated_nodes(devices: &[DeviceReadings]) -> Vec<NumaNode> {
    let with_memory = devices.iter().filter(|device| device.simulated == Some(Platform::CoherentNuma));
    let mut nodes: Vec<NumaNode> = (0..)
        .zip(with_memory)
        .map(|(id, DeviceReadings { total_bytes, .. })| NumaNode {
            id,
            cpus: String::new(),
            total_bytes: *total_bytes,
            free_bytes: *total_bytes,
        })
        .collect();
    if let Some(last) = nodes.last() {
        nodes.push(NumaNode { id: last.id + 1, cpus: "0".to_owned(), ..NumaNode::default() });
    }
    nodes
}

impl Readings {
    /// Parses what [`to_json`](Self::to_json) has written.
    pub fn from_json(text: &str) -> Result<Self, String> {
        /// Only the version, which says whether the rest can be read.
        #[derive(Deserialize)]
        struct Header {
            version: u32,
        }
        let header: Header = serde_json::from_str(text)
            .map_err(|error| format!("these are no readings of a node: {error}"))?;
        if header.version != VERSION {
            return Err(format!("the readings have version {}, and only {VERSION} is known", header.version));
        }
        serde_json::from_str(text).map_err(|error| format!("a reading is wrong: {error}"))
    }

    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The NUMA nodes beside the devices: those that simulated devices play, or those of the kernel.
    pub fn nodes_of_devices(&self) -> Vec<NumaNode> {
        let devices = self.devices.as_deref().unwrap_or_default();
        if devices.iter().any(|device| device.simulated.is_some()) {
            return simulated_nodes(devices);
        }
        self.numa_nodes.clone()
    }

    /// NUMA nodes of the kernel with memory and without CPUs.
    pub fn device_memory_nodes(&self) -> impl Iterator<Item = &NumaNode> {
        self.numa_nodes.iter().filter(|node| node.is_device_memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(cpus: &[&str]) -> Vec<NumaNode> {
        let node = |(id, cpus): (u32, &&str)| NumaNode {
            id,
            cpus: (*cpus).to_owned(),
            total_bytes: 1,
            ..NumaNode::default()
        };
        (0..).zip(cpus).map(node).collect()
    }

    #[test]
    fn host_memory_lies_on_a_node_with_cpus() {
        let of = |nearest, cpus: &[&str]| NumaNode::for_host_memory(nearest, &nodes(cpus));
        assert_eq!(of(1, &[]), 1, "the kernel shows no nodes");
        assert_eq!(of(2, &["", "0-71", ""]), 1);
        assert_eq!(of(1, &["0-71", "72-143", ""]), 1);
        assert_eq!(of(2, &["0-71", "72-143", ""]), 0);
        assert_eq!(of(7, &["", "0-71", ""]), 7, "an unknown node is left to the driver");
        assert_eq!(of(0, &["", ""]), 0);
    }

    #[test]
    fn only_numa_mode_has_nodes_that_are_simulated() {
        let two = |platform| {
            let device = |bytes| DeviceReadings::simulated(String::new(), String::new(), bytes, platform);
            simulated_nodes(&[device(5), device(6)])
        };
        assert_eq!(two(Platform::CoherentCdmm), []);
        let nodes = two(Platform::CoherentNuma);
        let memory: Vec<_> = nodes.iter().filter(|node| node.is_device_memory()).collect();
        assert_eq!(memory.iter().map(|node| node.total_bytes).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(NumaNode::for_host_memory(0, &nodes), 2);
    }

    #[test]
    fn readings_survive_a_file() {
        let readings = Readings {
            version: VERSION,
            devices: Some(vec![DeviceReadings::simulated("GPU-1".into(), "one".into(), 1, Platform::Hmm)]),
            ..Readings::default()
        };
        assert_eq!(Readings::from_json(&readings.to_json()), Ok(readings));
    }

    #[test]
    fn wrong_files_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "these are no readings"),
            ("{}", "missing field `version`"),
            ("{\"version\": 9, \"news\": 1}", "version 9, and only 1 is known"),
            ("{\"version\": 1, \"source\": \"x\", \"arhc\": \"\"}", "unknown field `arhc`"),
            ("{\"version\": 1}", "missing field `source`"),
        ] {
            let said = Readings::from_json(text).unwrap_err();
            assert!(said.contains(reason), "{text}: {said}");
        }
    }
}
