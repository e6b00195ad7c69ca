//! Accepts connections on `channel.sock`.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{io::Errno, net::SocketFlags};
use tokio::{io::unix::AsyncFd, task::JoinSet};

use super::{
    Channels,
    connection::{self, Shared},
    hello_gate::{Bounds, Gate},
};
use crate::{
    platform::{descriptor_shares::DescriptorShares, readiness, tenant_rules::SharedRules},
    reactor::Inbox,
    socket_keeper::Listener,
    telemetry::{PeerLines, Telemetry},
};

/// Pause before the next accept when the process has no descriptor left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// How long channels may take to end when the daemon stops.
const STOP_DEADLINE: Duration = Duration::from_secs(3);

/// The configuration of connections.
#[derive(Debug)]
pub struct ChannelOptions {
    pub rules: SharedRules,
    /// Time in which a connection must say hello.
    pub hello_timeout: Duration,
    /// Maximum connections that have not said hello: of all users, and of one.
    pub greeting_max: usize,
    pub greeting_per_uid_max: usize,
    /// Parts that a session with pins can map at once.
    pub word_slots: u32,
    /// Counts refusals.
    pub telemetry: Telemetry,
    /// Shared with the connections of gRPC.
    pub descriptors: DescriptorShares,
}

/// Serves `channel.sock` until `stop` is done, and then ends every channel.
pub async fn serve(
    listener: Listener,
    channels: Arc<Channels>,
    inbox: Inbox,
    options: ChannelOptions,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let Listener { socket, mut replacements } = listener;
    let mut listener = readiness::of_socket(socket)?;
    let ChannelOptions {
        rules,
        hello_timeout,
        greeting_max,
        greeting_per_uid_max,
        word_slots,
        telemetry,
        descriptors,
    } = options;
    let gate = Gate::new(Bounds { all: greeting_max, per_uid: greeting_per_uid_max });
    let shared = Arc::new(Shared {
        channels,
        inbox,
        rules,
        hello_timeout,
        word_slots,
        telemetry,
        gate,
        descriptors,
        lines: PeerLines::default(),
    });
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            accepted = accept(&listener) => match accepted {
                Ok(fd) => match connection::admit(fd, &shared) {
                    Ok(Some(greeting)) => {
                        connections.spawn(connection::run(greeting, Arc::clone(&shared)));
                    }
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, "the connection could not be served"),
                },
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted at present");
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
            Some(socket) = replacements.recv() => match readiness::of_socket(socket) {
                Ok(replacement) => listener = replacement,
                Err(error) => tracing::error!(%error, "a socket that was bound again cannot be listened on"),
            },
            Some(_ended) = connections.join_next() => {}
            () = &mut stop => break,
        }
    }
    drop(listener);
    shared.channels.close_all();
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_DEADLINE, ended).await.is_err() {
        tracing::debug!("connections that had not said hello were dropped");
    }
    Ok(())
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match ready.try_io(|fd| Ok(rustix::net::accept_with(fd, flags)?)) {
            Ok(result) => {
                let fd = result?;
                // The listener has this option, and kernels pass it on. The daemon refuses a frame without a sender.
                rustix::net::sockopt::set_socket_passcred(&fd, true)
                    .map_err(|error: Errno| io::Error::from(error))?;
                return Ok(fd);
            }
            Err(_would_block) => {}
        }
    }
}
