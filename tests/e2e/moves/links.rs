//! Links that devices share: what they carry is told, and who waits goes before who does not.

use serde_json::Value;
use vramd_proto::v1::{AllocationSpec, Tier};
use vramd_tests::{Daemon, MIB, RawSession, session::spec, wait::until};

use super::{Config, Outcome, evict, first, moving, part, said, vramctl};
use crate::pressure::{MEASURED, metric};

/// What was begun on that way of a device, of that class.
fn begun(daemon: &Daemon, device: &str, class: &str) -> u64 {
    let told = said(daemon, &["link", "list"]);
    let mut lanes = told["traffic"].as_array().expect("a list").iter();
    let lane = lanes.find(|lane| lane["way"] == "to-device" && lane["device"] == device);
    lane.and_then(|lane| lane[format!("{class}_bytes")].as_u64()).expect("each device has that way")
}

#[test]
fn what_crosses_a_link_is_told_by_class_and_what_is_waited_for_comes_first() {
    let config = Config::devices(&["256MiB", "256MiB"]).memory("host_size = \"256MiB\"").telemetry(MEASURED);
    let daemon = Daemon::start(&config.uplink("64MiB"));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let uuids: Vec<String> =
        daemon.books().devices.iter().map(|it| it.device.clone().unwrap().uuid).collect();
    let on =
        |uuid: &str, size| AllocationSpec { part_size_bytes: size, device: uuid.to_owned(), ..spec(size) };
    let wanted = session.allocate(on(&uuids[0], 32 * MIB)).allocation_id;
    let large = session.allocate(on(&uuids[1], 128 * MIB)).allocation_id;
    evict(&daemon, &mut session, wanted);
    evict(&daemon, &mut session, large);

    let coming = moving(&daemon, large, Tier::Device);
    until("as much is on its way as may be", || begun(&daemon, &uuids[1], "prefetch") >= 32 * MIB);
    let call = session.pin(vec![part(wanted, 0)]);
    session.pin_answer(call).unwrap();
    assert_eq!(begun(&daemon, &uuids[0], "demand"), 32 * MIB);
    assert!(!coming.is_answered(), "that goes on when this is there");
    session.pin_ended(call);
    assert_eq!(first(&coming.ok()).0, Outcome::Moved);
    assert_eq!(begun(&daemon, &uuids[1], "prefetch"), 128 * MIB);

    let labels = [format!("hw_id=\"{}\"", uuids[1]), "vramd_copy_class=\"prefetch\"".to_owned()];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    assert_eq!(metric(&daemon, "vramd_link_io_bytes_total", &labels), Some(128 * MIB));
    let carries = ["vramd_link=\"uplink\"".to_owned(), format!("hw_id=\"{}\"", uuids[0])];
    let carries: Vec<&str> = carries.iter().map(String::as_str).chain(["to_device"]).collect();
    assert_eq!(metric(&daemon, "vramd_link_limit_bytes_per_second", &carries), Some(64 * MIB));
}

#[test]
fn what_the_links_carry_is_listed() {
    let config = Config::devices(&["64MiB", "64MiB"]).link("96MiB").uplink("128MiB");
    let daemon = Daemon::start(&config);
    let told = said(&daemon, &["link", "list"]);
    let links = told["links"].as_array().unwrap();
    let of = |name: &str| links.iter().filter(|link| link["name"] == name).collect::<Vec<&Value>>();
    assert_eq!((of("device 0").len(), of("device 1").len()), (2, 2), "one each way: {told}");
    let uplinks = of("uplink");
    assert_eq!(uplinks.len(), 2);
    let lanes = uplinks[0]["lanes"].as_array().unwrap();
    assert_eq!((lanes.len(), &lanes[1]["bytes_per_second"]), (2, &(128 * MIB).into()));
    let text = String::from_utf8(vramctl(&daemon, &["link", "list"]).stdout).unwrap();
    assert!(text.contains("uplink") && text.contains("to-device") && text.contains("0.1 GB/s"), "{text}");
}
