//! Links that devices share: their traffic is reported, and demand goes first.

use std::{thread, time::Duration};

use serde_json::Value;
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_proto::v1::{AllocationSpec, Tier};
use vramd_tests::{
    Daemon, MIB, MIB_2, RawSession,
    session::spec,
    wait::{PATIENCE, until},
};

use crate::moves::{
    Config, Outcome, evict, first, operators::write_backs::writing_back, part, start_move, tiers, vramctl,
    vramctl_json,
};
use crate::pressure::{MEASURED, metric};

/// Bytes begun in one direction of a device, of one class.
fn begun(daemon: &Daemon, way: &str, device: &str, class: &str) -> u64 {
    let told = vramctl_json(daemon, &["link", "list"]);
    let mut lanes = told["traffic"].as_array().expect("a list").iter();
    let lane = lanes.find(|lane| lane["way"] == way && lane["device"] == device);
    lane.and_then(|lane| lane[format!("{class}_bytes")].as_u64()).expect("each device has that way")
}

fn uuids(daemon: &Daemon) -> Vec<String> {
    daemon.state().devices.iter().map(|it| it.device.clone().unwrap().uuid).collect()
}

#[test]
fn traffic_is_reported_by_class_and_demand_goes_first() {
    let mut config =
        Config::devices(&["256MiB", "256MiB"]).memory("host_size = \"256MiB\"").telemetry(MEASURED);
    config.sim.push("uplink_to_device = \"32MiB\"".to_owned());
    let daemon = Daemon::start(&config);
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let uuids = uuids(&daemon);
    let on = |uuid: &str, size| AllocationSpec {
        part_size_bytes: Some(size),
        device: Some(uuid.to_owned()),
        ..spec(size)
    };
    let wanted = session.allocate(on(&uuids[0], 32 * MIB)).allocation_id;
    let large = session.allocate(on(&uuids[1], 128 * MIB)).allocation_id;
    evict(&daemon, &mut session, wanted);
    evict(&daemon, &mut session, large);

    let coming = start_move(&daemon, large, Tier::Device);
    let prefetched = || begun(&daemon, "to-device", &uuids[1], "prefetch");
    until("as much is on its way as may be", || prefetched() >= 32 * MIB);
    let before = prefetched();
    let call = session.pin(vec![part(wanted, 0)]);
    let mut meanwhile = Vec::new();
    while !session.channel.waits(Duration::ZERO) {
        meanwhile.push(prefetched());
    }
    // The last sample may include write-backs that continue after the pin's bytes have arrived.
    meanwhile.pop();
    let most =
        meanwhile.into_iter().max().expect("it takes a second, and what is on its way before it another");
    assert!(
        // One prefetch chunk may begin before the pin arrives, and one after it has stood for a second.
        most <= before + 16 * MIB,
        "{most} bytes before the demand, {before} of them before it came"
    );
    session.pin_answer(call).unwrap();
    assert_eq!(begun(&daemon, "to-device", &uuids[0], "demand"), 32 * MIB);
    session.end_pin_call(call);
    assert_eq!(first(&coming.ok()).0, Outcome::Moved);
    assert_eq!(prefetched(), 128 * MIB);

    let labels = [format!("hw_id=\"{}\"", uuids[1]), "vramd_copy_class=\"prefetch\"".to_owned()];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    assert_eq!(metric(&daemon, "vramd_link_io_bytes_total", &labels), Some(128 * MIB));
    let carries = ["vramd_link=\"uplink\"".to_owned(), format!("hw_id=\"{}\"", uuids[0])];
    let carries: Vec<&str> = carries.iter().map(String::as_str).chain(["to_device"]).collect();
    assert_eq!(metric(&daemon, "vramd_link_limit_bytes_per_second", &carries), Some(32 * MIB));
}

/// The share of write-backs in the link out of a device, beside victims of waiters, in percent.
#[track_caller]
fn written_back_beside_demand(daemon: &Daemon) -> u64 {
    let uuid = uuids(daemon).remove(0);
    let client = Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE).connect().unwrap();
    let parts = |count: u64| AllocationRequest::new(Bytes::new(count * MIB_2)).part_size(Bytes::mib(2));
    // The first part is the victim of the third, since it was used least recently. The second is written back
    // meanwhile.
    let [_idle, many] = [DEMAND / 2, 64].map(|count| {
        let mut made = client.allocate(parts(count)).unwrap();
        made.copy_from_host(0, &vec![7; usize::try_from(count * MIB_2).unwrap()]).unwrap();
        made.unpin().unwrap();
        made
    });
    let begun = || ["demand", "write_back"].map(|class| begun(daemon, "from-device", &uuid, class));
    let bulk = writing_back(daemon, many.id().get());
    until("it is on its way", || begun()[1] > 0);
    let waits = thread::spawn({
        let (client, request) = (client.clone(), parts(DEMAND / 2).wait(PATIENCE));
        move || client.allocate(request).unwrap()
    });
    let once = |mib: u64| {
        let mut seen = [0; 2];
        until("the demand has moved", || {
            seen = begun();
            seen[0] >= mib * MIB
        });
        seen
    };
    // The first of these bytes make up for write-backs that ran while no session waited, and are still moving.
    let [first, last] = [once(DEMAND / 4), once(DEMAND * 3 / 4)];
    assert!(!bulk.is_answered(), "both wait all the time");
    drop(waits.join().unwrap());
    bulk.cancel();
    let [demand, write_back] = [0, 1].map(|at| last[at] - first[at]);
    write_back * 100 / (demand + write_back)
}

/// MiB of victims of waiters.
const DEMAND: u64 = 64;

fn slow() -> Config {
    let mut config = tiers("192MiB", "384MiB");
    config.sim.push("link_to_host = \"32MiB\"".to_owned());
    config
}

/// The default share is a fifth.
#[track_caller]
fn assert_near(had: u64, percent: u64) {
    assert!(had.abs_diff(percent) <= 12, "{had} percent for {percent}");
}

#[test]
fn configured_shares_are_kept() {
    let configured = |percent: u64| {
        let shares = format!("prefetch_percent = 0\nwrite_back_percent = {percent}");
        written_back_beside_demand(&Daemon::start(&slow().shares(&shares)))
    };
    assert_near(configured(50), 50);
    assert_near(configured(0), 0);
}

#[test]
fn changed_shares_are_kept() {
    let changed = |percent: &str| {
        let daemon = Daemon::start(&slow());
        let words = ["settings", "change", "--prefetch-percent", "0", "--write-back-percent", percent];
        vramctl_json(&daemon, &words);
        written_back_beside_demand(&daemon)
    };
    assert_near(changed("50"), 50);
    assert_near(changed("0"), 0);
}

#[test]
fn links_are_listed_with_their_traffic() {
    let config = Config::devices(&["64MiB", "64MiB"]).link("96MiB").uplink("128MiB");
    let daemon = Daemon::start(&config);
    let told = vramctl_json(&daemon, &["link", "list"]);
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
