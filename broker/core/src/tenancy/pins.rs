//! Pin calls: sets of parts that a session wants mapped together. A call lives from its arrival until the
//! client ends it.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};
use vramd_types::SessionId;

use crate::{
    collections::{Pair, PairMap, PartMap},
    event::PartRef,
    time::Time,
};

/// The order of arrival of pin calls and revocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

impl Arrival {
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

/// The daemon numbers its own pin calls from here on: those of turns.
pub(crate) const OWN_CALLS: u64 = 1 << 63;

/// The session, and its number for the call.
pub(crate) type PinId = (SessionId, u64);

impl Pair for PinId {
    type Number = u64;

    fn split(self) -> (u64, u64) {
        (self.0.get(), self.1)
    }

    fn join(id: u64, call: u64) -> Self {
        (SessionId::from_raw(id), call)
    }
}

/// One part of one call.
pub(crate) type PinnedPart = (PartRef, PinId);

#[derive(Debug)]
pub(crate) struct PinCall {
    pub(crate) arrival: Arrival,
    pub(crate) arrived: Time,
    /// In order, each once.
    pub(crate) parts: Box<[PartRef]>,
    /// How many parts are not mapped, or about to be revoked. At zero the call is answered.
    missing: usize,
    /// At least one part lay elsewhere when it was checked.
    pub(crate) elsewhere: bool,
    /// When a waiting call is checked next for a stall.
    pub(crate) stall_check: Time,
    /// When the call is refused, if it still waits.
    pub(crate) deadline: Option<Time>,
}

/// A session's calls that are not answered.
#[derive(Debug)]
struct Waiting {
    calls: usize,
    since: Time,
}

#[derive(Clone, Copy, Debug)]
struct CallOfPart {
    id: PinId,
    is_missing: bool,
}

#[derive(Debug, Default)]
pub(crate) struct PinTable {
    calls: PairMap<PinId, PinCall>,
    /// The calls that name a part, in the order of their ids.
    by_part: PartMap<SmallVec<[CallOfPart; 1]>>,
    waiting: BTreeMap<SessionId, Waiting>,
    arrivals: u64,
}

impl PinCall {
    pub(crate) const fn is_waiting(&self) -> bool {
        self.missing > 0
    }
}

impl PinTable {
    pub(crate) const fn next_arrival(&mut self) -> Arrival {
        self.arrivals += 1;
        Arrival(self.arrivals)
    }

    /// An arrival later than any so far.
    pub(crate) const fn after_all(&self) -> Arrival {
        Arrival(self.arrivals.saturating_add(1))
    }

    /// Adds a call that waits for all of its parts. It has at least one.
    pub(crate) fn insert(
        &mut self,
        id: PinId,
        parts: Vec<PartRef>,
        arrived: Time,
        (stall_check, deadline): (Time, Option<Time>),
    ) {
        let arrival = self.next_arrival();
        for part in &parts {
            let call = CallOfPart { id, is_missing: true };
            match self.by_part.get_mut(*part) {
                Some(calls) => calls.insert(calls.partition_point(|call| call.id < id), call),
                None => _ = self.by_part.insert(*part, smallvec![call]),
            }
        }
        let waiting = self.waiting.entry(id.0).or_insert(Waiting { calls: 0, since: arrived });
        waiting.calls = waiting.calls.saturating_add(1);
        let (missing, parts) = (parts.len(), parts.into_boxed_slice());
        self.calls.insert(
            id,
            PinCall { arrival, arrived, parts, missing, elsewhere: false, stall_check, deadline },
        );
    }

    pub(crate) fn remove(&mut self, id: PinId) -> Option<PinCall> {
        let call = self.calls.remove(id)?;
        for part in &call.parts {
            let Some(calls) = self.by_part.get_mut(*part) else { continue };
            if let Ok(at) = find(calls, id) {
                calls.remove(at);
            }
            if calls.is_empty() {
                self.by_part.remove(*part);
            }
        }
        if call.is_waiting() {
            self.end_wait(id.0);
        }
        Some(call)
    }

    pub(crate) fn get(&self, id: PinId) -> Option<&PinCall> {
        self.calls.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: PinId) -> Option<&mut PinCall> {
        self.calls.get_mut(id)
    }

    pub(crate) fn is_missing(&self, id: PinId, part: PartRef) -> bool {
        let calls = self.calls_of(part);
        find(calls, id).ok().and_then(|at| calls.get(at)).is_some_and(|call| call.is_missing)
    }

    /// Records that one part of the call is mapped. Returns whether it was the last.
    pub(crate) fn mark_mapped(&mut self, id: PinId, part: PartRef) -> bool {
        let Some((call, is_missing)) = self.call_and_part(id, part) else { return false };
        if !std::mem::take(is_missing) {
            return false;
        }
        call.missing = call.missing.saturating_sub(1);
        let is_last = !call.is_waiting();
        if is_last {
            self.end_wait(id.0);
        }
        is_last
    }

    /// Calls of any session that are missing the part.
    pub(crate) fn missing(&self, part: PartRef) -> impl Iterator<Item = PinnedPart> {
        self.calls_of(part).iter().filter(|call| call.is_missing).map(move |call| (part, call.id))
    }

    /// The earliest arrival of a call that is missing the part.
    pub(crate) fn first_missing(&self, part: PartRef) -> Option<Arrival> {
        self.missing(part).filter_map(|(_, id)| self.calls.get(id)).map(|call| call.arrival).min()
    }

