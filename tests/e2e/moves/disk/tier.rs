//! Memory that goes to disk and comes back: real files, in a directory that one daemon has for itself.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Output,
};

use tonic::Code;
use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, PrefetchRequest, PrefetchState,
};
use vramd_proto::v1::{MoveOutcome as Outcome, MoveState, SealRequest, Tier};
use vramd_tests::{
    Config, Daemon, Home, MIB, MIB_2, Refused,
    config::Effect,
    content,
    daemon::quota,
    digest,
    wait::{eventually, until},
};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left,
    clients::killed::kill,
    clients::programs::{allocate_unpinned, is_intact, lies, send},
    clients::stopped::client,
    disk::engines::{ENGINES, engine_of},
    evict_to, first, open_and_write,
    operators::list::listed,
    part,
    pins::fetch::connect,
    start_move, tiers, vramctl, vramctl_json,
};

/// The size of a part in bytes.
pub(crate) const PART: usize = 2 << 20;

/// MiB charged on the device, in the host and on disk.
fn held(daemon: &Daemon) -> [u64; 3] {
    let state = daemon.state();
    [state.charged(), state.charged_in_host(), state.charged_on_disk()].map(|bytes| bytes / MIB)
}

#[track_caller]
pub(crate) fn until_charged(daemon: &Daemon, should: [u64; 3]) {
    until("the charges are as expected", || held(daemon) == should);
}

/// The files of extents in the directory.
pub(crate) fn files(home: &Path) -> Vec<PathBuf> {
    let there =
        fs::read_dir(home.join("disk")).expect("it is there").map(|entry| entry.expect("an entry").path());
    there.filter(|path| path.to_string_lossy().contains("vramd-extent-")).collect()
}

/// Allocates unpinned parts of 2 MiB, and writes each under a pin of its own.
pub(crate) fn write_unpinned(client: &Client, count: u32) -> Allocation {
    let request =
        AllocationRequest::new(Bytes::new(u64::from(count) * MIB_2)).part_size(Bytes::new(MIB_2)).unpinned();
    let memory = client.allocate(request).expect("room below");
    let bytes = content(u64::from(count) * MIB_2, memory.id().get());
    for (part, bytes) in (0..count).zip(bytes.chunks(PART)) {
        let mut pinned = memory.pin_parts(part..part + 1, Access::Write).expect("it is brought in");
        assert!(pinned.as_slice().unwrap().iter().all(|byte| *byte == 0), "unwritten bytes are zeros");
        pinned.as_mut_slice().unwrap().copy_from_slice(bytes);
    }
    memory
}

#[test]
fn a_set_larger_than_device_and_host_survives_a_killed_client() {
    let daemon = Daemon::start(&tiers("6MiB", "8MiB").disk("128MiB"));
    let [first, second] = [connect(&daemon), connect(&daemon)];
    let (mut probe, _) = client(&daemon);
    let mine = write_unpinned(&first, 10);
    let other = write_unpinned(&second, 8);
    let third = write_unpinned(&first, 4);
    probe.tell("sdk pin-for 60000");
    for memory in [&mine, &other] {
        is_intact(memory, if memory.id() == mine.id() { 10 } else { 8 });
    }
    probe.kill();
    is_intact(&third, 4);
    is_intact(&mine, 10);
    until("its memory is given back", || daemon.state().allocations.len() == 3);
    let lies: Vec<_> = [&mine, &other, &third].into_iter().flat_map(|memory| lies(&daemon, memory)).collect();
    assert!(lies.iter().any(|tier| tier == "disk") && lies.iter().any(|tier| tier == "host"), "{lies:?}");
    let shown = vramctl_json(&daemon, &["alloc", "show", &mine.id().to_string()]);
    let bytes = &shown["allocation"]["tier_bytes"];
    let in_all: u64 =
        ["device", "host", "disk"].iter().map(|tier| bytes[tier].as_u64().expect("bytes")).sum();
    assert_eq!(in_all, 10 * MIB_2, "{bytes}");
    let device = vramctl_json(&daemon, &["device", "list"])["devices"][0].clone();
    assert_eq!(device["disk_capacity_bytes"], 128 * MIB);
    let sealed = third.seal().expect("it is hashed wherever it lies");
    let id = sealed.id().get();
    assert_eq!(sealed.digest(), digest(&content(4 * MIB_2, id)));
    sealed.free().unwrap();
    drop((mine, other));
    first.flush().unwrap();
    second.flush().unwrap();
    drop((first, second));
    assert_nothing_left(&daemon);
    assert_eq!(files(daemon.home().path()), Vec::<PathBuf>::new(), "a freed part has no file");
}

