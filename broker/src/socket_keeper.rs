//! Keeps the daemon reachable: its sockets may be removed under it, by a cleaner of temporary files or by a second daemon.
//!
//! A socket's file cannot be restored, so a lost socket is bound anew, and its server takes the new one. Where that is
//! impossible, as below a second daemon, the daemon is not ready until it succeeds. Connections that stand are untouched.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use crate::platform::sockets::{Bound, Socket, Sockets};

/// Interval at which the files are compared with those that were bound.
const INTERVAL: Duration = Duration::from_secs(1);

/// Replacements of one listening socket.
pub type Replacements = mpsc::UnboundedReceiver<OwnedFd>;

/// Why the daemon cannot be reached; `None` while it can be.
pub type Unreachable = watch::Receiver<Option<String>>;

/// A listening socket, and those that take its place.
#[derive(Debug)]
pub struct Listener {
    pub socket: OwnedFd,
    pub replacements: Replacements,
}

/// The servers' ends.
#[derive(Debug)]
pub struct Listening {
    pub memory: Listener,
    pub admin: Listener,
    pub channel: Listener,
    pub unreachable: Unreachable,
}

impl From<OwnedFd> for Listener {
    /// A listener that nothing replaces.
    fn from(socket: OwnedFd) -> Self {
        Self { socket, replacements: mpsc::unbounded_channel().1 }
    }
}

/// The thread that keeps the sockets. Dropping it removes them.
#[derive(Debug)]
pub struct SocketKeeper {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Servers {
    memory: mpsc::UnboundedSender<OwnedFd>,
    admin: mpsc::UnboundedSender<OwnedFd>,
    channel: mpsc::UnboundedSender<OwnedFd>,
    unreachable: watch::Sender<Option<String>>,
}

impl SocketKeeper {
    pub fn start(sockets: Sockets, bound: Bound) -> io::Result<(Self, Listening)> {
        let (memory, of_memory) = mpsc::unbounded_channel();
        let (admin, of_admin) = mpsc::unbounded_channel();
        let (channel, of_channel) = mpsc::unbounded_channel();
        let (unreachable, is_unreachable) = watch::channel(None);
        let servers = Servers { memory, admin, channel, unreachable };
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("vramd-sockets".into()).spawn(move || {
            keep(sockets, &servers, &over);
        })?;
        let listening = Listening {
            memory: Listener { socket: bound.memory.into(), replacements: of_memory },
            admin: Listener { socket: bound.admin.into(), replacements: of_admin },
            channel: Listener { socket: bound.channel, replacements: of_channel },
            unreachable: is_unreachable,
        };
        Ok((Self { is_over, thread: Some(thread) }, listening))
    }
}

impl Drop for SocketKeeper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn keep(mut sockets: Sockets, servers: &Servers, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        let lost = sockets.lost();
        if !lost.is_empty() {
            restore(&mut sockets, &lost, servers);
        }
        thread::park_timeout(INTERVAL);
    }
}

fn restore(sockets: &mut Sockets, lost: &[Socket], servers: &Servers) {
    let names = lost.iter().map(|socket| socket.name()).collect::<Vec<_>>().join(", ");
    let restored = sockets.restore(|socket, fd| {
        let server = match socket {
            Socket::Memory => &servers.memory,
            Socket::Admin => &servers.admin,
            Socket::Channel => &servers.channel,
        };
        // A server that has ended needs no socket.
        let _ = server.send(fd);
    });
    match restored {
        Ok(()) => {
            servers.unreachable.send_replace(None);
            tracing::warn!(sockets = names, "sockets were removed or replaced: bound again");
        }
        Err(error) => {
            let why = format!("sockets were removed or replaced, and cannot be bound again: {error}");
            let is_new = servers.unreachable.borrow().as_ref() != Some(&why);
            if is_new {
                tracing::warn!(sockets = names, "{why}");
                servers.unreachable.send_replace(Some(why));
            }
        }
    }
}
