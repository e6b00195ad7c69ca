//! Spans of prefetch requests, from the client's request until its parts are ready or it ends otherwise.
//!
//! A pin call links to the requests that were made for its parts, with how far they were: a request saved the call its
//! copies, or failed it. So requests are remembered beyond their spans, until a pin call has used them. Only traced
//! requests are known here.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use broker_core::{ChannelId, PartRef, PrefetchState};
use opentelemetry::{
    KeyValue,
    trace::{Span as _, SpanContext, Status},
};
use opentelemetry_sdk::trace::Span;

use super::{
    awaited_parts::{AwaitedParts, Call, calls_of},
    metrics,
};

/// Requests of one channel that are remembered beyond their spans. The oldest are forgotten first.
const ENDED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct PrefetchSpans {
    requests: BTreeMap<Call, Request>,
    /// The parts of requests whose spans have not ended.
    awaited: AwaitedParts,
    /// Requests whose spans have ended.
    ended: BTreeSet<Call>,
    /// The last request for each part. A channel has its own requests.
    last: BTreeMap<(ChannelId, PartRef), u64>,
}

#[derive(Debug)]
struct Request {
    since: Instant,
    context: SpanContext,
    /// `None` once it has ended.
    span: Option<Span>,
    step: &'static str,
    parts: Vec<PartRef>,
}

impl PrefetchSpans {
    pub(super) fn begin(&mut self, (channel, number): Call, parts: &[PartRef], span: Span) {
        let call = (channel, number);
        // A client may break the rule that numbers are used once.
        self.remove(call);
        self.last.extend(parts.iter().map(|part| ((channel, *part), number)));
        self.awaited.insert(call, parts);
        let context = span.span_context().clone();
        let parts = parts.to_vec();
        let request = Request { since: Instant::now(), context, span: Some(span), step: "asked", parts };
        self.requests.insert(call, request);
        self.forget_oldest(channel);
    }

    /// Records what the client is told of a request. The span ends once the parts are ready, or will not be.
    pub(super) fn told(&mut self, call: Call, state: &PrefetchState) {
        let Some(request) = self.requests.get_mut(&call) else { return };
        request.step = match state {
            PrefetchState::Deferred(_) => "deferred",
            PrefetchState::Accepted { .. } => "accepted",
            PrefetchState::Ready { is_late: false, .. } => "ready",
            PrefetchState::Ready { is_late: true, .. } => "late",
            PrefetchState::Dropped { .. } => "dropped",
            PrefetchState::Cancelled { .. } => "cancelled",
            PrefetchState::Refused(_) => "refused",
        };
        let Some(span) = &mut request.span else { return };
        match state {
            PrefetchState::Deferred(why) => {
                let why = crate::events::deferral(*why).as_str_name();
                return span.add_event("deferred", vec![KeyValue::new("vramd.prefetch.deferral", why)]);
            }
            PrefetchState::Accepted { expected } => {
                let expected =
                    expected.map(|time| KeyValue::new("vramd.prefetch.expected", time.as_secs_f64()));
                return span.add_event("accepted", expected.into_iter().collect());
            }
            PrefetchState::Ready { left_out, .. } => {
                span.set_attribute(KeyValue::new("vramd.prefetch.left_out", i64::from(*left_out)));
            }
            PrefetchState::Refused(refusal) => {
                span.set_attribute(KeyValue::new(metrics::REFUSAL_REASON, refusal.reason().name()));
                span.set_status(Status::error(refusal.to_string()));
            }
            PrefetchState::Dropped { .. } | PrefetchState::Cancelled { .. } => {}
        }
        self.end(call);
    }

    /// Ends the spans of a channel, whose requests end with it.
    pub(super) fn channel_ended(&mut self, channel: ChannelId) {
        for call in calls_of(&self.requests, channel) {
            if let Some(request) = self.requests.get_mut(&call) {
                request.step = "lost";
            }
            self.end(call);
            self.remove(call);
        }
    }

    /// Returns the requests that wait for the part.
    pub(super) fn waiting_for(&self, part: PartRef) -> Vec<Call> {
        self.awaited.calls_for(part).collect()
    }

