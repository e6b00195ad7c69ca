//! Tells of every call: the layer around all that answers. It is left out where nobody is to be told.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use opentelemetry::trace::FutureExt as _;
use tonic::{body::Body, codegen::http};
use tower::{Layer, Service};

use crate::telemetry::Telemetry;

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
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<R>) -> Self::Future {
        let call = self.telemetry.call(request.uri().path(), request.headers());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let Some(call) = call else { return answer.await };
            let response = match call.context().cloned() {
                Some(span) => answer.with_context(span).await?,
                None => answer.await?,
            };
            call.answered(response.headers());
            Ok(response)
        })
    }
}
