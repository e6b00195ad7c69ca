//! Parts that are brought unasked, and parts that are read in place since a move does not pay.

use std::time::Duration;

use serde_json::Value;
use vramd_client::{Access, AccessPattern, Advice, Allocation, Tier};
use vramd_tests::{Config, Daemon, MIB_2, content, wait::until};

use crate::moves::{
    clients::programs::{allocate_unpinned, send},
    disk::tier::PART,
    pins::fetch::connect,
    vramctl_json,
};

fn daemon(limits: &str) -> Daemon {
    let config = Config::devices(&["64MiB"]).memory("host_size = \"256MiB\"").memory("harvest_ms = 5");
    // A copy of a part takes 20 ms.
    let config = config.link("100MiB").limit(limits);
    Daemon::start(&config.telemetry("prometheus_listen = \"127.0.0.1:0\""))
}

fn shown(daemon: &Daemon, memory: &Allocation) -> Value {
    vramctl_json(daemon, &["alloc", "show", &memory.id().to_string()])["allocation"].take()
}

/// Pins one part after the other, with some work between, and checks their bytes.
fn walk(memory: &Allocation, parts: u64) {
    let expected = content(parts * MIB_2, memory.id().get());
    for (part, should) in (0..).zip(expected.chunks(PART)) {
        let pinned = memory.pin_parts(part..part + 1, Access::Read).unwrap();
        assert!(pinned.as_slice().unwrap() == should, "part {part}");
        drop(pinned);
        std::thread::sleep(Duration::from_millis(30));
    }
}

#[test]
fn parts_come_before_they_are_pinned_once_the_order_is_learnt() {
    let daemon = daemon("");
    let client = connect(&daemon);
    let layers = allocate_unpinned(&daemon, &client, 16);
    send(&daemon, &layers, "host");
    walk(&layers, 16);
    let shown = shown(&daemon, &layers);
    let speculation = &shown["speculation"];
    assert_eq!(
        (&speculation["wasted_bytes"], &speculation["off"]),
        (&0.into(), &false.into()),
        "{speculation}"
    );
    let used = speculation["useful_bytes"].as_u64().unwrap();
    assert!(used >= 8 * MIB_2, "{used} bytes were brought ahead");
    let cause = &shown["parts"][15]["placement"]["cause"];
    assert_eq!(cause, "speculation", "{shown}");
    let counted = format!("vramd_speculation_io_bytes_total{{vramd_speculation_outcome=\"used\"}} {used}");
    until("the bytes are counted", || daemon.metrics().lines().any(|line| line == counted));
}

#[test]
fn nothing_is_brought_unasked_where_the_operator_forbids_it() {
    let daemon = daemon("speculation_bytes_max = 0");
    let client = connect(&daemon);
    let layers = allocate_unpinned(&daemon, &client, 8);
    send(&daemon, &layers, "host");
    walk(&layers, 8);
    assert_eq!(shown(&daemon, &layers)["speculation"], Value::Null);
}

/// A program leaves each order once it is learnt, so it wastes the parts that were brought for it by then.
#[test]
fn wasted_parts_end_it_until_a_pattern_is_advised() {
    const RUN: u32 = 8;
    let config = Config::devices(&["256MiB"]).memory("host_size = \"256MiB\"").memory("harvest_ms = 5");
    let daemon = Daemon::start(&config.link("100MiB").telemetry("prometheus_listen = \"127.0.0.1:0\""));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 12 * u64::from(RUN));
    send(&daemon, &memory, "host");
    // Four pins show an order, and the next run breaks it.
    let pin_run = |run: u32| {
        for part in RUN * run..RUN * run + 4 {
            drop(memory.pin_parts(part..part + 1, Access::Read).unwrap());
        }
    };
    let causes = |run: u32| -> Vec<String> {
        let parts = shown(&daemon, &memory)["parts"].take();
        let of_run = parts.as_array().unwrap()[(RUN * run) as usize..][..RUN as usize].iter();
        of_run.map(|part| part["placement"]["cause"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let speculation = || shown(&daemon, &memory)["speculation"].take();
    pin_run(0);
    until("a part is brought unasked", || causes(0).contains(&"speculation".to_owned()));
    (1..10).for_each(pin_run);
    let told = speculation();
    assert_eq!(told["off"], true, "{told}");
    let [useful, wasted] =
        ["useful_bytes", "wasted_bytes"].map(|key| told[key].as_u64().expect("a number of bytes"));
    assert!(wasted * 100 > 15 * (useful + wasted), "{told}");
    let counted =
        format!("vramd_speculation_io_bytes_total{{vramd_speculation_outcome=\"wasted\"}} {wasted}");
    until("the bytes are counted", || daemon.metrics().lines().any(|line| line == counted));

    // No further part is brought, although the order goes on.
    pin_run(10);
    drop(memory.pin_parts(RUN * 10 + 4..RUN * 10 + 5, Access::Read).unwrap());
    assert!(!causes(10).contains(&"speculation".to_owned()), "{:?}", causes(10));
    assert_eq!(speculation(), told);
    // On the device, whatever a use gains.
    memory.advise(Advice::SetLocation(Tier::Device)).unwrap();
    memory.advise(Advice::SetPattern(AccessPattern::Sequential)).unwrap();
    assert_eq!(speculation(), Value::Null);
    pin_run(11);
    until("a part is brought unasked", || causes(11).contains(&"speculation".to_owned()));
}

#[test]
fn part_that_is_used_once_is_read_in_place_and_its_owner_can_see_why() {
    let daemon = daemon("speculation_bytes_max = 0");
    let client = connect(&daemon);
    let stream = allocate_unpinned(&daemon, &client, 2);
    stream.advise(Advice::SetPattern(AccessPattern::Sequential)).unwrap();
    send(&daemon, &stream, "host");
    // The first pass moves the parts, and shows how often they are used.
    walk(&stream, 2);
    send(&daemon, &stream, "host");
    walk(&stream, 2);
    let shown = shown(&daemon, &stream);
    let placement = &shown["parts"][1]["placement"];
    assert_eq!(
        (&shown["parts"][1]["tier"], &placement["kind"]),
        (&"host".into(), &"read_in_place".into()),
        "{shown}"
    );
    let sum = |key: &str| placement["sum"][key].as_u64().unwrap();
    assert!(sum("benefit_us") * 100 <= sum("cost_us") * sum("factor_percent"), "{placement}");
    let text = daemon.vramctl().args(["alloc", "show", &stream.id().to_string()]).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("read in place") && text.contains("benefit"), "{text}");
    let counted =
        |line: &&str| line.starts_with("vramd_placements_total{vramd_placement_outcome=\"in_place\"}");
    until("the decisions are counted", || {
        daemon.metrics().lines().find(counted).is_some_and(|it| !it.ends_with(" 0"))
    });

    // Used again and again, it moves.
    until("a move pays", || {
        for _ in 0..20 {
            drop(stream.pin_parts(1..2, Access::Read).unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
        let part = &self::shown(&daemon, &stream)["parts"][1];
        part["tier"] == "device"
    });
}
