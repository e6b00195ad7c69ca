//! Tells the platform of a node from its readings.
//!
//! The attributes of a device are certain. Without a driver the kernel's files are all there is: they tell a GPU from
//! none and a NUMA node of a GPU from none, but not whether a discrete GPU has HMM.

use std::fmt;

use serde::{Deserialize, Serialize};
use vramd_types::Bytes;

use crate::readings::{DeviceReadings, NumaNode, Readings};

/// How device memory and host memory of a node belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    NoGpu,
    /// On PCIe: device and host are apart.
    #[default]
    Discrete,
    /// Discrete, and the device reaches pageable host memory through the kernel's HMM.
    Hmm,
    /// Coherent, and the kernel manages the device's memory as a NUMA node.
    CoherentNuma,
    /// Coherent, and the driver manages the device's memory.
    CoherentCdmm,
    /// Device and host are the same memory.
    OnePool,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGpu => "no GPU",
            Self::Discrete => "discrete GPU",
            Self::Hmm => "discrete GPU with HMM",
            Self::CoherentNuma => "coherent GPU in NUMA mode",
            Self::CoherentCdmm => "coherent GPU in CDMM mode",
            Self::OnePool => "one pool of device and host memory",
        })
    }
}

/// How sure the platform is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// The driver's attributes say so.
    Certain,
    /// The kernel's files suggest it. Only the driver knows.
    Likely,
    /// A simulated device plays it.
    Simulated,
}

/// The platform of a node, and the readings that tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detected {
    pub platform: Platform,
    pub certainty: Certainty,
    /// One reading each.
    pub because: Vec<String>,
    /// Devices of another platform, with it.
    pub others: Vec<(String, Platform)>,
    /// If the devices are simulated: the platform that the kernel shows for the node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Platform>,
}

/// Models whose device and host memory is one, as far as the kernel module names them.
const ONE_POOL_MODELS: [&str; 4] = ["GB10", "Thor", "Orin", "Xavier"];

/// Tells the platform of the node.
pub fn platform(readings: &Readings) -> Detected {
    match readings.devices.as_deref() {
        Some(devices) if devices.iter().any(has_attributes) => by_devices(readings, devices),
        _ => by_kernel(readings),
    }
}

fn has_attributes(device: &DeviceReadings) -> bool {
    device.simulated.is_some()
        || device.integrated.is_some()
        || device.pageable_memory_access.is_some()
        || device.addressing_mode.is_some()
}

/// The platform of the most tightly coupled device, since that decides what the host must respect.
fn by_devices(readings: &Readings, devices: &[DeviceReadings]) -> Detected {
    let each: Vec<(&DeviceReadings, Platform)> =
        devices.iter().map(|device| (device, of_device(readings, device))).collect();
    let platform = each.iter().map(|(_, platform)| *platform).max().unwrap_or_default();
    let deciding: Vec<&DeviceReadings> =
        each.iter().filter(|(_, its)| *its == platform).map(|(device, _)| *device).collect();
    let others = each.iter().filter(|(_, its)| *its != platform);
    let others = others.map(|(device, its)| (device.uuid.clone(), *its)).collect();
    let mut because = deciding.first().map(|device| attributes_of(device)).unwrap_or_default();
    if platform == Platform::CoherentNuma || platform == Platform::CoherentCdmm {
        because.extend(mode_of(readings));
        because.push(nodes_of(&readings.nodes_of_devices()));
    }
    let is_simulated = deciding.iter().any(|device| device.simulated.is_some());
    let certainty = if is_simulated { Certainty::Simulated } else { Certainty::Certain };
    let node = is_simulated.then(|| {
        let node = by_kernel(readings);
        because.extend(node.because);
        node.platform
    });
    Detected { platform, certainty, because, others, node }
}

fn of_device(readings: &Readings, device: &DeviceReadings) -> Platform {
    if let Some(platform) = device.simulated {
        return platform;
    }
    let mode = device.addressing_mode.as_deref();
    if device.integrated == Some(true) {
        Platform::OnePool
    } else if device.pageable_memory_access_uses_host_page_tables == Some(true) || mode == Some("ATS") {
        if is_cdmm(readings) { Platform::CoherentCdmm } else { Platform::CoherentNuma }
    } else if device.pageable_memory_access == Some(true) || mode == Some("HMM") {
        Platform::Hmm
    } else {
        Platform::Discrete
    }
}

/// Whether the driver keeps coherent memory to itself. The parameter decides; without it the kernel's nodes do.
fn is_cdmm(readings: &Readings) -> bool {
    match readings.nvidia.coherent_gpu_memory_mode.as_deref() {
        Some("driver") => true,
        Some("numa") => false,
        _ => readings.device_memory_nodes().next().is_none(),
    }
}

fn by_kernel(readings: &Readings) -> Detected {
    let nvidia = &readings.nvidia;
    let found = |platform, because| Detected {
        platform,
        certainty: Certainty::Likely,
        because,
        others: Vec::new(),
        node: None,
    };
    if nvidia.models.is_empty() && nvidia.pci_devices.is_empty() {
        let because = "neither NVIDIA's kernel module nor the PCI bus shows a GPU".to_owned();
        return found(Platform::NoGpu, vec![because]);
    }
    let mut because: Vec<String> = nvidia.models.iter().map(|model| format!("model = {model}")).collect();
    because.dedup();
    if nvidia.models.is_empty() {
        because.extend(nvidia.pci_devices.iter().map(|device| format!("PCI device {device}")));
    }
    let is_one_pool = |model: &String| ONE_POOL_MODELS.iter().any(|name| model.contains(name));
    if nvidia.models.iter().any(is_one_pool) {
        return found(Platform::OnePool, because);
    }
    if nvidia.coherent_gpu_memory_mode.as_deref() == Some("driver") {
        because.extend(mode_of(readings));
        return found(Platform::CoherentCdmm, because);
    }
    if readings.device_memory_nodes().next().is_some() {
        because.extend(mode_of(readings));
        because.push(nodes_of(&readings.numa_nodes));
        return found(Platform::CoherentNuma, because);
    }
    because.push("no NUMA node has memory without CPUs".to_owned());
    found(Platform::Discrete, because)
}

