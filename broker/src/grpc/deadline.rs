//! Ends calls at their deadline, with DEADLINE_EXCEEDED.
//!
//! The deadline is the caller's `grpc-timeout`, but at most the daemon's own maximum. tonic would answer CANCELLED in
//! both cases, so this layer is inside tonic's and acts first: nothing that waits may lie between the two, not even the
//! reading of the request. A submitted mutation is not undone: it completes, and a retry with its `request_id` gets its
//! answer. Of a stream only the opening has a deadline.

use std::{
    convert::Infallible,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use broker_core::CallId;

use tokio::time::{Instant, timeout_at};
use tonic::{body::Body, codegen::http};
use tower::{Layer, Service};

use super::status;
use crate::reactor::{Inbox, SUBMITTED};

/// How long before its deadline a call is asked what it waits for, at most. A call that waits is then refused with that
/// reason at once: most clients give up at their deadline, and would never read it.
const LEAD_MAX: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub(super) struct DeadlineLayer {
    call_max: Duration,
    inbox: Inbox,
}

impl DeadlineLayer {
    pub(super) fn new(call_max: Duration, inbox: Inbox) -> Self {
        Self { call_max, inbox }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline { inner, call_max: self.call_max, inbox: self.inbox.clone() }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Deadline<S> {
    inner: S,
    call_max: Duration,
    inbox: Inbox,
}

impl<S, R> Service<http::Request<R>> for Deadline<S>
where
    S: Service<http::Request<R>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<R>) -> Self::Future {
        let asked = request.headers().get("grpc-timeout").and_then(|value| parse(value.to_str().ok()?));
        let limit = asked.map_or(self.call_max, |asked| asked.min(self.call_max));
        // Read before the call starts: tonic's own timer starts later, and must not end first.
        let deadline = Instant::now() + limit;
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let answer = self.inner.call(request);
        let (submitted, inbox) = (Arc::new(AtomicU64::new(0)), self.inbox.clone());
        Box::pin(async move {
            let mut answer = pin!(SUBMITTED.scope(Arc::clone(&submitted), answer));
            let asked_at = deadline - LEAD_MAX.min(limit / 10);
            if let Ok(answer) = timeout_at(asked_at, &mut answer).await {
                return answer;
            }
            let call = CallId(submitted.load(Ordering::Relaxed));
            let asked = timeout_at(deadline, inbox.read(move |broker| broker.waited_for(call)));
            let waited = tokio::select! {
                biased;
                answer = &mut answer => return answer,
                waited = asked => waited.ok().flatten().flatten(),
            };
            if waited.is_none()
                && let Ok(answer) = timeout_at(deadline, &mut answer).await
            {
                return answer;
            }
            Ok(status::deadline(&method, limit, waited.as_deref()).into_http())
        })
    }
}

/// Parses a `grpc-timeout`: at most eight digits and a unit. Like other gRPC servers, treats anything else as no
/// deadline.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};
    use tower::{ServiceExt as _, service_fn};

    use super::*;
    use crate::reactor::{InboxLimits, inbox};

    const CALL_MAX: Duration = Duration::from_secs(300);

    /// Returns how a call that takes `work` ends, and after how long.
    async fn call(timeout: Option<&str>, work: Duration) -> (Option<Code>, Duration) {
        let service = service_fn(move |_: http::Request<()>| async move {
            tokio::time::sleep(work).await;
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let mut request = http::Request::new(());
        if let Some(timeout) = timeout {
            request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
        }
        let start = Instant::now();
        let (inbox, _queue) = inbox(InboxLimits::default());
        let layer = DeadlineLayer::new(CALL_MAX, inbox);
        let response = layer.layer(service).oneshot(request).await.unwrap();
        (
            Status::from_header_map(response.headers()).map(|status| status.code()),
            start.elapsed().round_to_millis(),
        )
    }

    trait Round {
        fn round_to_millis(self) -> Self;
    }

    impl Round for Duration {
        /// tokio's timers tick in milliseconds and may be one tick late.
        fn round_to_millis(self) -> Self {
            Duration::from_millis(u64::try_from(self.as_millis()).unwrap() / 10 * 10)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_callers_deadline_is_kept() {
        let second = Duration::from_secs(1);
        assert_eq!(call(Some("100m"), second).await, (Some(Code::DeadlineExceeded), second / 10));
        assert_eq!(call(Some("2S"), second).await, (None, second));
        assert_eq!(call(None, second).await, (None, second));
    }

    #[tokio::test(start_paused = true)]
    async fn no_call_takes_longer_than_the_daemon_allows() {
        for timeout in [None, Some("1H"), Some("garbage")] {
            assert_eq!(
                call(timeout, CALL_MAX * 2).await,
                (Some(Code::DeadlineExceeded), CALL_MAX),
                "{timeout:?}"
            );
        }
    }

    #[test]
    fn only_grpcs_own_form_is_a_timeout() {
        assert_eq!(parse("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("5u"), Some(Duration::from_micros(5)));
        for bad in ["", "m", "1", "100", "-1S", "1 S", "1.5S", "999999999S", "1ä", "ä"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