#[test]
fn an_operator_moves_a_part_to_disk_and_host_and_back() {
    for engine in ENGINES {
        is_sent_to_disk_and_to_the_host_and_comes_back(engine);
    }
}

fn is_sent_to_disk_and_to_the_host_and_comes_back(engine: &'static str) {
    let config = tiers("8MiB", "8MiB").disk("8MiB").disk_engine(engine);
    let daemon = Daemon::start(&config.telemetry("prometheus_listen = \"127.0.0.1:0\""));
    assert!(engine == "auto" || engine_of(&daemon) == engine);
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    until_charged(&daemon, [4, 4, 0]);
    for (to, should) in [("disk", [0, 0, 4]), ("host", [0, 4, 0]), ("disk", [0, 0, 4])] {
        send(&daemon, &memory, to);
        until_charged(&daemon, should);
        assert_eq!(lies(&daemon, &memory), [to; 2]);
        assert_eq!(files(daemon.home().path()).len(), if to == "disk" { 2 } else { 0 });
    }
    let metrics = daemon.metrics();
    let disk_io_bytes =
        |line: &&str| line.contains("disk") && line.contains("resident") && line.ends_with(" 4194304");
    assert!(metrics.lines().any(|line| disk_io_bytes(&line)), "{metrics}");
    vramctl_json(&daemon, &["alloc", "bring-in", &memory.id().to_string()]);
    until_charged(&daemon, [4, 0, 4]);
    is_intact(&memory, 2);
    // From the device to the tier in which the tenant has no charge.
    send(&daemon, &memory, "host");
    until_charged(&daemon, [0, 4, 0]);
    is_intact(&memory, 2);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
    let (status, home) = daemon.stop();
    assert!(status.success() && files(home.path()).is_empty());
}

/// Also if its client lives on, and if it serves metrics, whose threads live as long as the process.
#[test]
fn a_stopped_daemon_leaves_no_file() {
    for telemetry in ["", "prometheus_listen = \"127.0.0.1:0\""] {
        let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB").telemetry(telemetry));
        let client = connect(&daemon);
        let memory = allocate_unpinned(&daemon, &client, 2);
        send(&daemon, &memory, "disk");
        assert_eq!(files(daemon.home().path()).len(), 2);
        let (status, home) = daemon.stop();
        assert!(status.success(), "{status}");
        assert_eq!(files(home.path()), Vec::<PathBuf>::new(), "with telemetry {telemetry:?}");
        drop(memory);
    }
}

#[test]
fn the_disk_has_a_quota_of_its_own() {
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB").default_quota("disk_limit = \"2MiB\""));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    until_charged(&daemon, [4, 0, 2]);
    let evict = |part: &str| {
        let target = memory.id().to_string();
        vramctl_json(&daemon, &["alloc", "evict", &target, "--to", "disk", "--part", part])["parts"][0]
            .clone()
    };
    let refused = evict("1");
    assert_eq!(
        (&refused["outcome"], &refused["error"]["reason"]),
        (&"refused".into(), &"QUOTA_LIMIT".into())
    );
    assert_eq!(refused["error"]["facts"]["tier"], "disk");
    let tenant = daemon.state().quotas.iter().find(|row| row.held_bytes > 0).expect("a row").tenant.clone();
    let shown = vramctl_json(&daemon, &["quota", "get", &tenant, "--tier", "disk"]);
    assert_eq!(shown["quota"]["held_bytes"], 2 * MIB);
    vramctl_json(&daemon, &["quota", "set", &tenant, "--tier", "disk", "--limit", "4MiB"]);
    until_charged(&daemon, [4, 0, 4]);
    send(&daemon, &memory, "disk");
    let unbacked = quota("team-z", "0", "8MiB", "8MiB");
    let set = vramd_proto::v1::SetQuotaRequest { tier: Tier::Disk.into(), ..unbacked };
    let refused = daemon.admin.set_quota(set).refused();
    assert_eq!(refused.is(Reason::GuaranteeUnbacked).fact("tier"), "disk");
    is_intact(&memory, 2);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_client_killed_during_a_copy_to_disk_leaves_no_file() {
    let config = tiers("8MiB", "0").disk("8MiB").fault("copy", 1, Effect::Hold);
    let daemon = Daemon::start(&config);
    let (probe, id) = client(&daemon);
    let evicting = start_move(&daemon, id, Tier::Disk);
    until("it is copied", || {
        let moves = listed(&daemon).moves;
        moves.iter().any(|it| (it.tier(), it.state()) == (Tier::Disk, MoveState::Copying))
    });
    kill(&daemon, probe);
    assert_eq!(first(&evicting.ok()).0, Outcome::Freed);
    assert_nothing_left(&daemon);
    assert_eq!(files(daemon.home().path()), Vec::<PathBuf>::new());
}

