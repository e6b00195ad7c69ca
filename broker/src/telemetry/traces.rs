//! Spans: one for a call, below it one for the core's decision and one for each client that must unmap parts. One for a
//! prefetch request, with links to the moves of its parts. And one for a pin call, with links to the moves that it waited
//! for and to the prefetch requests for its parts.
//!
//! The daemon decides whether a call is traced before it creates anything for it, so an untraced call costs one random
//! number. A caller's `traceparent` decides; for other calls the configured share does.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use broker_core::{ClientFrame, Event, PartRef, PlacementSum, PrefetchSpec, RevokeReason, RevokedPart};
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

use vramd_proto::v1;

use super::{
    awaited_parts::Call,
    decision_span::{Causes, Decision},
    ended_move::{EndedMove, MoveKind},
    export_queue::Queue,
    metrics,
    pin_spans::PinSpans,
    prefetch_spans::PrefetchSpans,
};

/// Parsed once, since every call is searched for it.
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

#[derive(Debug)]
pub(super) struct Traces {
    tracer: SdkTracer,
    ratio: f64,
    propagator: TraceContextPropagator,
    /// UUIDs of the devices.
    devices: Vec<String>,
    /// Locked before `prefetches`.
    pins: Mutex<PinSpans>,
    prefetches: Mutex<PrefetchSpans>,
    /// The decisions in progress, whose revokes become children of their spans.
    causes: Mutex<Causes>,
    /// Keeps the provider alive.
    _provider: SdkTracerProvider,
}

impl Traces {
    pub(super) fn new(resource: Resource, queue: Queue<SpanData>, ratio: f64, devices: &[String]) -> Self {
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(Processor(queue))
            .build();
        Self {
            tracer: provider.tracer("vramd"),
            ratio,
            propagator: TraceContextPropagator::new(),
            devices: devices.to_vec(),
            pins: Mutex::default(),
            prefetches: Mutex::default(),
            causes: Mutex::default(),
            _provider: provider,
        }
    }

