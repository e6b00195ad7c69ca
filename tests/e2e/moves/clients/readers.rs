//! Sealed memory that several processes map: all of them unmap it, or the operator learns which one does not.

use rustix::process::Signal;
use vramd_proto::v1::{FreeAllocationRequest, SessionState, Tier, free_allocation_request::Target};
use vramd_tests::{Daemon, Probe, content, digest, proc::memory_mapping_count, wait::until};

use crate::moves::{Outcome, assert_nothing_left, outcomes, start_move, tiers, until_charged};

const SIZE: u64 = 6 << 20;
const PARTS: usize = 3;

/// Memory that the owner wrote and sealed, and three other processes attached unpinned. The owner is the first.
fn shared(daemon: &Daemon) -> (Vec<Probe>, Vec<u64>, u64) {
    let mut owner = daemon.probe();
    let mut sessions = vec![owner.ask("sdk open")["session"].as_u64().unwrap()];
    let allocated = owner.ask(&format!("sdk allocate {SIZE} part=2097152 name=weights persistent"));
    owner.ask("sdk write 11");
    assert_eq!(owner.ask("sdk seal")["digest"], digest(&content(SIZE, 11)));
    owner.ask("sdk keep");
    let mut probes = vec![owner];
    for _ in 0..3 {
        let mut reader = daemon.probe();
        sessions.push(reader.ask("sdk open")["session"].as_u64().unwrap());
        reader.ask("sdk attach weights");
        reader.ask("sdk keep");
        probes.push(reader);
    }
    (probes, sessions, allocated["allocation"].as_u64().unwrap())
}

fn mappings(probes: &[Probe]) -> Vec<usize> {
    probes.iter().map(|probe| memory_mapping_count(probe.pid())).collect()
}

#[track_caller]
fn has_every_byte(probe: &mut Probe) {
    assert_eq!(probe.ask("sdk pinned-digest 0")["digest"], digest(&content(SIZE, 11)));
}

/// The end of a pin call arrives on another socket, so the operator may have to repeat the request.
#[track_caller]
fn leaves(daemon: &Daemon, allocation: u64) {
    until("it leaves", || {
        outcomes(&start_move(daemon, allocation, Tier::Host).ok()) == [Outcome::Moved; PARTS]
    });
    until_charged(daemon, 0, 6);
}

#[test]
fn all_readers_unmap_and_only_a_stopped_one_is_reported() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").limit("revoke_answer_timeout_ms = 400"));
    let (mut probes, sessions, id) = shared(&daemon);
    assert_eq!(mappings(&probes), [PARTS; 4]);
    leaves(&daemon, id);
    assert_eq!(mappings(&probes), [0; 4], "no session maps it any longer");
    assert_eq!(daemon.state().allocation(id).unwrap().mapper_count, 0);
    probes.iter_mut().for_each(has_every_byte);
    until_charged(&daemon, 6, 6);
    assert_eq!(mappings(&probes), [PARTS; 4], "one memory of the device, mapped by all");

    let stopped = 2;
    until("all pins have ended", || daemon.state().node.fds_in_flight == 0);
    probes[stopped].freeze();
    let answer = start_move(&daemon, id, Tier::Host).ok();
    for part in &answer.parts {
        assert_eq!((part.outcome(), &part.session_ids[..]), (Outcome::Silent, &sessions[stopped..=stopped]));
    }
    assert_eq!(answer.parts.len(), PARTS);
    let states: Vec<_> =
        sessions.iter().map(|session| daemon.state().session(*session).unwrap().state()).collect();
    let live = SessionState::Live;
    assert_eq!(states, [live, live, SessionState::Silent, live]);
    until_charged(&daemon, 6, 6);
    assert_eq!(mappings(&probes)[stopped], PARTS, "its mappings stand");
    for (at, probe) in probes.iter_mut().enumerate() {
        if at != stopped {
            has_every_byte(probe);
        }
    }

    probes[stopped].signal(Signal::CONT);
    until("it lives again", || daemon.state().session(sessions[stopped]).unwrap().state() == live);
    leaves(&daemon, id);
    assert_eq!(mappings(&probes), [0; 4]);
    probes.iter_mut().for_each(has_every_byte);
    probes.into_iter().for_each(Probe::leave);
    let target = Some(Target::AllocationId(id));
    daemon.admin.free_allocation(FreeAllocationRequest { target, ..Default::default() }).ok();
    assert_nothing_left(&daemon);
}