#[test]
fn a_part_stays_if_the_disk_is_full() {
    let config = tiers("8MiB", "0").disk("8MiB").fault("create_disk", 1, Effect::OutOfMemory);
    let daemon = Daemon::start(&config);
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 1);
    let evict = || {
        vramctl_json(&daemon, &["alloc", "evict", &memory.id().to_string(), "--to", "disk"])["parts"][0]
            .clone()
    };
    let refused = evict();
    assert_eq!(
        (&refused["error"]["reason"], &refused["error"]["facts"]["tier"]),
        (&"DEVICE_FULL".into(), &"disk".into())
    );
    is_intact(&memory, 1);
    send(&daemon, &memory, "disk");
    is_intact(&memory, 1);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// The file of a part. Changing it has the effect of a disk that has gone bad.
pub(crate) fn file_of(daemon: &Daemon, allocation: u64, part: usize) -> fs::File {
    let content = content((part as u64 + 1) * MIB_2, allocation)[part * PART..].to_vec();
    let file = files(daemon.home().path()).into_iter().find(|path| fs::read(path).expect("ours") == content);
    fs::File::options().read(true).write(true).open(file.expect("the part's")).expect("ours")
}

/// Changes one byte of the part.
fn corrupt(daemon: &Daemon, allocation: u64, part: usize) {
    let file = file_of(daemon, allocation, part);
    let mut was = [0];
    file.read_exact_at(&mut was, 4097).expect("it can be read");
    file.write_all_at(&[!was[0]], 4097).expect("it is written");
    file.sync_all().expect("it is on disk");
}

pub(crate) fn is_lost(error: &Error, allocation: u64, part: u64) -> bool {
    let id = vramd_types::AllocationId::from_raw(allocation).to_string();
    matches!(error, Error::ContentLost { allocation, part_index, .. } if *allocation == id && *part_index == part)
}

#[test]
fn damage_on_disk_loses_the_content_of_its_part_alone() {
    for engine in ENGINES {
        is_lost_and_nothing_else_is(engine);
    }
}

