//! Spans of pin calls, from the client's request to the answer.
//!
//! A client that has pinned the whole set by then, or has given up, ends the call by a frame. If the channel ends, the
//! call is lost. Only traced calls are known here.
//!
//! The span of a call links to each move that ended while the call waited for its part, or for the room that it left,
//! and to the prefetch requests that were made for its parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use broker_core::{ChannelId, ClientFrame, DaemonFrame, Event, PartRef, Refusal};
use opentelemetry::{
    KeyValue,
    trace::{Span as _, SpanContext, Status},
};
use opentelemetry_sdk::trace::Span;
use vramd_types::SessionId;

use super::{
    awaited_parts::{AwaitedParts, Call, calls_of},
    metrics,
};

#[derive(Debug, Default)]
pub(super) struct PinSpans {
    waiting: BTreeMap<Call, WaitingPin>,
    /// The parts of calls that the core has seen.
    parts: AwaitedParts,
    /// The channels of all sessions that have one.
    channels: BTreeMap<SessionId, ChannelId>,
}

#[derive(Debug)]
struct WaitingPin {
    since: Instant,
    span: Span,
    parts: Vec<PartRef>,
}

impl PinSpans {
    pub(super) fn begin(&mut self, channel: ChannelId, call: u64, span: Span) {
        // A client may break the rule that numbers are used once.
        self.remove((channel, call));
        self.waiting.insert((channel, call), WaitingPin { since: Instant::now(), span, parts: Vec::new() });
    }

    /// Notes the channel of a session.
    pub(super) fn begin_session(&mut self, session: SessionId, channel: ChannelId) {
        self.channels.insert(session, channel);
    }

    /// Returns the span of a session's call that waits, if it is traced.
    pub(super) fn span_of(&self, session: SessionId, call: u64) -> Option<SpanContext> {
        let channel = self.channels.get(&session)?;
        self.waiting.get(&(*channel, call)).map(|waiting| waiting.span.span_context().clone())
    }

    /// Ends the span of a call that the daemon is about to answer.
    pub(super) fn end_answered(&mut self, channel: ChannelId, frame: &DaemonFrame) {
        if let DaemonFrame::PinAnswer { call, refusal } = frame
            && let Some(waiting) = self.remove((channel, *call))
        {
            match refusal {
                None => waiting.end("granted"),
                Some(refusal) => waiting.refused(refusal),
            }
        }
    }

