//! Retries of calls that reached no daemon.
//!
//! Only failures of the transport are retried, with the same request id, so that a mutation which had arrived is not
//! done twice. Refusals of the daemon, full queues included, are the caller's to judge. All pauses together stay well
//! below a second, so that clients soon learn that the daemon is gone.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tonic::Status;

use crate::rpc::status::is_transport;

const PAUSES_MS: [u64; 3] = [20, 80, 320];

pub(crate) async fn with_retries<T, Answer>(
    deadline: Instant,
    mut attempt: impl FnMut() -> Answer,
) -> Result<T, Status>
where
    Answer: Future<Output = Result<T, Status>>,
{
    for pause in PAUSES_MS.map(Duration::from_millis) {
        match attempt().await {
            Err(status) if is_transport(&status) && Instant::now() + pause < deadline => {
                tokio::time::sleep(pause).await;
            }
            answer => return answer,
        }
    }
    attempt().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn run(deadline: Duration, status: Status) -> usize {
        let attempts = AtomicUsize::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let answer: Result<(), _> = runtime.block_on(with_retries(Instant::now() + deadline, || {
            attempts.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Err(status.clone()))
        }));
        assert!(answer.is_err());
        attempts.into_inner()
    }

    #[test]
    fn only_transport_failures_are_retried_before_the_deadline() {
        let minute = Duration::from_secs(60);
        assert_eq!(run(minute, Status::unavailable("connection refused")), 4);
        assert_eq!(run(minute, Status::aborted("raced")), 1);
        assert_eq!(run(Duration::ZERO, Status::unavailable("connection refused")), 1);
    }
}
