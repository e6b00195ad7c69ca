//! `vramctl status`: the node, its devices, its tenants and their allocations on one page.

use serde_json::json;
use vramd_client::admin::AdminClient;
use vramd_proto::v1;

use super::{alloc, device, node, quota};
use crate::output::{Output, device_names::DeviceNames, failure::Failure};

pub(crate) fn run(admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    let node = admin.node()?;
    let devices = admin.devices()?;
    let quotas = admin.quotas(None)?;
    let allocations = admin.allocations(None)?;
    let names = device::names(&devices, quotas.iter().map(|quota| quota.device.as_str()), output);
    let fields = json!({
        "node": node::to_json(&node),
        "devices": devices.iter().map(device::to_json).collect::<Vec<_>>(),
        "quotas": quotas.iter().map(quota::to_json).collect::<Vec<_>>(),
        "allocations": allocations.iter().map(alloc::to_json).collect::<Vec<_>>(),
    });
    let tables = || tables(&devices, &quotas, &allocations, &names, output.has_uuids());
    output.show(|| format!("{}\n\n{}", node::heading(&node), tables()), fields)
}

fn tables(
    devices: &[v1::DeviceStatus],
    quotas: &[v1::Quota],
    allocations: &[v1::Allocation],
    names: &DeviceNames,
    has_uuids: bool,
) -> String {
    format!(
        "DEVICES\n{}\n\nTENANTS\n{}\n\nALLOCATIONS\n{}",
        device::rows(devices, has_uuids),
        quota::rows(quotas, names),
        alloc::rows(allocations)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::table::WIDTH_MAX;

    const GIB: u64 = 1 << 30;

    /// Eight cards with the longest name of their kind; `bytes` is every size of them.
    fn devices(bytes: u64) -> Vec<v1::DeviceStatus> {
        let device = |index| v1::DeviceStatus {
            device: Some(v1::Device {
                uuid: format!("GPU-{index}7f4a1c2-93be-4d21-a0c5-6f1e2d3c4b5a"),
                index,
                name: "NVIDIA H100 80GB HBM3".to_owned(),
                ..Default::default()
            }),
            total_bytes: 79 * GIB + (GIB / 3),
            capacity_bytes: 78 * GIB + (GIB / 3),
            held_bytes: bytes,
            cached_bytes: bytes,
            unreturned_bytes: bytes,
            unbrokered_bytes: bytes,
            committed_bytes: bytes,
            shortfall_bytes: bytes,
            host_capacity_bytes: bytes,
            host_held_bytes: bytes,
            disk_capacity_bytes: bytes,
            disk_held_bytes: bytes,
            pressure: v1::PressureLevel::Critical.into(),
            host_pressure: v1::PressureLevel::Critical.into(),
            disk_pressure: v1::PressureLevel::Critical.into(),
            ..Default::default()
        };
        (0..8).map(device).collect()
    }

    /// Five tenants, in every tier of every device.
    fn quotas(devices: &[v1::DeviceStatus], bytes: u64) -> Vec<v1::Quota> {
        let places = devices.iter().flat_map(|status| {
            let uuid = status.device.clone().unwrap_or_default().uuid;
            [v1::Tier::Device, v1::Tier::Host, v1::Tier::Disk].map(|tier| (uuid.clone(), tier))
        });
        let quota = |(device, tier): (String, v1::Tier), tenant| v1::Quota {
            tenant: format!("research-team-{tenant}"),
            device,
            tier: tier.into(),
            guarantee_bytes: bytes,
            limit_bytes: bytes,
            held_bytes: bytes,
            reserved_bytes: bytes,
            cached_bytes: bytes,
            unreturned_bytes: bytes,
            default_quota: true,
            ..Default::default()
        };
        places.flat_map(|place| (0..5).map(move |tenant| quota(place.clone(), tenant))).collect()
    }

    fn allocations(bytes: u64) -> Vec<v1::Allocation> {
        let allocation = |index: u64| v1::Allocation {
            allocation_id: (1 << 40) + index,
            tenant: "research-team-0".to_owned(),
            name: format!("research-team-0/llama-3-70b-{index}"),
            state: v1::AllocationState::Creating.into(),
            size_bytes: bytes,
            charged_bytes: bytes,
            resident_bytes: bytes,
            host_bytes: bytes,
            disk_bytes: bytes,
            file_bytes: bytes,
            unreturned_bytes: bytes,
            mapper_count: 7,
            ..Default::default()
        };
        (0u64..3).map(allocation).collect()
    }

    fn text(bytes: u64, has_uuids: bool) -> String {
        let devices = devices(bytes);
        let quotas = quotas(&devices, bytes);
        let names = match has_uuids {
            true => DeviceNames::uuids(),
            false => DeviceNames::short(&devices, []),
        };
        tables(&devices, &quotas, &allocations(bytes), &names, has_uuids)
    }

    #[test]
    fn eight_devices_and_five_tenants_fit_a_terminal() {
        for (bytes, has_uuids) in [(0, false), (79 * GIB + 12_345, false), (79 * GIB + 12_345, true)] {
            let text = text(bytes, has_uuids);
            let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
            assert!(widest.chars().count() <= WIDTH_MAX, "{widest}\n\n{text}");
            assert_eq!(text.matches("NVIDIA H100 80GB HBM3").count(), 8, "{text}");
            assert_eq!(text.matches("research-team-4").count() % 24, 0, "{text}");
        }
    }

    #[test]
    fn columns_without_a_figure_are_left_out() {
        let (empty, full) = (text(0, false), text(GIB, false));
        for heading in ["CACHED", "UNRETURNED", "UNBROKERED", "SHORTFALL", "RESERVED", "HOST", "DISK"] {
            assert!(!empty.contains(heading) && full.contains(heading), "{heading}\n{empty}\n{full}");
        }
        assert!(empty.contains("CAPACITY") && empty.contains("LIMIT"), "{empty}");
    }

    #[test]
    fn uuids_are_shown_on_demand_alone() {
        let uuid = "GPU-77f4a1c2-93be-4d21-a0c5-6f1e2d3c4b5a";
        assert!(!text(GIB, false).contains("GPU-"));
        assert!(text(GIB, true).matches(uuid).count() > 15, "one for the device, one for each of its quotas");
    }
}
