//! Parts that could be evicted: in the order of the policy, with the sessions known to pin them.
//!
//! Known pins are hints: the words decide, and are checked before any unmap. But a session that was found
//! pinning is not checked again until it is seen to unpin.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{AllocationId, DeviceIndex, SessionId};

use super::{
    EvictionPolicy, Part, Policy, Removal, Weight, known_future::KnownFuture, lru::Lru, scripted::Scripted,
};
use crate::{collections::PartMap, event::PartRef, tenancy::TenantClass, time::Time};

/// A part, with its last use.
#[derive(Clone, Copy, Debug)]
struct Resident {
    device: DeviceIndex,
    used: Time,
    weight: Weight,
    class: TenantClass,
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
        let Self { device, used, weight, class, .. } = self;
        Part { device, part, used, weight, class }
    }
}

/// The parts of all devices that may leave.
#[derive(Debug)]
pub struct Residents {
    /// `None`: parts leave in the order of their last use.
    policy: Option<Box<dyn Policy>>,
    /// All listed parts by class and last use.
    by_use: Lru,
    parts: PartMap<Resident>,
    pinned: BTreeMap<PartRef, BTreeSet<SessionId>>,
    /// Of these, pins that their sessions say are over. No pin is taken for over otherwise.
    claimed: BTreeSet<(PartRef, SessionId)>,
    /// How many parts of a device each session pins.
    pinning: BTreeMap<(DeviceIndex, SessionId), usize>,
    /// Parts that could not leave for another reason. They are not tried before the next survey.
    stuck: BTreeSet<PartRef>,
}

impl Residents {
    pub fn new(policy: EvictionPolicy) -> Self {
        Self::with(policy.make())
    }

    /// Orders parts as given; all others come last.
    pub(crate) fn scripted(script: &[PartRef]) -> Self {
        Self::with(Some(Box::new(Scripted::new(script))))
    }

    /// Orders parts by their next use, as told by [`Self::foretell`].
    pub(crate) fn knowing_the_future() -> Self {
        Self::with(Some(Box::<KnownFuture>::default()))
    }

    fn with(policy: Option<Box<dyn Policy>>) -> Self {
        Self {
            policy,
            by_use: Lru::default(),
            parts: PartMap::default(),
            pinned: BTreeMap::new(),
            claimed: BTreeSet::new(),
            pinning: BTreeMap::new(),
            stuck: BTreeSet::new(),
        }
    }

    /// Changes the policy. The new one is told of all parts in the order of their last use, so it begins as LRU does.
    /// The knowledge of the old one is lost. This costs O(n log n).
    pub(crate) fn change_policy(&mut self, policy: EvictionPolicy) {
        let with_pins = std::mem::replace(self, Self::new(policy));
        let Self { parts, pinned, claimed, pinning, stuck, .. } = with_pins;
        let mut listed: Vec<_> = parts
            .iter()
            .filter(|(_, it)| it.listing != Listing::Excluded)
            .map(|(part, it)| it.describe(part))
            .collect();
        (self.parts, self.pinned, self.pinning, self.stuck) = (parts, pinned, pinning, stuck);
        self.claimed = claimed;
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

    /// Moves parts to another class of tenants. Their places in the order of the policy stay as they are.
    pub(crate) fn change_class(&mut self, parts: &[PartRef], class: TenantClass) {
        for part in parts.iter().copied() {
            let Some(resident) = self.parts.get_mut(part).filter(|it| it.class != class) else { continue };
            let before = resident.describe(part);
            resident.class = class;
            let after = resident.describe(part);
            if resident.listing != Listing::Excluded {
                self.by_use.remove(before);
                self.by_use.insert(after);
            }
        }
    }

    fn list(&mut self, part: Part) {
        self.by_use.insert(part);
        if let Some(policy) = &mut self.policy {
            policy.insert(part);
        }
    }

    fn unlist(&mut self, part: Part, why: Removal) {
        self.by_use.remove(part);
        if let Some(policy) = &mut self.policy {
            policy.remove(part, why);
        }
    }

    fn relist(&mut self, part: Part, now: Time, again: bool) {
        self.by_use.record_use(part, now);
        if let Some(policy) = &mut self.policy {
            policy.record_use(part, now, again);
        }
    }

    /// Adds a part, or takes it for used now. Returns whether it is new.
    pub fn arrive(
        &mut self,
        device: DeviceIndex,
        part: PartRef,
        (weight, class): (Weight, TenantClass),
        now: Time,
    ) -> bool {
        let resident = Resident { device, used: now, weight, class, listing: Listing::Arrived };
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
        if let Some(policy) = &mut self.policy {
            policy.foretell(part, listed.map(|it| it.describe(part)), uses);
        }
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
        if let Some(policy) = &mut self.policy {
            policy.forget(allocation);
        }
    }

    /// Returns the parts that left and that the policy remembers.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = PartRef> {
        self.policy.iter().flat_map(|policy| policy.remembered())
    }

    /// Returns the parts that the policy should have, of one device.
    pub(crate) fn listed(&self, device: DeviceIndex) -> impl Iterator<Item = PartRef> {
        let listed =
            self.parts.iter().filter(move |(_, it)| it.device == device && it.listing != Listing::Excluded);
        listed.map(|(part, _)| part)
    }

    pub(crate) fn record_pin(&mut self, part: PartRef, session: SessionId) {
        self.claimed.remove(&(part, session));
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
        self.claimed.remove(&(part, session));
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

    /// Lets the part be chosen although the session was found to pin it, since the session says that the pin is over.
    pub(crate) fn claim_unpinned(&mut self, part: PartRef, session: SessionId) {
        if self.pinned.get(&part).is_some_and(|sessions| sessions.contains(&session)) {
            self.claimed.insert((part, session));
        }
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

    /// Returns all parts that are not leaving, first the best victim: the lowest class first, and in each class in the
    /// order of the policy. Other policies than LRU cost a walk along their order for each class that lies there.
    pub(crate) fn order_of_all(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        let Some(policy) = &self.policy else { return Box::new(self.by_use.order(device)) };
        if !self.by_use.is_mixed(device) {
            return policy.order(device);
        }
        Box::new(
            TenantClass::ALL.into_iter().flat_map(move |class| {
                policy.order(device).filter(move |part| self.class(*part) == Some(class))
            }),
        )
    }

    /// Returns the parts of one class with their last use, first the least recently used one whatever the policy, from
    /// behind the last scanned part. That part need not be there any more.
    pub(crate) fn order_by_use(
        &self,
        device: DeviceIndex,
        class: TenantClass,
        seen: Option<(PartRef, Time)>,
    ) -> impl Iterator<Item = (PartRef, Time)> {
        let parts = self.by_use.order_of_class(device, class, seen);
        parts.filter_map(|part| self.parts.get(part).map(|resident| (part, resident.used)))
    }

    fn class(&self, part: PartRef) -> Option<TenantClass> {
        self.parts.get(part).map(|resident| resident.class)
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
        let mut pinning = self.pinned.get(&part).into_iter().flatten();
        pinning.all(|session| self.claimed.contains(&(part, *session))) && !self.stuck.contains(&part)
    }
}