    /// Links the requests' spans to the span of a move.
    pub(super) fn link(&mut self, calls: &[Call], span: &SpanContext) {
        for call in calls {
            if let Some(of) = self.requests.get_mut(call).and_then(|request| request.span.as_mut()) {
                of.add_link(span.clone(), Vec::new());
            }
        }
    }

    /// Returns the requests that were made for the parts of a pin call, and how far each is. The call uses the parts: a
    /// later one does not find these requests for them.
    pub(super) fn used(&mut self, channel: ChannelId, parts: &[PartRef]) -> Vec<(SpanContext, &'static str)> {
        let numbers: BTreeSet<u64> =
            parts.iter().filter_map(|part| self.last.remove(&(channel, *part))).collect();
        let requests = numbers.iter().filter_map(|number| self.requests.get(&(channel, *number)));
        requests.map(|request| (request.context.clone(), request.step)).collect()
    }

    /// Ends the span of a request, which is still found by the pin calls that use its parts.
    fn end(&mut self, call: Call) {
        let Some(request) = self.requests.get_mut(&call) else { return };
        let Some(mut span) = request.span.take() else { return };
        span.set_attribute(KeyValue::new(metrics::PREFETCH_OUTCOME, request.step));
        span.set_attribute(KeyValue::new("vramd.prefetch.took", request.since.elapsed().as_secs_f64()));
        span.end();
        self.awaited.remove(call, &request.parts);
        self.ended.insert(call);
    }

