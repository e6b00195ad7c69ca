//! Measures how long clients take to unmap revoked parts, and traces the outcome.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use broker_core::{ChannelId, ClientFrame, DaemonFrame, Event, PartRef};
use opentelemetry::{KeyValue, metrics::Histogram, trace::Span as _};
use opentelemetry_sdk::trace::Span;
use vramd_types::{AllocationId, PartIndex};

/// Revoked parts that clients have not unmapped yet. The core knows the same parts, but not since when.
#[derive(Debug)]
pub(super) struct RevocationTimes {
    awaited: BTreeMap<(ChannelId, PartRef), AwaitedUnmap>,
    seconds: Histogram<f64>,
}

#[derive(Debug)]
struct AwaitedUnmap {
    since: Instant,
    traced: Option<Arc<FrameSpan>>,
}

/// The span of one `Revoke` frame. It ends when none of its parts is awaited any longer.
#[derive(Debug)]
struct FrameSpan {
    span: Span,
    parts: usize,
    unmapped: AtomicUsize,
    channel_ended: AtomicBool,
}

impl RevocationTimes {
    pub(super) fn new(seconds: Histogram<f64>) -> Self {
        Self { awaited: BTreeMap::new(), seconds }
    }

    /// Begins to measure the parts of a `Revoke` frame.
    pub(super) fn begin(&mut self, channel: ChannelId, frame: &DaemonFrame, span: Option<Span>) {
        if let DaemonFrame::Revoke { parts, .. } = frame {
            let since = Instant::now();
            let traced = span.map(|span| Arc::new(FrameSpan::new(span, parts.len())));
            let awaited = |part| ((channel, part), AwaitedUnmap { since, traced: traced.clone() });
            self.awaited.extend(parts.iter().map(|revoked| awaited(revoked.part)));
        }
    }

    /// Ends the measurement of unmapped parts. When a process that ended has unmapped its parts is unknown, so they are
    /// not measured.
    pub(super) fn handle_event(&mut self, event: &Event) {
        match event {
            Event::Frame { channel, frame: ClientFrame::Unmapped(parts) } => {
                for unmapped in parts {
                    if let Some(awaited) = self.awaited.remove(&(*channel, unmapped.part)) {
                        self.seconds.record(awaited.since.elapsed().as_secs_f64(), &[]);
                        if let Some(traced) = awaited.traced {
                            traced.unmapped.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
            Event::ChannelEnded { channel } | Event::ProcessEnded { channel } => self.forget(*channel),
            _ => {}
        }
    }

    fn forget(&mut self, channel: ChannelId) {
        let part = |id, index| PartRef { allocation: AllocationId::from_shown(id), part: PartIndex(index) };
        let all = (channel, part(u64::MIN, u32::MIN))..=(channel, part(u64::MAX, u32::MAX));
        let gone: Vec<_> = self.awaited.range(all).map(|(key, _)| *key).collect();
        for key in gone {
            if let Some(traced) = self.awaited.remove(&key).and_then(|awaited| awaited.traced) {
                traced.channel_ended.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl FrameSpan {
    fn new(span: Span, parts: usize) -> Self {
        Self { span, parts, unmapped: AtomicUsize::new(0), channel_ended: AtomicBool::new(false) }
    }
}

impl Drop for FrameSpan {
    fn drop(&mut self) {
        let unmapped = *self.unmapped.get_mut();
        let outcome = match (unmapped == self.parts, *self.channel_ended.get_mut()) {
            (true, _) => "unmapped",
            (false, true) => "channel_ended",
            // The daemon has revoked some of the parts once more, for good.
            (false, false) => "superseded",
        };
        let count = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.span.set_attribute(KeyValue::new("vramd.revocation.unmapped", count(unmapped)));
        self.span.set_attribute(KeyValue::new("vramd.revocation.outcome", outcome));
        self.span.end();
    }
}

#[cfg(test)]
mod tests {
    use broker_core::{RevokeReason, RevokedPart, UnmappedPart};

    use super::*;
    use crate::telemetry::tests::{Ended, Measured};

    const OUTCOME: &str = "vramd.revocation.outcome";

    fn part(allocation: u64) -> PartRef {
        PartRef { allocation: AllocationId::from_shown(allocation), part: PartIndex(0) }
    }

    fn revoke(ids: &[u64]) -> DaemonFrame {
        let parts = ids.iter().map(|id| RevokedPart { part: part(*id), slot: None }).collect();
        DaemonFrame::Revoke { parts, reason: RevokeReason::Freed }
    }

    fn unmapped(channel: u64, parts: &[u64]) -> Event {
        let parts =
            parts.iter().map(|id| UnmappedPart { part: part(*id), failure: None, written: false }).collect();
        Event::Frame { channel: ChannelId(channel), frame: ClientFrame::Unmapped(parts) }
    }

    #[test]
    fn each_part_is_timed_once_and_only_if_it_was_revoked() {
        let measured = Measured::default();
        let mut revocations = RevocationTimes::new(measured.histogram());
        revocations.begin(ChannelId(1), &revoke(&[1, 2, 3]), None);
        revocations.begin(ChannelId(2), &revoke(&[1]), None);
        revocations.handle_event(&unmapped(1, &[1, 2, 9]));
        revocations.handle_event(&unmapped(1, &[1]));
        assert_eq!(measured.count(), 2);
        revocations.handle_event(&Event::ChannelEnded { channel: ChannelId(1) });
        assert_eq!(revocations.awaited.len(), 1, "that of the other channel");
        revocations.handle_event(&unmapped(1, &[3]));
        revocations.handle_event(&unmapped(2, &[1]));
        assert_eq!(measured.count(), 3);
        assert!(revocations.awaited.is_empty());
    }

    #[test]
    fn a_span_lasts_until_nothing_of_its_frame_is_waited_for() {
        let (measured, ended) = (Measured::default(), Ended::default());
        let mut revocations = RevocationTimes::new(measured.histogram());
        let channel = ChannelId(1);
        revocations.begin(channel, &revoke(&[1, 2]), Some(ended.span()));
        revocations.handle_event(&unmapped(1, &[1]));
        assert!(ended.take(OUTCOME).is_empty());
        revocations.handle_event(&unmapped(1, &[2]));
        assert_eq!(ended.take(OUTCOME), ["unmapped"]);
        revocations.begin(channel, &revoke(&[3, 4]), Some(ended.span()));
        revocations.handle_event(&unmapped(1, &[3]));
        revocations.begin(channel, &revoke(&[4]), Some(ended.span()));
        assert_eq!(ended.take(OUTCOME), ["superseded"]);
        revocations.handle_event(&Event::ChannelEnded { channel });
        assert_eq!(ended.take(OUTCOME), ["channel_ended"]);
    }
}
