//! An operator starts a daemon without a configuration, and asks the daemon and `vramctl doctor` what they make of it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use vramd_client::{AllocationRequest, Bytes, Client};
use vramd_proto::v1::{DeviceStatus, ListDevicesRequest};
use vramd_tests::{
    Config, Daemon, Home, MIB, content,
    proc::host_memory_of,
    programs::program,
    wait::{PATIENCE, until},
};

use crate::{can_mount, has_other_users};

const USAGE: i32 = 2;

fn client(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE).connect().unwrap()
}

fn device(daemon: &Daemon) -> DeviceStatus {
    daemon.admin.list_devices(ListDevicesRequest {}).ok().devices.remove(0)
}

/// `vramctl doctor` of a user who has no daemon.
fn alone(words: &[&str]) -> Output {
    let mut command = Command::new(program("vramctl"));
    command.env("VRAMD_SOCKET_DIR", "/nonexistent").arg("doctor").args(words).output().unwrap()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn doctor(daemon: &Daemon) -> Value {
    json_of(&daemon.vramctl().args(["--json", "doctor"]).output().unwrap())
}

#[track_caller]
fn says(daemon: &Daemon) -> String {
    let output = daemon.vramctl().arg("doctor").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Two allocations, each as large as the device, live in turn; neither loses a byte.
#[test]
fn memory_moves_without_any_configuration_of_a_host_tier() {
    let config = Config::devices(&["64MiB"]).host_auto().memory("part_size = \"16MiB\"");
    let daemon = Daemon::start(&config);
    let host = device(&daemon).host_capacity_bytes;
    assert!(
        host >= 64 * MIB && host.is_multiple_of(16 * MIB),
        "this machine gives a host tier of {host} bytes"
    );
    let uuid = device(&daemon).device.unwrap().uuid;
    assert_eq!(host_memory_of(&uuid).len(), 0, "an idle daemon has none of it");
    let client = client(&daemon);
    let mut all: Vec<(_, Vec<u8>)> = (1..=2)
        .map(|seed| {
            // The tenant has all of the device: the second waits until the first has left.
            let request = AllocationRequest::new(Bytes::mib(64)).wait(PATIENCE);
            let mut memory = client.allocate(request).unwrap();
            let bytes = content(64 * MIB, seed);
            memory.as_mut_slice().unwrap().copy_from_slice(&bytes);
            memory.unpin().unwrap();
            (memory, bytes)
        })
        .collect();
    for _ in 0..2 {
        for (memory, bytes) in &mut all {
            memory.repin().unwrap();
            assert!(memory.as_slice().unwrap() == &**bytes, "no byte is lost");
            memory.unpin().unwrap();
        }
    }
    assert!(host_memory_of(&uuid).len() >= 4, "the parts of one of them are in the host");
    drop((all, client));
    daemon.drains();
}

/// The five lines of a start, which are its whole log.
#[track_caller]
fn lines_of_start(log: &str) -> Vec<&str> {
    let lines: Vec<&str> = log.lines().collect();
    let should = ["node found", "devices found", "tiers chosen", "limits found", "serving"];
    assert_eq!(lines.len(), should.len(), "{log}");
    for (line, message) in lines.iter().zip(should) {
        assert!(line.contains(message), "{line}");
    }
    lines
}

#[test]
fn a_start_says_in_five_lines_what_it_found_and_chose() {
    let config = Config::devices(&["64MiB", "32MiB"]).host_auto().log_level("info");
    let daemon = Daemon::start(&config);
    let log = daemon.log();
    let lines = lines_of_start(&log);
    assert!(lines.iter().all(|line| line.contains("INFO")), "{log}");
    for (line, field) in [
        (0, "platform=\"discrete GPU\""),
        (0, "driver=\"sim\""),
        (1, "count=2"),
        (1, "Simulated GPU 1 32 MiB"),
        (2, "device_bytes=\"67108864, 33554432\""),
        (2, "host_pinned=\"with use\""),
        (2, "host_reason=\"50 % of the"),
        (3, "open_files_max="),
        (4, "sockets="),
    ] {
        assert!(lines[line].contains(field), "{field}: {}", lines[line]);
    }
}

/// As in the README, with the default directories in a mount namespace of the daemon's own.
#[test]
fn a_daemon_without_any_file_serves_and_moves_memory() {
    let test = "a_daemon_without_any_file_serves_and_moves_memory";
    let root_only = "mount -t tmpfs none /run && mount -t tmpfs none /var/lib";
    if has_gpu() || !has_other_users(test) || !can_mount(test, root_only) {
        return;
    }
    let home = Home::new().without_configuration();
    fs::create_dir(home.sockets()).unwrap();
    let sockets = home.sockets().display().to_string();
    let no_file = "if [ -d /etc/vramd ]; then mount -t tmpfs none /etc/vramd; fi";
    let own_sockets = format!("mkdir /run/vramd && mount --bind {sockets} /run/vramd");
    let daemon =
        Daemon::start_in(home.with_mounts(format!("{root_only} && {own_sockets} && {{ {no_file}; }}")));
    let log = daemon.log();
    let lines = lines_of_start(&log);
    for (line, field) in [
        (0, "WARN node found memory=\"SIMULATED, and no GPU's\""),
        (1, "count=1"),
        (2, "host_pinned=\"with use\""),
        (4, "sockets=/run/vramd"),
    ] {
        assert!(lines[line].contains(field), "{field}: {log}");
    }

    // All of the device but a little, of which only the first bytes are written, and then twice as much as is left.
    let capacity = device(&daemon).capacity_bytes;
    let client = client(&daemon);
    let left = 64 * MIB;
    let request = |size: u64| AllocationRequest::new(Bytes::new(size)).wait(PATIENCE);
    let mut first = client.allocate(request(capacity - left)).unwrap();
    let bytes = content(left, 1);
    first.as_mut_slice().unwrap()[..bytes.len()].copy_from_slice(&bytes);
    first.unpin().unwrap();
    let second = client.allocate(request(2 * left)).unwrap();
    assert!(device(&daemon).host_held_bytes >= left, "{:?}", device(&daemon));
    drop(second);
    first.repin().unwrap();
    assert!(first.as_slice().unwrap()[..bytes.len()] == *bytes, "no byte is lost");
    drop((first, client));
    daemon.drains();
}

fn has_gpu() -> bool {
    json_of(&alone(&["--json"]))["diagnosis"]["detected"]["platform"] != "no-gpu"
}

/// The choice of a daemon without a configuration, on a node without a GPU.
#[test]
fn the_first_line_of_a_start_is_the_same_where_no_gpu_is_found() {
    if has_gpu() {
        eprintln!("skipped: this node has a GPU, which the daemon would take");
        return;
    }
    let config = Config { driver: "auto", ..Config::devices(&["64MiB"]) };
    let daemon = Daemon::start(&config.log_level("info"));
    let log = daemon.log();
    let first = log.lines().next().unwrap_or_default();
    let says = "WARN node found memory=\"SIMULATED, and no GPU's\" platform=\"discrete GPU\" driver=\"sim\"";
    assert!(first.contains(says), "{log}");
}

#[test]
fn one_pool_gets_no_second_copy() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]).host_auto().platform("one-pool"));
    assert_eq!(device(&daemon).host_capacity_bytes, 0);
    let said = says(&daemon);
    assert!(said.contains("one pool of device and host memory"), "{said}");
    assert!(said.contains("host: none for each device: host and device memory are one pool"), "{said}");
    assert!(!said.contains("host tier:"), "nothing stands in the way: {said}");
    // An operator who asks for it gets it, and is told.
    let asked = Config::devices(&["64MiB"]).memory("host_size = \"64MiB\"").platform("one-pool");
    let daemon = Daemon::start(&asked);
    assert_eq!(device(&daemon).host_capacity_bytes, 64 * MIB);
    assert!(says(&daemon).contains("takes the room of a device part"), "{}", says(&daemon));
}

