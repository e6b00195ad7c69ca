//! Accepts and counts the connections of the gRPC sockets.
//!
//! Each connection costs the daemon two descriptors and some memory. So one uid may have a bounded number of
//! connections, within its budget, and the daemon closes further ones at once. It also closes a connection whose peer
//! leaves the preface, a frame or headers unfinished. While the daemon has too few free descriptors it closes
//! every new connection, except those of operators on their socket, for whom the rest is kept. Without any free
//! descriptor, accepting pauses instead of spinning.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener as StdUnixListener,
    },
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::net::Shutdown;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    time::{Instant, Sleep},
};
use tokio_stream::Stream;
use tonic::{Status, body::Body, codegen::http::Response, transport::server::Connected};

use super::{
    budget::{Budgets, Charge},
    caller::Origin,
    frames::Frames,
    intake,
    serve::GrpcOptions,
    status,
};
use crate::{
    platform::descriptor_shares::{DescriptorShare, DescriptorShares},
    socket_keeper::Replacements,
    telemetry::PeerLines,
};

/// Pause after a failed accept, until some connection closes a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The bytes of a connection: the buffers of the HTTP/2 library, and headers that are not finished.
const CONNECTION_BYTES: usize = 24 << 10;
/// The bytes that the HTTP/2 library keeps for each of the most streams at once, and the number of streams that the
/// connection's own charge covers.
const STREAM_BYTES: usize = 2 << 10;
const STREAMS_COVERED: usize = 4;
/// The streams that the HTTP/2 library remembers for a second after it has reset them, and those on their way there.
const STREAMS_REMEMBERED: usize = 64;
/// How many bytes the daemon reads at a frame's beginning, and after how many headers it lets their calls begin before
/// it reads on. So a peer beyond its budget is cut off before the HTTP/2 library has memory for all its streams.
const READ_BYTES: usize = 256;
const HEADERS_PER_READ: usize = 8;

/// The uid of connections whose process cannot be identified. They share one count and one budget; the daemon refuses
/// each of their calls with a reason.
const UNIDENTIFIED_UID: u32 = u32::MAX;

/// Which connections are admitted.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// Maximum connections of one uid.
    per_uid_max: usize,
    budgets: Budgets,
    /// Uids that are admitted however few descriptors are free, with budgets of their own.
    always: BTreeSet<u32>,
    budgets_of_always: Budgets,
    descriptors: DescriptorShares,
    /// How long a frame, or headers, may take to arrive as a whole.
    frame_timeout: Duration,
    closed: ClosedLines,
}

impl Admission {
    pub(super) fn new(
        options: &GrpcOptions,
        budgets: Budgets,
        always: BTreeSet<u32>,
        closed: ClosedLines,
    ) -> Self {
        Self {
            per_uid_max: options.connections_per_uid_max,
            budgets,
            always,
            budgets_of_always: Budgets::new(options.held_bytes_per_uid_max),
            descriptors: options.descriptors.clone(),
            frame_timeout: options.request_read_timeout,
            closed,
        }
    }
}

/// The log lines about connections that the daemon closed, bounded for each user. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct ClosedLines(PeerLines<String>);

impl ClosedLines {
    fn log(&self, uid: u32, why: &'static str) {
        // Lines that are not written anyway are not counted.
        if tracing::enabled!(tracing::Level::DEBUG) && self.0.may_write(&format!("uid-{uid}")) {
            tracing::debug!(uid, why, "closed a connection");
        }
    }
}

/// A call's knowledge of its connection.
#[derive(Clone, Debug)]
pub(super) struct Contact {
    origin: Origin,
    uid: u32,
    budgets: Budgets,
    /// The connection's own charge, while it lives.
    charge: Weak<Charge>,
    calls: Arc<CallCount>,
    stream: Weak<UnixStream>,
    closed: ClosedLines,
}

/// The calls of one connection whose answer is not written yet, and the most that there were at once. The HTTP/2
/// library keeps the memory of as many streams until the connection ends.
#[derive(Debug, Default)]
struct CallCount {
    open: AtomicUsize,
    most: AtomicUsize,
    /// Whether the connection ends, because its peer leaves too many refusals unread.
    is_cut: AtomicBool,
}

