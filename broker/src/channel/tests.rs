//! `channel.sock` with real sockets and processes; the test plays the reactor.

use std::{
    io::{BufRead, BufReader, IoSlice, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use broker_core::{Broker, ChannelId, ClientFrame, Event, ProcessStays, StoredQuotas, Tier, Time};
use prost::Message as _;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use tokio::sync::{mpsc, watch};
use vramd_proto::{channel as protocol, v1};
use vramd_types::DeviceIndex;

use super::{ChannelOptions, Channels, OutFrame, serve};
use crate::{
    platform::{sockets::Sockets, tenant_rules::SharedRules},
    reactor::{InboxLimits, Message, inbox},
};

mod harvest;
mod word_table;

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A listening channel socket, and its events.
struct Daemon {
    dir: tempfile::TempDir,
    _sockets: Sockets,
    channels: Arc<Channels>,
    events: mpsc::UnboundedReceiver<Event>,
    stop: watch::Sender<bool>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Daemon {
    fn start() -> Self {
        Self::start_with(Duration::from_secs(5), 8)
    }

    fn start_with(hello_timeout: Duration, greeting_max: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (sockets, bound) = Sockets::bind(&dir.path().join("run"), None).unwrap();
        let (inbox, mut queue) = inbox(InboxLimits::default());
        let (sender, events) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let config = broker_core::Config {
                sessions_reserved: 0,
                eviction: broker_core::EvictionPolicy::default(),
                victim_script: Vec::new(),
                check_clean_backings: false,
                files: false,
                pressure: broker_core::PressureBounds::default(),
                shares: vramd_types::Shares::default(),
                boot_epoch: 1,
                devices: vec![],
                part_size: vramd_types::GRANULARITY,
                default_limit: vramd_types::Quantity::Percent(100),
                default_host_limit: vramd_types::Quantity::Percent(100),
                default_disk_limit: vramd_types::Quantity::Percent(100),
                tenants: std::collections::BTreeMap::new(),
                limits: broker_core::Limits::default(),
            };
            let broker = Broker::new(config, StoredQuotas::default(), Time::START);
            while let Some(message) = queue.next().await {
                match message {
                    Message::Event(event) => drop(sender.send(event)),
                    Message::Read(read) => read(&broker),
                    other => panic!("{other:?}"),
                }
            }
        });
        let channels = Arc::new(Channels::default());
        let options = ChannelOptions {
            rules: SharedRules::default(),
            hello_timeout,
            greeting_max,
            greeting_per_uid_max: greeting_max,
            word_slots: 16,
            telemetry: crate::telemetry::Telemetry::default(),
            descriptors: crate::platform::descriptor_shares::DescriptorShares::default(),
        };
        let (stop, mut stopped) = watch::channel(false);
        let stopped = async move { drop(stopped.wait_for(|stop| *stop).await) };
        let served =
            tokio::spawn(serve(bound.channel.into(), Arc::clone(&channels), inbox, options, stopped));
        Self { dir, _sockets: sockets, channels, events, stop, served }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("run/channel.sock")
    }

    fn connect(&self) -> Client {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(TIMEOUT))
            .unwrap();
        Client(socket)
    }

    async fn event(&mut self) -> Event {
        tokio::time::timeout(TIMEOUT, self.events.recv()).await.expect("an event").expect("the daemon runs")
    }

    async fn hello(&mut self) -> (ChannelId, broker_core::Hello) {
        match self.event().await {
            Event::Hello { channel, hello } => (channel, hello),
            other => panic!("{other:?}"),
        }
    }

    async fn malformed(&mut self) -> String {
        match self.event().await {
            Event::Malformed { problem, .. } => problem,
            other => panic!("{other:?}"),
        }
    }
}

struct Client(OwnedFd);

impl Client {
    fn send(&self, packet: &[u8]) {
        self.send_with(packet, &[]);
    }

    fn send_with(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(&self.0, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// Receives the next packet; empty at the end.
    fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; protocol::FRAME_BYTES_MAX];
        let (bytes, _) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty()).unwrap();
        buffer.truncate(bytes);
        buffer
    }

    fn refused(&self) -> v1::Refused {
        match v1::DaemonFrame::decode(&self.receive()[..]).unwrap().frame {
            Some(v1::daemon_frame::Frame::Refused(refused)) => refused,
            other => panic!("{other:?}"),
        }
    }
}

fn hello() -> v1::Hello {
    v1::Hello {
        protocol_major: protocol::PROTOCOL_MAJOR,
        features: !protocol::PINS,
        any_device: true,
        client_name: "test".to_owned(),
        ..v1::Hello::default()
    }
}

fn packet(frame: v1::client_frame::Frame) -> Vec<u8> {
    v1::ClientFrame { frame: Some(frame) }.encode_to_vec()
}

fn hello_packet() -> Vec<u8> {
    packet(v1::client_frame::Frame::Hello(hello()))
}

fn mapped_packet(part_index: u32) -> Vec<u8> {
    let parts = vec![v1::PartRef { allocation_id: 1, part_index }];
    packet(v1::client_frame::Frame::Mapped(v1::Mapped { parts }))
}