    /// Records that a part of a waiting call is no longer mapped: the call is missing it again.
    pub(crate) fn mark_unmapped(&mut self, id: PinId, part: PartRef) {
        let Some((call, is_missing)) = self.call_and_part(id, part) else { return };
        if call.is_waiting() && !std::mem::replace(is_missing, true) {
            call.missing = call.missing.saturating_add(1);
        }
    }

    /// Unanswered calls of a session that name the part, missing or mapped.
    pub(crate) fn waiting_of(&self, part: PartRef, session: SessionId) -> impl Iterator<Item = PinnedPart> {
        let waits = |id: &PinId| self.calls.get(*id).is_some_and(PinCall::is_waiting);
        let calls = self.calls_on(part, session);
        calls.iter().filter(move |call| waits(&call.id)).map(move |call| (part, call.id))
    }

    /// Whether a call of the session on the part arrived by `then`, or was answered. A call that waits for
    /// room does not take it from its own parts.
    pub(crate) fn protects(&self, part: PartRef, session: SessionId, then: Arrival) -> bool {
        let mut calls = self.calls_on(part, session).iter().filter_map(|call| self.calls.get(call.id));
        calls.any(|call| call.arrival <= then || !call.is_waiting())
    }

    /// Whether any call names the part.
    pub(crate) fn names(&self, part: PartRef) -> bool {
        !self.calls_of(part).is_empty()
    }

    pub(crate) fn of_session(&self, session: SessionId) -> impl Iterator<Item = (PinId, &PinCall)> {
        self.calls.of(session.get())
    }

    /// Since when the session has a waiting call.
    pub(crate) fn waiting_since(&self, session: SessionId) -> Option<Time> {
        self.waiting.get(&session).map(|waiting| waiting.since)
    }

    /// Restarts the session's waiting time, because another session that it waits for made progress.
    pub(crate) fn restart_wait(&mut self, session: SessionId, now: Time) {
        if let Some(waiting) = self.waiting.get_mut(&session) {
            waiting.since = now;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PinId, &PinCall)> {
        self.calls.iter()
    }

    /// The sizes of the indices, for the invariants: parts of calls, missing parts, and waiting calls.
    pub(crate) fn index_counts(&self) -> (usize, usize, usize) {
        let named = || self.by_part.iter().flat_map(|(_, calls)| calls);
        let lacking = named().filter(|call| call.is_missing).count();
        let waiting = self.waiting.values().map(|waiting| waiting.calls);
        (named().count(), lacking, waiting.fold(0, usize::saturating_add))
    }

    /// All calls that name the part, in the order of their ids.
    fn calls_of(&self, part: PartRef) -> &[CallOfPart] {
        self.by_part.get(part).map(|calls| &**calls).unwrap_or_default()
    }

    /// The calls of a session that name the part.
    fn calls_on(&self, part: PartRef, session: SessionId) -> &[CallOfPart] {
        let calls = self.calls_of(part);
        let first = calls.partition_point(|call| call.id.0 < session);
        let (_, rest) = calls.split_at(first);
        rest.split_at(rest.partition_point(|call| call.id.0 == session)).0
    }

    /// A call, and whether it is missing the part.
    fn call_and_part(&mut self, id: PinId, part: PartRef) -> Option<(&mut PinCall, &mut bool)> {
        let calls = self.by_part.get_mut(part)?;
        let at = find(calls, id).ok()?;
        Some((self.calls.get_mut(id)?, &mut calls.get_mut(at)?.is_missing))
    }

    fn end_wait(&mut self, session: SessionId) {
        if let Some(waiting) = self.waiting.get_mut(&session) {
            waiting.calls = waiting.calls.saturating_sub(1);
            if waiting.calls == 0 {
                self.waiting.remove(&session);
            }
        }
    }
}

fn find(calls: &[CallOfPart], id: PinId) -> Result<usize, usize> {
    calls.binary_search_by_key(&id, |call| call.id)
}

#[cfg(test)]
mod tests {
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    #[test]
    fn pin_call_is_found_by_its_parts_until_it_ends() {
        let part = |index| PartRef { allocation: AllocationId::from_raw(5), part: PartIndex(index) };
        let (one, two) = (SessionId::from_raw(1), SessionId::from_raw(2));
        let at = Time::from_micros;
        let mut pins = PinTable::default();
        pins.insert((one, 7), vec![part(0), part(1)], at(3), (at(9), None));
        let then = pins.next_arrival();
        pins.insert((two, 7), vec![part(1)], at(4), (at(9), None));
        let lacking = |pins: &PinTable| pins.missing(part(1)).map(|(_, id)| id).collect::<Vec<_>>();
        assert_eq!(lacking(&pins), [(one, 7), (two, 7)]);
        assert!(pins.protects(part(1), one, then) && !pins.protects(part(1), two, then));
        assert!(
            !pins.mark_mapped((one, 7), part(0)) && !pins.mark_mapped((one, 7), part(0)),
            "it has it once"
        );
        assert_eq!(pins.waiting_of(part(0), one).count(), 1, "it may lose it again");
        assert_eq!(pins.waiting_since(one), Some(at(3)));
        pins.restart_wait(one, at(5));
        assert_eq!(pins.waiting_since(one), Some(at(5)));
        assert!(pins.mark_mapped((one, 7), part(1)) && pins.waiting_since(one).is_none());
        assert!(pins.protects(part(0), one, then), "an answered call has not ended");
        assert_eq!(lacking(&pins), [(two, 7)]);
        assert_eq!(pins.waiting_of(part(1), one).count(), 0);
        assert_eq!(pins.index_counts(), (3, 1, 1));
        for id in [(one, 7), (two, 7)] {
            pins.remove(id);
        }
        assert_eq!((pins.index_counts(), pins.waiting_since(two)), ((0, 0, 0), None));
    }
}
