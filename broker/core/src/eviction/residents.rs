//! Parts that could be evicted: in the order of the policy, with the sessions known to pin them.
//!
//! Known pins are hints: the words decide, and are checked before any unmap. But a session that was found
//! pinning is not checked again until it is seen to unpin.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, DeviceIndex, SessionId};

use super::{
    EvictionPolicy, Part, Policy, Removal, Weight, known_future::KnownFuture, lru::Lru, scripted::Scripted,
};
use crate::{collections::PartMap, event::PartRef, time::Time};

/// A part, with its last use.
#[derive(Clone, Copy, Debug)]
struct Resident {
    device: DeviceIndex,
    used: Time,
    weight: Weight,
    listing: Listing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// The part is leaving, and the policy does not have it.
    Excluded,
    /// It was not used since it arrived.
    Arrived,
    Used,
}

impl Resident {
    const fn describe(self, part: PartRef) -> Part {
        Part { device: self.device, part, used: self.used, weight: self.weight }
    }
}

/// The parts of all devices that may leave.
#[derive(Debug)]
pub struct Residents {
    policy: Box<dyn Policy>,
    /// All listed parts by their last use, unless the policy has that order itself.
    by_use: Option<Lru>,
    parts: PartMap<Resident>,
    pinned: BTreeMap<PartRef, BTreeSet<SessionId>>,
    /// How many parts of a device each session pins.
    pinning: BTreeMap<(DeviceIndex, SessionId), usize>,
    /// Parts that could not leave for another reason. They are not tried before the next survey.
    stuck: BTreeSet<PartRef>,
}

impl Residents {
    pub fn new(policy: EvictionPolicy) -> Self {
        Self::with(policy.make(), policy != EvictionPolicy::Lru)
    }

    /// Orders parts as given; all others come last.
    pub(crate) fn scripted(script: &[PartRef]) -> Self {
        Self::with(Box::new(Scripted::new(script)), true)
    }

    /// Orders parts by their next use, as told by [`Self::foretell`].
    pub(crate) fn knowing_the_future() -> Self {
        Self::with(Box::<KnownFuture>::default(), true)
    }

    fn with(policy: Box<dyn Policy>, has_own_order: bool) -> Self {
        Self {
            policy,
            by_use: has_own_order.then(Lru::default),
            parts: PartMap::default(),
            pinned: BTreeMap::new(),
            pinning: BTreeMap::new(),
            stuck: BTreeSet::new(),
        }
    }

    /// Changes the policy. The new one is told of all parts in the order of their last use, so it begins as LRU does.
    /// The knowledge of the old one is lost. This costs O(n log n).
    pub(crate) fn change_policy(&mut self, policy: EvictionPolicy) {
        let with_pins = std::mem::replace(self, Self::new(policy));
        let Self { parts, pinned, pinning, stuck, .. } = with_pins;
        let mut listed: Vec<_> = parts
            .iter()
            .filter(|(_, it)| it.listing != Listing::Excluded)
            .map(|(part, it)| it.describe(part))
            .collect();
        (self.parts, self.pinned, self.pinning, self.stuck) = (parts, pinned, pinning, stuck);
        listed.sort_by_key(|it| (it.used, it.part));
        for part in listed {
            self.list(part);
        }
    }

    /// Loses the order of the parts that are here, for `ResidentsLostWithPolicy`.
    #[cfg(feature = "planted")]
    pub(crate) fn lose_order(&mut self) {
        self.policy = EvictionPolicy::Sieve.make();
    }

    fn list(&mut self, part: Part) {
        self.policy.insert(part);
        if let Some(by_use) = &mut self.by_use {
            by_use.insert(part);
        }
    }

    fn unlist(&mut self, part: Part, why: Removal) {
        self.policy.remove(part, why);
        if let Some(by_use) = &mut self.by_use {
            by_use.remove(part, why);
        }
    }

    fn relist(&mut self, part: Part, now: Time, again: bool) {
        self.policy.record_use(part, now, again);
        if let Some(by_use) = &mut self.by_use {
            by_use.record_use(part, now, again);
        }
    }

