//! Mistakes of a peer on `channel.sock`: it loses its channel, and no other client notices.

use std::{os::fd::AsFd as _, time::Duration};

use prost::Message as _;
use rustix::net::{SendAncillaryMessage, UCred};
use vramd_proto::{
    channel::{FRAME_BYTES_MAX, PROTOCOL_MAJOR},
    v1::{
        ClientFrame, Hello, Mapped, PartRef, SessionState, Unmapped, UnmappedPart, client_frame,
        daemon_frame::Frame,
    },
};
use vramd_tests::{
    Daemon, MIB, RawChannel, RawSession, Refused,
    channel::Packet,
    is_root, proc,
    session::{hello, spec},
    wait::{PATIENCE, until},
};
use vramd_types::Reason;

/// Checks that the channel ends. A refusal that arrives before has this reason.
#[track_caller]
fn is_ended(channel: &RawChannel) -> Option<Refused> {
    let mut why = None;
    loop {
        match channel.receive(PATIENCE) {
            Packet::Frame(Frame::Refused(refused), _) => why = Some(Refused::from_frame(refused)),
            Packet::Frame(Frame::Revoke(_), _) => {}
            Packet::Ended => return why,
            other => panic!("the channel stands: {other:?}"),
        }
    }
}

fn frame(frame: client_frame::Frame) -> Vec<u8> {
    ClientFrame { frame: Some(frame) }.encode_to_vec()
}

fn unmapped(allocation_id: u64, part_index: u32) -> Vec<u8> {
    let part = Some(PartRef { allocation_id, part_index });
    frame(client_frame::Frame::Unmapped(Unmapped {
        parts: vec![UnmappedPart { part, reason: 1, ..Default::default() }],
    }))
}

fn mapped(allocation_id: u64, part_index: u32) -> Vec<u8> {
    frame(client_frame::Frame::Mapped(Mapped { parts: vec![PartRef { allocation_id, part_index }] }))
}

#[test]
fn garbage_before_hello_opens_no_session() {
    let daemon = Daemon::new();
    let _bystander = daemon.open();
    let (state, fds) = (daemon.state(), proc::fd_count(daemon.pid()));
    let hello = frame(client_frame::Frame::Hello(hello()));
    let firsts: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 1000],
        &hello[..hello.len() - 3],
        &vec![0x0a; FRAME_BYTES_MAX + 1],
        &mapped(1, 0),
        &unmapped(1, 0),
    ];
    for first in firsts {
        let channel = RawChannel::connect(&daemon.sockets()).unwrap();
        channel.send_bytes(first).unwrap();
        if let Some(refused) = is_ended(&channel) {
            refused.is(Reason::ProtocolBroken);
        }
    }
    until("every descriptor is closed again", || proc::fd_count(daemon.pid()) <= fds);
    assert_eq!(daemon.state(), state);
}

#[test]
fn another_major_version_is_refused_with_both_numbers() {
    let daemon = Daemon::new();
    let state = daemon.state();
    let other = Hello { protocol_major: PROTOCOL_MAJOR + 8, ..hello() };
    let refused = RawSession::open_with(&daemon.sockets(), other).unwrap_err();
    refused.is(Reason::ProtocolVersion);
    assert_eq!(refused.number("daemon_major"), u64::from(PROTOCOL_MAJOR));
    assert_eq!(refused.number("client_major"), u64::from(PROTOCOL_MAJOR + 8));
    // A newer minor version and unknown features are accepted.
    let newer = Hello { protocol_minor: 99, features: u64::MAX, ..hello() };
    let session = RawSession::open_with(&daemon.sockets(), newer).unwrap();
    assert_eq!(session.welcome.features, vramd_proto::channel::FEATURES, "the features of both sides");
    drop(session);
    assert_eq!(daemon.state().charged(), state.charged());
}

