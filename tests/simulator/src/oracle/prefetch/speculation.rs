//! Parts that are brought unasked go on in the order of a session's pin calls for their allocation. No client asks for
//! their room, and too much waste ends it.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{
    Broker, Cause, MoveView, PartRef, PrefetchPhase, Pressure, SpeculationEnd, Tier, WaitView,
    invariants::SPECULATION,
};
use vramd_types::{AllocationId, SessionId};

use crate::oracle::Oracle;

/// In percent.
const WASTE_MAX: u64 = 15;

/// The parts by which an allocation is judged first, and the number at which all are halved.
const TRIAL: u32 = 8;
const HALVED_AT: u32 = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct SpeculationFacts {
    /// The first parts of the pin calls of each session for an allocation.
    calls: BTreeMap<(AllocationId, SessionId), BTreeSet<u32>>,
    outcomes: BTreeMap<AllocationId, Outcome>,
    /// Allocations that this event's pin call names, with its session.
    called: BTreeSet<(AllocationId, SessionId)>,
}

/// The use and waste of the last parts.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    used: u64,
    wasted: u64,
    judged: u32,
    is_off: bool,
}

impl Oracle {
    /// Learns the parts of a pin call, taken or not.
    pub(crate) fn record_speculated_call(&mut self, session: SessionId, parts: &[PartRef]) {
        let mut first: BTreeMap<AllocationId, u32> = BTreeMap::new();
        for part in parts {
            let least = first.entry(part.allocation).or_insert(part.part.0);
            *least = (*least).min(part.part.0);
        }
        let facts = &mut self.facts.speculation;
        for (id, first) in first {
            facts.called.insert((id, session));
            facts.calls.entry((id, session)).or_default().insert(first);
        }
    }

    /// The owner has advised a pattern, so the daemon tries again.
    pub(crate) fn restart_speculation(&mut self, id: AllocationId) {
        self.facts.speculation.outcomes.remove(&id);
    }

    pub(crate) fn record_speculation_end(&mut self, part: PartRef, bytes: u64, end: SpeculationEnd) {
        let outcome = self.facts.speculation.outcomes.entry(part.allocation).or_default();
        match end {
            SpeculationEnd::Used => outcome.used += bytes,
            SpeculationEnd::Wasted => outcome.wasted += bytes,
        }
        outcome.judged += 1;
        let is_too_much = outcome.wasted * 100 > (outcome.used + outcome.wasted) * WASTE_MAX;
        outcome.is_off |= outcome.judged >= TRIAL && is_too_much;
        if outcome.judged >= HALVED_AT {
            let Outcome { used, wasted, judged, .. } = *outcome;
            *outcome = Outcome { used: used / 2, wasted: wasted / 2, judged: judged / 2, ..*outcome };
        }
    }

    /// Checks what began to come unasked in this event.
    pub(crate) fn check_speculation(&mut self, line: &[WaitView], broker: &Broker) {
        let called = std::mem::take(&mut self.facts.speculation.called);
        let is_new = |it: &&MoveView| it.cause == Cause::Speculation && it.since == self.facts.now;
        let moves = broker.moves();
        let begun: Vec<MoveView> = moves.iter().filter(is_new).cloned().collect();
        for it in begun {
            let (part, id) = (it.part, it.part.allocation);
            let known = &self.facts.speculation;
            let in_order = called
                .iter()
                .any(|of| of.0 == id && known.calls.get(of).is_some_and(|calls| calls.len() > 1));
            self.expect(SPECULATION, it.to == Tier::Device && in_order, || {
                format!(
                    "{part:?} is brought unasked, and no session pins its allocation in an order: {called:?}"
                )
            });
            let outcome = self.facts.speculation.outcomes.get(&id).copied().unwrap_or_default();
            self.expect(SPECULATION, !outcome.is_off, || {
                format!("{part:?} is brought unasked in spite of {outcome:?}")
            });
            self.check_lowest_class(&it, line, &moves, broker);
        }
    }

    /// Checks that no client or request asks for the room or the link that the part takes.
    fn check_lowest_class(&mut self, it: &MoveView, line: &[WaitView], moves: &[MoveView], broker: &Broker) {
        let device = self.facts.place_of(&it.device, Tier::Device);
        let waits = device.and_then(|device| self.first_that_stood(device, line)).cloned();
        self.expect(SPECULATION, waits.is_none(), || {
            format!("{:?} is brought unasked, and {waits:?} waits", it.part)
        });
        let requests = broker.prefetches();
        let mut queued = requests.iter().filter(|view| matches!(view.phase, PrefetchPhase::Queued(_)));
        let queued = queued.find(|view| view.device == it.device);
        self.expect(SPECULATION, queued.is_none(), || {
            format!("{:?} is brought unasked, and {queued:?} is queued", it.part)
        });
        let is_before = |other: &&MoveView| {
            let of_request = other.cause == Cause::Prefetch && other.to == Tier::Device;
            of_request && other.since < self.facts.now && other.device == it.device
        };
        let coming = moves.iter().find(is_before);
        self.expect(SPECULATION, coming.is_none(), || {
            format!("{:?} is brought unasked, and {coming:?} is on its way", it.part)
        });
        let pressure = broker
            .devices()
            .into_iter()
            .find(|device| device.uuid == it.device)
            .map(|device| device.pressure);
        // The part itself may have raised the level.
        let is_pressed = pressure.is_some_and(|level| level > Pressure::Elevated);
        self.expect(SPECULATION, !is_pressed || self.step.settings_changed, || {
            format!("{:?} is brought unasked at {pressure:?} pressure", it.part)
        });
    }
}