fn is_lost_and_nothing_else_is(engine: &'static str) {
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB").disk_engine(engine));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    send(&daemon, &memory, "disk");
    corrupt(&daemon, memory.id().get(), 0);
    for _ in 0..2 {
        let lost = memory.pin_parts(0..1, Access::Read).map(drop).expect_err("it is lost");
        assert!(is_lost(&lost, memory.id().get(), 0), "{lost:?}");
    }
    let whole = memory.pin_parts(1..2, Access::Read).expect("it is whole");
    assert!(whole.as_slice().unwrap() == &content(2 * MIB_2, memory.id().get())[PART..]);
    drop(whole);
    // The memory of the failed attempts is charged until the driver has it back.
    let told = eventually("there is room again", || {
        let told = vramctl_json(&daemon, &["alloc", "bring-in", &memory.id().to_string()]);
        (told["parts"][0]["error"]["reason"] != "QUOTA_LIMIT").then_some(told)
    });
    assert_eq!(told["parts"][0]["error"]["reason"], "CONTENT_LOST");
    let ended = listed(&daemon).ended;
    assert!(ended.iter().any(|it| it.detail.contains("is damaged on disk")), "{ended:?}");
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// A truncated part is missing at its end, and the disk says so.
#[test]
fn a_truncated_file_loses_the_content_of_its_part_alone() {
    assert_second_part_lost(|file| file.set_len(8192).expect("it can be cut off"));
}

/// Damages the file of the second part of an allocation on disk, and checks that this part alone is lost.
pub(crate) fn assert_second_part_lost(damage: impl FnOnce(&fs::File)) {
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB"));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    send(&daemon, &memory, "disk");
    let id = memory.id().get();
    damage(&file_of(&daemon, id, 1));
    second_part_alone_is_lost(&daemon, &client, memory);
}

/// Pins of the second of two parts fail, and the first is whole. In the end nothing is left.
#[track_caller]
fn second_part_alone_is_lost(daemon: &Daemon, client: &Client, memory: Allocation) {
    let id = memory.id().get();
    let lost = memory.pin_parts(1..2, Access::Read).map(drop).expect_err("it is lost");
    assert!(is_lost(&lost, id, 1), "{lost:?}");
    let whole = memory.pin_parts(0..1, Access::Read).expect("it is whole");
    assert!(whole.as_slice().unwrap() == &content(2 * MIB_2, id)[..PART]);
    drop((whole, memory));
    client.flush().unwrap();
    assert_nothing_left(daemon);
}

/// The disk's answer about the third of four pieces.
pub(crate) const EIO: &str = "at offset 4194304: Input/output error (os error 5)";

/// One part of several pieces of 2 MiB, which move together.
pub(crate) fn in_one_part(daemon: &Daemon, client: &Client, pieces: u64) -> Allocation {
    let size = Bytes::new(pieces * MIB_2);
    let mut memory = client.allocate(AllocationRequest::new(size).part_size(size)).expect("there is room");
    let bytes = content(size.get(), memory.id().get());
    memory.as_mut_slice().unwrap().copy_from_slice(&bytes);
    memory.unpin().unwrap();
    daemon.settled_state();
    memory
}

#[track_caller]
pub(crate) fn has_all(memory: &Allocation, pieces: u64) {
    let pinned = memory.pin_parts(0..1, Access::Read).expect("it is there");
    assert!(pinned.as_slice().unwrap() == content(pieces * MIB_2, memory.id().get()));
}

/// A failed read does not prove that the bytes are gone: the pin fails, and the next pin has them.
#[test]
fn a_failed_read_succeeds_at_the_next_pin() {
    for engine in ENGINES {
        fails_once_and_is_there_the_next_time(engine);
    }
}

fn fails_once_and_is_there_the_next_time(engine: &'static str) {
    let config = tiers("8MiB", "0").disk("8MiB").disk_engine(engine);
    let daemon = Daemon::start(&config.fault("copy", 2, Effect::Fail("an error of the disk".to_owned())));
    let client = connect(&daemon);
    let memory = in_one_part(&daemon, &client, 4);
    send(&daemon, &memory, "disk");
    let failed = memory.pin_parts(0..1, Access::Read).map(drop).expect_err("it failed");
    assert_eq!(failed.reason(), Some(Reason::DriverFailed), "{failed:?}");
    assert!(failed.to_string().contains(EIO), "{failed}");
    assert_eq!(lies(&daemon, &memory), ["disk"]);
    has_all(&memory, 4);
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// A request whose read fails ends with the disk's error, and leaves no reservation. The content is still there.
#[test]
fn a_failed_read_ends_a_prefetch_and_the_next_pin_has_the_bytes() {
    for engine in ENGINES {
        let config = tiers("8MiB", "0").disk("16MiB").disk_engine(engine);
        let daemon = Daemon::start(&config.fault("copy", 3, Effect::Fail("an error of the disk".to_owned())));
        let client = connect(&daemon);
        let other = in_one_part(&daemon, &client, 1);
        send(&daemon, &other, "disk");
        let memory = in_one_part(&daemon, &client, 4);
        send(&daemon, &memory, "disk");
        let failed = prefetch_error(&client, &memory);
        assert_eq!(failed.reason(), Some(Reason::DriverFailed), "{failed:?}");
        assert!(failed.to_string().contains(EIO), "{failed}");
        assert_eq!(lies(&daemon, &memory), ["disk"]);
        has_nothing_reserved(&daemon);
        // The next request of the session is served, and so is the next one for this memory.
        for (memory, pieces) in [(&other, 1), (&memory, 4)] {
            let prefetch = client.prefetch(PrefetchRequest::new().all(memory)).unwrap();
            let ready = PrefetchState::Ready { parts_left_out: 0, is_late: false };
            assert_eq!(prefetch.wait().unwrap(), ready);
            has_all(memory, pieces);
        }
        drop((other, memory));
        client.flush().unwrap();
        assert_nothing_left(&daemon);
    }
}

#[test]
fn damage_on_disk_ends_a_prefetch_and_loses_its_part_alone() {
    for engine in ENGINES {
        let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB").disk_engine(engine));
        let client = connect(&daemon);
        let memory = allocate_unpinned(&daemon, &client, 2);
        send(&daemon, &memory, "disk");
        let id = memory.id().get();
        corrupt(&daemon, id, 1);
        for _ in 0..2 {
            let lost = prefetch_error(&client, &memory);
            assert!(is_lost(&lost, id, 1), "{lost:?}");
            has_nothing_reserved(&daemon);
        }
        second_part_alone_is_lost(&daemon, &client, memory);
    }
}

/// The error with which a prefetch request for the memory ends, at once or later.
#[track_caller]
fn prefetch_error(client: &Client, memory: &Allocation) -> Error {
    let ended = client.prefetch(PrefetchRequest::new().all(memory)).map(|it| it.wait().expect("it ends"));
    match ended {
        Err(error) | Ok(PrefetchState::Refused(error)) => error,
        Ok(other) => panic!("the request ended with {other:?}"),
    }
}

/// No request is left, and nothing moves.
#[track_caller]
fn has_nothing_reserved(daemon: &Daemon) {
    let listed = vramctl_json(daemon, &["prefetch", "list"]);
    assert_eq!(listed["prefetches"], serde_json::json!([]));
    until("nothing moves", || {
        let device = &daemon.state().devices[0];
        (device.moving_in_bytes, device.moving_out_bytes, device.awaited_part_count) == (0, 0, 0)
    });
}

/// And not at the call's deadline, which the refusal would name, whatever becomes of its other parts.
#[test]
fn an_attach_of_damaged_content_is_refused_at_once() {
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB"));
    let [writer, reader] = [connect(&daemon), connect(&daemon)];
    let memory = allocate_unpinned(&daemon, &writer, 2).seal().expect("it is whole");
    let id = memory.id();
    vramctl_json(&daemon, &["alloc", "evict", &id.to_string(), "--to", "disk"]);
    until_charged(&daemon, [0, 0, 4]);
    corrupt(&daemon, id.get(), 1);
    let lost = reader.attach(id).map(drop).expect_err("it is lost");
    assert!(is_lost(&lost, id.get(), 1), "{lost:?}");
    let rest = reader.attach_unpinned(id).expect("the rest is there");
    let whole = rest.pin_parts(0..1, Access::Read).expect("it is whole");
    assert!(whole.as_slice().unwrap() == &content(2 * MIB_2, id.get())[..PART]);
    drop((whole, rest, memory));
    writer.flush().unwrap();
    reader.flush().unwrap();
    assert_nothing_left(&daemon);
}

#[test]
fn a_refused_seal_names_the_lost_part() {
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB"));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 2);
    send(&daemon, &memory, "disk");
    let id = memory.id().get();
    corrupt(&daemon, id, 1);
    let failed = memory.seal().map(drop).expect_err("it cannot be hashed");
    assert!(is_lost(&failed.error, id, 1), "{:?}", failed.error);
    drop(failed);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}

/// For every request of a client.
#[test]
fn lost_content_is_data_loss_on_the_wire() {
    let daemon = Daemon::start(&tiers("8MiB", "0").disk("8MiB"));
    let (mut session, id) = open_and_write(&daemon, 2);
    evict_to(&daemon, &mut [&mut session], id, Tier::Disk);
    until_charged(&daemon, [0, 0, 4]);
    corrupt(&daemon, id, 1);
    let lost = |refused: &Refused| {
        assert_eq!(refused.is(Reason::ContentLost).code, Code::DataLoss);
        let id = vramd_types::AllocationId::from_raw(id).to_string();
        assert_eq!((refused.fact("allocation"), refused.number("part_index")), (id.as_str(), 1));
    };
    let seal = SealRequest { session_id: session.id(), allocation_id: id, ..Default::default() };
    lost(&session.memory.seal(seal).refused());
    for parts in [vec![part(id, 1)], vec![part(id, 0), part(id, 1)]] {
        let call = session.pin(parts);
        lost(&session.pin_answer(call).expect_err("it is lost"));
        session.end_pin_call(call);
    }
    let answer = start_move(&daemon, id, Tier::Device).ok();
    let error = answer.parts[1].error.clone().expect("a refusal");
    lost(&Refused::from_item(error));
    session.free(id);
    assert_nothing_left(&daemon);
}

pub(crate) fn text(directory: &str, size: &str, engine: &str) -> String {
    format!(
        "[daemon]\nsocket_dir = \"run\"\nstate_dir = \"state\"\n[driver]\nkind = \"sim\"\n[disk]\ndirectory = \"{directory}\"\nsize = \"{size}\"\nengine = \"{engine}\"\n"
    )
}

pub(crate) fn heard(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Both a start and a check end with this text, and name the line of the field.
#[track_caller]
pub(crate) fn refused(home: &Home, status: i32, field: &str, why: &str) {
    let line = if field == "disk.size" { "vramd.toml:8:8: " } else { "vramd.toml:7:13: " };
    for check in [true, false] {
        let mut command = home.command();
        let output = if check { command.arg("--check").output() } else { command.output() }.unwrap();
        let heard = heard(&output);
        assert_eq!(output.status.code(), Some(status), "{heard}");
        assert!(heard.contains(line) && heard.contains(field) && heard.contains(why), "{heard}");
    }
}

#[test]
fn an_unusable_directory_ends_the_start_with_line_and_field() {
    let home = Home::new();
    let says = |text: &str| fs::write(home.path().join("vramd.toml"), text).unwrap();
    let here = |name: &str| home.path().join(name).display().to_string();
    fs::write(home.path().join("file"), b"").unwrap();
    fs::create_dir(home.path().join("disk")).unwrap();
    for (directory, size, field, why) in [
        (here("nowhere"), "8MiB", "disk.directory", "does not exist"),
        (here("file"), "8MiB", "disk.directory", "is not a directory"),
        ("/sys/kernel".to_owned(), "8MiB", "disk.directory", "cannot be written"),
        (here("disk"), "1048576GiB", "disk.size", " free, less than the configured "),
    ] {
        says(&text(&directory, size, "auto"));
        refused(&home, 3, field, why);
    }
    says(&text(&here("disk"), "8MiB", "threads"));
    assert!(home.command().arg("--check").output().unwrap().status.success());
    let held = Daemon::start_in(home);
    let other = Home::new();
    fs::write(
        other.path().join("vramd.toml"),
        text(&held.home().path().join("disk").display().to_string(), "8MiB", "auto"),
    )
    .unwrap();
    refused(&other, 4, "disk.directory", &format!("is in use by another daemon (process {})", held.pid()));
    let (status, home) = held.stop();
    assert!(status.success());
    // A daemon that has ended leaves no file that is in the way of the next.
    assert!(home.command().arg("--check").output().unwrap().status.success());
}

#[test]
fn a_disk_needs_a_directory_and_a_size() {
    let home = Home::new();
    for (lines, why) in [
        ("directory = \"/tmp\"\n", "`directory` needs `size`"),
        ("size = \"2MiB\"\n", "`size` needs `directory`"),
        ("directory = \"/tmp\"\nsize = \"3MiB\"\n", "not a multiple of 2 MiB"),
        ("engine = \"fast\"\n", "expected \"auto\", \"ring\" or \"threads\""),
    ] {
        fs::write(home.path().join("vramd.toml"), format!("[disk]\n{lines}")).unwrap();
        let output = home.command().arg("--check").output().unwrap();
        let heard = heard(&output);
        assert!(
            output.status.code() == Some(3) && heard.contains(why) && heard.contains("vramd.toml:"),
            "{heard}"
        );
    }
}

/// A node without the tier refuses it by name.
#[test]
fn a_node_without_a_disk_refuses_moves_to_disk() {
    let daemon = Daemon::start(&Config::devices(&["8MiB"]).memory("host_size = \"8MiB\""));
    let client = connect(&daemon);
    let memory = allocate_unpinned(&daemon, &client, 1);
    let output = vramctl(&daemon, &["alloc", "evict", &memory.id().to_string(), "--to", "disk"]);
    assert!(!output.status.success() && heard(&output).contains("TIER_UNSUPPORTED"), "{}", heard(&output));
    drop(memory);
    client.flush().unwrap();
    assert_nothing_left(&daemon);
}
