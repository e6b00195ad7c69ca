//! The process behind a channel: its end is noticed through a pidfd, which cannot come to mean another process.
//!
//! What was sent to it can outlive it: a child that has its socket can still receive descriptors that lie there
//! unread, and memory that was given back meanwhile would be in the hands of two. So a process counts as ended once
//! it has ended and nothing sent to it is unread. Received by a child, the descriptors are that child's for all to see.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use broker_core::{ChannelId, Event};
use tokio::io::unix::AsyncFd;

use super::{Channels, Entry};
use crate::{platform::unread, reactor::Inbox};

/// How often the socket is looked at, at first and in the long run. Nothing tells when it has been read.
const POLL: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(1);

/// Reports the end of the process, also after the channel's, unless the core forgets it first.
pub(super) async fn watch_process(
    channel: ChannelId,
    pidfd: AsyncFd<Arc<OwnedFd>>,
    entry: Arc<Entry>,
    channels: Arc<Channels>,
    inbox: Inbox,
) {
    let ended = async {
        // An error would mean that it is not watched, which nothing but its end can follow.
        let _ = pidfd.readable().await;
        // Nothing more is sent, so that what is found to be read stays so: after the shutdown the kernel takes nothing.
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

/// Returns once nobody can receive anything more from the channel.
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
            // No kernel says that of a socket.
            Err(error) => {
                return tracing::error!(channel = channel.0, %error, "the kernel does not report unread bytes of the socket");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(POLL_MAX);
    }
}
