//! Over the fake library, whose devices lie on a bus of the test, and whose copies take time.

use std::os::unix::fs::symlink;

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

/// A link, and the speed that its lanes have together at most.
struct Narrow {
    lanes: Vec<LaneId>,
    carries: u64,
}

/// The speeds of lanes while they run together, if each carries 320 alone: all grow alike, until a link is full.
fn speeds(links: &[Narrow], lanes: &[LaneId]) -> Vec<u64> {
    let mut speeds = vec![0; lanes.len()];
    for _ in 0..320 {
        for at in 0..lanes.len() {
            let used = |link: &Narrow| -> u64 {
                let on = lanes.iter().zip(&speeds).filter(|(lane, _)| link.lanes.contains(lane));
                on.map(|(_, speed)| *speed).sum()
            };
            let is_full = |link: &Narrow| link.lanes.contains(&lanes[at]) && used(link) >= link.carries;
            if !links.iter().any(is_full) {
                speeds[at] += 1;
            }
        }
    }
    speeds
}

/// Both directions of a device, and one direction of a node, are as fast together as alone.
#[test]
fn only_lanes_that_are_slower_together_share_a_link() {
    let to = |device| LaneId::ToDevice(DeviceIndex(device));
    let from = |device| LaneId::FromDevice(DeviceIndex(device));
    let all = [to(0), from(0), to(1), from(1), to(2), from(2)];
    let narrow = [
        Narrow { lanes: vec![to(0), to(1)], carries: 320 },
        Narrow { lanes: vec![from(0), from(1)], carries: 320 },
        Narrow { lanes: all.to_vec(), carries: 880 },
    ];
    let path =
        |name: &str, devices: &[u16]| (name.to_owned(), devices.iter().copied().map(DeviceIndex).collect());
    let paths = vec![
        path("device 0", &[0]),
        path("uplink", &[0, 1]),
        path("device 2", &[2]),
        path("node", &[0, 1, 2]),
    ];
    let mut measured = Measured { links: Vec::new(), problem: None };
    let devices = (0..3).map(DeviceIndex).collect();
    measured.measure_links(devices, paths, &mut |lanes| Ok(speeds(&narrow, lanes)));
    assert_eq!(measured.problem, None);
    let alone: Vec<_> = all.iter().map(|lane| (lane.to_string(), vec![(*lane, 320)])).collect();
    // Lanes on a shared link have there what all of them carry together.
    let shared = [
        ("uplink in".to_owned(), vec![(to(0), 320), (to(1), 320)]),
        ("uplink out".to_owned(), vec![(from(0), 320), (from(1), 320)]),
        ("node".to_owned(), all.map(|lane| (lane, 0)).to_vec()),
    ];
    let found: Vec<_> = measured.links.into_iter().map(|link| (link.name, link.lanes)).collect();
    assert_eq!(found[..6], alone);
    assert_eq!(found[6..8], shared[..2]);
    assert_eq!(found[8].0, "node");
    assert_eq!(found[8].1.iter().map(|(lane, _)| *lane).collect::<Vec<_>>(), all);
    assert_eq!(found.len(), 9, "{found:?}");
}

/// One that fails is measured no further, and keeps no other from it.
#[test]
fn a_device_that_fails_is_left_out_of_its_paths() {
    let mut measured = Measured { links: Vec::new(), problem: None };
    let paths = vec![("node".to_owned(), (0..3).map(DeviceIndex).collect())];
    let (mut asked, bad) = (Vec::new(), LaneId::FromDevice(DeviceIndex(1)));
    measured.measure_links((0..3).map(DeviceIndex).collect(), paths, &mut |lanes| {
        asked.push(lanes.to_vec());
        if lanes.contains(&bad) { Err(Problem::Slow) } else { Ok(vec![320; lanes.len()]) }
    });
    assert!(measured.problem.is_some_and(|problem| problem.contains("from device 1")));
    let of_path: Vec<_> = asked.iter().filter(|lanes| lanes.len() > 1).flatten().collect();
    assert_eq!(of_path.len(), 2 + 2 + 4);
    assert!(of_path.iter().all(|lane| !lane.to_string().contains("device 1")), "{of_path:?}");
}

/// Speeds depend on who else uses the machine, so only that there is one is asked.
#[test]
fn every_lane_is_measured() {
    let fake = on_buses(&[0x17, 0x18]).with("still = 1").with("carries = 320");
    let Measured { links, problem } = measure(&devices(&fake), buses(&[]).path());
    assert_eq!(problem, None);
    let alone: Vec<_> = links.iter().filter(|link| link.lanes.len() == 1).collect();
    let names: Vec<&str> = alone.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["to device 0", "from device 0", "to device 1", "from device 1"]);
    assert!(alone.iter().all(|link| link.lanes.iter().all(|(_, carries)| *carries > 0)), "{links:?}");
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
