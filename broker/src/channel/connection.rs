//! Serves one connection, from accept to end.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    sync::atomic::AtomicBool,
    time::Duration,
};

use broker_core::{self as core, ChannelId, Event};
use tokio::sync::Notify;
use vramd_proto::{channel as protocol, v1};
use vramd_types::{SessionId, printable_within};

use super::{
    Channels, ClientProcess, Entry, OutFrame,
    frame_codec::{self, Received},
    hello_gate::{Gate, GreetingPermit},
    outbox::Outbox,
    process_watch,
    refusal_frames::HelloRefusal,
    socket::Socket,
    word_table::WordTable,
};
use crate::{
    platform::{
        credentials::Packet,
        descriptor_shares::{DescriptorShare, DescriptorShares},
        peer::Peer,
        readiness,
        tenant_rules::SharedRules,
    },
    reactor::Inbox,
    telemetry::{PeerLines, Telemetry},
};

/// Maximum bytes of a client's name that the daemon keeps.
const CLIENT_NAME_BYTES_MAX: usize = 128;

/// Pause before a frame is sent again whose descriptors the kernel did not accept: the first pause and the longest.
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(50);
const IN_FLIGHT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) channels: Arc<Channels>,
    pub(super) inbox: Inbox,
    pub(super) rules: SharedRules,
    pub(super) hello_timeout: Duration,
    /// Slots of each word table.
    pub(super) word_slots: u32,
    pub(super) telemetry: Telemetry,
    pub(super) gate: Arc<Gate>,
    pub(super) descriptors: DescriptorShares,
    /// Bounds the lines about refused connections.
    pub(super) lines: PeerLines<String>,
}

/// A connection of an identified process that has not said hello yet.
#[derive(Debug)]
pub(super) struct GreetingConnection {
    socket: Socket,
    peer: Peer,
    permit: GreetingPermit,
    descriptors: DescriptorShare,
}

/// Admits an accepted connection, or refuses it at once.
pub(super) fn admit(fd: OwnedFd, shared: &Shared) -> io::Result<Option<GreetingConnection>> {
    let socket = Socket::new(fd)?;
    let peer = match Peer::of(socket.as_fd()) {
        Ok(peer) => peer,
        Err(error) => {
            refuse(&socket, None, &unidentified(&error), shared);
            return Ok(None);
        }
    };
    let descriptors = shared.descriptors.enter(peer.uid).map_err(HelloRefusal::FewDescriptors);
    let admitted = descriptors.and_then(|descriptors| {
        let permit = shared.gate.enter(peer.uid).map_err(|limit| HelloRefusal::TooMany { limit })?;
        Ok((descriptors, permit))
    });
    match admitted {
        Ok((descriptors, permit)) => Ok(Some(GreetingConnection { socket, peer, permit, descriptors })),
        Err(refusal) => {
            refuse(&socket, Some(peer.uid), &refusal, shared);
            Ok(None)
        }
    }
}

/// Serves a connection until its end.
pub(super) async fn run(connection: GreetingConnection, shared: Arc<Shared>) {
    let GreetingConnection { socket, peer, permit, descriptors } = connection;
    match greet(&socket, &peer, &shared).await {
        Ok(Some((tenant, hello))) => {
            let admitted = Admitted { socket, peer, tenant, hello, descriptors };
            serve(admitted, permit, &shared).await;
        }
        Ok(None) => {}
        Err(refusal) => refuse(&socket, Some(peer.uid), &refusal, &shared),
    }
}

fn unidentified(error: &dyn std::fmt::Display) -> HelloRefusal {
    HelloRefusal::Unidentified { problem: error.to_string() }
}

/// Sends the refusal and ends the connection.
fn refuse(socket: &Socket, uid: Option<u32>, refusal: &HelloRefusal, shared: &Shared) {
    shared.telemetry.count_refused_channel(refusal.reason());
    if shared.lines.may_write(&uid.map_or_else(|| "unidentified".to_owned(), |uid| format!("uid-{uid}"))) {
        tracing::info!(uid, ?refusal, "connection refused");
    }
    // There is room for one small packet, unless the peer has left.
    let _ = socket.try_send(&refusal.frame());
    socket.shutdown();
    socket.discard_received();
}

