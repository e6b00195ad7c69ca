//! Host memory: its node, and what happens if it cannot be had.

use std::{panic, path::Path, process::Command, thread, time::Duration};

use fake_cuda::Fake;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use vramd_proto::v1::{
    Advice, AdviseRequest, AllocateBatchRequest, Allocation, MoveOutcome, MovePartsRequest,
    MovePartsResponse, PartRef, PressureLevel, Tier, move_parts_request::Target,
};
use vramd_tests::{Pending, RawSession, content, digest, node_state::NodeState, spec, wait::until};
use vramd_types::Reason;

use crate::{Cgroup, Daemon, NodeMemory, configured};

pub(crate) fn evicting(
    daemon: &Daemon,
    allocation: u64,
    part: u32,
    tier: Tier,
) -> Pending<MovePartsResponse> {
    daemon.admin().move_parts(MovePartsRequest {
        target: Some(Target::AllocationId(allocation)),
        part_indexes: vec![part],
        tier: tier.into(),
        ..Default::default()
    })
}

/// Unmaps as ordered until that is answered. Frames sent before the answer may be read after it.
pub(crate) fn unmap_until_answered(session: &mut RawSession, is_answered: impl Fn() -> bool) {
    let mut answered = false;
    while !answered {
        answered = is_answered();
        while session.channel.waits(Duration::from_millis(5)) {
            let revoke = session.receive_revoke();
            session.unmap_parts(revoke.parts);
        }
    }
}

/// Pins all of it, wherever it lies.
#[track_caller]
pub(crate) fn pins_and_finds(session: &mut RawSession, allocation_id: u64, bytes: &[u8]) {
    let parts = u32::try_from(bytes.len() >> 22).unwrap();
    let call = session.pin((0..parts).map(|part_index| PartRef { allocation_id, part_index }).collect());
    session.pin_answer(call).expect("there is room on the device");
    session.end_pin_call(call);
    assert_eq!(session.digest(allocation_id, bytes.len() as u64), digest(bytes));
}

/// The log says what cannot be pinned ahead. A client that needs the memory gets an exact error and loses
/// nothing.
fn check_reduced_host_tier(fake: &Fake, pinned: u64, why: &str) {
    has_less(&Daemon::start_with_host(fake, "16MiB"), pinned, why);
}

fn has_less(daemon: &Daemon, pinned: u64, why: &str) {
    let said = format!(
        "WARN no further host memory is pinned ahead of need: moving parts wait while it is pinned \
         node=0 pinned_bytes={pinned} problem=\"out of host memory: {why}"
    );
    until("the log says so", || daemon.log().contains(&said));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let allocation = session.allocate(spec(8 << 20)).allocation_id;
    let bytes = content(8 << 20, 4);
    session.write(allocation, &bytes);
    let parts_pinned = u32::try_from(pinned / (4 << 20)).unwrap();
    for part in 0..=parts_pinned {
        let answer = evicting(daemon, allocation, part, Tier::Host);
        unmap_until_answered(&mut session, || answer.is_answered());
        let answer = answer.ok();
        if part < parts_pinned {
            assert_eq!(answer.parts[0].outcome(), MoveOutcome::Moved, "{answer:?}");
            continue;
        }
        let error = answer.parts[0].error.clone().expect("a refusal");
        assert_eq!((error.reason.as_str(), error.metadata["tier"].as_str()), ("DEVICE_FULL", "host"));
    }
    pins_and_finds(&mut session, allocation, &bytes);
    assert_eq!(daemon.log().matches("is pinned ahead of need").count(), 1, "{}", daemon.log());
    session.free(allocation);
    until("nothing is charged", || NodeState::read(&daemon.admin()).is_empty());
}

/// The driver asks for memory of the node nearest to the device, ahead of need and for moves.
#[test]
fn the_host_tier_is_on_the_node_nearest_to_the_device() {
    let fake = Fake::new().with("note = 1").with("attribute.134 = 1");
    let daemon = Daemon::start_with_host(&fake, "16MiB");
    let made = |node: u32| fake.calls(&format!("cuMemCreate(host:{node})")).len();
    until("all of it is pinned", || made(1) == 4);
    assert_eq!(made(0), 0, "{}", daemon.log());
}

