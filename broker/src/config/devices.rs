//! Turns the configuration into devices: those to simulate, and those of the driver that the broker hands out.

use std::path::Path;

use broker_core::DeviceConfig;
use broker_driver::{
    DeviceInfo,
    sim::{Effect, Fault, LinkSpeed, Operation, SimConfig},
};
use thiserror::Error;
use vramd_types::Bytes;

use super::{DeviceChoice, Disk, HostTier, Memory, Sim, SimEffect, SimOperation};

/// A configured device is not on this node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("memory.devices: this node has no device `{named}`; it has {present}")]
pub struct UnknownDevice {
    pub named: String,
    pub present: String,
}

/// The simulated node of one daemon.
#[derive(Clone, Copy, Debug)]
pub struct SimDevices<'a> {
    pub sim: &'a Sim,
    /// Distinguishes this daemon's devices from those of other daemons, and is the same after a restart.
    pub socket_dir: &'a Path,
}

impl SimDevices<'_> {
    pub fn config(&self) -> SimConfig {
        let device = |(index, device): (usize, &super::SimDevice)| DeviceInfo {
            uuid: device.uuid.clone().unwrap_or_else(|| self.uuid(index)),
            name: device.name.clone().unwrap_or_else(|| format!("Simulated GPU {index}")),
            total: device.memory,
            context: Bytes::ZERO,
        };
        let fault = |fault: &super::SimFault| Fault {
            on: match fault.on {
                SimOperation::Create => Operation::Create,
                SimOperation::CreateHost => Operation::CreateHost,
                SimOperation::CreateDisk => Operation::CreateDisk,
                SimOperation::Release => Operation::Release,
                SimOperation::Digest => Operation::Digest,
                SimOperation::Copy => Operation::Copy,
            },
            nth: fault.nth,
            count: fault.count,
            effect: match &fault.effect {
                SimEffect::OutOfMemory => Effect::OutOfMemory,
                SimEffect::Fail(message) => Effect::Fail(message.clone()),
                SimEffect::Delay(delay) => Effect::Delay(*delay),
                SimEffect::Hold(file) => Effect::Hold(file.clone()),
            },
        };
        SimConfig {
            devices: self.sim.devices.iter().enumerate().map(device).collect(),
            link: LinkSpeed {
                to_device: self.sim.link_to_device.get(),
                to_host: self.sim.link_to_host.get(),
            },
            uplink: LinkSpeed {
                to_device: self.sim.uplink_to_device.get(),
                to_host: self.sim.uplink_to_host.get(),
            },
            faults: self.sim.faults.iter().map(fault).collect(),
            platform: self.sim.platform,
            ..SimConfig::default()
        }
    }

    fn uuid(&self, index: usize) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.socket_dir.as_os_str().as_encoded_bytes());
        hasher.update(format!("\n{index}").as_bytes());
        let hex = hasher.finalize().to_hex();
        format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
    }
}

/// Chooses the configured devices of the node. They are numbered from 0 in the configuration's order.
pub fn choose(choice: &DeviceChoice, present: Vec<DeviceInfo>) -> Result<Vec<DeviceInfo>, UnknownDevice> {
    let DeviceChoice::These(named) = choice else { return Ok(present) };
    let mut chosen: Vec<DeviceInfo> = Vec::new();
    for named in named {
        let device = present
            .iter()
            .enumerate()
            .find(|(index, device)| device.uuid == *named || named.parse() == Ok(*index));
        let Some((_, device)) = device else {
            let present: Vec<_> = present.iter().map(|device| device.uuid.as_str()).collect();
            let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
            return Err(UnknownDevice { named: named.clone(), present });
        };
        if !chosen.contains(device) {
            chosen.push(device.clone());
        }
    }
    Ok(chosen)
}

/// Returns how much of a device with that many bytes the daemon may hand out.
pub fn share_of(memory: &Memory, total: Bytes) -> Bytes {
    memory.device_share.of(total).min(total).saturating_sub(memory.margin.of(total))
}

/// Describes the driver's devices for the core.
pub fn core_devices(
    memory: &Memory,
    host: HostTier,
    disk: &Disk,
    devices: &[DeviceInfo],
    makes_fixed: bool,
    maps_host: bool,
) -> Vec<DeviceConfig> {
    devices
        .iter()
        .map(|device| DeviceConfig {
            uuid: device.uuid.clone(),
            name: device.name.clone(),
            total: device.total,
            share: share_of(memory, device.total),
            host: host.each,
            maps_host,
            disk: disk.size,
            context_bytes: device.context,
            makes_fixed,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use vramd_types::Quantity;

    use super::*;

    fn present() -> Vec<DeviceInfo> {
        let sim = Sim {
            devices: vec![
                super::super::SimDevice { memory: Bytes::gib(8), name: None, uuid: Some("GPU-b".into()) },
                super::super::SimDevice { memory: Bytes::gib(4), name: Some("small".into()), uuid: None },
            ],
            ..Sim::default()
        };
        SimDevices { sim: &sim, socket_dir: Path::new("/run/vramd") }.config().devices
    }

    #[test]
    fn uuids_are_kept_over_restarts_and_differ_between_daemons() {
        let uuid = |dir, index| SimDevices { sim: &Sim::default(), socket_dir: Path::new(dir) }.uuid(index);
        assert_eq!(present()[1].uuid, uuid("/run/vramd", 1));
        assert_ne!(uuid("/run/vramd", 1), uuid("/run/vramd", 0));
        assert_ne!(uuid("/run/vramd", 1), uuid("/tmp/vramd", 1));
        let groups: Vec<usize> = uuid("/run/vramd", 0).split('-').skip(1).map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert_eq!((present()[0].name.as_str(), present()[1].name.as_str()), ("Simulated GPU 0", "small"));
    }

    #[test]
    fn devices_are_chosen_by_uuid_or_index() {
        let choose = |named: &[&str]| {
            let named = named.iter().map(|named| (*named).to_owned()).collect();
            choose(&DeviceChoice::These(named), present())
        };
        assert_eq!(super::choose(&DeviceChoice::All, present()), Ok(present()));
        assert_eq!(choose(&["1", "GPU-b", "0"]), Ok(vec![present()[1].clone(), present()[0].clone()]));
        let missing = choose(&["0", "2"]).unwrap_err();
        assert_eq!(missing.named, "2");
        assert!(missing.to_string().contains("GPU-b"), "{missing}");
    }

    #[test]
    fn the_margin_is_taken_from_the_share() {
        let memory = Memory {
            device_share: Quantity::Percent(50),
            margin: Quantity::Bytes(Bytes::gib(1)),
            ..Memory::default()
        };
        let shares: Vec<_> =
            core_devices(&memory, HostTier::NONE, &Disk::default(), &present(), false, false)
                .iter()
                .map(|device| device.share)
                .collect();
        assert_eq!(shares, [Bytes::gib(3), Bytes::gib(1)]);
        let memory = Memory { device_share: Quantity::Bytes(Bytes::gib(100)), ..memory };
        assert_eq!(
            core_devices(&memory, HostTier::NONE, &Disk::default(), &present(), false, false)[1].share,
            Bytes::gib(3)
        );
    }
}