/// A call from its headers to the last byte of its answer, charged to its user.
#[derive(Debug)]
pub(super) struct OpenCall {
    charge: Charge,
    _counted: CountedCall,
}

/// One call's place in the count of its connection.
#[derive(Debug)]
struct CountedCall(Arc<CallCount>);

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OpenCall {
    pub(super) fn charge(&self) -> &Charge {
        &self.charge
    }
}

impl Contact {
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Charges a call, or refuses it. A peer that leaves many refusals unread is cut off.
    pub(super) fn begin_call(&self, bytes: usize) -> Result<OpenCall, Box<Response<Body>>> {
        let (counted, is_covered) = self.count_call();
        if is_covered && let Some(charge) = self.budgets.charge(self.uid, bytes) {
            return Ok(OpenCall { charge, _counted: counted });
        }
        let refusal = self.over_budget().into_http();
        match self.budgets.charge_refusal(self.uid).filter(|_| is_covered && self.cover_ended_early()) {
            Some(charge) => {
                let open_call = OpenCall { charge, _counted: counted };
                Err(Box::new(intake::charged(refusal, Arc::new(open_call))))
            }
            None => {
                self.cut();
                Err(Box::new(refusal))
            }
        }
    }

    /// Charges the connection for streams that end before their request is read, or cuts it off.
    pub(super) fn end_early(&self) {
        if !self.cover_ended_early() {
            self.cut();
        }
    }

    /// Has the connection's charge cover the streams that the HTTP/2 library remembers after it has reset them.
    fn cover_ended_early(&self) -> bool {
        let most = self.calls.most.fetch_max(STREAMS_REMEMBERED, Ordering::Relaxed);
        let more = STREAMS_REMEMBERED.saturating_sub(most.max(STREAMS_COVERED));
        more == 0 || self.charge.upgrade().is_some_and(|charge| charge.grow_into_reserve(more * STREAM_BYTES))
    }

    fn cut(&self) {
        self.closed.log(self.uid, "its peer has used up the uid's budget");
        self.calls.is_cut.store(true, Ordering::Relaxed);
        if let Some(stream) = self.stream.upgrade() {
            // It fails only if the peer has left.
            let _ = rustix::net::shutdown(&*stream, Shutdown::Both);
        }
    }

    /// Counts a call, and returns whether the connection's charge covers its stream.
    fn count_call(&self) -> (CountedCall, bool) {
        let open = self.calls.open.fetch_add(1, Ordering::Relaxed) + 1;
        let counted = CountedCall(Arc::clone(&self.calls));
        let most = self.calls.most.fetch_max(open, Ordering::Relaxed);
        let is_covered = open <= most.max(STREAMS_COVERED)
            || self.charge.upgrade().is_some_and(|charge| charge.grow_into_reserve(STREAM_BYTES));
        (counted, is_covered)
    }

    /// The refusal of a request for which the user's budget has too few bytes left.
    pub(super) fn over_budget(&self) -> Status {
        status::user_limit(self.uid, self.budgets.bytes_max())
    }
}

/// Registers a listening, non-blocking socket.
pub(super) fn listening(socket: OwnedFd) -> io::Result<UnixListener> {
    let listener = StdUnixListener::from(socket);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Streams the admitted connections of one socket.
pub(super) fn incoming(
    mut listener: UnixListener,
    mut replacements: Replacements,
    door: Admission,
) -> impl Stream<Item = io::Result<Connection>> {
    let counts = Counts::default();
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            // The server has the receiving end. When the server ends, this task ends and closes the socket.
            let Ok(place) = sender.reserve().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(socket) = replacements.recv() => {
                    match listening(socket) {
                        Ok(replacement) => listener = replacement,
                        Err(error) => tracing::error!(%error, "a socket that was bound again cannot be listened on"),
                    }
                    continue;
                }
                () = sender.closed() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    if let Some(connection) = Connection::admit(stream, &counts, &door) {
                        place.send(Ok(connection));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(receiver)
}

/// The number of connections of each uid.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<Mutex<HashMap<u32, usize>>>);

impl Counts {
    fn enter(&self, uid: u32, max: usize) -> Option<Counted> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Counted { counts: self.clone(), uid })
    }
}

