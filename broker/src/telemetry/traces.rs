//! Spans: one for a call, and below it one for what the core decided.
//!
//! Whether a call is traced is settled before anything is made for it, so one that is not costs a number from the dice.
//! The caller's word counts where it sends a `traceparent`; for all others it is the configured share.

use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanProcessor},
};
use tonic::codegen::http::{HeaderMap, HeaderName};

use super::{export::Queue, registry};

/// Looked for in every call, so its name is parsed only once.
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

#[derive(Debug)]
pub(super) struct Traces {
    tracer: SdkTracer,
    ratio: f64,
    propagator: TraceContextPropagator,
    /// Kept for as long as there is anything to trace.
    _provider: SdkTracerProvider,
}

impl Traces {
    pub(super) fn new(resource: Resource, queue: Queue<SpanData>, ratio: f64) -> Self {
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(Processor(queue))
            .build();
        Self {
            tracer: provider.tracer("vramd"),
            ratio,
            propagator: TraceContextPropagator::new(),
            _provider: provider,
        }
    }

    /// The call's span, if it is to be traced.
    pub(super) fn call(&self, headers: &HeaderMap, method: &'static str) -> Option<Context> {
        let parent = self.parent(headers)?;
        let attributes =
            [KeyValue::new(registry::RPC_SYSTEM, "grpc"), KeyValue::new(registry::RPC_METHOD, method)];
        let span = self
            .tracer
            .span_builder(method)
            .with_kind(SpanKind::Server)
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &parent);
        Some(parent.with_span(span))
    }

    /// What the span is below of: nothing where the dice say that it is traced. `None` where it is not traced.
    fn parent(&self, headers: &HeaderMap) -> Option<Context> {
        if headers.contains_key(&TRACEPARENT) {
            let context = self.propagator.extract_with_context(&Context::new(), &Headers(headers));
            let of_caller = context.span().span_context().clone();
            if of_caller.is_valid() {
                return of_caller.is_sampled().then_some(context);
            }
        }
        (self.ratio > 0.0 && fastrand::f64() < self.ratio).then(Context::new)
    }

    /// A span of what is decided for the call at hand, if that is traced.
    pub(super) fn decision(&self, name: &'static str) -> Option<Decision> {
        Context::map_current(|call| {
            call.span().span_context().is_sampled().then(|| {
                let span = self.tracer.span_builder(name).with_kind(SpanKind::Internal);
                Decision(span.start_with_context(&self.tracer, call))
            })
        })
    }
}

/// What the core decides for one call. It ends when it is dropped.
#[derive(Debug)]
pub struct Decision(Span);

impl Decision {
    pub fn granted(mut self) {
        self.0.set_attribute(KeyValue::new("vramd.decision.outcome", "granted"));
    }

    /// Some items of a batch were refused; the reason is the first one's.
    pub fn partly_refused(mut self, refused: usize, first: &broker_core::Refusal) {
        self.0.set_attribute(KeyValue::new("vramd.decision.outcome", "partly_refused"));
        let refused = i64::try_from(refused).unwrap_or(i64::MAX);
        self.0.set_attribute(KeyValue::new("vramd.decision.refused_items", refused));
        self.because(first);
    }

    pub fn refused(mut self, refusal: &broker_core::Refusal) {
        self.0.set_attribute(KeyValue::new("vramd.decision.outcome", "refused"));
        self.because(refusal);
    }

    fn because(&mut self, refusal: &broker_core::Refusal) {
        self.0.set_attribute(KeyValue::new(registry::REFUSAL_REASON, refusal.reason().name()));
        self.0.set_status(Status::error(refusal.to_string()));
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

/// Puts spans that have ended where they are sent from.
#[derive(Debug)]
struct Processor(Queue<SpanData>);

impl SpanProcessor for Processor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.put(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: std::time::Duration) -> OTelSdkResult {
        Ok(())
    }
}