fn attributes_of(device: &DeviceReadings) -> Vec<String> {
    let value = |name: &str, value: Option<bool>| value.map(|is| format!("{name} = {}", u8::from(is)));
    let mut all = vec![format!("device {} {}", device.uuid, device.name).trim_end().to_owned()];
    if let Some(platform) = device.simulated {
        all.push(format!("driver.sim.platform plays a {platform}"));
        return all;
    }
    all.extend(
        [
            value("INTEGRATED", device.integrated),
            value("PAGEABLE_MEMORY_ACCESS", device.pageable_memory_access),
            value(
                "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
                device.pageable_memory_access_uses_host_page_tables,
            ),
            device.addressing_mode.as_ref().map(|mode| format!("Addressing Mode = {mode}")),
        ]
        .into_iter()
        .flatten(),
    );
    all
}

fn mode_of(readings: &Readings) -> Option<String> {
    let mode = readings.nvidia.coherent_gpu_memory_mode.as_ref()?;
    Some(format!("CoherentGPUMemoryMode = \"{mode}\""))
}

fn nodes_of(nodes: &[NumaNode]) -> String {
    let nodes: Vec<String> = nodes
        .iter()
        .filter(|node| node.is_device_memory())
        .map(|node| format!("NUMA node {} has {} and no CPU", node.id, Bytes::new(node.total_bytes)))
        .collect();
    if nodes.is_empty() { "no NUMA node has memory without CPUs".to_owned() } else { nodes.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(integrated: bool, pageable: bool, host_tables: bool) -> DeviceReadings {
        DeviceReadings {
            uuid: "GPU-1".to_owned(),
            integrated: Some(integrated),
            pageable_memory_access: Some(pageable),
            pageable_memory_access_uses_host_page_tables: Some(host_tables),
            ..DeviceReadings::default()
        }
    }

    fn node(devices: Vec<DeviceReadings>) -> Readings {
        Readings { devices: Some(devices), ..Readings::default() }
    }

    fn gpu_memory() -> NumaNode {
        NumaNode { id: 1, total_bytes: 96 << 30, ..NumaNode::default() }
    }

    #[test]
    fn attributes_decide_where_there_are_any() {
        let is = |readings: &Readings| platform(readings).platform;
        assert_eq!(is(&node(vec![device(false, false, false)])), Platform::Discrete);
        assert_eq!(is(&node(vec![device(false, true, false)])), Platform::Hmm);
        assert_eq!(is(&node(vec![device(true, true, true)])), Platform::OnePool);
        let mut coherent = node(vec![device(false, true, true)]);
        assert_eq!(is(&coherent), Platform::CoherentCdmm, "no node of the kernel has its memory");
        coherent.numa_nodes = vec![gpu_memory()];
        assert_eq!(is(&coherent), Platform::CoherentNuma);
        coherent.nvidia.coherent_gpu_memory_mode = Some("driver".to_owned());
        assert_eq!(is(&coherent), Platform::CoherentCdmm, "the parameter decides");
        coherent.nvidia.models = vec!["NVIDIA GB10".to_owned()];
        assert_eq!(is(&coherent), Platform::CoherentCdmm, "and a name does not");
    }

    #[test]
    fn a_device_of_another_platform_is_named() {
        let detected = platform(&node(vec![device(false, false, false), device(false, true, true)]));
        assert_eq!(detected.platform, Platform::CoherentCdmm);
        assert_eq!(detected.others, [("GPU-1".to_owned(), Platform::Discrete)]);
    }

    #[test]
    fn the_kernel_alone_gives_a_likely_platform() {
        let is = |change: &dyn Fn(&mut Readings)| {
            let mut readings = Readings::default();
            change(&mut readings);
            let detected = platform(&readings);
            assert_eq!(detected.certainty, Certainty::Likely);
            detected.platform
        };
        assert_eq!(is(&|_| {}), Platform::NoGpu);
        assert_eq!(is(&|it| it.devices = Some(Vec::new())), Platform::NoGpu, "the driver shows none");
        assert_eq!(is(&|it| it.nvidia.pci_devices = vec!["0000:01:00.0".to_owned()]), Platform::Discrete);
        assert_eq!(is(&|it| it.nvidia.models = vec!["NVIDIA GB10".to_owned()]), Platform::OnePool);
        let gh200 = |it: &mut Readings| it.nvidia.models = vec!["NVIDIA GH200 480GB".to_owned()];
        let numa = |it: &mut Readings| {
            gh200(it);
            it.numa_nodes = vec![gpu_memory()];
        };
        assert_eq!(is(&numa), Platform::CoherentNuma);
        let cdmm = |it: &mut Readings| {
            gh200(it);
            it.nvidia.coherent_gpu_memory_mode = Some("driver".to_owned());
        };
        assert_eq!(is(&cdmm), Platform::CoherentCdmm);
        let memory_expander = |it: &mut Readings| it.numa_nodes = vec![gpu_memory()];
        assert_eq!(is(&memory_expander), Platform::NoGpu, "other memory has no CPUs either");
    }
}