    /// Adds the parts of a call, or ends spans of calls that the client or the channel ended.
    pub(super) fn handle_event(&mut self, event: &Event) {
        match event {
            Event::Frame { channel, frame: ClientFrame::Pin { call, parts, .. } } => {
                let call = (*channel, *call);
                if let Some(waiting) = self.waiting.get_mut(&call) {
                    waiting.parts.clone_from(parts);
                    self.parts.insert(call, parts);
                }
            }
            Event::Frame { channel, frame: ClientFrame::PinEnded { call } } => {
                if let Some(waiting) = self.remove((*channel, *call)) {
                    waiting.end("ended");
                }
            }
            Event::ChannelEnded { channel } => {
                self.channels.retain(|_, of_session| of_session != channel);
                for call in calls_of(&self.waiting, *channel) {
                    if let Some(waiting) = self.remove(call) {
                        waiting.end("lost");
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the calls that wait for one of the parts.
    pub(super) fn waiting_for<'a>(&self, parts: impl Iterator<Item = &'a PartRef>) -> BTreeSet<Call> {
        parts.flat_map(|part| self.parts.calls_for(*part)).collect()
    }

    /// Links the calls' spans to the span of a move.
    pub(super) fn link(&mut self, calls: &BTreeSet<Call>, span: &SpanContext) {
        for call in calls {
            if let Some(waiting) = self.waiting.get_mut(call) {
                waiting.span.add_link(span.clone(), Vec::new());
            }
        }
    }

    /// Adds an event to the calls' spans.
    pub(super) fn add_event(&mut self, calls: &BTreeSet<Call>, name: &'static str, attributes: &[KeyValue]) {
        for call in calls {
            if let Some(waiting) = self.waiting.get_mut(call) {
                waiting.span.add_event(name, attributes.to_vec());
            }
        }
    }

    /// Links the span of a call to prefetch requests, with how far each was when the call came.
    pub(super) fn link_prefetches(&mut self, call: Call, requests: Vec<(SpanContext, &'static str)>) {
        let Some(waiting) = self.waiting.get_mut(&call) else { return };
        for (request, step) in requests {
            waiting.span.add_link(request, vec![KeyValue::new("vramd.prefetch.step", step)]);
        }
    }

    fn remove(&mut self, call: Call) -> Option<WaitingPin> {
        let waiting = self.waiting.remove(&call)?;
        self.parts.remove(call, &waiting.parts);
        Some(waiting)
    }
}

impl WaitingPin {
    fn end(mut self, outcome: &'static str) {
        self.span.set_attribute(KeyValue::new("vramd.decision.outcome", outcome));
        self.span
            .set_attribute(KeyValue::new("vramd.pin.waited_seconds", self.since.elapsed().as_secs_f64()));
        self.span.end();
    }

    fn refused(mut self, refusal: &Refusal) {
        self.span.set_attribute(KeyValue::new(metrics::REFUSAL_REASON, refusal.reason().name()));
        self.span.set_status(Status::error(refusal.to_string()));
        self.end("refused");
    }
}

#[cfg(test)]
mod tests {

    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::trace::SpanData;
    use vramd_types::{AllocationId, PartIndex};

    use super::*;
    use crate::telemetry::tests::Ended;

    const OUTCOME: &str = "vramd.decision.outcome";

    fn part(index: u32) -> PartRef {
        PartRef { allocation: AllocationId::from_shown(1), part: PartIndex(index) }
    }

    fn pin_frame(channel: ChannelId, call: u64, parts: &[u32]) -> Event {
        let parts = parts.iter().map(|index| part(*index)).collect();
        Event::Frame { channel, frame: ClientFrame::Pin { call, parts, write: false, wait: None } }
    }

    #[test]
    fn a_call_links_to_moves_of_its_parts_that_end_while_it_waits() {
        let ended = Ended::default();
        let mut pins = PinSpans::default();
        let channel = ChannelId(1);
        let id = |byte| SpanId::from_bytes([byte; 8]);
        let span = |byte| {
            let trace = TraceId::from_bytes([byte; 16]);
            SpanContext::new(trace, id(byte), TraceFlags::SAMPLED, false, TraceState::default())
        };
        for call in [1, 2, 3] {
            pins.begin(channel, call, ended.span());
        }
        let moved = |pins: &mut PinSpans, parts: &[u32], byte| {
            let parts: Vec<_> = parts.iter().map(|index| part(*index)).collect();
            let calls = pins.waiting_for(parts.iter());
            pins.link(&calls, &span(byte));
        };
        moved(&mut pins, &[0], 8);
        pins.handle_event(&pin_frame(channel, 1, &[0, 1]));
        pins.handle_event(&pin_frame(channel, 2, &[1]));
        pins.handle_event(&pin_frame(channel, 9, &[2]));
        // Two parts of one call make one link, and an untraced call makes none.
        moved(&mut pins, &[0, 1], 1);
        moved(&mut pins, &[0], 2);
        moved(&mut pins, &[2, 5], 5);
        for call in [1, 3] {
            pins.end_answered(channel, &answer(call, None));
        }
        moved(&mut pins, &[1], 3);
        pins.handle_event(&Event::ChannelEnded { channel });
        let links = |span: SpanData| span.links.iter().map(|link| link.span_context.span_id()).collect();
        let links: Vec<Vec<_>> = ended.spans().into_iter().map(links).collect();
        assert_eq!(links, [vec![id(1), id(2)], vec![], vec![id(1), id(3)]]);
        assert!(pins.parts.is_empty());
    }

    #[test]
    fn a_number_that_is_used_twice_leaves_nothing_behind() {
        let (ended, mut pins) = (Ended::default(), PinSpans::default());
        let channel = ChannelId(1);
        for parts in [[0, 1], [2, 3]] {
            pins.begin(channel, 1, ended.span());
            pins.handle_event(&pin_frame(channel, 1, &parts));
        }
        assert!(pins.waiting_for([part(0), part(1)].iter()).is_empty());
        pins.handle_event(&Event::ChannelEnded { channel });
        assert!(pins.waiting.is_empty() && pins.parts.is_empty());
    }

    fn answer(call: u64, refusal: Option<Refusal>) -> DaemonFrame {
        DaemonFrame::PinAnswer { call, refusal }
    }

    #[test]
    fn a_call_ends_once_by_whatever_comes_first() {
        let ended = Ended::default();
        let mut pins = PinSpans::default();
        let (one, other) = (ChannelId(1), ChannelId(2));
        for (channel, call) in [(one, 1), (one, 2), (one, 3), (one, 4), (other, 1)] {
            pins.begin(channel, call, ended.span());
        }
        pins.end_answered(one, &answer(1, None));
        pins.handle_event(&Event::Frame { channel: one, frame: ClientFrame::PinEnded { call: 1 } });
        assert_eq!(ended.take(OUTCOME), ["granted"]);
        pins.end_answered(one, &answer(2, Some(Refusal::QueueFull { limit: 1 })));
        assert_eq!(ended.take(metrics::REFUSAL_REASON), ["QUEUE_FULL"]);
        pins.handle_event(&Event::Frame { channel: one, frame: ClientFrame::PinEnded { call: 3 } });
        pins.end_answered(one, &answer(3, None));
        assert_eq!(ended.take(OUTCOME), ["ended"]);
        pins.handle_event(&Event::ChannelEnded { channel: one });
        assert_eq!(ended.take(OUTCOME), ["lost"]);
        pins.end_answered(other, &answer(1, None));
        assert_eq!(ended.take(OUTCOME), ["granted"], "that of the other channel");
        assert!(pins.waiting.is_empty());
    }
}
