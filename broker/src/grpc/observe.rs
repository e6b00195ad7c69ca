//! Reports every call to telemetry, as the outermost layer. It is left out if telemetry is off.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tonic::{body::Body, codegen::http};
use tower::{Layer, Service};

use crate::telemetry::{Call, Telemetry};

#[derive(Clone, Debug)]
pub(super) struct ObserveLayer {
    telemetry: Telemetry,
}

impl ObserveLayer {
    pub(super) fn new(telemetry: &Telemetry) -> Option<Self> {
        telemetry.is_on().then(|| Self { telemetry: telemetry.clone() })
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Observe<S> {
        Observe { inner, telemetry: self.telemetry.clone() }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Observe<S> {
    inner: S,
    telemetry: Telemetry,
}

impl<S, R> Service<http::Request<R>> for Observe<S>
where
    S: Service<http::Request<R>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Observed<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<R>) -> Self::Future {
        let call = self.telemetry.begin_call(request.uri().path(), request.headers());
        Observed { answer: self.inner.call(request), call }
    }
}

/// A call in progress.
#[derive(Debug)]
pub(super) struct Observed<F> {
    answer: F,
    call: Option<Call>,
}

impl<F> Future for Observed<F>
where
    F: Future<Output = Result<http::Response<Body>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let entered = self.call.as_ref().and_then(Call::enter);
        let answer = ready!(Pin::new(&mut self.answer).poll(context));
        drop(entered);
        if let (Some(call), Ok(response)) = (self.call.take(), &answer) {
            call.answered(response.headers());
        }
        Poll::Ready(answer)
    }
}
