//! Reports to the service manager by systemd's notification protocol that the daemon serves, lives, or stops.
//!
//! Without `NOTIFY_SOCKET` in the environment it reports nothing. A service manager that does not read holds up no
//! thread that serves: each message is sent on a thread for blocking work.

use std::{io, time::Duration};

use sd_notify::NotifyState;
use tokio::{sync::watch, task, time::sleep};

use crate::reactor::Inbox;

/// Signs of life within the service manager's interval. It restarts the daemon after an interval without one.
const SIGNS_OF_LIFE: u32 = 3;

/// A message to the service manager.
#[derive(Debug)]
enum Message {
    /// The daemon serves; the text says what, for people.
    Serving(String),
    Alive,
    Stopping,
}

/// Reports that the daemon serves, and from then on that its reactor works. Reports a stop when `stop` turns true, and
/// returns once the reactor has ended.
pub async fn report(inbox: Inbox, serving: String, mut stop: watch::Receiver<bool>) {
    tell(Message::Serving(serving)).await;
    let stopping = async {
        // An error means that the sender is gone, which is a stop too.
        let _ = stop.wait_for(|stop| *stop).await;
        tell(Message::Stopping).await;
    };
    let alive = async {
        if let Some(interval) = sd_notify::watchdog_enabled() {
            while_reactor_works(&inbox, interval, || tell(Message::Alive)).await;
        }
    };
    tokio::join!(stopping, alive);
}

/// Calls `alive` several times in each interval, as long as the reactor handles what is sent to it. A reactor that hangs
/// ends the signs of life, whatever other threads do.
async fn while_reactor_works<T: Future<Output = ()>>(
    inbox: &Inbox,
    interval: Duration,
    mut alive: impl FnMut() -> T,
) {
    while inbox.wait_until_handled().await.is_some() {
        alive().await;
        sleep(interval / SIGNS_OF_LIFE).await;
    }
}

/// Sends a message. A failure is logged: the service manager then acts as if the daemon had not reported.
async fn tell(message: Message) {
    let sent = task::spawn_blocking(move || send(&message)).await;
    if let Ok(Err(error)) = sent {
        tracing::warn!(%error, "the service manager cannot be told (NOTIFY_SOCKET)");
    }
}

fn send(message: &Message) -> io::Result<()> {
    match message {
        Message::Serving(what) => sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(what)]),
        Message::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        Message::Stopping => sd_notify::notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};

    use tokio::time::timeout;

    use super::*;
    use crate::reactor::{InboxLimits, inbox};

    const INTERVAL: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn a_reactor_that_hangs_gives_no_sign_of_life() {
        let (inbox, mut queue) = inbox(InboxLimits::default());
        let mut signs = 0;
        let signs_until_the_end = while_reactor_works(&inbox, INTERVAL, || {
            signs += 1;
            ready(())
        });
        // A minute passes, and the reactor takes nothing from its queue.
        assert!(timeout(Duration::from_secs(60), signs_until_the_end).await.is_err());
        assert_eq!(signs, 0);
        assert!(queue.ready().is_some(), "the question waits in the queue");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reactor_that_has_ended_ends_the_signs_of_life() {
        let (inbox, queue) = inbox(InboxLimits::default());
        drop(queue);
        while_reactor_works(&inbox, INTERVAL, || -> Ready<()> { panic!("a sign of life") }).await;
    }
}
