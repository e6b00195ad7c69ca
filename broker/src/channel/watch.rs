//! The process behind a channel: its end is noticed through a pidfd, which cannot come to mean another process.

use std::sync::Arc;

use broker_core::{ChannelId, Event};

use super::{Channels, Entry};
use crate::{platform::readiness, reactor::Inbox};

/// Reports the end of the process, also after the channel's, unless the core forgets it first.
pub(super) async fn process(channel: ChannelId, entry: Arc<Entry>, channels: Arc<Channels>, inbox: Inbox) {
    let pidfd = match readiness::of_pidfd(Arc::clone(&entry.pidfd)) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            // Without its end nothing of it would ever be given back: better no session than one for ever.
            tracing::error!(channel = channel.0, %error, "the process cannot be watched");
            entry.outbox.abort();
            return;
        }
    };
    tokio::select! {
        _ = pidfd.readable() => {
            inbox.event(Event::ProcessEnded { channel });
            channels.settle(channel, &entry.process_over);
        }
        () = entry.forgotten.notified() => {}
    }
}
