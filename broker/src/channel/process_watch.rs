//! Watches the process behind a channel through a pidfd, which can never name another process.
//!
//! Packets can outlive the process that they were sent to: a child with its socket can still receive the descriptors in
//! them. If the daemon freed the memory then, two processes would have it. So a process counts as ended once it has
//! ended and no packet sent to it is unread. If a child receives the descriptors, the survey finds them in the child.
//!
//! A process that executes a program, be it itself anew, counts as ended too: its mappings are gone. It lives on, and a
//! new channel of it is a new session.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use broker_core::{ChannelId, Event, ProcessStays};
use tokio::io::unix::AsyncFd;

use super::{Channels, Entry};
use crate::{platform::unread, reactor::Inbox};

/// Interval at which the socket is checked: the first one and the longest. No event reports that a packet was read.
const POLL: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(1);
/// Interval at which the process's image is checked while its channel stands: a program that lets its next image inherit
/// the socket does not end the channel.
const IMAGE_POLL: Duration = Duration::from_secs(5);
/// How long the end of a channel waits for the end of its process, which closes its files first. A driver may take its
/// time to close its own.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports the end of the process, even after the end of the channel, unless the core forgets the process first.
pub(super) async fn watch_process(
    channel: ChannelId,
    pidfd: AsyncFd<Arc<OwnedFd>>,
    entry: Arc<Entry>,
    channels: Arc<Channels>,
    inbox: Inbox,
) {
    let ended = async {
        tokio::select! {
            // An error would mean that the process is not watched, so its end is the only safe assumption.
            _ = pidfd.readable() => {}
            () = wait_for_exec(&entry) => {
                tracing::info!(channel = channel.0, pid = entry.process.pid, "the client executed a program: its session ends");
            }
        }
        // After the shutdown the kernel accepts no further packet, so a socket without unread packets stays so.
        entry.outbox.abort();
        entry.socket.shutdown();
        wait_until_read(channel, &entry, &inbox).await;
    };
    tokio::select! {
        () = ended => {
            inbox.event(Event::ProcessEnded { channel });
            entry.process_settled.notify_one();
            channels.mark_over(channel, &entry.process_over);
        }
        () = entry.forgotten.notified() => entry.process_settled.notify_one(),
    }
}

/// Waits until it is reported whether the process of an ended channel has ended too. Otherwise every ordinary exit
/// would look like a client that closes its channel and keeps its mappings.
pub(super) async fn settle(entry: &Entry) {
    if entry.process.has_ended() || entry.process.is_ending() || entry.process.has_executed() {
        entry.image_check.notify_one();
        // A process whose other threads live on does not end.
        let _ = tokio::time::timeout(SETTLE_TIMEOUT, entry.process_settled.notified()).await;
    }
}

async fn wait_for_exec(entry: &Entry) {
    while !entry.process.has_executed() {
        let _ = tokio::time::timeout(IMAGE_POLL, entry.image_check.notified()).await;
    }
}

/// Returns once no process can receive a packet from the channel any longer.
async fn wait_until_read(channel: ChannelId, entry: &Entry, inbox: &Inbox) {
    let mut pause = POLL;
    let mut is_logged = false;
    loop {
        match unread::bytes(entry.socket.as_fd()) {
            Ok(0) => return,
            Ok(bytes) if !is_logged => {
                tracing::info!(
                    channel = channel.0,
                    unread_bytes = bytes,
                    "the client's program has ended, and another process or program may still receive frames sent to it"
                );
                is_logged = true;
                inbox.event(Event::ProcessStays { channel, why: ProcessStays::SocketKept });
                entry.process_settled.notify_one();
            }
            Ok(_) => {}
            // No known kernel fails here.
            Err(error) => {
                return tracing::error!(channel = channel.0, %error, "the kernel does not report unread bytes of the socket");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(POLL_MAX);
    }
}