    fn forget_oldest(&mut self, channel: ChannelId) {
        let ended: Vec<Call> = self.ended.range((channel, u64::MIN)..=(channel, u64::MAX)).copied().collect();
        for call in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            self.remove(*call);
        }
    }

    fn remove(&mut self, call: Call) {
        let Some(request) = self.requests.remove(&call) else { return };
        self.awaited.remove(call, &request.parts);
        self.ended.remove(&call);
        for part in &request.parts {
            if self.last.get(&(call.0, *part)) == Some(&call.1) {
                self.last.remove(&(call.0, *part));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use broker_core::{Cause, Deferral};
    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
    use vramd_types::{AllocationId, PartIndex};

    use super::*;
    use crate::telemetry::tests::Ended;

    const CHANNEL: ChannelId = ChannelId(1);
    const READY: PrefetchState = PrefetchState::Ready { left_out: 0, is_late: false };

    fn part(index: u32) -> PartRef {
        PartRef { allocation: AllocationId::from_shown(1), part: PartIndex(index) }
    }

    fn begin(spans: &mut PrefetchSpans, ended: &Ended, call: Call, parts: &[u32]) {
        let parts: Vec<_> = parts.iter().map(|index| part(*index)).collect();
        spans.begin(call, &parts, ended.span());
    }

    fn steps(spans: &mut PrefetchSpans, channel: ChannelId, parts: &[u32]) -> Vec<&'static str> {
        let parts: Vec<_> = parts.iter().map(|index| part(*index)).collect();
        spans.used(channel, &parts).into_iter().map(|(_, step)| step).collect()
    }

    #[test]
    fn a_span_ends_with_the_first_end_that_the_client_is_told_of() {
        let (ended, mut spans) = (Ended::default(), PrefetchSpans::default());
        for number in 1..=4 {
            begin(&mut spans, &ended, (CHANNEL, number), &[0]);
            spans.told((CHANNEL, number), &PrefetchState::Deferred(Deferral::Room));
            spans.told(
                (CHANNEL, number),
                &PrefetchState::Accepted { expected: Some(Duration::from_millis(3)) },
            );
        }
        let dropped = PrefetchState::Dropped { cause: Cause::Demand, by_own_tenant: false };
        spans.told((CHANNEL, 1), &READY);
        spans.told((CHANNEL, 1), &dropped);
        spans.told((CHANNEL, 2), &dropped);
        spans.told((CHANNEL, 3), &PrefetchState::Ready { left_out: 1, is_late: true });
        let told = ended.spans();
        let outcomes = told.iter().map(|span| {
            let outcome = span.attributes.iter().find(|it| it.key.as_str() == metrics::PREFETCH_OUTCOME);
            (outcome.unwrap().value.to_string(), span.events.iter().map(|it| it.name.to_string()).collect())
        });
        let both = vec!["deferred".to_owned(), "accepted".to_owned()];
        let expected = ["ready", "dropped", "late"].map(|outcome| (outcome.to_owned(), both.clone()));
        assert_eq!(outcomes.collect::<Vec<(String, Vec<String>)>>(), expected);
        spans.channel_ended(CHANNEL);
        assert_eq!(ended.take(metrics::PREFETCH_OUTCOME), ["lost"]);
        assert!(spans.requests.is_empty() && spans.awaited.is_empty() && spans.last.is_empty());
    }

    #[test]
    fn a_pin_call_finds_the_last_requests_for_its_parts_once() {
        let (ended, mut spans) = (Ended::default(), PrefetchSpans::default());
        begin(&mut spans, &ended, (CHANNEL, 1), &[0, 1, 2]);
        begin(&mut spans, &ended, (CHANNEL, 2), &[2, 3]);
        begin(&mut spans, &ended, (ChannelId(2), 1), &[0]);
        spans.told((CHANNEL, 1), &READY);
        assert_eq!(steps(&mut spans, CHANNEL, &[1, 2, 9]), ["ready", "asked"]);
        assert_eq!(steps(&mut spans, CHANNEL, &[0, 1, 2]), ["ready"], "for the part that no call has used");
        assert_eq!(steps(&mut spans, CHANNEL, &[0, 1, 2]), [""; 0]);
        assert_eq!(steps(&mut spans, ChannelId(2), &[0]), ["asked"]);
    }

    #[test]
    fn a_request_links_to_the_moves_of_its_parts_until_it_ends() {
        let (ended, mut spans) = (Ended::default(), PrefetchSpans::default());
        begin(&mut spans, &ended, (CHANNEL, 1), &[0]);
        let moved = |spans: &mut PrefetchSpans, index, byte| {
            let (trace, id) = (TraceId::from_bytes([byte; 16]), SpanId::from_bytes([byte; 8]));
            let context = SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default());
            let calls = spans.waiting_for(part(index));
            spans.link(&calls, &context);
        };
        moved(&mut spans, 1, 1);
        moved(&mut spans, 0, 2);
        spans.told((CHANNEL, 1), &READY);
        moved(&mut spans, 0, 3);
        let links: Vec<_> = ended.spans()[0].links.iter().map(|link| link.span_context.span_id()).collect();
        assert_eq!(links, [SpanId::from_bytes([2; 8])]);
    }

    #[test]
    fn a_number_that_is_used_twice_leaves_nothing_behind() {
        let (ended, mut spans) = (Ended::default(), PrefetchSpans::default());
        begin(&mut spans, &ended, (CHANNEL, 1), &[0, 1]);
        begin(&mut spans, &ended, (CHANNEL, 1), &[2]);
        assert_eq!(steps(&mut spans, CHANNEL, &[0, 1, 2]), ["asked"]);
        begin(&mut spans, &ended, (CHANNEL, 1), &[3]);
        spans.channel_ended(CHANNEL);
        assert!(spans.requests.is_empty() && spans.awaited.is_empty() && spans.last.is_empty());
        assert!(spans.ended.is_empty());
    }

    #[test]
    fn requests_that_no_call_used_are_forgotten() {
        let (ended, mut spans) = (Ended::default(), PrefetchSpans::default());
        for number in 1..=100 {
            begin(&mut spans, &ended, (CHANNEL, number), &[u32::try_from(number).unwrap()]);
            spans.told((CHANNEL, number), &READY);
        }
        assert_eq!(spans.requests.len(), ENDED_MAX + 1);
        assert_eq!(spans.last.len(), ENDED_MAX + 1);
        assert_eq!(spans.requests.keys().next(), Some(&(CHANNEL, 36)));
    }
}