/// In CDMM mode the driver must not move system memory. The daemon copies between explicit memory, and asks for nothing
/// else.
#[test]
fn parts_move_without_prefetches_of_system_memory_in_cdmm_mode() {
    let mut fake = Fake::new().with("note = 1");
    // PAGEABLE_MEMORY_ACCESS, its host page tables, and managed access from the host.
    for coherent in [88, 100, 101] {
        fake = fake.with(&format!("attribute.{coherent} = 1"));
    }
    let daemon = Daemon::start_with_host(&fake, "16MiB");
    let log = daemon.log();
    assert!(log.contains("node found platform=\"coherent GPU in CDMM mode\""), "{log}");
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(8 << 20)).allocation_id;
    let bytes = content(8 << 20, 7);
    session.write(id, &bytes);
    for part in 0..2 {
        let answer = evicting(&daemon, id, part, Tier::Host);
        unmap_until_answered(&mut session, || answer.is_answered());
        assert_eq!(answer.ok().parts[0].outcome(), MoveOutcome::Moved);
    }
    pins_and_finds(&mut session, id, &bytes);
    for copies in ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"] {
        assert!(fake.calls(copies).len() >= 2, "{copies}");
    }
    for places in [
        "cuMemPrefetchAsync",
        "cuMemPrefetchAsync_v2",
        "cuMemAdvise",
        "cuMemAdvise_v2",
        "cuMemAllocManaged",
        "cuStreamAttachMemAsync",
    ] {
        assert_eq!(fake.calls(places), [], "{places}");
    }
}

#[test]
fn a_host_without_memory_is_logged_and_refused() {
    check_reduced_host_tier(&Fake::new().with("host_mib = 4"), 4 << 20, "the driver cannot pin more");
}

#[test]
fn unregistrable_host_memory_is_logged_and_refused() {
    let fake = Fake::new().with("attribute.141 = 0").with("fail.cuMemHostRegister_v2 = 2@1");
    check_reduced_host_tier(&fake, 0, "");
}

/// Without host memory by descriptor there is a host tier, and only the daemon can map it.
#[test]
fn clients_never_map_registered_host_memory() {
    let daemon = Daemon::start_with_host(&Fake::new().with("attribute.141 = 0"), "16MiB");
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(4 << 20)).allocation_id;
    let advise = |advice: Advice| {
        session.memory.advise(AdviseRequest {
            session_id: session.id(),
            allocation_id: id,
            advice: advice.into(),
            ..Default::default()
        })
    };
    let refused = advise(Advice::SetAccessedBy).refused();
    assert_eq!(refused.is(Reason::TierUnsupported).fact("tier"), "host");
    assert_eq!(refused.message, "the device has no usable host tier for this request");
    advise(Advice::UnsetAccessedBy).ok();

    let bytes = content(4 << 20, 9);
    session.write(id, &bytes);
    let evicted = evicting(&daemon, id, 0, Tier::Host);
    unmap_until_answered(&mut session, || evicted.is_answered());
    assert_eq!(evicted.ok().parts[0].outcome(), MoveOutcome::Moved, "it can lie there all the same");
    pins_and_finds(&mut session, id, &bytes);
}

/// The driver pins in the daemon's name, and its cgroup has no more: the limit suffices.
#[test]
fn a_full_cgroup_refuses_host_memory() {
    let fake = Fake::new().with("attribute.141 = 0");
    let place = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::new(&place, 512 << 20, 511 << 20);
    let command = cgroup.command(&configured(&place, &fake, "16MiB"));
    has_less(&Daemon::start_by(command, place), 0, "the memory limit of the daemon's cgroup leaves 1 MiB");
}

/// Beside the host tier there must be room for the daemon, and for the buffers of copies and digests.
#[test]
fn a_cgroup_that_leaves_no_room_for_buffers_ends_the_start() {
    let fake = Fake::new().with("attribute.141 = 0");
    for (max, status) in [(271 << 20, Some(3)), (272 << 20, None)] {
        let place = tempfile::tempdir().unwrap();
        let command = Cgroup::new(&place, max, 0).command(&configured(&place, &fake, "16MiB"));
        if status.is_none() {
            Daemon::start_by(command, place);
            continue;
        }
        let mut daemon = Daemon::spawn(command, place);
        let (ended, said) = (daemon.wait_for_end(), daemon.log());
        assert_eq!(ended.code(), status, "{said}");
        assert!(said.contains("may have 271 MiB, of which 256 MiB are left to the daemon"), "{said}");
    }
}

