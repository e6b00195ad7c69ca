//! Watches the process behind a channel through a pidfd, which can never name another process.
//!
//! Packets can outlive the process that they were sent to: a child with its socket can still receive the descriptors in
//! them. If the daemon freed the memory then, two processes would have it. So a process counts as ended once it has
//! ended and no packet sent to it is unread. If a child receives the descriptors, the survey finds them in the child.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use broker_core::{ChannelId, Event};
use tokio::io::unix::AsyncFd;

use super::{Channels, Entry};
use crate::{platform::unread, reactor::Inbox};

/// Interval at which the socket is checked: the first one and the longest. No event reports that a packet was read.
const POLL: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(1);

/// Reports the end of the process, even after the end of the channel, unless the core forgets the process first.
pub(super) async fn watch_process(
    channel: ChannelId,
    pidfd: AsyncFd<Arc<OwnedFd>>,
    entry: Arc<Entry>,
    channels: Arc<Channels>,
    inbox: Inbox,
) {
    let ended = async {
        // An error would mean that the process is not watched, so its end is the only safe assumption.
        let _ = pidfd.readable().await;
        // After the shutdown the kernel accepts no further packet, so a socket without unread packets stays so.
        entry.outbox.abort();
        entry.socket.shutdown();
        wait_until_read(channel, &entry).await;
    };
    tokio::select! {
        () = ended => {
            inbox.event(Event::ProcessEnded { channel });
            channels.mark_over(channel, &entry.process_over);
        }
        () = entry.forgotten.notified() => {}
    }
}

/// Returns once no process can receive a packet from the channel any longer.
async fn wait_until_read(channel: ChannelId, entry: &Entry) {
    let mut pause = POLL;
    let mut is_logged = false;
    loop {
        match unread::bytes(entry.socket.as_fd()) {
            Ok(0) => return,
            Ok(bytes) if !is_logged => {
                tracing::info!(
                    channel = channel.0,
                    unread_bytes = bytes,
                    "the client's process has ended, and another process may still receive frames sent to it"
                );
                is_logged = true;
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