#[test]
fn a_malformed_frame_quarantines_its_session_alone() {
    let daemon = Daemon::new();
    let mut bystander = daemon.open();
    let others = bystander.allocate(spec(2 * MIB)).allocation_id;
    let truncated = {
        let whole = unmapped(u64::MAX, 7);
        whole[..whole.len() - 1].to_vec()
    };
    let too_many = {
        let part = PartRef { allocation_id: 1, part_index: 0 };
        frame(client_frame::Frame::Mapped(Mapped { parts: vec![part; 2000] }))
    };
    let bad: [(&str, Vec<u8>); 9] = [
        ("garbage", b"\xff\xff\xff\xff".to_vec()),
        ("truncated", truncated),
        ("oversized", vec![0x0a; FRAME_BYTES_MAX + 1]),
        ("too many parts", too_many),
        ("a second hello", frame(client_frame::Frame::Hello(hello()))),
        ("mapped, of nothing", mapped(12345, 0)),
        ("mapped, of another's", mapped(others, 0)),
        ("unmapped, of another's", unmapped(others, 0)),
        ("an unknown frame", vec![0xfa, 0x01, 0x00]),
    ];
    for (what, bytes) in bad {
        let mut client = daemon.open();
        client.allocate(spec(4 * MIB));
        client.channel.send_bytes(&bytes).unwrap();
        is_ended(&client.channel);
        until(&format!("{what}: its session is silent"), || {
            daemon.state().session(client.id()).is_some_and(|row| row.state() == SessionState::Silent)
        });
        let state = daemon.state();
        assert!(!state.session(client.id()).unwrap().silent_reason.is_empty(), "{what}");
        assert_eq!(state.node.fds_in_flight, 0, "{what}");
        assert_eq!(state.charged(), 6 * MIB, "{what}: its mapping stands and stays charged");
        assert_eq!(
            client.refused(spec(1)).is(Reason::SessionLost).fact("session"),
            format!("s-{}", client.id())
        );
        // The same process reports that it has unmapped everything.
        let again = Hello { unmapped_session_ids: vec![client.id()], ..hello() };
        drop(client);
        RawSession::open_with(&daemon.sockets(), again).unwrap();
        until(&format!("{what}: its memory is back"), || daemon.state().charged() == 2 * MIB);
    }
    assert_eq!(daemon.state().session(bystander.id()).unwrap().state(), SessionState::Live);
    assert_eq!(bystander.free(others).error, None);
}

#[test]
fn a_part_acknowledged_twice_or_not_sent_yet_is_malformed() {
    let daemon = Daemon::new();
    for early in [false, true] {
        let mut client = daemon.open();
        let allocation = client.allocate(spec(MIB)).allocation_id;
        // Part 1 does not exist. Part 0 was acknowledged.
        client.channel.send_bytes(&mapped(allocation, u32::from(early))).unwrap();
        is_ended(&client.channel);
        until("its session is silent", || {
            daemon.state().session(client.id()).is_some_and(|row| row.state() == SessionState::Silent)
        });
    }
}

#[test]
fn descriptors_from_a_client_are_refused() {
    let daemon = Daemon::new();
    let session = daemon.open();
    let fds = proc::fd_count(daemon.pid());
    let file = tempfile::tempfile().unwrap();
    let many = [file.as_fd(); 50];
    session.channel.send_with(&unmapped(1, 0), SendAncillaryMessage::ScmRights(&many)).unwrap();
    is_ended(&session.channel);
    until("none is open in the daemon", || proc::fd_count(daemon.pid()) <= fds);
}

#[test]
fn a_forked_child_cannot_use_its_parents_channel() {
    let daemon = Daemon::new();
    let mut probe = daemon.probe();
    let session = probe.ask("open")["session"].as_u64().unwrap();
    let id = probe.ask("allocate 4194304")["allocation"].clone();
    assert_eq!(probe.ask(&format!("fork-send {id}"))["status"], 0, "the child could send");
    until("the session is quarantined", || {
        daemon.state().session(session).is_some_and(|row| row.state() == SessionState::Silent)
    });
    assert_eq!(daemon.state().charged(), 4 * MIB, "the child's word frees nothing");
    probe.kill();
    daemon.drains();
}

