//! The host node nearest to a device, and threads that stay near it.

use std::{fs, path::Path};

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

/// That node, unless it has no CPU: a coherent GPU's memory is such a node, and host memory must not lie there. Then
/// the first node with CPUs.
pub(crate) fn with_cpus(nodes: &Path, node: HostNode) -> HostNode {
    let list = |node| fs::read_to_string(nodes.join(format!("node{node}/cpulist"))).ok();
    let has_cpus = |list: &String| cpus(list).next().is_some();
    match list(node) {
        Some(its) if !has_cpus(&its) => {
            let mut others = (0..u16::MAX).map(HostNode).map_while(|other| Some((other, list(other)?)));
            others.find(|(_, list)| has_cpus(list)).map_or(node, |(other, _)| other)
        }
        _ => node,
    }
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
        assert_eq!(with_cpus(nodes.path(), HostNode(1)), HostNode(1), "the kernel shows no nodes");
        node(0, "");
        node(1, "0-71");
        node(2, "");
        assert_eq!(with_cpus(nodes.path(), HostNode(2)), HostNode(1));
        assert_eq!(with_cpus(nodes.path(), HostNode(1)), HostNode(1));
        assert_eq!(
            with_cpus(nodes.path(), HostNode(7)),
            HostNode(7),
            "an unknown node is left to the driver"
        );
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
