//! The host node nearest to a device, and threads that stay near it.

use std::{fs, path::Path};

use broker_platform::readings::NumaNode;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use vramd_types::HostNode;

use crate::cuda::api::{Api, Attribute, Ordinal};

/// The kernel's folder of nodes.
pub(crate) const NODES: &str = "/sys/devices/system/node";

/// The kernel's folder of PCI devices.
pub(crate) const BUSES: &str = "/sys/bus/pci/devices";

/// The PCI address of a device, which names its folder there.
pub(crate) fn bus(api: &Api, device: Ordinal) -> Option<String> {
    let known = |attribute| api.attribute(device, attribute).ok();
    let domain = known(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = known(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let slot = known(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    Some(format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
}

/// Node 0 if nothing else is known.
pub(crate) fn nearest(api: &Api, device: Ordinal) -> HostNode {
    let known = |attribute| api.attribute(device, attribute).ok();
    let by_driver = known(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    let node = by_driver.filter(|node| *node >= 0).or_else(|| {
        fs::read_to_string(Path::new(BUSES).join(bus(api, device)?).join("numa_node"))
            .ok()?
            .trim()
            .parse()
            .ok()
    });
    // The kernel says -1 if there is only one node.
    HostNode(node.and_then(|node| u16::try_from(node).ok()).unwrap_or(0))
}

/// The node for host memory near that one, by the kernel's folder of nodes.
pub(crate) fn for_host_memory(nodes: &Path, nearest: HostNode) -> HostNode {
    let entries = fs::read_dir(nodes).into_iter().flatten().flatten();
    let listed = entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        Some(NumaNode { id, cpus: list.trim().to_owned(), ..NumaNode::default() })
    });
    let mut listed: Vec<NumaNode> = listed.collect();
    listed.sort_by_key(|node| node.id);
    let chosen = NumaNode::for_host_memory(nearest.0.into(), &listed);
    u16::try_from(chosen).map_or(nearest, HostNode)
}

/// The CPUs of that node; none if the kernel knows no such node.
pub(crate) fn cpus_of(nodes: &Path, node: HostNode) -> Vec<usize> {
    let list = fs::read_to_string(nodes.join(format!("node{node}/cpulist")));
    list.map(|list| cpus(&list).collect()).unwrap_or_default()
}

/// Keeps the calling thread on those CPUs, as far as it may run there: memory that it touches first then
/// belongs to the node. Otherwise it only costs speed.
pub(crate) fn run_on(cpus: &[usize]) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut near = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU && allowed.is_set(**cpu)) {
        near.set(*cpu);
    }
    if near.count() > 0 {
        let _ = sched_setaffinity(None, &near);
    }
}

/// Parses `0-3,8,10-11`.
fn cpus(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => first..=last,
            #[allow(clippy::reversed_empty_ranges, reason = "an unreadable range has no CPU")]
            _ => 1..=0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(cpus("0-3,8,10-11\n").collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpus("\n").count(), 0);
        assert_eq!(cpus("x-y,5").collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn a_node_without_cpus_is_no_host_node() {
        let nodes = tempfile::tempdir().unwrap();
        let node = |id: u16, cpus: &str| {
            let folder = nodes.path().join(format!("node{id}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cpulist"), format!("{cpus}\n")).unwrap();
        };
        assert_eq!(for_host_memory(nodes.path(), HostNode(1)), HostNode(1), "the kernel shows no nodes");
        // The kernel leaves numbers out.
        node(3, "0-71");
        node(10, "72-143");
        node(20, "");
        assert_eq!(for_host_memory(nodes.path(), HostNode(20)), HostNode(3));
        assert_eq!(for_host_memory(nodes.path(), HostNode(10)), HostNode(10));
    }

    #[test]
    fn a_thread_stays_on_permitted_cpus() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = sched_getaffinity(None).unwrap();
                run_on(&cpus_of(Path::new(NODES), HostNode(u16::MAX)));
                assert!(sched_getaffinity(None).unwrap() == before, "there is no such node");
                let mut cpus = 0..CpuSet::MAX_CPU;
                let last = cpus.rfind(|cpu| before.is_set(*cpu)).expect("a thread runs somewhere");
                run_on(&[last, CpuSet::MAX_CPU]);
                let now = sched_getaffinity(None).unwrap();
                assert!(now.is_set(last) && now.count() == 1);
            });
        });
    }
}
