//! Parts that move to the tiers below and come back: by operators, by pins, with obstacles in the way, and with
//! waiters.

pub(crate) mod clients;
pub(crate) mod disk;
pub(crate) mod faults;
pub(crate) mod files;
pub(crate) mod line;
pub(crate) mod operators;
pub(crate) mod pins;

use std::{process::Output, time::Duration};

use serde_json::Value;
use vramd_proto::v1::{
    AllocationSpec, AllocationState, MoveOutcome as Outcome, MovePartsRequest, MovePartsResponse, MoveState,
    PartRef, ReleaseResult, Tier, move_parts_request::Target,
};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, Pending, RawSession, content,
    proc::{host_memory_of, memory_fd_count, memory_of},
    session::spec,
    wait::until,
};
use vramd_words::{Access, Unpinned};

use operators::list::listed;

/// One device with a host tier.
pub(crate) fn tiers(device: &str, host: &str) -> Config {
    Config::devices(&[device]).memory(&format!("host_size = \"{host}\""))
}

pub(crate) fn request(allocation: u64, tier: Tier) -> MovePartsRequest {
    let target = Some(Target::AllocationId(allocation));
    MovePartsRequest { target, tier: tier.into(), ..Default::default() }
}

/// Asks for a move once the daemon knows that every part it sent is mapped: a mapping in flight counts as pinned.
#[track_caller]
pub(crate) fn start_move(daemon: &Daemon, allocation: u64, tier: Tier) -> Pending<MovePartsResponse> {
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    daemon.admin.move_parts(request(allocation, tier))
}

fn outcomes(answer: &MovePartsResponse) -> Vec<Outcome> {
    answer.parts.iter().map(|part| part.outcome()).collect()
}

/// The outcome of the first part, and the sessions that caused it.
fn first(answer: &MovePartsResponse) -> (Outcome, &[u64]) {
    let part = answer.parts.first().expect("every allocation has a part");
    (part.outcome(), &part.session_ids)
}

/// Evicts all of an allocation. This session alone maps it, and answers the daemon's revokes.
#[track_caller]
pub(crate) fn evict(daemon: &Daemon, session: &mut RawSession, allocation: u64) {
    evict_from(daemon, &mut [session], allocation);
}

/// The same for an allocation that these sessions map. The end of a pin call arrives on another socket, so the request
/// may have to be repeated.
#[track_caller]
fn evict_from(daemon: &Daemon, sessions: &mut [&mut RawSession], allocation: u64) {
    evict_to(daemon, sessions, allocation, Tier::Host);
}

#[track_caller]
fn evict_to(daemon: &Daemon, sessions: &mut [&mut RawSession], allocation: u64, tier: Tier) {
    until("it leaves", || {
        let evicting = start_move(daemon, allocation, tier);
        while !evicting.is_answered() {
            for session in sessions.iter_mut() {
                if session.parts(allocation).next().is_some()
                    && session.channel.waits(Duration::from_millis(5))
                {
                    let revoke = session.receive_revoke();
                    session.unmap_parts(revoke.parts);
                }
            }
        }
        outcomes(&evicting.ok()).iter().all(|outcome| *outcome == Outcome::Moved)
    });
}

#[track_caller]
fn unmap_revoked(session: &mut RawSession, allocation: u64) {
    while session.parts(allocation).next().is_some() {
        let revoke = session.receive_revoke();
        session.unmap_parts(revoke.parts);
    }
}

/// Pins all of an allocation, and ends the pin call again.
#[track_caller]
pub(crate) fn fetch_by_pin(session: &mut RawSession, allocation: u64, parts: u32) {
    let call = session.pin((0..parts).map(|index| part(allocation, index)).collect());
    session.pin_answer(call).expect("there is room for it");
    session.end_pin_call(call);
}

/// Frees an allocation while an operation of the driver is held. The driver goes on once the daemon is freeing it.
#[track_caller]
pub(crate) fn free_during_hold(daemon: &Daemon, session: &mut RawSession, allocation: u64) -> ReleaseResult {
    let freeing = session.begin_free(allocation);
    until("it is being freed", || {
        daemon.state().allocation(allocation).is_none_or(|it| it.state() == AllocationState::Freeing)
    });
    daemon.end_holds();
    freeing.ok().results.into_iter().next().expect("one item has one answer")
}

/// Lets the driver go on once the daemon has called a move off.
#[track_caller]
pub(crate) fn end_holds_once_called_off(daemon: &Daemon) {
    until("it is called off", || listed(daemon).moves.iter().any(|it| it.state() == MoveState::Stopping));
    daemon.end_holds();
}

/// Pins this many parts by their words, so that they stay.
pub(crate) fn pin_words(session: &RawSession, allocation: u64, parts: u32) {
    for index in 0..parts {
        session.word_table().client(session.slot(allocation, index)).pin(Access::Write).unwrap();
    }
}

pub(crate) fn unpin_words(session: &RawSession, allocation: u64, parts: u32) {
    for index in 0..parts {
        assert_eq!(session.word_table().client(session.slot(allocation, index)).unpin(), Ok(Unpinned::Done));
    }
}

pub(crate) fn part(allocation_id: u64, part_index: u32) -> PartRef {
    PartRef { allocation_id, part_index }
}

/// An allocation in parts of 2 MiB.
pub(crate) fn parts(count: u64) -> AllocationSpec {
    AllocationSpec { part_size_bytes: Some(MIB_2), ..spec(count * MIB_2) }
}

/// A session with pins that has written this many parts.
pub(crate) fn open_and_write(daemon: &Daemon, count: u64) -> (RawSession, u64) {
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let id = session.allocate(parts(count)).allocation_id;
    session.write(id, &content(count * MIB_2, id));
    (session, id)
}

/// MiB charged on the device and in the host.
fn held(daemon: &Daemon) -> (u64, u64) {
    let state = daemon.state();
    (state.charged() / MIB, state.charged_in_host() / MIB)
}

/// Waits for these charges: a part that has left a tier stays charged there until the driver returns its memory.
#[track_caller]
fn until_charged(daemon: &Daemon, device: u64, host: u64) {
    until("the charges are as expected", || held(daemon) == (device, host));
}

/// Checks that no byte, descriptor or mapping is left in any process. Free memory of the host tier stays with the
/// daemon.
#[track_caller]
pub(crate) fn assert_nothing_left(daemon: &Daemon) {
    daemon.drains();
    let uuid = daemon.state().devices[0].device.clone().unwrap_or_default().uuid;
    until("no process has memory of the device", || memory_of(&uuid).is_empty());
    until("the daemon has none open", || memory_fd_count(daemon.pid()) == 0);
    assert!(host_memory_of(&uuid).values().all(|who| who.iter().eq([&daemon.pid()])));
    let device = &daemon.state().devices[0];
    assert_eq!((device.moving_in_bytes, device.moving_out_bytes, device.awaited_part_count), (0, 0, 0));
}

pub(crate) fn vramctl(daemon: &Daemon, words: &[&str]) -> Output {
    daemon.vramctl().args(words).output().expect("vramctl starts")
}

/// Runs `vramctl` with `--json`, which must succeed, and returns its output.
#[track_caller]
pub(crate) fn vramctl_json(daemon: &Daemon, words: &[&str]) -> Value {
    let output = vramctl(daemon, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("vramctl prints JSON")
}
