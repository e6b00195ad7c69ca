//! Clients that die, stop or fork at any point: what stays charged, and that in the end nothing is left.

use std::time::Duration;

use rustix::process::Signal;
use vramd_proto::v1::{Hello, SessionState};
use vramd_tests::{
    Config, Daemon, MIB, Probe, RawSession, proc,
    session::{hello, persistent, spec},
    wait::until,
};
use vramd_types::Reason;

/// Checks that a client which is killed after these steps leaves no byte, descriptor or session.
#[track_caller]
fn killed_after(steps: &[&str], charged: u64) {
    let daemon = Daemon::new();
    // The operator's own connection counts among the earlier descriptors.
    daemon.state();
    let fds = proc::fd_count(daemon.pid());
    let mut probe = daemon.probe();
    probe.ask("open");
    for step in steps {
        probe.ask(step);
    }
    assert_eq!(daemon.state().charged(), charged);
    probe.kill();
    daemon.drains();
    until("its session is gone", || daemon.state().sessions.is_empty());
    until("its descriptors are closed", || proc::fd_count(daemon.pid()) <= fds);
    assert_eq!(proc::memory_fd_count(daemon.pid()), 0, "no memory is left open in the daemon");
}

#[test]
fn a_client_killed_without_memory_leaves_nothing() {
    killed_after(&[], 0);
}

#[test]
fn killed_between_reserve_and_map() {
    killed_after(&["reserve 8388608 part=2097152"], 8 * MIB);
}

#[test]
fn killed_with_descriptors_in_flight() {
    // 130 parts are two packets: the first is unread, the second is not sent yet.
    killed_after(&["reserve 272629760 part=2097152"], 260 * MIB);
}

#[test]
fn killed_with_descriptors_received() {
    killed_after(&["reserve 8388608", "receive"], 8 * MIB);
}

#[test]
fn killed_between_map_and_acknowledgement() {
    killed_after(&["reserve 8388608", "receive", "map"], 8 * MIB);
}

#[test]
fn killed_while_mapped() {
    killed_after(&["allocate 8388608", "allocate 4194304 name=weights persistent"], 12 * MIB);
}

#[test]
fn killed_while_many_clients_are() {
    let daemon = Daemon::new();
    let mut probes: Vec<Probe> = (0..8).map(|_| daemon.probe()).collect();
    for (number, probe) in probes.iter_mut().enumerate() {
        probe.ask("open");
        probe.ask("allocate 4194304");
        if number % 2 == 0 {
            probe.ask("reserve 4194304");
        }
    }
    assert_eq!(daemon.state().charged(), 48 * MIB);
    for probe in probes {
        probe.kill();
    }
    daemon.drains();
    until("their sessions are gone", || daemon.state().sessions.is_empty());
}

#[test]
fn killed_at_any_moment() {
    let daemon = Daemon::new();
    daemon.state();
    let fds = proc::fd_count(daemon.pid());
    let mut state = 1_u64;
    for round in 0..40_usize {
        let mut probe = daemon.probe();
        probe.ask("open");
        let steps = [
            &format!("allocate 8388608 part=2097152 name=weights-{round} persistent"),
            "write last 1",
            "seal last",
            "allocate 4194304",
        ];
        steps.iter().for_each(|step| probe.tell(step));
        // The kill hits a step that differs from round to round, or comes after all of them.
        let taken = steps.iter().take(round % (steps.len() + 1));
        taken.for_each(|step| assert!(probe.listen(step).get("refused").is_none(), "{step}"));
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(std::time::Duration::from_micros(state >> 50));
        probe.kill();
    }
    until("every session is gone", || daemon.state().sessions.is_empty());
    // A client that came as far as the seal has left its allocation to the tenant. Nothing else stays.
    until("only what was sealed is left", || {
        let state = daemon.state();
        let sealed = state.allocations.iter().filter(|row| row.digest.starts_with("blake3:"));
        let bytes: u64 = sealed.map(|row| row.charged_bytes).sum();
        state.charged() == bytes && state.unreturned() == 0 && state.node.fds_in_flight == 0
    });
    let sealed = daemon.state().allocations.len();
    assert!(sealed >= 16, "two rounds of five come as far as the seal: {sealed}");
    let extents = usize::try_from(daemon.state().charged() / (2 * MIB)).unwrap();
    until("no descriptor is left over", || proc::fd_count(daemon.pid()) <= fds + extents);
}