    /// Begins the span of a call, if it is traced.
    pub(super) fn begin_call(&self, headers: &HeaderMap, method: &'static str) -> Option<Context> {
        let sent = headers.contains_key(&TRACEPARENT).then_some(Headers(headers));
        let parent = self.parent(sent.as_ref().map(|sent| sent as &dyn Extractor))?;
        let attributes =
            [KeyValue::new(metrics::RPC_SYSTEM, "grpc"), KeyValue::new(metrics::RPC_METHOD, method)];
        let span = self
            .tracer
            .span_builder(method)
            .with_kind(SpanKind::Server)
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &parent);
        Some(parent.with_span(span))
    }

    /// Returns the parent of a span: the caller's, or an empty one if chance selects the call. `None` if it is not
    /// traced.
    fn parent(&self, sent: Option<&dyn Extractor>) -> Option<Context> {
        if let Some(sent) = sent {
            let context = self.propagator.extract_with_context(&Context::new(), sent);
            let of_caller = context.span().span_context().clone();
            if of_caller.is_valid() {
                return of_caller.is_sampled().then_some(context);
            }
        }
        (self.ratio > 0.0 && fastrand::f64() < self.ratio).then(Context::new)
    }

    /// Begins the span of the decision on the current call, if that is traced.
    pub(super) fn begin_decision(&'static self, name: &'static str) -> Option<Decision> {
        Context::map_current(|call| {
            call.span().span_context().is_sampled().then(|| {
                let span = self.tracer.span_builder(name).with_kind(SpanKind::Internal);
                let span = span.start_with_context(&self.tracer, call);
                Decision::new(&self.causes, span)
            })
        })
    }

    /// Begins the span of a pin call, if it is traced.
    pub(super) fn begin_pin(
        &self,
        (channel, call): Call,
        parts: usize,
        write: bool,
        trace: Option<&v1::TraceContext>,
    ) {
        let attributes =
            vec![KeyValue::new("vramd.pin.parts", to_i64(parts)), KeyValue::new("vramd.pin.write", write)];
        if let Some(span) = self.begin_frame("pin", attributes, trace) {
            self.pins().begin(channel, call, span);
        }
    }

    /// Begins the span of a prefetch request, if it is traced.
    pub(super) fn begin_prefetch(&self, call: Call, spec: &PrefetchSpec, trace: Option<&v1::TraceContext>) {
        let mut attributes = vec![
            KeyValue::new("vramd.prefetch.parts", to_i64(spec.parts.len())),
            KeyValue::new("vramd.prefetch.partial", !spec.whole),
            KeyValue::new("vramd.prefetch.priority", i64::from(spec.priority)),
        ];
        attributes.extend(spec.within.map(|time| KeyValue::new("vramd.prefetch.within", time.as_secs_f64())));
        if let Some(span) = self.begin_frame("prefetch", attributes, trace) {
            self.prefetches().begin(call, &spec.parts, span);
        }
    }

    /// Begins the span of a client's frame, if it is traced.
    fn begin_frame(
        &self,
        name: &'static str,
        attributes: Vec<KeyValue>,
        trace: Option<&v1::TraceContext>,
    ) -> Option<Span> {
        let sent = trace.map(FrameContext);
        let parent = self.parent(sent.as_ref().map(|sent| sent as &dyn Extractor))?;
        let span = self.tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        Some(span.start_with_context(&self.tracer, &parent))
    }

    /// Records an event before the core handles it.
    pub(super) fn handle_event(&self, event: &Event) {
        let mut pins = self.pins();
        pins.handle_event(event);
        match event {
            Event::Frame { channel, frame: ClientFrame::Pin { call, parts, .. } } => {
                let requests = self.prefetches().used(*channel, parts);
                pins.link_prefetches((*channel, *call), requests);
            }
            Event::ChannelEnded { channel } => self.prefetches().channel_ended(*channel),
            _ => {}
        }
    }

    pub(super) fn pins(&self) -> MutexGuard<'_, PinSpans> {
        locked(&self.pins)
    }

    pub(super) fn prefetches(&self) -> MutexGuard<'_, PrefetchSpans> {
        locked(&self.prefetches)
    }

    /// Records in the spans of the pin calls that wait for a part where it is read, and why.
    pub(super) fn note_placement(&self, part: PartRef, sum: &PlacementSum, in_place: bool) {
        let mut pins = self.pins();
        let calls = pins.waiting_for([part].iter());
        let outcome = KeyValue::new(metrics::PLACEMENT_OUTCOME, if in_place { "in_place" } else { "moved" });
        let attributes = sum_attributes(sum).into_iter().chain([outcome]).collect::<Vec<_>>();
        pins.add_event(&calls, "placement", &attributes);
    }

    /// Begins the span of a `Revoke` frame to one client, if it is traced. Its parent is the decision that caused it,
    /// if that is known.
    pub(super) fn begin_revocation(&self, parts: &[RevokedPart], reason: RevokeReason) -> Option<Span> {
        let cause = {
            let causes = locked(&self.causes);
            parts.iter().find_map(|revoked| causes.get(&revoked.part.allocation).cloned())
        };
        let parent = cause.or_else(|| self.parent(None))?;
        let reason = match reason {
            RevokeReason::Freed => "freed",
            RevokeReason::Detached => "detached",
            RevokeReason::Sealing => "sealing",
            RevokeReason::SessionEnded => "session_ended",
            RevokeReason::Evicted => "evicted",
        };
        let attributes = [
            KeyValue::new("vramd.revocation.cause", reason),
            KeyValue::new("vramd.revocation.mappings", to_i64(parts.len())),
        ];
        let span = self.tracer.span_builder("revoke").with_kind(SpanKind::Internal);
        Some(span.with_attributes(attributes).start_with_context(&self.tracer, &parent))
    }

    /// Records the span of an ended move. It is traced if the decision that caused it is, if a traced pin call or
    /// prefetch request waits for it, or by chance.
    pub(super) fn record_move(&self, ended: &EndedMove<'_>, took: Duration) {
        let mut pins = self.pins();
        let cause = locked(&self.causes).get(&ended.part.allocation).cloned();
        let calls = pins.waiting_for(ended.for_parts.iter().chain([&ended.part]));
        let requests = self.prefetches().waiting_for(ended.part);
        let awaited = || (!calls.is_empty() || !requests.is_empty()).then(Context::new);
        let Some(parent) = cause.or_else(awaited).or_else(|| self.parent(None)) else { return };
        let MoveKind { device, direction, from, to, cause, outcome } = ended.kind;
        let attributes = [
            KeyValue::new(metrics::TENANT, ended.tenant.to_owned()),
            KeyValue::new(
                metrics::HW_ID,
                self.devices.get(usize::from(device.0)).cloned().unwrap_or_default(),
            ),
            KeyValue::new(metrics::MIGRATION_DIRECTION, direction),
            KeyValue::new(metrics::MIGRATION_FROM, from),
            KeyValue::new(metrics::MIGRATION_TO, to),
            KeyValue::new(metrics::MIGRATION_CAUSE, cause),
            KeyValue::new(metrics::MIGRATION_OUTCOME, outcome),
            KeyValue::new("vramd.migration.bytes", i64::try_from(ended.bytes.get()).unwrap_or(i64::MAX)),
        ];
        let sum = ended.sum.as_ref().map(sum_attributes);
        let attributes: Vec<_> = attributes.into_iter().chain(sum.into_iter().flatten()).collect();
        let now = SystemTime::now();
        let span = self.tracer.span_builder("move").with_kind(SpanKind::Internal).with_attributes(attributes);
        let span = span.with_start_time(now.checked_sub(took).unwrap_or(now));
        let mut span = span.start_with_context(&self.tracer, &parent);
        if let Some(problem) = ended.problem {
            span.set_status(Status::error(problem.to_owned()));
        }
        pins.link(&calls, span.span_context());
        self.prefetches().link(&requests, span.span_context());
        span.end_with_timestamp(now);
    }
}

/// Both sides of the sum that decides where a part is read.
fn sum_attributes(sum: &PlacementSum) -> [KeyValue; 4] {
    let number = |key, number: u128| KeyValue::new(key, i64::try_from(number).unwrap_or(i64::MAX));
    [
        number("vramd.placement.benefit_us", sum.benefit.as_micros()),
        number("vramd.placement.cost_us", sum.cost.as_micros()),
        number("vramd.placement.factor_percent", sum.factor.into()),
        number("vramd.placement.expected_uses_percent", sum.expected_uses.into()),
    ]
}

pub(super) fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The trace context of a frame, which has no headers.
struct FrameContext<'a>(&'a v1::TraceContext);

impl Extractor for FrameContext<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(&self.0.traceparent),
            "tracestate" => Some(&self.0.tracestate),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
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

/// Queues ended spans for sending.
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
