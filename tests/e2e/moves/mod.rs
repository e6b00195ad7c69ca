//! Memory that goes to the host and comes back: by operators, by pins, and where something is in the way; and who waits for
//! it.

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
    AllocationSpec, MoveOutcome as Outcome, MovePartsRequest, MovePartsResponse, PartRef, Tier,
    move_parts_request::Target,
};
use vramd_tests::{
    Config, Daemon, MIB, MIB_2, Pending, RawSession, content,
    proc::{host_memory_of, memory_fd_count, memory_of},
    session::spec,
    wait::until,
};
use vramd_words::{Access, Unpinned};

/// One device, and memory of the host beside it.
pub(crate) fn tiers(device: &str, host: &str) -> Config {
    Config::devices(&[device]).memory(&format!("host_size = \"{host}\""))
}

fn request(allocation: u64, tier: Tier) -> MovePartsRequest {
    let target = Some(Target::AllocationId(allocation));
    MovePartsRequest { target, tier: tier.into(), ..Default::default() }
}

/// Once the daemon has heard that everything is mapped which it has sent: what is on its way counts as pinned.
#[track_caller]
fn moving(daemon: &Daemon, allocation: u64, tier: Tier) -> Pending<MovePartsResponse> {
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    daemon.admin.move_parts(request(allocation, tier))
}

fn outcomes(answer: &MovePartsResponse) -> Vec<Outcome> {
    answer.parts.iter().map(|part| part.outcome()).collect()
}

/// The first part's outcome, and on whose account.
fn first(answer: &MovePartsResponse) -> (Outcome, &[u64]) {
    let part = answer.parts.first().expect("every allocation has a part");
    (part.outcome(), &part.session_ids)
}

/// Has all of an allocation leave its device. This session alone maps it, and does what it is told.
#[track_caller]
pub(crate) fn evict(daemon: &Daemon, session: &mut RawSession, allocation: u64) {
    evict_from(daemon, &mut [session], allocation);
}

/// The same where these map it. That a pin call has ended comes by another socket, so it may have to be asked again.
#[track_caller]
fn evict_from(daemon: &Daemon, sessions: &mut [&mut RawSession], allocation: u64) {
    evict_to(daemon, sessions, allocation, Tier::Host);
}

#[track_caller]
fn evict_to(daemon: &Daemon, sessions: &mut [&mut RawSession], allocation: u64, tier: Tier) {
    until("it leaves", || {
        let evicting = moving(daemon, allocation, tier);
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
fn unmap_as_told(session: &mut RawSession, allocation: u64) {
    while session.parts(allocation).next().is_some() {
        let revoke = session.receive_revoke();
        session.unmap_parts(revoke.parts);
    }
}

/// Pins all of an allocation, and leaves it unprotected again.
#[track_caller]
pub(crate) fn bring_in_by_pin(session: &mut RawSession, allocation: u64, parts: u32) {
    let call = session.pin((0..parts).map(|index| part(allocation, index)).collect());
    session.pin_answer(call).expect("there is room for it");
    session.pin_ended(call);
}

/// Uses so many parts, so that they stay.
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

/// Of parts of 2 MiB.
pub(crate) fn parts(count: u64) -> AllocationSpec {
    AllocationSpec { part_size_bytes: MIB_2, ..spec(count * MIB_2) }
}

/// One with pins that has written so many parts.
pub(crate) fn written(daemon: &Daemon, count: u64) -> (RawSession, u64) {
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

/// What leaves a tier is charged there until the driver has it back.
#[track_caller]
fn until_held(daemon: &Daemon, device: u64, host: u64) {
    until("the books say where it is", || held(daemon) == (device, host));
}

/// No byte, no descriptor and no mapping, whoever looks; memory of the host is the daemon's alone, which keeps it.
#[track_caller]
pub(crate) fn nothing_is_left(daemon: &Daemon) {
    daemon.drains();
    let uuid = daemon.state().devices[0].device.clone().unwrap_or_default().uuid;
    until("nobody has any memory of it", || memory_of(&uuid).is_empty());
    assert_eq!(memory_fd_count(daemon.pid()), 0);
    assert!(host_memory_of(&uuid).values().all(|who| who.iter().eq([&daemon.pid()])));
    let device = &daemon.state().devices[0];
    assert_eq!((device.moving_in_bytes, device.moving_out_bytes, device.awaited_part_count), (0, 0, 0));
}

fn vramctl(daemon: &Daemon, words: &[&str]) -> Output {
    daemon.vramctl().args(words).output().expect("vramctl starts")
}

/// What a command that goes well says.
#[track_caller]
fn said(daemon: &Daemon, words: &[&str]) -> Value {
    let output = vramctl(daemon, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("vramctl prints JSON")
}
