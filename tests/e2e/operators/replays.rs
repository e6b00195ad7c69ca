//! Operators record a trace while the daemon serves, and replay it with other eviction policies.

use std::{fs, path::Path};

use serde_json::Value;
use vramd_client::{Access, AllocationRequest, Bytes, Client, SequenceRequest};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, content,
    programs::program,
    wait::{PATIENCE, until},
};

use crate::pressure::{MEASURED, metric};

const REFUSED: i32 = 1;
const USAGE: i32 = 2;

/// A device of 8 parts, with 64 MiB in the host below it.
fn node() -> Config {
    let config = Config::devices(&["16MiB"]).memory("host_size = \"64MiB\"").memory("harvest_ms = 5");
    config.pressure("cold_after_ms = 0").telemetry(MEASURED)
}

fn client(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).request_timeout(PATIENCE).connect().unwrap()
}

/// Returns the JSON that `vramctl` prints.
#[track_caller]
fn said(daemon: &Daemon, words: &[&str]) -> Value {
    let output = daemon.vramctl().arg("--json").args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the error that `vramctl` prints, and its status.
#[track_caller]
fn fails(daemon: &Daemon, words: &[&str]) -> (Value, i32) {
    let output = daemon.vramctl().arg("--json").args(words).output().unwrap();
    assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{output:?}");
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    (error["error"].clone(), output.status.code().unwrap())
}

/// Runs `vramctl replay` on a file, without any daemon.
fn replay(file: &Path, words: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(program("vramctl"));
    command.env("VRAMD_SOCKET_DIR", "/nonexistent").arg("replay").arg(file).args(words);
    command.output().unwrap()
}

#[track_caller]
fn replayed(file: &Path, words: &[&str]) -> Value {
    let output = replay(file, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn of_policy<'a>(report: &'a Value, policy: &str) -> &'a Value {
    let mut all = report["policies"].as_array().unwrap().iter();
    all.find(|played| played["policy"] == policy).unwrap_or_else(|| panic!("no {policy}: {report}"))
}

/// The bytes that the daemon has moved to its device.
fn fetched(daemon: &Daemon) -> u64 {
    metric(daemon, "vramd_migration_io_bytes_total", &["\"in\"", "\"moved\""]).unwrap_or(0)
}

#[test]
fn recorded_loop_is_replayed_as_the_daemon_ran_it_and_with_another_policy() {
    let daemon = Daemon::start(&node());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("loop.trace");
    let path = file.to_str().unwrap();
    let client = client(&daemon);
    // 12 parts where 8 fit, each with bytes of its own.
    let request = AllocationRequest::new(Bytes::new(12 * MIB_2)).part_size(Bytes::mib(2));
    let mut memory = client.allocate(request.unpinned()).unwrap();
    memory.copy_from_host(0, &content(12 * MIB_2, 3)).unwrap();
    let started = said(&daemon, &["trace", "start"]);
    assert_eq!(started["records_max"], 1_000_000);
    let before = fetched(&daemon);
    for _ in 0..5 {
        for part in 0..12 {
            drop(memory.pin_parts(part..part + 1, Access::Read).unwrap());
        }
    }
    let counted = || fetched(&daemon) - before;
    let stopped = said(&daemon, &["trace", "stop"]);
    assert_eq!(stopped["full"], false);
    let saved = said(&daemon, &["trace", "save", path]);
    assert_eq!(saved["bytes"], fs::metadata(&file).unwrap().len());

    let report = replayed(&file, &["--policy", "lru", "--policy", "known-future", "--policy", "lru"]);
    assert_eq!(report["policies"].as_array().unwrap().len(), 2, "{report}");
    let (lru, known) = (of_policy(&report, "lru"), of_policy(&report, "known-future"));
    let uses = report["use_count"].as_u64().unwrap();
    assert!((60..=72).contains(&uses), "60 pins, and perhaps some seen again by a harvest: {report}");
    let recorded = report["recorded"]["fetched_bytes"].as_u64().unwrap();
    assert!(recorded > 40 * MIB_2, "{report}");
    until("the metric counts what the trace has", || counted() == recorded);
    // Both are LRU; the harvest tells the daemon some uses late.
    let ran = lru["fetched_bytes"].as_u64().unwrap();
    assert!(ran.abs_diff(recorded) <= 8 * MIB_2, "{report}");
    let fewest = report["bound_bytes"].as_u64().unwrap();
    let fetched = known["fetched_bytes"].as_u64().unwrap();
    assert!(fewest <= fetched && fetched < ran, "{report}");
    for played in [lru, known] {
        assert_eq!(played["hits"].as_u64().unwrap() + played["stalls"].as_u64().unwrap(), uses, "{report}");
        assert_eq!(played["unserved"], 0, "{report}");
    }
    // The file tells what was used, and of whom, and nothing that a program stored or named.
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# vramd-trace 1 records="), "{text}");
    let table = String::from_utf8(replay(&file, &[]).stdout).unwrap();
    assert!(table.contains("(recorded)") && table.contains("hit-density"), "{table}");

    // A second one only replaces the file if it is told so.
    let (error, status) = fails(&daemon, &["trace", "save", path]);
    assert_eq!((error["reason"].as_str(), status), (Some("FILE_UNWRITABLE"), USAGE));
    assert!(error["message"].as_str().unwrap().contains("--overwrite"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    said(&daemon, &["trace", "save", path, "--overwrite"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished stays");
    memory.free().unwrap();
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn recorded_sequence_is_replayed_with_every_use_served() {
    let daemon = Daemon::start(&node());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sequence.trace");
    let client = client(&daemon);
    // Four passes over 12 parts where 8 fit. A step that is passed makes room for the next ones.
    let request = AllocationRequest::new(Bytes::new(12 * MIB_2)).part_size(Bytes::mib(2));
    let memory = client.allocate(request.unpinned()).unwrap();
    said(&daemon, &["trace", "start"]);
    let mut request = SequenceRequest::new().passes(4);
    for part in 0..12 {
        request = request.step().parts(&memory, part..part + 1);
    }
    let order = client.declare_sequence(request).unwrap();
    for step in 0..48 {
        order.begin(step).unwrap();
        let part = u32::try_from(step % 12).unwrap();
        drop(memory.pin_parts(part..part + 1, Access::Read).unwrap());
    }
    order.end();
    said(&daemon, &["trace", "stop"]);
    said(&daemon, &["trace", "save", file.to_str().unwrap()]);
    let report = replayed(&file, &["--policy", "lru", "--policy", "known-future"]);
    let uses = report["use_count"].as_u64().unwrap();
    assert!(
        (24..=60).contains(&uses),
        "48 pins, of which a harvest may see two as one, or one twice: {report}"
    );
    for played in report["policies"].as_array().unwrap() {
        assert_eq!(played["unserved"], 0, "a part that has left is held no longer: {report}");
        assert_eq!(played["hits"].as_u64().unwrap() + played["stalls"].as_u64().unwrap(), uses, "{report}");
    }
    let [lru, known] =
        ["lru", "known-future"].map(|policy| of_policy(&report, policy)["fetched_bytes"].as_u64());
    assert!(known < lru, "{report}");
    memory.free().unwrap();
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn trace_begins_once_ends_once_and_is_saved_complete() {
    let daemon = Daemon::start(&node());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.trace");
    let path = file.to_str().unwrap();
    let refused = |words: &[&str], reason: &str, part: &str| {
        let (error, status) = fails(&daemon, words);
        assert_eq!((error["reason"].as_str(), status), (Some(reason), REFUSED), "{words:?}: {error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{words:?}: {error}");
    };
    refused(&["trace", "stop"], "TRACE_NOT_FOUND", "there is no trace");
    refused(&["trace", "save", path], "TRACE_NOT_FOUND", "vramctl trace start");
    refused(
        &["trace", "start", "--records", "1000001"],
        "REQUEST_INVALID",
        "records_max must be 1 to 1000000",
    );
    said(&daemon, &["trace", "start"]);
    refused(&["trace", "start"], "TRACE_RUNNING", "vramctl trace stop");
    refused(&["trace", "save", path], "TRACE_RUNNING", "vramctl trace stop");
    assert!(!file.exists());
    said(&daemon, &["trace", "stop"]);
    // A second stop says the same.
    let stopped = said(&daemon, &["trace", "stop"]);
    assert_eq!((&stopped["record_count"], &stopped["full"]), (&1.into(), &false.into()), "the device alone");
    let elsewhere = folder.path().join("missing/x.trace");
    let (error, status) = fails(&daemon, &["trace", "save", elsewhere.to_str().unwrap()]);
    assert_eq!((error["reason"].as_str(), status), (Some("FILE_UNWRITABLE"), USAGE), "{error}");
    said(&daemon, &["trace", "save", path]);
    let (error, status) = fails(&daemon, &["replay", path]);
    assert_eq!((error["reason"].as_str(), status), (Some("TRACE_INVALID"), USAGE));
    assert!(error["message"].as_str().unwrap().contains("no use"), "{error}");
}

#[test]
fn recording_ends_by_itself_at_its_bound() {
    let daemon = Daemon::start(&node());
    let client = client(&daemon);
    let request = AllocationRequest::new(Bytes::new(12 * MIB_2)).part_size(Bytes::mib(2)).unpinned();
    let memory = client.allocate(request).unwrap();
    // A device, twelve parts, and the first uses.
    said(&daemon, &["trace", "start", "--records", "20"]);
    for part in (0..12).chain(0..12) {
        drop(memory.pin_parts(part..part + 1, Access::Read).unwrap());
    }
    let stopped = said(&daemon, &["trace", "stop"]);
    assert_eq!((&stopped["record_count"], &stopped["full"]), (&20.into(), &true.into()));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("full.trace");
    said(&daemon, &["trace", "save", file.to_str().unwrap()]);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# vramd-trace 1 records=20 end=full\n"), "{text}");
    assert_eq!(replayed(&file, &[])["part_count"], 12);
    // A file that has lost its end is noticed.
    fs::write(&file, text.trim_end().rsplit_once('\n').unwrap().0).unwrap();
    let output = replay(&file, &[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(USAGE));
    assert!(error.contains("TRACE_INVALID") && error.contains("announces 20 records and has 19"), "{error}");
    // A new start has room again.
    said(&daemon, &["trace", "start", "--records", "20"]);
    said(&daemon, &["trace", "stop"]);
}

/// `layer-stream.trace` is written by hand: 24 passes over eight layers, of which six fit.
#[test]
fn layer_stream_by_hand_reaches_the_bound_with_a_known_future_alone() {
    let stream = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/operators/traces/layer-stream.trace");
    let report = replayed(&stream, &["--policy", "all", "--link", "50GB"]);
    let layer = 256 * MIB;
    assert_eq!((&report["use_count"], &report["bound_is_exact"]), (&192.into(), &true.into()));
    // The first pass fetches all eight layers. Of seven later uses each time, two fetch.
    assert_eq!(report["bound_bytes"], 60 * layer);
    let known = of_policy(&report, "known-future");
    assert_eq!((&known["fetched_bytes"], &known["to_bound"]), (&(60 * layer).into(), &1.0.into()));
    let lru = of_policy(&report, "lru");
    assert_eq!((&lru["hits"], &lru["fetched_bytes"]), (&0.into(), &(192 * layer).into()));
    // A layer takes 5.4 ms at that speed, and may take 5 ms.
    assert_eq!((&lru["deadlines"], &lru["deadlines_missed"]), (&192.into(), &192.into()));
    assert_eq!(known["deadlines_missed"], 60);
    let fast = replayed(&stream, &["--policy", "lru", "--link", "60GB"]);
    assert_eq!(of_policy(&fast, "lru")["deadlines_missed"], 0);
    // Where all layers fit, each is fetched once.
    let large = replayed(&stream, &["--policy", "lru", "--device-bytes", "2GiB"]);
    assert_eq!(
        (&large["policies"][0]["fetched_bytes"], &large["bound_bytes"]),
        (&(8 * layer).into(), &(8 * layer).into())
    );
}

#[test]
fn csv_of_libcachesim_and_bad_files_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.csv");
    fs::write(&file, "time,obj_id,obj_size\n1,a,3000000\n2,b,1\n3,a,3000000\n").unwrap();
    let report = replayed(&file, &["--policy", "lru", "--device-bytes", "4MiB"]);
    assert_eq!(report["policies"][0]["fetched_bytes"], 10 * MIB, "sizes are rounded up to parts of 2 MiB");
    let refused = |words: &[&str], part: &str| {
        let output = replay(&file, words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(USAGE), "{error}");
        assert!(output.stdout.is_empty() && error.contains(part), "{error}");
    };
    refused(&[], "device 0");
    refused(&["--device-bytes", "2MiB"], "part 0 of allocation 0 has 4 MiB");
    refused(&["--policy", "belady"], "no eviction policy has that name; the names are lru, ");
    fs::write(&file, "1,a,3000000\n2,b\n").unwrap();
    refused(&["--device-bytes", "4MiB"], "TRACE_INVALID: cannot play");
    refused(&["--device-bytes", "4MiB"], "line 2: the size is missing");
    fs::write(&file, [0, 159, 146, 150]).unwrap();
    refused(&[], "line 1: this is no trace");
    fs::remove_file(&file).unwrap();
    refused(&[], "FILE_UNREADABLE");
}
