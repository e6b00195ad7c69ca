//! The order in which parts of begun requests are copied: by class, then by the earliest deadline that can be met.
//!
//! The oracle judges each event as a whole. A part that was ready before the event and still waits after it has waited all
//! along, so no part that goes after it may have been copied in the event. The daemon says which deadlines can be met no
//! longer: that depends on the speed that it measures.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use broker_core::{
    Cause, MigrationState, MoveView, PartRef, PrefetchView, TenantClass, Tier, Time,
    invariants::PREFETCH_ORDER,
};
use vramd_types::{CopyClass, ExtentId};

use super::{PrefetchId, RequestFacts, Told};
use crate::oracle::{Oracle, facts::ExtentPhase};

/// A move that brings a part for a request, by its destination, its part and its beginning.
pub(crate) type FetchKey = (ExtentId, PartRef, Time);

#[derive(Clone, Debug)]
pub(crate) struct FetchFacts {
    request: PrefetchId,
    device: String,
    class: TenantClass,
    /// Unless the daemon says that it cannot be met.
    deadline: Option<Time>,
    /// Its memory was there after the last event, no session mapped the part, and it was not copied.
    is_ready: bool,
}

impl FetchFacts {
    /// A part with a lower key is copied first.
    fn order(&self) -> (Reverse<TenantClass>, bool, Option<Time>) {
        (Reverse(self.class), self.deadline.is_none(), self.deadline)
    }
}

const fn key_of(it: &MoveView) -> FetchKey {
    (it.extent, it.part, it.since)
}

fn is_fetch(it: &MoveView) -> bool {
    it.cause == Cause::Prefetch && it.to == Tier::Device
}

impl Oracle {
    pub(crate) fn record_prefetch_copy(&mut self, to: ExtentId, class: CopyClass) {
        if class == CopyClass::Prefetch {
            self.step.prefetch_copies.insert(to);
        }
    }

    /// Checks that no part of a request with a deadline waits behind what was copied in this event.
    pub(super) fn check_copy_order(
        &mut self,
        listed: &BTreeMap<PrefetchId, PrefetchView>,
        moves: &[MoveView],
    ) {
        self.learn_fetches(moves);
        let fetches = &self.facts.prefetches.fetches;
        let copied = fetches.iter().filter(|((to, ..), _)| self.step.prefetch_copies.contains(to));
        let can_meet = |id: &PrefetchId| listed.get(id).is_some_and(|view| !view.misses_deadline);
        let still_waits = |key: &FetchKey| {
            moves.iter().any(|it| key_of(it) == *key && it.state == MigrationState::Preparing)
        };
        let waiting = fetches.iter().filter(|(key, it)| {
            it.is_ready && it.deadline.is_some() && can_meet(&it.request) && still_waits(key)
        });
        let waiting: Vec<_> = waiting.collect();
        let passed = copied.flat_map(|(key, it)| waiting.iter().map(move |waiting| ((key, it), *waiting)));
        let is_wrong = |((_, copied), (_, waiting)): &((_, &FetchFacts), (_, &FetchFacts))| {
            waiting.device == copied.device && waiting.order() < copied.order()
        };
        let passed = passed
            .into_iter()
            .find(is_wrong)
            .map(|(copied, waiting)| format!("{copied:?} is copied before {waiting:?}"));
        self.expect(PREFETCH_ORDER, passed.is_none(), || passed.unwrap_or_default());
        self.learn_copies(listed, moves);
    }

    /// Learns of moves that requests have begun in this event, where it is sure which request has begun which.
    fn learn_fetches(&mut self, moves: &[MoveView]) {
        if self.step.quotas_changed || self.step.settings_changed {
            return;
        }
        let has_begun_now = |it: &RequestFacts| it.told_before <= Told::Deferred && it.told > Told::Deferred;
        for it in moves.iter().filter(|it| is_fetch(it) && it.since == self.facts.now) {
            let facts = &self.facts.prefetches;
            if facts.fetches.contains_key(&key_of(it)) || facts.sequences.is_named(it.part) {
                continue;
            }
            let names = |request: &RequestFacts| request.spec.parts.contains(&it.part);
            let mut begun = facts.requests.iter().filter(|(_, it)| has_begun_now(it) && names(it));
            let (Some((id, request)), None) = (begun.next(), begun.next()) else { continue };
            if request.misses_since_now {
                continue;
            }
            let fetch = FetchFacts {
                request: *id,
                device: it.device.clone(),
                class: self.class_of(request.tenant),
                deadline: request.deadline_to_meet(),
                is_ready: false,
            };
            self.facts.prefetches.fetches.insert(key_of(it), fetch);
        }
    }

    /// Learns which parts are ready and wait, and which deadlines the daemon has given up.
    fn learn_copies(&mut self, listed: &BTreeMap<PrefetchId, PrefetchView>, moves: &[MoveView]) {
        let states: BTreeMap<FetchKey, MigrationState> =
            moves.iter().map(|it| (key_of(it), it.state)).collect();
        let mapped: BTreeSet<PartRef> =
            self.facts.sessions.values().flat_map(|session| session.mappings.keys().copied()).collect();
        let mut fetches = std::mem::take(&mut self.facts.prefetches.fetches);
        fetches.retain(|key, _| states.contains_key(key));
        for ((to, part, since), fetch) in &mut fetches {
            let is_made = self.facts.extents.get(to).is_some_and(|it| it.phase == ExtentPhase::Live);
            let is_prepared = states.get(&(*to, *part, *since)) == Some(&MigrationState::Preparing);
            fetch.is_ready = is_made && is_prepared && !mapped.contains(part);
            if listed.get(&fetch.request).is_some_and(|view| view.misses_deadline) {
                fetch.deadline = None;
            }
        }
        self.facts.prefetches.fetches = fetches;
    }
}
