//! Links that devices share: found by their speed together, if the kernel lists them below one bridge.

use std::{fs, os::unix::fs::symlink};

use fake_cuda::Fake;
use vramd_proto::v1::{Link, LinkWay, ListLinksRequest};
use vramd_tests::node_state::NodeState;

use crate::{Daemon, command_seeing, configured};

/// Two devices below one bridge, which carries into both as much as each takes.
fn below_one_bridge() -> Fake {
    let fake = Fake::new().with("devices = 2").with("attribute.34 = 0").with("attribute.50 = 0");
    let fake = fake.with("attribute.33.0 = 23").with("attribute.33.1 = 24");
    fake.with("still = 1").with("carries = 320").with("link.0 = in 0 1 @ 320")
}

#[test]
fn devices_below_one_bridge_share_its_link() {
    let place = tempfile::tempdir().unwrap();
    let buses = place.path().join("buses");
    for device in ["0000:17:00.0", "0000:18:00.0"] {
        let folder = buses.join("pci0000:15/0000:15:01.0/0000:16:00.0").join(device);
        fs::create_dir_all(&folder).unwrap();
        symlink(&folder, buses.join(device)).unwrap();
    }
    let fake = below_one_bridge();
    let command = command_seeing(&buses, "/sys/bus/pci/devices", &configured(&place, &fake, "0"));
    let daemon = Daemon::start_by(command, place);
    let admin = daemon.admin();
    let devices: Vec<String> =
        NodeState::read(&admin).devices.into_iter().map(|it| it.device.unwrap_or_default().uuid).collect();
    let links = admin.list_links(ListLinksRequest {}).ok().links;
    let named = |name: &str| links.iter().find(|link| link.name == name);
    let lanes =
        |link: &Link| -> Vec<_> { link.lanes.iter().map(|lane| (lane.way(), lane.device.clone())).collect() };
    let shared = named("uplink 0000:16:00.0 in").unwrap_or_else(|| panic!("{links:#?}"));
    let into = devices.iter().map(|uuid| (LinkWay::ToDevice, uuid.clone()));
    assert_eq!(lanes(shared), into.collect::<Vec<_>>());
    for (at, uuid) in devices.iter().enumerate() {
        for (way, name) in [(LinkWay::ToDevice, "to"), (LinkWay::FromDevice, "from")] {
            let own = named(&format!("{name} device {at}")).unwrap_or_else(|| panic!("{links:#?}"));
            assert_eq!(lanes(own), [(way, uuid.clone())]);
        }
    }
    // The bridge above that one, and the node, have only these devices: neither is another link.
    assert!(links.iter().all(|link| !link.name.contains("15:01.0") && !link.name.starts_with("node")));
}
