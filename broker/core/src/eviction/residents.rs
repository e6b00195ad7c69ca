//! Parts that could leave their devices: in the order of the policy, with what is known of who pins them.
//!
//! What is known is a hint. The words decide, and are asked before anything is unmapped; but who was found pinning is not
//! asked again until it has been seen to unpin.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{DeviceIndex, SessionId};

use super::{EvictionPolicy, Policy};
use crate::{event::PartRef, time::Time};

#[derive(Debug)]
pub(crate) struct Residents {
    policy: Box<dyn Policy>,
    /// Where each is, and when it was used last.
    devices: BTreeMap<PartRef, (DeviceIndex, Time)>,
    pinned: BTreeMap<PartRef, BTreeSet<SessionId>>,
    /// How many parts of a device each session pins.
    pinning: BTreeMap<(DeviceIndex, SessionId), usize>,
    /// Those that could not leave for another reason: not tried until devices are looked at.
    stuck: BTreeSet<PartRef>,
}

impl Residents {
    pub(crate) fn new(policy: &EvictionPolicy) -> Self {
        Self {
            policy: policy.make(),
            devices: BTreeMap::new(),
            pinned: BTreeMap::new(),
            pinning: BTreeMap::new(),
            stuck: BTreeSet::new(),
        }
    }

    pub(crate) fn arrive(&mut self, device: DeviceIndex, part: PartRef, now: Time) {
        self.devices.insert(part, (device, now));
        self.policy.record_use(device, part, now);
    }

    /// It was used where it is, if it is there.
    pub(crate) fn record_use(&mut self, part: PartRef, now: Time) {
        if let Some((device, last)) = self.devices.get_mut(&part) {
            *last = now;
            self.policy.record_use(*device, part, now);
        }
    }

    /// It is on its way out, and not chosen again.
    pub(crate) fn exclude(&mut self, part: PartRef) {
        self.policy.remove(part);
    }

    pub(crate) fn remove(&mut self, part: PartRef) {
        for session in self.pinned.get(&part).cloned().unwrap_or_default() {
            self.record_unpin(part, session);
        }
        self.stuck.remove(&part);
        if self.devices.remove(&part).is_some() {
            self.policy.remove(part);
        }
    }

    pub(crate) fn record_pin(&mut self, part: PartRef, session: SessionId) {
        if let Some((device, _)) = self.devices.get(&part)
            && self.pinned.entry(part).or_default().insert(session)
        {
            let count = self.pinning.entry((*device, session)).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// Whether it was known to pin the part.
    pub(crate) fn record_unpin(&mut self, part: PartRef, session: SessionId) -> bool {
        let Some(sessions) = self.pinned.get_mut(&part) else { return false };
        if !sessions.remove(&session) {
            return false;
        }
        if sessions.is_empty() {
            self.pinned.remove(&part);
        }
        if let Some((device, _)) = self.devices.get(&part)
            && let Some(count) = self.pinning.get_mut(&(*device, session))
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.pinning.remove(&(*device, session));
            }
        }
        true
    }

    /// Sessions that are known to pin something on a device.
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

    /// All are to be tried.
    pub(crate) fn clear_stuck(&mut self) {
        self.stuck.clear();
    }

    pub(crate) fn contains(&self, part: PartRef) -> bool {
        self.devices.contains_key(&part)
    }

    /// All of them, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PartRef> {
        self.devices.keys().copied()
    }

    /// Those that nobody is known to pin, first those that should leave first.
    pub(crate) fn order(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        self.policy.order(device, None).filter(|part| self.is_candidate(*part))
    }

    /// All of them with when each was used last, those first that should leave first, from behind one that was looked at.
    pub(crate) fn order_after(
        &self,
        device: DeviceIndex,
        seen: Option<(PartRef, Time)>,
    ) -> impl Iterator<Item = (PartRef, Time)> {
        let parts = self.policy.order(device, seen);
        parts.filter_map(|part| self.devices.get(&part).map(|(_, last)| (part, *last)))
    }

    /// Whether somebody is known to pin it.
    pub(crate) fn is_pinned(&self, part: PartRef) -> bool {
        self.pinned.contains_key(&part)
    }

    /// Whether nobody is known to pin it, and it is to be tried.
    pub(crate) fn is_candidate(&self, part: PartRef) -> bool {
        !self.pinned.contains_key(&part) && !self.stuck.contains(&part)
    }
}