    /// Adds a part, or takes it for used now. Returns whether it is new.
    pub fn arrive(&mut self, device: DeviceIndex, part: PartRef, weight: Weight, now: Time) -> bool {
        let resident = Resident { device, used: now, weight, listing: Listing::Arrived };
        let Some(before) = self.parts.insert(part, resident) else {
            self.list(resident.describe(part));
            return true;
        };
        match before.listing {
            Listing::Excluded => self.list(resident.describe(part)),
            // The policy knows it with its old weight.
            listing => {
                self.parts.insert(part, Resident { used: now, listing, ..before });
                self.relist(before.describe(part), now, false);
            }
        }
        false
    }

    /// Records a use of the part, if it is here.
    pub fn record_use(&mut self, part: PartRef, now: Time) {
        let Some(resident) = self.parts.get_mut(part) else { return };
        let before = *resident;
        (resident.used, resident.listing) = (now, Listing::Used);
        let after = *resident;
        match before.listing {
            Listing::Excluded => self.list(after.describe(part)),
            listing => self.relist(before.describe(part), now, listing == Listing::Used),
        }
    }

    /// Tells a policy that knows the future when the part will be used. All other policies ignore it.
    pub(crate) fn foretell(&mut self, part: PartRef, uses: Vec<Time>) {
        let listed = self.parts.get(part).filter(|it| it.listing != Listing::Excluded);
        self.policy.foretell(part, listed.map(|it| it.describe(part)), uses);
    }

    /// Excludes a part that is leaving from further choices.
    pub fn exclude(&mut self, part: PartRef) {
        if let Some(resident) = self.parts.get_mut(part)
            && resident.listing != Listing::Excluded
        {
            resident.listing = Listing::Excluded;
            let known = resident.describe(part);
            self.unlist(known, Removal::Leaves);
        }
    }

    /// Removes a part. Returns whether it was there.
    pub fn remove(&mut self, part: PartRef) -> bool {
        for session in self.pinned.get(&part).cloned().unwrap_or_default() {
            self.record_unpin(part, session);
        }
        self.stuck.remove(&part);
        let there = self.parts.remove(part);
        if let Some(resident) = there.filter(|it| it.listing != Listing::Excluded) {
            self.unlist(resident.describe(part), Removal::Ends);
        }
        there.is_some()
    }

    /// Forgets what the policy remembers of an allocation that ended.
    pub fn forget(&mut self, allocation: AllocationId) {
        self.policy.forget(allocation);
    }

    /// Returns the parts that left and that the policy remembers.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = PartRef> {
        self.policy.remembered()
    }

    /// Returns the parts that the policy should have, of one device.
    pub(crate) fn listed(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        let listed =
            self.parts.iter().filter(move |(_, it)| it.device == device && it.listing != Listing::Excluded);
        listed.map(|(part, _)| part)
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

    pub fn contains(&self, part: PartRef) -> bool {
        self.parts.contains(part)
    }

    /// Whether the policy has the part.
    pub(crate) fn is_listed(&self, part: PartRef) -> bool {
        self.parts.get(part).is_some_and(|it| it.listing != Listing::Excluded)
    }

    /// Returns all parts in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PartRef> {
        self.parts.iter().map(|(part, _)| part)
    }

    /// Returns the parts without known pins, first the best victim.
    pub fn order(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        self.order_of_all(device).filter(|part| self.is_candidate(*part))
    }

    /// Returns all parts that are not leaving, first the best victim.
    pub(crate) fn order_of_all(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        self.policy.order(device)
    }

    /// Returns all parts with their last use, first the least recently used one whatever the policy, from behind the last
    /// scanned part. That part need not be there any more.
    pub(crate) fn order_by_use(
        &self,
        device: DeviceIndex,
        seen: Option<(PartRef, Time)>,
    ) -> impl Iterator<Item = (PartRef, Time)> {
        let policy: &dyn Policy = match &self.by_use {
            Some(by_use) => by_use,
            None => &*self.policy,
        };
        let parts = policy.order_by_use(device, seen).into_iter().flatten();
        parts.filter_map(|part| self.parts.get(part).map(|resident| (part, resident.used)))
    }

    /// The last use of a part that is here, or its arrival.
    pub(crate) fn last_use(&self, part: PartRef) -> Option<Time> {
        self.parts.get(part).map(|resident| resident.used)
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