/// One connection's place in the count of its uid.
#[derive(Debug)]
struct Counted {
    counts: Counts,
    uid: u32,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<UnixStream>,
    contact: Contact,
    frames: Frames,
    frame_timeout: Duration,
    /// Ends the connection unless the peer finishes what it has begun.
    unfinished: Option<Pin<Box<Sleep>>>,
    /// Headers since the calls of others could last begin.
    headers: usize,
    _counted: Counted,
    _charge: Arc<Charge>,
    _descriptors: Option<DescriptorShare>,
}

impl Connection {
    fn admit(stream: UnixStream, counts: &Counts, door: &Admission) -> Option<Self> {
        let origin = match Origin::of(stream.as_fd()) {
            Ok(origin) => origin,
            Err(error) => {
                tracing::warn!(%error, "closed a connection: its process cannot be identified");
                return None;
            }
        };
        let uid = origin.uid().unwrap_or(UNIDENTIFIED_UID);
        let is_always_admitted = door.always.contains(&uid);
        let descriptors = if is_always_admitted { None } else { Some(door.descriptors.enter(uid)) };
        let Ok(descriptors) = descriptors.transpose() else {
            door.closed.log(uid, "too few free descriptors are left for the uid");
            return None;
        };
        let Some(counted) = counts.enter(uid, door.per_uid_max) else {
            door.closed.log(uid, "the uid has its maximum number of connections");
            return None;
        };
        let budgets = if is_always_admitted { &door.budgets_of_always } else { &door.budgets };
        let Some(charge) = budgets.charge(uid, CONNECTION_BYTES) else {
            door.closed.log(uid, "the uid has as many bytes in the daemon as it may");
            return None;
        };
        let (stream, charge) = (Arc::new(stream), Arc::new(charge));
        let contact = Contact {
            origin,
            uid,
            budgets: budgets.clone(),
            charge: Arc::downgrade(&charge),
            calls: Arc::default(),
            stream: Arc::downgrade(&stream),
            closed: door.closed.clone(),
        };
        Some(Self {
            stream,
            contact,
            frames: Frames::new(),
            frame_timeout: door.frame_timeout,
            unfinished: Some(Box::pin(tokio::time::sleep(door.frame_timeout))),
            headers: 0,
            _counted: counted,
            _charge: charge,
            _descriptors: descriptors,
        })
    }

    /// Follows what the peer has sent, and gives it time for what it has not finished.
    fn follow(&mut self, bytes: &[u8]) {
        let has_finished = self.frames.advance(bytes);
        self.headers += self.frames.take_headers();
        if !self.frames.is_unfinished() {
            self.unfinished = None;
            return;
        }
        match &mut self.unfinished {
            Some(deadline) if has_finished => deadline.as_mut().reset(Instant::now() + self.frame_timeout),
            Some(_) => {}
            None => self.unfinished = Some(Box::pin(tokio::time::sleep(self.frame_timeout))),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Contact;

    fn connect_info(&self) -> Contact {
        self.contact.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // The kernel would still deliver the bytes that the peer has sent before.
        if self.contact.calls.is_cut.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.headers >= HEADERS_PER_READ {
            self.headers = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let bytes_max = self.frames.payload_left().max(READ_BYTES);
        loop {
            let Poll::Ready(readable) = self.stream.poll_read_ready(context) else {
                let Some(deadline) = &mut self.unfinished else { return Poll::Pending };
                ready!(deadline.as_mut().poll(context));
                self.contact.closed.log(self.contact.uid, "its peer leaves a frame unfinished");
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            };
            readable?;
            let space = into.initialize_unfilled();
            let space_max = space.len().min(bytes_max);
            match self.stream.try_read(&mut space[..space_max]) {
                Ok(count) => {
                    let before = into.filled().len();
                    into.advance(count);
                    self.follow(&into.filled()[before..]);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Connection {
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        send: impl Fn(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match send(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&*self.stream, Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let counts = Counts::default();
        let first = counts.enter(1000, 2);
        let second = counts.enter(1000, 2);
        assert!(first.is_some() && second.is_some());
        assert!(counts.enter(1000, 2).is_none());
        let other = counts.enter(1001, 2);
        assert!(other.is_some());
        drop(first);
        assert!(counts.enter(1000, 2).is_some());
        drop((second, other));
        assert!(counts.0.lock().unwrap().is_empty());
    }
}
