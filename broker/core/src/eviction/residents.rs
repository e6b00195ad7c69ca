//! Parts that could be evicted: in the order of the policy, with the sessions known to pin them.
//!
//! Known pins are hints: the words decide, and are checked before any unmap. But a session that was found
//! pinning is not checked again until it is seen to unpin.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{DeviceIndex, SessionId};

use super::{EvictionPolicy, Policy};
use crate::{collections::PartMap, event::PartRef, time::Time};

/// A part, with its last use.
#[derive(Clone, Copy, Debug)]
struct Resident {
    device: DeviceIndex,
    used: Time,
    /// The policy has it.
    is_listed: bool,
}

#[derive(Debug)]
pub(crate) struct Residents {
    policy: Box<dyn Policy>,
    parts: PartMap<Resident>,
    pinned: BTreeMap<PartRef, BTreeSet<SessionId>>,
    /// How many parts of a device each session pins.
    pinning: BTreeMap<(DeviceIndex, SessionId), usize>,
    /// Parts that could not leave for another reason. They are not tried before the next survey.
    stuck: BTreeSet<PartRef>,
}

impl Residents {
    pub(crate) fn new(policy: &EvictionPolicy) -> Self {
        Self {
            policy: policy.make(),
            parts: PartMap::default(),
            pinned: BTreeMap::new(),
            pinning: BTreeMap::new(),
            stuck: BTreeSet::new(),
        }
    }

    /// Adds a part, or records a use of it. Returns whether it is new.
    pub(crate) fn arrive(&mut self, device: DeviceIndex, part: PartRef, now: Time) -> bool {
        let before = self.parts.insert(part, Resident { device, used: now, is_listed: true });
        if let Some(Resident { device, used, is_listed: true }) = before {
            self.policy.remove(device, part, used);
        }
        self.policy.insert(device, part, now);
        before.is_none()
    }

    /// Records a use of the part, if it is here.
    pub(crate) fn record_use(&mut self, part: PartRef, now: Time) {
        if let Some(Resident { device, used, is_listed }) = self.parts.get_mut(part) {
            if std::mem::replace(is_listed, true) {
                self.policy.remove(*device, part, *used);
            }
            *used = now;
            self.policy.insert(*device, part, now);
        }
    }

    /// Excludes a part that is leaving from further choices.
    pub(crate) fn exclude(&mut self, part: PartRef) {
        if let Some(Resident { device, used, is_listed }) = self.parts.get_mut(part)
            && std::mem::take(is_listed)
        {
            self.policy.remove(*device, part, *used);
        }
    }

    /// Removes a part. Returns whether it was there.
    pub(crate) fn remove(&mut self, part: PartRef) -> bool {
        for session in self.pinned.get(&part).cloned().unwrap_or_default() {
            self.record_unpin(part, session);
        }
        self.stuck.remove(&part);
        let there = self.parts.remove(part);
        if let Some(Resident { device, used, is_listed: true }) = there {
            self.policy.remove(device, part, used);
        }
        there.is_some()
    }

    pub(crate) fn record_pin(&mut self, part: PartRef, session: SessionId) {
        if let Some(Resident { device, .. }) = self.parts.get(part)
            && self.pinned.entry(part).or_default().insert(session)
        {
            let count = self.pinning.entry((*device, session)).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// Records that the session no longer pins the part. Returns whether it was known to pin it.
    pub(crate) fn record_unpin(&mut self, part: PartRef, session: SessionId) -> bool {
        let Some(sessions) = self.pinned.get_mut(&part) else { return false };
        if !sessions.remove(&session) {
            return false;
        }
        if sessions.is_empty() {
            self.pinned.remove(&part);
        }
        if let Some(Resident { device, .. }) = self.parts.get(part)
            && let Some(count) = self.pinning.get_mut(&(*device, session))
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.pinning.remove(&(*device, session));
            }
        }
        true
    }

    /// Returns the sessions known to pin parts of a device.
    pub(crate) fn pinning_sessions(&self, device: DeviceIndex) -> impl Iterator<Item = SessionId> {
        let all = (device, SessionId::from_raw(0))..=(device, SessionId::from_raw(u64::MAX));
        self.pinning.range(all).map(|((_, session), _)| *session)
    }

    pub(crate) fn is_pinning(&self, device: DeviceIndex, session: SessionId) -> bool {
        self.pinning.contains_key(&(device, session))
    }

    pub(crate) fn mark_stuck(&mut self, part: PartRef) {
        self.stuck.insert(part);
    }

    /// Lets all stuck parts be tried again.
    pub(crate) fn clear_stuck(&mut self) {
        self.stuck.clear();
    }

    pub(crate) fn contains(&self, part: PartRef) -> bool {
        self.parts.contains(part)
    }

    /// Returns all parts in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PartRef> {
        self.parts.iter().map(|(part, _)| part)
    }

    /// Returns the parts without known pins, first the best victim.
    pub(crate) fn order(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        self.policy.order(device, None).filter(|part| self.is_candidate(*part))
    }

    /// Returns all parts with their last use, first the best victim, from behind the last scanned part.
    pub(crate) fn order_after(
        &self,
        device: DeviceIndex,
        seen: Option<(PartRef, Time)>,
    ) -> impl Iterator<Item = (PartRef, Time)> {
        let parts = self.policy.order(device, seen);
        parts.filter_map(|part| self.parts.get(part).map(|resident| (part, resident.used)))
    }

    /// Whether a session is known to pin it.
    pub(crate) fn is_pinned(&self, part: PartRef) -> bool {
        self.pinned.contains_key(&part)
    }

    /// Whether the session is known to pin it.
    pub(crate) fn is_pinned_by(&self, part: PartRef, session: SessionId) -> bool {
        self.pinned.get(&part).is_some_and(|sessions| sessions.contains(&session))
    }

    /// Whether no session is known to pin it and it is not stuck.
    pub(crate) fn is_candidate(&self, part: PartRef) -> bool {
        !self.pinned.contains_key(&part) && !self.stuck.contains(&part)
    }
}
