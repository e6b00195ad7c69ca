//! The calls of clients that wait for parts.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{ChannelId, PartRef};

/// A pin call or a prefetch request: its number is one of its channel.
pub(super) type Call = (ChannelId, u64);

#[derive(Debug, Default)]
pub(super) struct AwaitedParts(BTreeSet<(PartRef, Call)>);

impl AwaitedParts {
    pub(super) fn insert(&mut self, call: Call, parts: &[PartRef]) {
        self.0.extend(parts.iter().map(|part| (*part, call)));
    }

    pub(super) fn remove(&mut self, call: Call, parts: &[PartRef]) {
        for part in parts {
            self.0.remove(&(*part, call));
        }
    }

    pub(super) fn calls_for(&self, part: PartRef) -> impl Iterator<Item = Call> + use<'_> {
        let (first, last) = ((ChannelId(u64::MIN), u64::MIN), (ChannelId(u64::MAX), u64::MAX));
        self.0.range((part, first)..=(part, last)).map(|(_, call)| *call)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The calls of a channel.
pub(super) fn calls_of<T>(all: &BTreeMap<Call, T>, channel: ChannelId) -> Vec<Call> {
    all.range((channel, u64::MIN)..=(channel, u64::MAX)).map(|(call, _)| *call).collect()
}