/// Pinned memory is the daemon's. Of the rest, no more is handed out than its cgroup leaves now.
#[test]
fn memory_used_by_others_in_a_cgroup_is_not_handed_out() {
    // Half of the tier can be pinned ahead of need, by two calls: the first is a buffer for measuring links.
    let fake = Fake::new().with("attribute.141 = 0").with("fail.cuMemHostRegister_v2 = 2@4");
    let place = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::new(&place, 512 << 20, 0);
    let daemon = Daemon::start_by(cgroup.command(&configured(&place, &fake, "16MiB")), place);
    until("half of it is pinned", || {
        daemon.log().contains("moving parts wait while it is pinned node=0 pinned_bytes=8388608")
    });
    let device = || NodeState::read(&daemon.admin()).devices.remove(0);
    let has = |mib: u64| device().host_capacity_bytes == mib << 20;
    assert!(has(16), "{:?}", device());
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(8 << 20)).allocation_id;
    assert_eq!((device().host_held_bytes, device().host_pressure()), (8 << 20, PressureLevel::Normal));

    cgroup.set_usage(506 << 20);
    until("two more can be pinned", || has(14));
    assert_eq!(device().host_pressure(), PressureLevel::Normal);
    cgroup.set_usage(511 << 20);
    until("the driver cannot pin more", || has(8));
    until("it is full", || device().host_pressure() == PressureLevel::Critical);
    let more = session.allocate(spec(4 << 20)).allocation_id;
    assert_eq!(device().host_held_bytes, 8 << 20, "there is nothing to be set aside");
    cgroup.set_usage(0);
    until("it can be pinned again", || has(16));
    until("a part without backing has it now", || device().host_held_bytes == 12 << 20);
    assert_eq!(device().host_pressure(), PressureLevel::Normal);
    [id, more].into_iter().for_each(|id| _ = session.free(id));
    until("nothing is charged", || NodeState::read(&daemon.admin()).is_empty());
}

/// Other programs take nearly all of a node without swap: nothing more is pinned, and work on the device goes on.
#[test]
fn a_node_at_95_percent_of_its_memory_gives_no_more_until_it_has_some() {
    const PART: u64 = 4 << 20;
    let fake = Fake::new().with("note = 1");
    let place = tempfile::tempdir().unwrap();
    let node = NodeMemory::new(&place, 50);
    let daemon = Daemon::start_by(node.command(&configured(&place, &fake, "auto")), place);
    let capacity = || NodeState::read(&daemon.admin()).devices.remove(0).host_capacity_bytes;
    let pinned = || fake.calls("cuMemCreate(host:0)").len();
    let whole = capacity();
    assert!(whole > 16 * PART, "{whole}: {}", daemon.log());
    assert_eq!(pinned(), 0, "it is pinned with use");

    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(4 * PART)).allocation_id;
    let bytes = content(4 * PART, 5);
    session.write(id, &bytes);
    let mut evict = |part: u32| {
        let answer = evicting(&daemon, id, part, Tier::Host);
        unmap_until_answered(&mut session, || answer.is_answered());
        answer.ok().parts.remove(0)
    };
    for part in 0..2 {
        assert_eq!(evict(part).outcome(), MoveOutcome::Moved);
    }
    until("a third piece is pinned ahead", || pinned() == 3);

    node.set_usage(95);
    until("the tier has what is pinned", || capacity() == 3 * PART);
    assert_eq!(evict(2).outcome(), MoveOutcome::Moved, "it takes the third piece");
    let error = evict(3).error.expect("a refusal");
    assert_eq!((error.reason.as_str(), error.metadata["tier"].as_str()), ("DEVICE_FULL", "host"));
    let other = session.allocate(spec(2 * PART)).allocation_id;
    let more = content(2 * PART, 6);
    session.write(other, &more);
    assert_eq!(session.digest(other, 2 * PART), digest(&more));
    pins_and_finds(&mut session, id, &bytes);
    assert_eq!(pinned(), 3, "and nothing more was pinned");

    node.set_usage(50);
    until("the tier has its whole size", || capacity() == whole);
    for part in 0..4 {
        let answer = evicting(&daemon, id, part, Tier::Host);
        unmap_until_answered(&mut session, || answer.is_answered());
        assert_eq!(answer.ok().parts[0].outcome(), MoveOutcome::Moved);
    }
    assert!(pinned() > 3);
    pins_and_finds(&mut session, id, &bytes);
    [id, other].into_iter().for_each(|id| _ = session.free(id));
    until("nothing is charged", || NodeState::read(&daemon.admin()).is_empty());
}