fn out(bytes: &[u8]) -> OutFrame {
    OutFrame { bytes: bytes.to_vec(), exports: vec![], note_of: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_from_hello_to_end() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    client.send(&hello_packet());
    let (channel, said) = daemon.hello().await;
    assert_eq!((said.pid, said.client_name.as_str()), (std::process::id(), "test"));
    assert_eq!(said.tenant, format!("uid-{}", said.uid));
    assert_eq!(said.devices, None);
    assert_eq!(daemon.channels.features(channel), protocol::FEATURES & !protocol::PINS);
    assert!(!said.pins && daemon.channels.word_table(channel).is_none());
    assert!(said.pressure);

    client.send(&mapped_packet(3));
    let Event::Frame { frame: ClientFrame::Mapped(parts), .. } = daemon.event().await else { panic!() };
    assert_eq!(parts[0].part.0, 3);

    daemon.channels.send(channel, out(b"one"));
    daemon.channels.send(channel, out(b"two"));
    daemon.channels.close(channel);
    daemon.channels.send(channel, out(b"too late"));
    assert_eq!(client.receive(), b"one");
    assert_eq!(client.receive(), b"two");
    assert_eq!(client.receive(), b"");
    assert!(matches!(daemon.event().await, Event::ChannelEnded { channel: ended } if ended == channel));
    assert_eq!(daemon.channels.by_id.len(), 1, "the process is watched on");
    daemon.channels.forget(channel);
    assert!(daemon.channels.by_id.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_pressure_feature_gets_no_notes() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    let features = hello().features & !protocol::PRESSURE;
    client.send(&packet(v1::client_frame::Frame::Hello(v1::Hello { features, ..hello() })));
    let (channel, said) = daemon.hello().await;
    assert!(!said.pressure);
    assert_eq!(daemon.channels.features(channel) & protocol::PRESSURE, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_other_than_hello_are_refused() {
    let daemon = Daemon::start_with(Duration::from_millis(50), 8);
    let version = v1::Hello { protocol_major: 7, ..hello() };
    let version = packet(v1::client_frame::Frame::Hello(version));
    let memfd = rustix::fs::memfd_create("channel-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut large = hello_packet();
    large.resize(protocol::FRAME_BYTES_MAX + 1, 0);
    for (packet, fds, reason, says) in [
        (Some(&version[..]), &[][..], "PROTOCOL_VERSION", "the client 7"),
        (Some(b"garbage"), &[], "PROTOCOL_BROKEN", "not a frame"),
        (Some(b""), &[], "PROTOCOL_BROKEN", "frame is empty"),
        (Some(&large), &[], "PROTOCOL_BROKEN", "more than 65536 bytes"),
        (Some(&hello_packet()), &[memfd.as_fd()], "PROTOCOL_BROKEN", "file descriptors"),
        (Some(&mapped_packet(0)), &[], "PROTOCOL_BROKEN", "not a hello"),
        (None, &[], "PROTOCOL_BROKEN", "within 50 ms"),
    ] {
        let client = daemon.connect();
        if let Some(packet) = packet {
            client.send_with(packet, fds);
        }
        let refused = client.refused();
        assert_eq!(refused.reason, reason, "{refused:?}");
        assert!(refused.message.contains(says), "{refused:?} / {says}");
        assert_eq!(client.receive(), b"");
    }
    assert!(daemon.channels.by_id.is_empty());
    assert!(daemon.events.is_empty(), "the core hears of none of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_hello_are_bounded() {
    let mut daemon = Daemon::start_with(TIMEOUT, 2);
    let first = daemon.connect();
    let _second = daemon.connect();
    let third = daemon.connect();
    assert_eq!(third.refused().reason, "QUEUE_FULL");
    first.send(&hello_packet());
    daemon.hello().await;
    // The gate has a free place again.
    let fourth = daemon.connect();
    fourth.send(&hello_packet());
    daemon.hello().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames_are_reported_and_leak_no_descriptor() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    client.send(&hello_packet());
    daemon.hello().await;
    client.send(b"\xff\xff");
    assert!(daemon.malformed().await.contains("not a frame"));
    client.send(&vec![0; protocol::FRAME_BYTES_MAX + 1]);
    assert!(daemon.malformed().await.contains("more than"));
    client.send(&hello_packet());
    assert!(daemon.malformed().await.contains("second hello"));

    let (mut reader, writer) = std::io::pipe().unwrap();
    client.send_with(&mapped_packet(0), &[writer.as_fd()]);
    assert!(daemon.malformed().await.contains("file descriptors"));
    drop(writer);
    // A leaked copy in this process would let this read wait.
    assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_notes_end_no_channel_and_the_newest_of_each_place_arrives() {
    const COUNT: u16 = 10_000;
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    client.send(&hello_packet());
    let (channel, _) = daemon.hello().await;
    for number in 0..COUNT {
        let note_of = Some((DeviceIndex(number % 2), Tier::Device));
        daemon.channels.send(channel, OutFrame { note_of, ..out(&number.to_ne_bytes()) });
    }
    let (mut last, mut received) = ([0; 2], 0);
    while last != [COUNT - 2, COUNT - 1] {
        let number = u16::from_ne_bytes(client.receive().try_into().unwrap());
        let of_place = &mut last[usize::from(number % 2)];
        assert!(received < 2 || *of_place < number, "an older note came after {of_place}");
        *of_place = number;
        received += 1;
    }
    assert!(received < COUNT, "the others were of no use any more");
    daemon.channels.send(channel, out(b"still here"));
    assert_eq!(client.receive(), b"still here");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_loses_its_channel_alone() {
    let mut daemon = Daemon::start();
    let stalled = daemon.connect();
    stalled.send(&hello_packet());
    let (channel, _) = daemon.hello().await;
    let lively = daemon.connect();
    lively.send(&hello_packet());
    let (other, _) = daemon.hello().await;
    let memfd = rustix::fs::memfd_create("stalled", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let memfd: Arc<broker_driver::SharedFd> = Arc::new(memfd.into());
    let frame = || OutFrame {
        bytes: vec![1; 60_000],
        exports: vec![broker_driver::Export::Memfd(memfd.clone())],
        note_of: None,
    };
    for _ in 0..200 {
        daemon.channels.send(channel, frame());
    }
    assert!(matches!(daemon.event().await, Event::ChannelEnded { channel: ended } if ended == channel));
    assert_eq!(Arc::strong_count(&memfd), 1, "no descriptor is held for it");
    daemon.channels.send(other, out(b"still here"));
    assert_eq!(lively.receive(), b"still here");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stop_ends_every_channel() {
    let mut daemon = Daemon::start();
    let client = daemon.connect();
    client.send(&hello_packet());
    daemon.hello().await;
    daemon.stop.send_replace(true);
    assert_eq!(client.receive(), b"");
    assert!(matches!(daemon.event().await, Event::ChannelEnded { .. }));
    tokio::time::timeout(TIMEOUT, &mut daemon.served).await.expect("it ends").unwrap().unwrap();
}

/// A client process that says hello and then obeys commands.
struct Process(Child);

impl Process {
    const SCRIPT: &str = "
import os, socket, sys
path, hello, frame = sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
channel.connect(path)
channel.send(hello)
print('connected', flush=True)
for line in sys.stdin:
    if line == 'fork\\n':
        child = os.fork()
        if child == 0:
            channel.send(frame)
            os._exit(0)
        os.waitpid(child, 0)
    elif line == 'close\\n':
        channel.close()
    elif line == 'leave\\n':
        if os.fork() != 0:
            os._exit(0)
        while os.read(0, 64) == b'receive\\n':
            socket.recv_fds(channel, 64, 4)
        os._exit(0)
";

    fn start(daemon: &Daemon) -> Self {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut child = Command::new("python3")
            .args(["-c", Self::SCRIPT])
            .arg(daemon.path())
            .args([hex(hello_packet()), hex(mapped_packet(0))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        Self(child)
    }

    fn command(&mut self, line: &str) {
        self.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_watched_beyond_its_channel() {
    let mut daemon = Daemon::start();
    let mut process = Process::start(&daemon);
    let (channel, said) = daemon.hello().await;
    assert_eq!(said.pid, process.0.id());
    process.command("close\n");
    assert!(matches!(daemon.event().await, Event::ChannelEnded { .. }));
    daemon.channels.kill(channel).unwrap();
    assert!(matches!(daemon.event().await, Event::ProcessEnded { channel: ended } if ended == channel));
    assert!(daemon.channels.by_id.is_empty(), "nothing is left to do with it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forked_child_does_not_speak_for_the_session() {
    let mut daemon = Daemon::start();
    let mut process = Process::start(&daemon);
    daemon.hello().await;
    process.command("fork\n");
    let problem = daemon.malformed().await;
    assert!(problem.contains(&format!("that of process {}", process.0.id())), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_not_over_while_a_child_can_receive_descriptors() {
    let mut daemon = Daemon::start();
    let mut process = Process::start(&daemon);
    let (channel, _) = daemon.hello().await;
    let memfd =
        Arc::new(rustix::fs::memfd_create("inherited", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into());
    let exports = vec![broker_driver::Export::Memfd(memfd)];
    daemon.channels.send(channel, OutFrame { bytes: b"take it".to_vec(), exports, note_of: None });
    let entry = daemon.channels.entry(channel).unwrap();
    while crate::platform::unread::bytes(entry.socket.as_fd()).unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(entry);
    process.command("leave\n");
    // The daemon sends nothing further to it, and reports no end of the process yet.
    assert!(matches!(daemon.event().await, Event::ProcessStays { why: ProcessStays::SocketKept, .. }));
    assert!(matches!(daemon.event().await, Event::ChannelEnded { channel: ended } if ended == channel));
    let early = tokio::time::timeout(Duration::from_millis(500), daemon.events.recv()).await;
    assert!(early.is_err(), "{early:?}");
    process.command("receive\n");
    assert!(matches!(daemon.event().await, Event::ProcessEnded { channel: ended } if ended == channel));
    assert!(daemon.channels.by_id.is_empty(), "nothing is left to do with it");
}