/// Finds the tenant to charge and reads the hello. `None` if the client left before.
async fn greet(
    socket: &Socket,
    peer: &Peer,
    shared: &Shared,
) -> Result<Option<(String, v1::Hello)>, HelloRefusal> {
    let tenant = shared.rules.now().tenant_of(peer).map_err(|error| unidentified(&error))?;
    let receive = socket.receive(|buffer, packet| frame_unless_end(buffer, packet, peer.pid));
    let Ok(received) = tokio::time::timeout(shared.hello_timeout, receive).await else {
        let problem = format!("no hello within {} ms", shared.hello_timeout.as_millis());
        return Err(HelloRefusal::Broken { problem });
    };
    let Ok(Some(frame)) = received else { return Ok(None) };
    let broken = |problem| HelloRefusal::Broken { problem };
    match frame.map_err(broken)? {
        Received::Hello(hello) if hello.protocol_major == protocol::PROTOCOL_MAJOR => {
            Ok(Some((tenant, hello)))
        }
        Received::Hello(hello) => Err(HelloRefusal::Version { client_major: hello.protocol_major }),
        Received::Frame { .. } => Err(broken("the first frame is not a hello".to_owned())),
    }
}

/// A connection that has said hello.
struct Admitted {
    socket: Socket,
    peer: Peer,
    tenant: String,
    hello: v1::Hello,
    descriptors: DescriptorShare,
}

/// Registers the channel, reports it to the core, and carries frames both ways until the channel ends.
async fn serve(admitted: Admitted, permit: GreetingPermit, shared: &Shared) {
    let Admitted { socket, peer, tenant, hello, descriptors } = admitted;
    let Shared { channels, inbox, .. } = shared;
    let Peer { pid, uid, pidfd, .. } = peer;
    let pidfd = Arc::new(pidfd);
    // This comes before the core knows the channel: without the end of the process the core would never free a
    // session's memory.
    let watched = match readiness::of_pidfd(Arc::clone(&pidfd)) {
        Ok(watched) => watched,
        Err(error) => {
            let problem = format!("the process cannot be watched: {error}");
            return refuse(&socket, Some(uid), &HelloRefusal::Unidentified { problem }, shared);
        }
    };
    let channel = channels.next_id();
    let (features, words) = create_word_table(hello.features & protocol::FEATURES, shared.word_slots);
    let entry = Arc::new(Entry {
        socket,
        outbox: Outbox::new(),
        process: ClientProcess::new(pid, pidfd),
        features,
        words,
        _descriptors: Some(descriptors),
        forgotten: Notify::new(),
        image_check: Notify::new(),
        process_settled: Notify::new(),
        channel_over: AtomicBool::new(false),
        process_over: AtomicBool::new(false),
    });
    channels.by_id.insert(channel, Arc::clone(&entry));
    inbox.event(Event::Hello {
        channel,
        hello: core::Hello {
            tenant,
            pid,
            uid,
            client_name: printable_within(&hello.client_name, CLIENT_NAME_BYTES_MAX),
            pins: entry.words.is_some(),
            managed_orders: features & protocol::MANAGED_ORDERS != 0,
            pressure: features & protocol::PRESSURE != 0,
            devices: (!hello.any_device).then_some(hello.devices),
            unmapped_sessions: hello.unmapped_session_ids.into_iter().map(SessionId::from_shown).collect(),
        },
    });
    drop(permit);
    tokio::spawn(process_watch::watch_process(
        channel,
        watched,
        Arc::clone(&entry),
        Arc::clone(channels),
        inbox.clone(),
    ));
    let Entry { socket, outbox, .. } = &*entry;
    tokio::join!(read(&entry, channel, pid, shared), write(socket, channel, outbox));
    // The socket stays open while the process is watched, and unread packets would stay in it as long.
    socket.discard_received();
    process_watch::settle(&entry).await;
    inbox.event(Event::ChannelEnded { channel });
    channels.mark_over(channel, &entry.channel_over);
}

