//! How long clients take to unmap what they are told to unmap.

use std::{collections::BTreeMap, time::Instant};

use broker_core::{ChannelId, ClientFrame, DaemonFrame, Event, PartRef};
use opentelemetry::metrics::Histogram;
use vramd_types::{AllocationId, PartIndex};

/// What clients have been told to unmap and have not. The core knows the same, but not since when.
#[derive(Debug)]
pub(super) struct Revocations {
    since: BTreeMap<(ChannelId, PartRef), Instant>,
    seconds: Histogram<f64>,
}

impl Revocations {
    pub(super) fn new(seconds: Histogram<f64>) -> Self {
        Self { since: BTreeMap::new(), seconds }
    }

    /// A frame is about to be sent.
    pub(super) fn sent(&mut self, channel: ChannelId, frame: &DaemonFrame) {
        if let DaemonFrame::Revoke { parts, .. } = frame {
            let now = Instant::now();
            self.since.extend(parts.iter().map(|revoked| ((channel, revoked.part), now)));
        }
    }

    /// Something has happened. Who is gone has unmapped everything, but when nobody knows.
    pub(super) fn happened(&mut self, event: &Event) {
        match event {
            Event::Frame { channel, frame: ClientFrame::Unmapped(parts) } => {
                for unmapped in parts {
                    if let Some(since) = self.since.remove(&(*channel, unmapped.part)) {
                        self.seconds.record(since.elapsed().as_secs_f64(), &[]);
                    }
                }
            }
            Event::ChannelEnded { channel } | Event::ProcessEnded { channel } => self.forget(*channel),
            _ => {}
        }
    }

    fn forget(&mut self, channel: ChannelId) {
        let part = |id, index| PartRef { allocation: AllocationId::from_raw(id), part: PartIndex(index) };
        let all = (channel, part(u64::MIN, u32::MIN))..=(channel, part(u64::MAX, u32::MAX));
        let gone: Vec<_> = self.since.range(all).map(|(key, _)| *key).collect();
        for key in gone {
            self.since.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use broker_core::{RevokeReason, RevokedPart, UnmappedPart};

    use super::*;
    use crate::telemetry::tests::Measured;

    fn part(allocation: u64) -> PartRef {
        PartRef { allocation: AllocationId::from_raw(allocation), part: PartIndex(0) }
    }

    fn unmapped(channel: u64, parts: &[u64]) -> Event {
        let parts =
            parts.iter().map(|id| UnmappedPart { part: part(*id), failure: None, written: false }).collect();
        Event::Frame { channel: ChannelId(channel), frame: ClientFrame::Unmapped(parts) }
    }

    #[test]
    fn each_part_is_timed_once_and_only_if_it_was_revoked() {
        let measured = Measured::default();
        let mut revocations = Revocations::new(measured.histogram());
        let revoke = |ids: &[u64]| DaemonFrame::Revoke {
            parts: ids.iter().map(|id| RevokedPart { part: part(*id), slot: None }).collect(),
            reason: RevokeReason::Freed,
        };
        revocations.sent(ChannelId(1), &revoke(&[1, 2, 3]));
        revocations.sent(ChannelId(2), &revoke(&[1]));
        revocations.happened(&unmapped(1, &[1, 2, 9]));
        revocations.happened(&unmapped(1, &[1]));
        assert_eq!(measured.count(), 2);
        revocations.happened(&Event::ChannelEnded { channel: ChannelId(1) });
        assert_eq!(revocations.since.len(), 1, "that of the other channel");
        revocations.happened(&unmapped(1, &[3]));
        revocations.happened(&unmapped(2, &[1]));
        assert_eq!(measured.count(), 3);
        assert!(revocations.since.is_empty());
    }
}
