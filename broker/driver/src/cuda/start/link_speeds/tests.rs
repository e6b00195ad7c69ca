//! Over a driver library of our own, whose devices lie where a test wants them on a bus of its own, and whose copies take their time.

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

/// What the kernel says of a bus with a device at the end of each of these paths.
fn buses(paths: &[&str]) -> TempDir {
    let buses = tempfile::tempdir().unwrap();
    for path in paths {
        let folder = buses.path().join("devices").join(path);
        fs::create_dir_all(&folder).unwrap();
        symlink(&folder, buses.path().join(folder.file_name().unwrap())).unwrap();
    }
    buses
}

/// A library of so many devices, each in its slot of a bus, by number.
fn on_buses(buses: &[u8]) -> Fake {
    let fake = Fake::new().says(&format!("devices = {}", buses.len()));
    let fake = fake.says("attribute.34 = 0").says("attribute.50 = 0");
    let numbered = buses.iter().enumerate();
    numbered.fold(fake, |fake, (device, bus)| fake.says(&format!("attribute.33.{device} = {bus}")))
}

#[test]
fn roads_are_the_bridges_that_devices_share_and_their_nodes_the_narrower_first() {
    let fake = on_buses(&[0x17, 0x18, 0x1a, 0x31, 0x81, 0x99]);
    let fake = fake.says("attribute.134.4 = 1").says("attribute.134.5 = 1");
    // The last is on no bus that the kernel knows of.
    let buses = buses(&[
        "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
        "pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0",
        "pci0000:15/0000:15:01.0/0000:19:00.0/0000:1a:00.0",
        "pci0000:30/0000:30:01.0/0000:31:00.0",
        "pci0000:80/0000:80:01.0/0000:81:00.0",
    ]);
    let roads = roads(&devices(&fake), buses.path());
    let told: Vec<(&str, Vec<u16>)> = roads
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
    assert_eq!(told, should, "a bridge above one device alone is no other road than the device's");
}

#[test]
fn devices_below_no_bridge_share_their_node_alone() {
    let fake = on_buses(&[1, 2]);
    let roads = roads(&devices(&fake), Path::new("/nowhere"));
    let names: Vec<&str> = roads.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["device 0", "device 1", "node 0"]);
}

/// Both ways of a device, and one way of a node, carry as much together as alone.
#[test]
fn lanes_that_carry_less_together_than_alone_share_a_link_and_no_others_do() {
    let fake = on_buses(&[0x17, 0x18, 0x31]).says("still = 1").says("carries = 320");
    let fake = fake.says("road.0 = in 0 1 @ 320").says("road.1 = out 0 1 @ 320");
    let fake = fake.says("road.2 = both 0 1 2 @ 880");
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
    // Of the uplink, each way.
    let near = (240 << 20)..(400 << 20);
    let is_off = |link: &LinkFacts| {
        link.name.starts_with("uplink") && !link.lanes.iter().all(|(_, carries)| near.contains(carries))
    };
    let (mut found, mut always, mut problems) = (BTreeSet::new(), None, Vec::new());
    // Where others have the CPU in the middle of it, too little is measured, or too much: then what is there is not found that time, or
    // what is not there is. What is so each time is no chance.
    for _ in 0..8 {
        let Measured { links, problem } = measure(&devices, buses.path());
        problems.extend(problem);
        let told = links.iter().filter(|link| !is_off(link)).map(|link| {
            let lanes: Vec<String> = link.lanes.iter().map(|(lane, _)| lane.to_string()).collect();
            format!("{}: {}", link.name, lanes.join(", "))
        });
        let told: BTreeSet<String> = told.collect();
        always = Some(always.map_or_else(|| told.clone(), |always: BTreeSet<String>| &always & &told));
        found.extend(told);
        if found.is_superset(&should) && always.as_ref().is_some_and(|always| always.is_subset(&should)) {
            return;
        }
    }
    panic!("found {found:#?}, always {always:#?}, {problems:?}");
}

/// From its first copy on, or once it was measured: what is under way then is not waited for either.
#[test]
fn a_link_that_does_not_answer_holds_up_no_start() {
    let fake = Fake::new().says("fail.cuEventQuery = 600@told");
    let mut end = End::new(open(&devices(&fake)[0]).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    assert!(together(&mut [&mut end.inward]).is_ok());
    fake.tell(true);
    let began = Instant::now();
    assert!(matches!(together(&mut [&mut end.inward, &mut end.outward]), Err(Problem::Slow)));
    let mut under_way = vec![VecDeque::from([end.outward.begin().unwrap_or_else(|error| panic!("{error}"))])];
    assert!(matches!(ended(&mut under_way), Err(Problem::Slow)));
    assert!(began.elapsed() < 4 * GIVES_UP, "{:?}", began.elapsed());
    fake.tell(false);
    assert!(ended(&mut under_way).is_ok());
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
