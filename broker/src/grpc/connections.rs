//! Accepts and counts the connections of the gRPC sockets.
//!
//! Each connection costs the daemon two descriptors and some memory. So one uid may have a bounded number of
//! connections, and the daemon closes further ones at once. While the daemon has too few free descriptors it closes
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
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use super::caller::Origin;
use crate::{platform::descriptors::Descriptors, socket_keeper::Replacements};

/// Pause after a failed accept, until some connection closes a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Which connections are admitted.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// Maximum connections of one uid.
    pub(super) per_uid_max: usize,
    /// Uids that are admitted however few descriptors are free.
    pub(super) always: BTreeSet<u32>,
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
    stream: UnixStream,
    origin: Origin,
    _counted: Counted,
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
        // Connections without an identified uid share one count. The daemon refuses each of their calls with a reason.
        let uid = origin.uid();
        if !uid.is_some_and(|uid| door.always.contains(&uid))
            && Descriptors::of_process().exceeded().is_some()
        {
            tracing::debug!(uid, "closed a connection: the daemon has too few free descriptors");
            return None;
        }
        let counted = counts.enter(uid.unwrap_or(u32::MAX), door.per_uid_max);
        if counted.is_none() {
            tracing::debug!(uid, door.per_uid_max, "closed a connection: the uid has its maximum number");
        }
        Some(Self { stream, origin, _counted: counted? })
    }
}

impl Connected for Connection {
    type ConnectInfo = Origin;

    fn connect_info(&self) -> Origin {
        self.origin.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