/// Returns the features that both sides speak and the word table for pins. A session without pins is better than none.
fn create_word_table(features: u64, slots: u32) -> (u64, Option<WordTable>) {
    if features & protocol::PINS == 0 {
        return (features, None);
    }
    match WordTable::create(slots) {
        Ok(words) => (features, Some(words)),
        Err(error) => {
            tracing::warn!(%error, "no word table can be created: the session has no pins");
            (features & !protocol::PINS, None)
        }
    }
}

/// Turns packets into events, one at a time. The next packet is read after the reactor has handled the event before, so
/// no client fills the reactor's queue.
async fn read(entry: &Entry, channel: ChannelId, pid: u32, shared: &Shared) {
    let Shared { inbox, telemetry, .. } = shared;
    let next = || entry.socket.receive(|buffer, packet| frame_unless_end(buffer, packet, pid));
    while let Ok(Some(received)) = next().await {
        if let Ok(Received::Frame { frame, trace }) = &received {
            telemetry.begin_frame(channel, frame, trace.as_ref());
        }
        let taken = received.and_then(|received| take(entry, received));
        inbox.event(match taken {
            Ok(frame) => Event::Frame { channel, frame },
            Err(problem) => Event::Malformed { channel, problem },
        });
        if inbox.wait_until_handled().await.is_none() {
            break;
        }
    }
    entry.outbox.abort();
}

/// Converts a frame after the first for the core. If the client has mapped its word table, the table is sealed first.
fn take(entry: &Entry, received: Received) -> Result<core::ClientFrame, String> {
    let Received::Frame { frame, .. } = received else {
        return Err("the client sent a second hello".to_owned());
    };
    if let (core::ClientFrame::WordsMapped, Some(words)) = (&frame, &entry.words) {
        words.seal()?;
    }
    Ok(frame)
}

/// Sends queued frames in order. A client that does not read delays only itself.
async fn write(socket: &Socket, channel: ChannelId, outbox: &Outbox) {
    while let Some(frame) = outbox.next().await {
        let sent = tokio::select! {
            sent = send(socket, channel, &frame) => sent,
            () = outbox.overdue() => break,
        };
        match sent {
            Ok(()) => tracing::debug!(channel = channel.0, fds = frame.exports.len(), "packet sent"),
            Err(error) => {
                log_send_error(channel, &frame, &error);
                outbox.abort();
            }
        }
    }
    socket.shutdown();
}

/// Sends a frame once there is room. The kernel bounds the descriptors in flight of the daemon's user as a whole, so
/// other clients may have caused the shortage: this client's frame waits.
async fn send(socket: &Socket, channel: ChannelId, frame: &OutFrame) -> io::Result<()> {
    let mut pause = IN_FLIGHT_PAUSE;
    loop {
        match socket.send(frame).await {
            Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                tracing::warn!(channel = channel.0, "too many descriptors are in flight: the frame waits");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(IN_FLIGHT_PAUSE_MAX);
            }
            sent => return sent,
        }
    }
}

/// Logs a send error. A client that left is normal; every other error is a warning.
fn log_send_error(channel: ChannelId, frame: &OutFrame, error: &io::Error) {
    let (fds, bytes) = (frame.exports.len(), frame.bytes.len());
    match error.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => {
            tracing::debug!(channel = channel.0, %error, "the client has left the channel");
        }
        _ => {
            tracing::warn!(channel = channel.0, %error, fds, bytes, "the frame could not be sent: channel ended")
        }
    }
}

fn frame_unless_end(buffer: &[u8], packet: Packet, pid: u32) -> Option<Result<Received, String>> {
    (!packet.is_end()).then(|| whole_frame(buffer, packet, pid))
}

/// Decodes a packet that holds exactly one frame, sent by the process of the session.
fn whole_frame(buffer: &[u8], packet: Packet, pid: u32) -> Result<Received, String> {
    let sender = packet.sender.map_or(0, |sender| sender.pid);
    if i64::from(sender) != i64::from(pid) {
        return Err(format!("a frame from process {sender}, but the session is that of process {pid}"));
    }
    if packet.truncated {
        return Err(format!("the frame has more than {} bytes", buffer.len()));
    }
    if packet.fds_dropped {
        return Err("the frame carries file descriptors, which clients may not send".to_owned());
    }
    frame_codec::decode(&buffer[..packet.bytes])
}