#[test]
fn killed_while_sealing() {
    let daemon = Daemon::new();
    let mut probe = daemon.probe();
    probe.ask("open");
    let id = probe.ask("allocate 8388608 name=weights persistent")["allocation"].clone();
    probe.ask(&format!("begin-seal {id}"));
    probe.kill();
    daemon.drains();
}

#[test]
fn killed_as_a_reader_leaves_what_it_read() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let allocation = owner.allocate(persistent("weights", 4 * MIB)).allocation_id;
    owner.seal(allocation);
    let mut reader = daemon.probe();
    reader.ask("open");
    reader.ask("attach weights");
    assert_eq!(daemon.state().allocation(allocation).unwrap().mapper_count, 2);
    reader.kill();
    until("it maps it no more", || daemon.state().allocation(allocation).unwrap().mapper_count == 1);
    assert_eq!(daemon.state().charged(), 4 * MIB);
}

#[test]
fn a_stopped_client_keeps_its_mappings_and_blocks_no_other() {
    let daemon = Daemon::new();
    let mut stopped = daemon.probe();
    let session = stopped.ask("open")["session"].as_u64().unwrap();
    stopped.ask("allocate 8388608");
    stopped.ask("reserve 4194304");
    stopped.freeze();
    let mut other = daemon.open();
    let allocation = other.allocate(spec(4 * MIB)).allocation_id;
    assert_eq!(other.free(allocation).error, None);
    let state = daemon.state();
    assert_eq!(state.session(session).unwrap().state(), SessionState::Live, "slow is not silent");
    assert_eq!(state.charged(), 12 * MIB);
    stopped.signal(Signal::CONT);
    stopped.ask("receive");
    stopped.ask("map");
    stopped.ask("acknowledge");
    until("nothing is in flight", || daemon.state().node.fds_in_flight == 0);
    stopped.kill();
    daemon.drains();
}

#[test]
fn a_stopped_client_that_is_killed_leaves_nothing() {
    let daemon = Daemon::new();
    let mut stopped = daemon.probe();
    stopped.ask("open");
    stopped.ask("reserve 4194304");
    stopped.freeze();
    stopped.kill();
    daemon.drains();
}

#[test]
fn memory_mapped_by_a_forked_child_stays_charged_until_it_ends() {
    let daemon = Daemon::start(&Config::default().limit("survey_interval_ms = 100"));
    let mut parent = daemon.probe();
    let tenant = parent.ask("open")["tenant"].as_str().unwrap().to_owned();
    parent.ask("allocate 8388608");
    let child = parent.ask("fork")["pid"].as_i64().unwrap();
    let child = rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    parent.kill();
    until("the session is gone", || daemon.state().sessions.is_empty());
    until("its bytes are unreturned", || daemon.state().unreturned() == 8 * MIB);
    let state = daemon.state();
    assert_eq!(state.charged_to(&tenant), 8 * MIB, "charged to the tenant whose session mapped it");
    let row = state.quotas.iter().find(|row| row.tenant == tenant).unwrap();
    assert_eq!(row.unreturned_bytes, 8 * MIB);
    assert_eq!(state.unbrokered(), 0, "a tenant explains it");
    rustix::process::kill_process(child, Signal::KILL).unwrap();
    daemon.drains();
}

#[test]
fn a_forked_childs_copy_of_the_channel_keeps_no_session_alive() {
    let daemon = Daemon::start(&Config::default().limit("survey_interval_ms = 100"));
    let mut parent = daemon.probe();
    let session = parent.ask("open")["session"].as_u64().unwrap();
    let child = parent.ask("fork")["pid"].as_i64().unwrap();
    let child = rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    parent.kill();
    until("the session is gone", || daemon.state().session(session).is_none());
    rustix::process::kill_process(child, Signal::KILL).unwrap();
}

