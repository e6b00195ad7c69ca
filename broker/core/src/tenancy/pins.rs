//! Pin calls: sets of parts that a session wants mapped together, from when they are taken until they have ended.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::SessionId;

use crate::{event::PartRef, time::Time};

/// The order in which pin calls and revocations came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

/// The session, and its number for the call.
pub(crate) type PinId = (SessionId, u64);

#[derive(Debug)]
pub(crate) struct PinCall {
    pub(crate) arrival: Arrival,
    /// In order, each once.
    pub(crate) parts: Box<[PartRef]>,
    /// Of these, what is not mapped, or about to be revoked. Once nothing is left, the call is answered.
    pub(crate) left: BTreeSet<PartRef>,
    /// Since when all who are in its way wait themselves.
    pub(crate) stalled: Option<Time>,
}

#[derive(Debug, Default)]
pub(crate) struct PinTable {
    calls: BTreeMap<PinId, PinCall>,
    by_part: BTreeSet<(PartRef, SessionId, u64)>,
    /// Those that are not answered, oldest first.
    waiting: BTreeMap<Arrival, PinId>,
    arrivals: u64,
}

impl PinTable {
    pub(crate) const fn arrive(&mut self) -> Arrival {
        self.arrivals += 1;
        Arrival(self.arrivals)
    }

    /// Later than whatever came.
    pub(crate) const fn now(&self) -> Arrival {
        Arrival(self.arrivals.saturating_add(1))
    }

    pub(crate) fn insert(&mut self, id: PinId, parts: Vec<PartRef>) {
        let arrival = self.arrive();
        self.by_part.extend(parts.iter().map(|part| (*part, id.0, id.1)));
        self.waiting.insert(arrival, id);
        let left = parts.iter().copied().collect();
        self.calls.insert(id, PinCall { arrival, parts: parts.into_boxed_slice(), left, stalled: None });
    }

    pub(crate) fn remove(&mut self, id: PinId) -> Option<PinCall> {
        let call = self.calls.remove(&id)?;
        self.waiting.remove(&call.arrival);
        for part in &call.parts {
            self.by_part.remove(&(*part, id.0, id.1));
        }
        Some(call)
    }

    pub(crate) fn get(&self, id: PinId) -> Option<&PinCall> {
        self.calls.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: PinId) -> Option<&mut PinCall> {
        self.calls.get_mut(&id)
    }

    /// One part of the call is mapped; whether that was the last.
    pub(crate) fn got(&mut self, id: PinId, part: PartRef) -> bool {
        let Some(call) = self.calls.get_mut(&id) else { return false };
        let is_last = call.left.remove(&part) && call.left.is_empty();
        if is_last {
            call.stalled = None;
            self.waiting.remove(&call.arrival);
        }
        is_last
    }

    /// Calls on a part, whoever made them.
    pub(crate) fn on(&self, part: PartRef) -> impl Iterator<Item = PinId> {
        let first = (part, SessionId::from_raw(0), 0);
        let last = (part, SessionId::from_raw(u64::MAX), u64::MAX);
        self.by_part.range(first..=last).map(|(_, session, call)| (*session, *call))
    }

    pub(crate) fn has_part(&self, part: PartRef) -> bool {
        self.on(part).next().is_some()
    }

    /// Whether a call of the session on the part came before then.
    pub(crate) fn protects(&self, part: PartRef, session: SessionId, then: Arrival) -> bool {
        let calls = self.by_part.range((part, session, 0)..=(part, session, u64::MAX));
        let mut arrivals = calls.filter_map(|(_, session, call)| self.calls.get(&(*session, *call)));
        arrivals.any(|call| call.arrival < then)
    }

    pub(crate) fn of_session(&self, session: SessionId) -> impl Iterator<Item = (PinId, &PinCall)> {
        self.calls.range((session, 0)..=(session, u64::MAX)).map(|(id, call)| (*id, call))
    }

    /// Calls that are not answered, oldest first.
    pub(crate) fn waiting(&self) -> impl DoubleEndedIterator<Item = (PinId, &PinCall)> {
        self.waiting.values().filter_map(|id| Some((*id, self.calls.get(id)?)))
    }

    pub(crate) fn is_waiting(&self, session: SessionId) -> bool {
        self.of_session(session).any(|(_, call)| !call.left.is_empty())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PinId, &PinCall)> {
        self.calls.iter().map(|(id, call)| (*id, call))
    }

    /// How much of calls is in the indices: for whoever compares.
    pub(crate) fn indexed(&self) -> (usize, usize) {
        (self.by_part.len(), self.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    #[test]
    fn a_call_is_found_by_its_parts_until_it_ends() {
        let part = |index| PartRef { allocation: AllocationId::from_raw(5), part: PartIndex(index) };
        let (one, two) = (SessionId::from_raw(1), SessionId::from_raw(2));
        let mut pins = PinTable::default();
        pins.insert((one, 7), vec![part(0), part(1)]);
        let then = pins.arrive();
        pins.insert((two, 7), vec![part(1)]);
        assert_eq!(pins.on(part(1)).collect::<Vec<_>>(), [(one, 7), (two, 7)]);
        assert!(pins.protects(part(1), one, then) && !pins.protects(part(1), two, then));
        assert!(!pins.got((one, 7), part(0)) && pins.is_waiting(one));
        assert!(pins.got((one, 7), part(1)) && !pins.is_waiting(one));
        assert!(pins.protects(part(0), one, then), "an answered call has not ended");
        assert_eq!(pins.waiting().map(|(id, _)| id).collect::<Vec<_>>(), [(two, 7)]);
        for id in [(one, 7), (two, 7)] {
            pins.remove(id);
        }
        assert_eq!((pins.indexed(), pins.has_part(part(1))), ((0, 0), false));
    }
}