#[test]
fn forged_credentials_are_not_believed() {
    if !is_root() {
        eprintln!("forged_credentials_are_not_believed: only root can forge any; the kernel refuses others");
    }
    let daemon = Daemon::new();
    let mut session = daemon.open();
    let allocation = session.allocate(spec(4 * MIB)).allocation_id;
    let own = rustix::process::getpid();
    let other = if is_root() { rustix::process::Pid::INIT } else { own };
    let credentials = UCred { pid: other, uid: rustix::process::getuid(), gid: rustix::process::getgid() };
    let sent = session
        .channel
        .send_with(&unmapped(allocation, 0), SendAncillaryMessage::ScmCredentials(credentials));
    sent.unwrap();
    if is_root() {
        is_ended(&session.channel);
        assert_eq!(daemon.state().charged(), 4 * MIB, "the report of another process frees nothing");
    }
}

#[test]
fn a_client_that_reads_nothing_blocks_no_other() {
    let daemon = Daemon::new();
    let lazy = daemon.open();
    for _ in 0..50 {
        lazy.reserve(spec(2 * MIB));
    }
    // One packet is in flight to the client, however many wait.
    assert_eq!(daemon.state().node.fds_in_flight, 1);
    let mut busy = daemon.open();
    for _ in 0..20 {
        let allocation = busy.allocate(spec(2 * MIB)).allocation_id;
        assert_eq!(busy.free(allocation).error, None);
    }
    assert_eq!(daemon.state().charged(), 100 * MIB);
}

#[test]
fn an_unanswered_map_ends_its_channel() {
    let daemon = Daemon::start(&vramd_tests::Config::default().limit("map_answer_timeout_ms = 300"));
    let session = daemon.open();
    session.reserve(spec(4 * MIB));
    let unanswered = session.receive_map();
    is_ended(&session.channel);
    until("its session is silent", || {
        daemon.state().session(session.id()).is_some_and(|row| row.state() == SessionState::Silent)
    });
    let state = daemon.state();
    assert_eq!(state.charged(), 4 * MIB, "it may have mapped it");
    assert_eq!(state.node.fds_in_flight, 1, "sent parts count until the client has gone");
    let again = Hello { unmapped_session_ids: vec![session.id()], ..hello() };
    drop((session, unanswered));
    RawSession::open_with(&daemon.sockets(), again).unwrap();
    daemon.drains();
}

#[test]
fn a_failed_map_is_reported() {
    let daemon = Daemon::new();
    let session = daemon.open();
    let allocation = session.reserve(spec(4 * MIB)).allocation_id;
    drop(session.receive_map());
    let part = Some(PartRef { allocation_id: allocation, part_index: 0 });
    let detail = "no descriptors left".to_owned();
    let failed = UnmappedPart { part, reason: 2, detail, ..Default::default() };
    session.channel.send(client_frame::Frame::Unmapped(Unmapped { parts: vec![failed] })).unwrap();
    until("nothing is in flight", || daemon.state().node.fds_in_flight == 0);
    until("it is logged", || daemon.log().contains("no descriptors left"));
    assert_eq!(daemon.state().session(session.id()).unwrap().state(), SessionState::Live);
}

#[test]
fn a_connection_without_hello_is_closed() {
    let daemon = Daemon::start(&vramd_tests::Config::default().limit("hello_timeout_ms = 200"));
    let channel = RawChannel::connect(&daemon.sockets()).unwrap();
    is_ended(&channel);
}

#[test]
fn connections_without_hello_are_bounded() {
    let daemon = Daemon::new();
    let mut silent = Vec::new();
    let ended = |channel: &RawChannel| {
        matches!(channel.receive(Duration::from_millis(1)), Packet::Ended | Packet::Frame(..))
    };
    while !silent.iter().any(ended) {
        silent.push(RawChannel::connect(&daemon.sockets()).unwrap());
        assert!(silent.len() < 5000, "connections without a hello are not bounded");
    }
    drop(silent);
    vramd_tests::wait::eventually("a client gets in again", || {
        RawSession::open_with(&daemon.sockets(), hello()).ok()
    });
}