/// The devices' memory is a node without CPUs, and the kernel's own nodes do not count.
#[test]
fn host_memory_lies_on_a_node_with_cpus_in_numa_mode() {
    let config = Config::devices(&["64MiB"]).memory("host_size = \"32MiB\"").memory("part_size = \"8MiB\"");
    let metrics = "prometheus_listen = \"127.0.0.1:0\"";
    let daemon = Daemon::start(&config.platform("coherent-numa").telemetry(metrics));
    until("all of it is pinned", || {
        daemon.log().contains("host memory is pinned ahead of need node=1 pinned_bytes=33554432")
    });
    let said = says(&daemon);
    assert!(said.contains("NUMA node 0 has 64 MiB and no CPU"), "{said}");
    assert!(said.contains("the kubelet counts 64 MiB of device memory"), "{said}");

    let client = client(&daemon);
    let mut memory = client.allocate(AllocationRequest::new(Bytes::mib(16))).unwrap();
    let bytes = content(16 * MIB, 3);
    memory.as_mut_slice().unwrap().copy_from_slice(&bytes);
    memory.unpin().unwrap();
    let moved = daemon.vramctl().args(["alloc", "evict", &memory.id().to_string()]).output().unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    assert!(device(&daemon).host_held_bytes >= 16 * MIB, "{:?}", device(&daemon));
    let metrics = daemon.metrics();
    assert!(
        metrics.contains("vramd_host_node=\"1\"") && !metrics.contains("vramd_host_node=\"0\""),
        "{metrics}"
    );
    memory.repin().unwrap();
    assert!(memory.as_slice().unwrap() == &*bytes, "no byte is lost");
}