/// Requests for room that only host memory could make are refused meanwhile, and no client loses anything.
#[test]
fn room_is_made_once_host_memory_is_available() {
    // On the device there is room for four parts and a little.
    let fake = Fake::new().with("fail.cuMemCreate(host) = 2@triggered").with("memory_mib = 27");
    fake.trigger(true);
    let daemon = Daemon::start_with_host(&fake, "64MiB");
    until("the log says so", || daemon.log().contains("no further host memory is pinned ahead of need"));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(spec(12 << 20)).allocation_id;
    let bytes = content(12 << 20, 8);
    session.write(id, &bytes);
    daemon.settled_state();

    let mut other = RawSession::open_with_pins(&daemon.sockets());
    let request = || other.request(vec![spec(8 << 20)]);
    let asked = other.memory.allocate_batch(request());
    unmap_until_answered(&mut session, || asked.is_answered());
    let refused = asked.refused();
    let refused = refused.is(Reason::DeviceFull);
    let facts = ["tier", "asked", "free"].map(|fact| refused.fact(fact));
    assert_eq!(facts, ["device", "8388608", "7340032"]);
    let lies = || {
        let state = daemon.settled_state();
        let of = |row: &&Allocation| row.allocation_id == id;
        state.allocations.iter().find(of).map(|row| (row.resident_bytes, row.host_bytes))
    };
    assert_eq!(lies(), Some((12 << 20, 0)));
    assert!(daemon.log().contains("part could not be moved and is where it was"), "{}", daemon.log());
    pins_and_finds(&mut session, id, &bytes);

    fake.trigger(false);
    // The end of the pin call comes by another socket, perhaps later.
    let waiting = AllocateBatchRequest { wait_ms: 30_000, ..request() };
    let asked = other.memory.allocate_batch(waiting);
    unmap_until_answered(&mut session, || asked.is_answered());
    let theirs = asked.ok().allocations[0].allocation_id;
    other.map_all(theirs);
    assert_eq!(lies(), Some((8 << 20, 4 << 20)), "one has left");
    other.free(theirs);
    pins_and_finds(&mut session, id, &bytes);
    session.free(id);
    until("nothing is charged", || NodeState::read(&daemon.admin()).is_empty());
}

/// Runs a command that starts a daemon with a limit of 8 MiB on locked memory, for any user.
fn with_memlock_of_8_mib<T: Send>(run: impl FnOnce(&dyn Fn(&Path) -> Command) -> T + Send) -> T {
    let command = |config: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -l 8192 && exec \"$0\" --config \"$1\"", env!("CARGO_BIN_EXE_vramd")]);
        command.arg(config);
        command
    };
    // Children cannot get a capability that a thread removed from its bounding set.
    let run = move || {
        if rustix::process::geteuid().is_root() {
            remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK).unwrap();
        }
        run(&command)
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(|why| panic::resume_unwind(why)))
}

/// The driver pins in the daemon's name, and the daemon may not lock that much.
#[test]
fn a_memlock_limit_below_the_host_tier_is_logged_at_start() {
    let fake = Fake::new().with("attribute.141 = 0");
    let place = tempfile::tempdir().unwrap();
    let config = configured(&place, &fake, "12MiB");
    let mut daemon = with_memlock_of_8_mib(move |daemon| Daemon::spawn(daemon(&config), place));
    let status = daemon.wait_for_end().code();
    let said = daemon.log();
    assert_eq!(status, Some(3), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.ends_with(
            "memory.host_size: 12 MiB for 1 devices is too much: this process may lock 8 MiB \
             (RLIMIT_MEMLOCK) exit_status=3"
        ),
        "{said}"
    );
    assert!(!daemon.sockets().join("admin.sock").exists(), "no client could ask it anything");
}

/// The tier is as large as the limit. If the driver shares its own memory by descriptor, nothing of the host
/// tier counts. Locked buffers are checked when they are made.
#[test]
fn a_tight_memlock_limit_does_not_prevent_the_start() {
    for (by_descriptor, host_size, pinned) in [(0, "8MiB", 8 << 20), (1, "12MiB", 12 << 20)] {
        let fake = Fake::new().with(&format!("attribute.141 = {by_descriptor}"));
        let place = tempfile::tempdir().unwrap();
        let config = configured(&place, &fake, host_size);
        let daemon = with_memlock_of_8_mib(move |daemon| Daemon::start_by(daemon(&config), place));
        let told = format!("host memory is pinned ahead of need node=0 pinned_bytes={pinned}");
        until("it is pinned", || daemon.log().contains(&told));
    }
}