#[test]
fn a_session_id_is_valid_in_its_own_process_alone() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    let allocation = owner.allocate(spec(MIB)).allocation_id;
    let mut thief = daemon.probe();
    thief.ask("open");
    let state = daemon.state();
    // The answers do not tell which ids are sessions: another process's, one that ended, and two that never were.
    let gone = daemon.open().id();
    until("the session is gone", || daemon.state().session(gone).is_none());
    for id in [owner.id(), gone, gone + 1000, 7] {
        let refused = thief.refused(&format!("describe {id} {allocation}"));
        let text = format!("the calling process has no session s-{id}, or it has ended. Open a new one");
        assert_eq!((refused.is(Reason::SessionLost).message.as_str(), refused.facts.len()), (&*text, 1));
        assert_eq!(refused.fact("session"), format!("s-{id}"));
    }
    assert_eq!(daemon.state(), state);
    // With a session of its own the child is a client of the same tenant.
    let own = thief.ask("open")["session"].clone();
    thief.ask(&format!("describe {own} {allocation}"));
}

#[test]
fn a_closed_channel_makes_its_session_silent_until_it_reports() {
    let daemon = Daemon::new();
    let mut first = daemon.open();
    first.allocate(spec(4 * MIB));
    let lost = first.id();
    let memory = first.memory.clone();
    let request = first.request(vec![spec(1)]);
    drop(first);
    until("it is silent", || daemon.state().session(lost).unwrap().state() == SessionState::Silent);
    assert_eq!(daemon.state().charged(), 4 * MIB);
    memory.allocate_batch(request).refused().is(Reason::SessionLost);
    // Another session of the process does not by itself report on the first.
    let second = daemon.open();
    assert_eq!(daemon.state().session(lost).unwrap().state(), SessionState::Silent);
    let third = Hello { unmapped_session_ids: vec![lost], ..hello() };
    let third = RawSession::open_with(&daemon.sockets(), third).unwrap();
    daemon.drains();
    assert!(daemon.state().session(lost).is_none());
    for live in [&second, &third] {
        assert_eq!(daemon.state().session(live.id()).unwrap().state(), SessionState::Live);
    }
}

#[test]
fn another_process_cannot_say_that_a_session_is_unmapped() {
    let daemon = Daemon::new();
    let mut owner = daemon.open();
    owner.allocate(spec(4 * MIB));
    let mut other = daemon.probe();
    other.ask(&format!("open {}", owner.id()));
    assert_eq!(daemon.state().charged(), 4 * MIB);
    assert_eq!(daemon.state().session(owner.id()).unwrap().state(), SessionState::Live);
}

#[test]
fn ids_of_an_earlier_daemon_are_unknown() {
    let daemon = Daemon::new();
    let mut before = daemon.open();
    let allocation = before.allocate(spec(MIB)).allocation_id;
    let old = before.request(vec![spec(1)]);
    let epoch = daemon.state().node.boot_epoch;
    let (_, home) = daemon.stop();
    let daemon = Daemon::start_in(home);
    assert_eq!(daemon.state().node.boot_epoch, epoch + 1);
    let refused = daemon.memory.allocate_batch(old).refused();
    assert!(["SESSION_NOT_FOUND", "SESSION_LOST"].contains(&refused.reason.as_str()), "{refused:?}");
    let mut after = daemon.open();
    assert!(after.id() > before.id());
    assert!(after.allocate(spec(MIB)).allocation_id > allocation);
    let gone = after.free(allocation).error.expect("an old id frees nothing");
    assert_eq!(gone.reason, Reason::AllocationNotFound.name());
}

#[test]
fn attaching_again_answers_and_maps_nothing_twice() {
    let daemon = Daemon::new();
    let (mut owner, mut reader) = (daemon.open(), daemon.open());
    let allocation = owner.allocate(persistent("model", MIB)).allocation_id;
    owner.write(allocation, b"weights");
    owner.seal(allocation);
    reader.attach("model");
    for session in [&owner, &reader] {
        for _ in 0..2 {
            let answer = session.memory.attach(session.attach_request("model")).ok();
            assert_eq!(answer.allocation.expect("it is described").allocation_id, allocation);
        }
        assert!(!session.channel.waits(Duration::from_millis(100)), "no part is sent again");
    }
    assert_eq!(daemon.state().allocations[0].mapper_count, 2);
    // One detach ends it, however often it was attached.
    reader.detach(allocation);
    assert_eq!(daemon.state().allocations[0].mapper_count, 1);
}
