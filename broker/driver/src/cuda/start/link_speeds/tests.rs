//! Over the fake library, whose devices lie on a bus of the test, and whose copies take time.

use std::{collections::BTreeSet, os::unix::fs::symlink};

use fake_cuda::Fake;
use tempfile::TempDir;

use super::*;
use crate::cuda::{Probed, device::numa, probe, tests::config};

fn devices(fake: &Fake) -> Vec<Arc<Device>> {
    let Probed { api, found, .. } = probe(config(fake)).unwrap();
    let opened = found.into_iter().map(|found| {
        let ordinal = found.ordinal.unwrap();
        Arc::new(Device::open(&api, ordinal, found.info, None, Path::new(numa::NODES)).unwrap())
    });
    opened.collect()
}

/// The kernel's folder of a bus, with a device at the end of each path.
fn buses(paths: &[&str]) -> TempDir {
    let buses = tempfile::tempdir().unwrap();
    for path in paths {
        let folder = buses.path().join("devices").join(path);
        fs::create_dir_all(&folder).unwrap();
        symlink(&folder, buses.path().join(folder.file_name().unwrap())).unwrap();
    }
    buses
}

/// A library with a device on each of these buses.
fn on_buses(buses: &[u8]) -> Fake {
    let fake = Fake::new().with(&format!("devices = {}", buses.len()));
    let fake = fake.with("attribute.34 = 0").with("attribute.50 = 0");
    let numbered = buses.iter().enumerate();
    numbered.fold(fake, |fake, (device, bus)| fake.with(&format!("attribute.33.{device} = {bus}")))
}

#[test]
fn shared_paths_are_common_bridges_and_nodes_narrow_first() {
    let fake = on_buses(&[0x17, 0x18, 0x1a, 0x31, 0x81, 0x99]);
    let fake = fake.with("attribute.134.4 = 1").with("attribute.134.5 = 1");
    // The last is on no bus that the kernel knows.
    let buses = buses(&[
        "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
        "pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0",
        "pci0000:15/0000:15:01.0/0000:19:00.0/0000:1a:00.0",
        "pci0000:30/0000:30:01.0/0000:31:00.0",
        "pci0000:80/0000:80:01.0/0000:81:00.0",
    ]);
    let shared_paths = shared_paths(&devices(&fake), buses.path());
    let reported: Vec<(&str, Vec<u16>)> = shared_paths
        .iter()
        .map(|(name, members)| (name.as_str(), members.iter().map(|it| it.0).collect()))
        .collect();
    let should = [
        ("device 0", vec![0]),
        ("device 1", vec![1]),
        ("device 2", vec![2]),
        ("device 3", vec![3]),
        ("device 4", vec![4]),
        ("device 5", vec![5]),
        ("uplink 0000:16:00.0", vec![0, 1]),
        ("node 1", vec![4, 5]),
        ("uplink 0000:15:01.0", vec![0, 1, 2]),
        ("node 0", vec![0, 1, 2, 3]),
    ];
    assert_eq!(reported, should, "a bridge above one device alone is no other link than the device's");
}

#[test]
fn devices_below_no_bridge_share_only_their_node() {
    let fake = on_buses(&[1, 2]);
    let shared_paths = shared_paths(&devices(&fake), Path::new("/nowhere"));
    let names: Vec<&str> = shared_paths.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["device 0", "device 1", "node 0"]);
}

/// Both directions of a device, and one direction of a node, are as fast together as alone.
#[test]
fn only_lanes_that_are_slower_together_share_a_link() {
    let fake = on_buses(&[0x17, 0x18, 0x31]).with("still = 1").with("carries = 320");
    let fake = fake.with("link.0 = in 0 1 @ 320").with("link.1 = out 0 1 @ 320");
    let fake = fake.with("link.2 = both 0 1 2 @ 880");
    let buses = buses(&[
        "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
        "pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0",
        "pci0000:30/0000:30:01.0/0000:31:00.0",
    ]);
    let devices = devices(&fake);
    let both =
        ["to device 0", "from device 0", "to device 1", "from device 1", "to device 2", "from device 2"];
    let shared: [(&str, &[&str]); 3] = [
        ("uplink 0000:16:00.0 in", &["to device 0", "to device 1"]),
        ("uplink 0000:16:00.0 out", &["from device 0", "from device 1"]),
        ("node 0", &both),
    ];
    let alone = both.each_ref().map(|lane| (*lane, std::slice::from_ref(lane)));
    let should = alone.into_iter().chain(shared).map(|(name, lanes)| format!("{name}: {}", lanes.join(", ")));
    let should: BTreeSet<String> = should.collect();
    // Of the uplink, in each direction.
    let near = (240 << 20)..(400 << 20);
    let is_off = |link: &LinkFacts| {
        link.name.starts_with("uplink") && !link.lanes.iter().all(|(_, carries)| near.contains(carries))
    };
    let (mut found, mut always, mut problems) = (BTreeSet::new(), None, Vec::new());
    // If other processes use the CPU meanwhile, too little or too much is measured: then a link is missed, or a
    // wrong one is found. A result that repeats is no accident.
    for _ in 0..8 {
        let Measured { links, problem } = measure(&devices, buses.path());
        problems.extend(problem);
        let reported = links.iter().filter(|link| !is_off(link)).map(|link| {
            let lanes: Vec<String> = link.lanes.iter().map(|(lane, _)| lane.to_string()).collect();
            format!("{}: {}", link.name, lanes.join(", "))
        });
        let reported: BTreeSet<String> = reported.collect();
        always =
            Some(always.map_or_else(|| reported.clone(), |always: BTreeSet<String>| &always & &reported));
        found.extend(reported);
        if found.is_superset(&should) && always.as_ref().is_some_and(|always| always.is_subset(&should)) {
            return;
        }
    }
    panic!("found {found:#?}, always {always:#?}, {problems:?}");
}

/// From the first copy on, or after the measurement: copies in flight are not waited for then either.
#[test]
fn a_link_that_does_not_answer_does_not_hold_up_the_start() {
    let fake = Fake::new().with("fail.cuEventQuery = 600@triggered");
    let mut end =
        DeviceEnds::new(open(&devices(&fake)[0]).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    assert!(measure_together(&mut [&mut end.inward]).is_ok());
    fake.trigger(true);
    assert!(matches!(measure_together(&mut [&mut end.inward, &mut end.outward]), Err(Problem::Slow)));
    let mut in_flight = vec![VecDeque::from([end.outward.begin().unwrap_or_else(|error| panic!("{error}"))])];
    assert!(matches!(ended(&mut in_flight), Err(Problem::Slow)));
    // Nothing waited for an answer: there is none before this.
    fake.trigger(false);
    assert!(ended(&mut in_flight).is_ok());
}

#[test]
fn bridges_are_those_above_the_device() {
    let path = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0";
    assert_eq!(bridges(Path::new(path)), ["0000:16:00.0", "0000:15:01.0"]);
    assert!(bridges(Path::new("/sys/devices/pci0000:00/0000:00:05.0")).is_empty());
}

#[test]
fn rates() {
    assert_eq!(rate(2, Duration::from_millis(1)), 2000 * CHUNK.get());
    assert!(rate(1, Duration::ZERO) > 0);
}