#[test]
fn the_doctor_says_what_a_running_daemon_chose() {
    for (platform, name) in [
        ("discrete", "discrete GPU"),
        ("hmm", "discrete GPU with HMM"),
        ("coherent-numa", "coherent GPU in NUMA mode"),
        ("coherent-cdmm", "coherent GPU in CDMM mode"),
    ] {
        let daemon =
            Daemon::start(&Config::devices(&["64MiB"]).memory("host_size = \"32MiB\"").platform(platform));
        let text = says(&daemon);
        assert!(text.contains(&format!("\n  simulated by vramd: {name}\n")), "{text}");
        // The node itself is the same with and without the daemon.
        let without = String::from_utf8(alone(&[]).stdout).unwrap();
        assert!(text.lines().take(2).eq(without.lines().take(2)), "{text}\n{without}");
        assert!(text.contains("host: 32 MiB for each device, pinned from the start: configured"), "{text}");
        let json = doctor(&daemon);
        assert_eq!(json["diagnosis"]["detected"]["platform"], platform);
        assert_eq!(json["readings"]["daemon"]["driver"], "sim");
        assert_eq!(json["readings"]["devices"][0]["total_bytes"], 64 * MIB);
        assert_eq!(json["readings"]["process"]["program"], "vramd");
    }
}

#[test]
fn the_doctor_reads_the_node_without_a_daemon() {
    let output = alone(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("NODE\n"), "{text}");
    assert!(text.contains("no daemon answers"), "{text}");
    let json = json_of(&alone(&["--json"]));
    assert_eq!(json["readings"]["process"]["program"], "vramctl");
    assert!(json["readings"]["memory"]["total_bytes"].as_u64().unwrap() > 64 * MIB);
    assert_eq!(json["readings"]["devices"], Value::Null, "only a driver shows them");
}

#[test]
fn saved_readings_are_judged_alike_elsewhere() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]).platform("coherent-cdmm"));
    let file = daemon.home().path().join("node.json");
    let path = file.to_str().unwrap();
    let save = |more: &[&str]| daemon.vramctl().args(["doctor", "--save", path]).args(more).output().unwrap();
    assert!(save(&[]).status.success());
    let again = save(&[]);
    assert_eq!(again.status.code(), Some(USAGE));
    assert!(String::from_utf8_lossy(&again.stderr).contains("it exists; --overwrite replaces it"));
    assert!(save(&["--overwrite"]).status.success());
    let there = json_of(&alone(&["--json", "--readings", path]));
    assert_eq!(there["diagnosis"]["detected"]["platform"], "coherent-cdmm");
    assert_eq!(there["readings"]["daemon"]["device_bytes"][0], 64 * MIB);
    for (text, problem) in
        [("", "these are no readings"), ("{\"version\": 7}", "version 7, and only 1 is known")]
    {
        fs::write(&file, text).unwrap();
        let refused = alone(&["--readings", path]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(USAGE), "{said}");
        assert!(said.contains("READINGS_INVALID") && said.contains(problem), "{said}");
    }
    assert!(!alone(&["--readings", "/nonexistent/file"]).status.success());
    assert!(Path::new(path).exists());
}
