//! Spans of pin calls: from when a client asks for a set until it is answered.
//!
//! A client that has all its pins by then says so by itself, and one that waits no longer says the same: its call has
//! ended. One whose channel ends has been lost. Calls that are not traced are not known here.

use std::{collections::BTreeMap, time::Instant};

use broker_core::{ChannelId, ClientFrame, DaemonFrame, Event, Refusal};
use opentelemetry::{
    KeyValue,
    trace::{Span as _, Status},
};
use opentelemetry_sdk::trace::Span;

use super::registry;

#[derive(Debug, Default)]
pub(super) struct Pins {
    waiting: BTreeMap<(ChannelId, u64), Waiting>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    span: Span,
}

impl Pins {
    pub(super) fn asked(&mut self, channel: ChannelId, call: u64, span: Span) {
        self.waiting.insert((channel, call), Waiting { since: Instant::now(), span });
    }

    /// A frame is about to be sent.
    pub(super) fn sent(&mut self, channel: ChannelId, frame: &DaemonFrame) {
        if let DaemonFrame::PinAnswer { call, refusal } = frame
            && let Some(waiting) = self.waiting.remove(&(channel, *call))
        {
            match refusal {
                None => waiting.end("granted"),
                Some(refusal) => waiting.refused(refusal),
            }
        }
    }

    /// Something has happened.
    pub(super) fn happened(&mut self, event: &Event) {
        match event {
            Event::Frame { channel, frame: ClientFrame::PinEnded { call } } => {
                if let Some(waiting) = self.waiting.remove(&(*channel, *call)) {
                    waiting.end("ended");
                }
            }
            Event::ChannelEnded { channel } => {
                let gone: Vec<_> = self
                    .waiting
                    .range((*channel, u64::MIN)..=(*channel, u64::MAX))
                    .map(|(key, _)| *key)
                    .collect();
                for waiting in gone.iter().filter_map(|key| self.waiting.remove(key)).collect::<Vec<_>>() {
                    waiting.end("lost");
                }
            }
            _ => {}
        }
    }
}

impl Waiting {
    fn end(mut self, outcome: &'static str) {
        self.span.set_attribute(KeyValue::new("vramd.decision.outcome", outcome));
        self.span
            .set_attribute(KeyValue::new("vramd.pin.waited_seconds", self.since.elapsed().as_secs_f64()));
        self.span.end();
    }

    fn refused(mut self, refusal: &Refusal) {
        self.span.set_attribute(KeyValue::new(registry::REFUSAL_REASON, refusal.reason().name()));
        self.span.set_status(Status::error(refusal.to_string()));
        self.end("refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::tests::Ended;

    const OUTCOME: &str = "vramd.decision.outcome";

    fn answer(call: u64, refusal: Option<Refusal>) -> DaemonFrame {
        DaemonFrame::PinAnswer { call, refusal }
    }

    #[test]
    fn a_call_ends_once_by_what_comes_first() {
        let ended = Ended::default();
        let mut pins = Pins::default();
        let (one, other) = (ChannelId(1), ChannelId(2));
        for (channel, call) in [(one, 1), (one, 2), (one, 3), (one, 4), (other, 1)] {
            pins.asked(channel, call, ended.span());
        }
        pins.sent(one, &answer(1, None));
        pins.happened(&Event::Frame { channel: one, frame: ClientFrame::PinEnded { call: 1 } });
        assert_eq!(ended.take(OUTCOME), ["granted"]);
        pins.sent(one, &answer(2, Some(Refusal::QueueFull { limit: 1 })));
        assert_eq!(ended.take(registry::REFUSAL_REASON), ["QUEUE_FULL"]);
        pins.happened(&Event::Frame { channel: one, frame: ClientFrame::PinEnded { call: 3 } });
        pins.sent(one, &answer(3, None));
        assert_eq!(ended.take(OUTCOME), ["ended"]);
        pins.happened(&Event::ChannelEnded { channel: one });
        assert_eq!(ended.take(OUTCOME), ["lost"]);
        pins.sent(other, &answer(1, None));
        assert_eq!(ended.take(OUTCOME), ["granted"], "that of the other channel");
        assert!(pins.waiting.is_empty());
    }
}
