//! Counts the calls without an answer, so that a daemon that stops knows when it may end.
//!
//! Connections do not show that: a client that keeps one open between calls may read nothing from it, neither a GOAWAY
//! nor a ping. Of a stream only the opening counts, since a watch never ends.

use std::{future::Future, time::Duration};

use tokio::{sync::watch, time::timeout};

/// How long no call may begin before the last one counts as ended. An answer passes through HTTP/2 to the socket, and a
/// request the other way.
const QUIET: Duration = Duration::from_millis(50);

/// Clones count together.
#[derive(Clone, Debug)]
pub(super) struct OpenCalls(watch::Sender<usize>);

/// One call, until it is answered or given up.
struct Open(OpenCalls);

impl Default for OpenCalls {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl OpenCalls {
    pub(super) async fn during<F: Future>(self, call: F) -> F::Output {
        let _open = self.enter();
        call.await
    }

    fn enter(self) -> Open {
        self.0.send_modify(|open| *open += 1);
        Open(self)
    }

    /// Returns once all calls have ended and no other has begun since.
    pub(super) async fn ended(&self) {
        let mut open = self.0.subscribe();
        // This object keeps the sender, so there always is one.
        while open.wait_for(|open| *open == 0).await.is_ok() {
            if timeout(QUIET, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns after how long all calls have ended.
    async fn ended(calls: &OpenCalls) -> Duration {
        let start = Instant::now();
        calls.ended().await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_waits_for_the_last_call() {
        let calls = OpenCalls::default();
        assert!(ended(&calls).await < SECOND / 10, "there is none");
        tokio::spawn(calls.clone().during(sleep(SECOND)));
        tokio::spawn(calls.clone().during(sleep(3 * SECOND)));
        tokio::task::yield_now().await;
        let took = ended(&calls).await;
        assert!(took >= 3 * SECOND && took < 3 * SECOND + SECOND / 10, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_waits_for_a_call_that_begins_late() {
        let calls = OpenCalls::default();
        let late = calls.clone();
        tokio::spawn(async move {
            sleep(QUIET / 2).await;
            late.during(sleep(SECOND)).await;
        });
        assert!(ended(&calls).await >= SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_call_has_ended() {
        let calls = OpenCalls::default();
        let call = tokio::spawn(calls.clone().during(std::future::pending::<()>()));
        tokio::task::yield_now().await;
        call.abort();
        assert!(ended(&calls).await < SECOND / 10);
    }
}
