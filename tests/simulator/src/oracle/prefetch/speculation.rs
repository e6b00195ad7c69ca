//! Parts that are brought unasked go on in the order of a session's pin calls for their allocation. No client asks for
//! their room, and too much waste ends it.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{
    Broker, Cause, MoveView, PartRef, PrefetchPhase, Pressure, SpeculationEnd, Tier, WaitView,
    invariants::SPECULATION,
};
use vramd_types::{AllocationId, PartIndex, SessionId};

use crate::oracle::{Oracle, facts::Tenant};

/// In percent.
const WASTE_MAX: u64 = 15;

/// The parts by which an allocation is judged first, and the number at which all are halved.
const TRIAL: u32 = 8;
const HALVED_AT: u32 = 64;

/// The number of calls that are known of each session.
const CALLS_KEPT: usize = 64;

/// The most steps that parts are brought for.
const STEPS_MAX: i64 = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct SpeculationFacts {
    calls: BTreeMap<(AllocationId, SessionId), PinCalls>,
    tallies: BTreeMap<(AllocationId, Tenant), Tally>,
    /// Allocations that this event's pin call names, with its session.
    called: BTreeSet<(AllocationId, SessionId)>,
}

/// The pin calls of a session for an allocation.
#[derive(Clone, Debug, Default)]
struct PinCalls {
    /// The first parts of the last calls, and the number of parts of the last one. Only calls for parts in a row show an
    /// order, and a repeated call shows nothing.
    firsts: Vec<u32>,
    count: u32,
    /// Further calls until the last call that the daemon may not have taken counts no longer.
    unsure: usize,
}

/// The use and waste of the last parts.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    used: u64,
    wasted: u64,
    judged: u32,
    is_off: bool,
}

impl Oracle {
    /// Learns the parts of a pin call, taken or not.
    pub(crate) fn record_speculated_call(&mut self, session: SessionId, parts: &[PartRef]) {
        let mut named: BTreeMap<AllocationId, BTreeSet<u32>> = BTreeMap::new();
        for part in parts {
            named.entry(part.allocation).or_default().insert(part.part.0);
        }
        for (id, parts) in named {
            let (first, last) = (parts.first().copied().unwrap_or(0), parts.last().copied().unwrap_or(0));
            let first_part = PartRef { allocation: id, part: PartIndex(first) };
            let is_in_row = u32::try_from(parts.len() - 1).is_ok_and(|count| count == last - first);
            let has_no_order = self.has_disorderly_pattern(first_part);
            // The daemon learns nothing from the calls of a program that declares its order.
            let is_declared = self.facts.prefetches.sequences.is_named(first_part);
            let facts = &mut self.facts.speculation;
            facts.called.insert((id, session));
            let calls = facts.calls.entry((id, session)).or_default();
            if !is_in_row || has_no_order || calls.firsts.last() == Some(&first) {
                continue;
            }
            if is_declared {
                calls.unsure = CALLS_KEPT;
            }
            calls.firsts.push(first);
            if calls.firsts.len() > CALLS_KEPT {
                calls.firsts.remove(0);
            }
            (calls.count, calls.unsure) =
                (last.saturating_sub(first).saturating_add(1), calls.unsure.saturating_sub(1));
        }
    }

    /// A call of this session was refused in the event that made it, or later: the daemon may not have learnt from it.
    pub(crate) fn doubt_speculated_calls(&mut self, session: SessionId) {
        let facts = &mut self.facts.speculation;
        let called = facts.called.iter().filter(|(_, by)| *by == session).copied();
        for of in called.collect::<Vec<_>>() {
            facts.calls.entry(of).or_default().unsure = CALLS_KEPT;
        }
    }

    /// The owner has advised a pattern, so the daemon tries again.
    pub(crate) fn restart_speculation(&mut self, id: AllocationId) {
        self.facts.speculation.tallies.retain(|(of, _), _| *of != id);
    }

    pub(crate) fn record_speculation_end(
        &mut self,
        part: PartRef,
        tenant: &str,
        (bytes, end): (u64, SpeculationEnd),
    ) {
        let tenant = self.facts.tenant(tenant);
        let tally = self.facts.speculation.tallies.entry((part.allocation, tenant)).or_default();
        match end {
            SpeculationEnd::Used => tally.used += bytes,
            SpeculationEnd::Wasted => tally.wasted += bytes,
        }
        tally.judged += 1;
        let is_too_much = tally.wasted * 100 > (tally.used + tally.wasted) * WASTE_MAX;
        tally.is_off |= tally.judged >= TRIAL && is_too_much;
        if tally.judged >= HALVED_AT {
            let Tally { used, wasted, judged, .. } = *tally;
            *tally = Tally { used: used / 2, wasted: wasted / 2, judged: judged / 2, ..*tally };
        }
    }

    /// Checks what began to come unasked in this event.
    pub(crate) fn check_speculation(&mut self, line: &[WaitView], broker: &Broker) {
        let called = std::mem::take(&mut self.facts.speculation.called);
        let is_new = |it: &&MoveView| it.cause == Cause::Speculation && it.since == self.facts.now;
        let moves = broker.moves();
        let begun: Vec<MoveView> = moves.iter().filter(is_new).cloned().collect();
        for it in begun {
            let part = it.part;
            let called = called.iter().filter(|of| of.0 == part.allocation);
            let in_order: Vec<_> = called.filter(|of| self.is_ahead(part, **of)).copied().collect();
            let is_wanted = !in_order.is_empty() || self.is_of_next_turn(part);
            self.expect(SPECULATION, it.to == Tier::Device && is_wanted, || {
                format!(
                    "{part:?} is brought unasked, no session pins its allocation in such an order, and its turn is not next"
                )
            });
            let is_off = |of: &(AllocationId, SessionId)| {
                let tenant = self.facts.sessions.get(&of.1).map(|session| session.tenant);
                let tally = tenant.and_then(|tenant| self.facts.speculation.tallies.get(&(of.0, tenant)));
                tally.is_some_and(|tally| tally.is_off)
            };
            let all_off = !self.is_of_next_turn(part) && !in_order.is_empty() && in_order.iter().all(is_off);
            self.expect(SPECULATION, !all_off, || {
                format!("{part:?} is brought unasked although too much was wasted")
            });
            self.check_lowest_class(&it, line, &moves, broker);
        }
    }

    /// Whether the part comes next in the order in which the session pins the allocation, after parts that are there or come.
    fn is_ahead(&self, part: PartRef, of: (AllocationId, SessionId)) -> bool {
        let Some(calls) = self.facts.speculation.calls.get(&of) else { return false };
        let Some(last) = calls.firsts.last().copied() else { return false };
        if calls.unsure > 0 {
            return calls.firsts.len() > 1;
        }
        let strides: Vec<i64> =
            (calls.firsts.windows(2)).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).collect();
        let repeats = if self.has_pattern(PartRef { part: PartIndex(last), ..part }) { 1 } else { 3 };
        let is_learnt =
            |stride: i64| strides.windows(repeats).any(|run| run.iter().all(|one| *one == stride));
        let is_at = |first: i64| {
            let index = i64::from(part.part.0);
            (first..first + i64::from(calls.count)).contains(&index)
        };
        // It goes on from the last call, or a loop begins anew where a walk began.
        let jumps = strides.iter().zip(&calls.firsts[1..]);
        let candidates: BTreeSet<i64> =
            strides.iter().rev().take(2).copied().filter(|it| is_learnt(*it)).collect();
        candidates.into_iter().any(|stride| {
            let begins =
                jumps.clone().filter(|(other, _)| **other != stride).map(|(_, begin)| i64::from(*begin));
            let begins = begins.chain(calls.firsts.first().map(|first| i64::from(*first)));
            let from_begin =
                (0..STEPS_MAX).any(|step| begins.clone().any(|begin| is_at(begin + step * stride)));
            let ahead = (1..=STEPS_MAX).find(|step| is_at(i64::from(last) + step * stride));
            match ahead {
                Some(step) => {
                    (1..step).all(|step| self.is_there_or_coming(part, i64::from(last) + step * stride))
                }
                None => from_begin,
            }
        })
    }

    /// Whether a part of the same allocation needs no move to its device now.
    fn is_there_or_coming(&self, part: PartRef, index: i64) -> bool {
        let Ok(index) = u32::try_from(index) else { return false };
        let part = PartRef { part: PartIndex(index), ..part };
        let lies_below = matches!(self.tier_of(part), Some(Tier::Host | Tier::Disk));
        !lies_below || self.may_move(part) || self.is_in_place(part) || self.may_stay_in_place(part)
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
        // Later work of this event may have raised the level.
        let charged = self.step.charged_with.get(&it.part).copied();
        let pressure = device.zip(charged).map(|(device, charged)| {
            self.level_after(self.lowest_level_before(device), charged, self.capacity(device))
        });
        let level_max = if self.is_of_next_turn(it.part) { Pressure::Elevated } else { Pressure::Normal };
        let is_pressed = pressure.is_none_or(|level| level > level_max);
        self.expect(SPECULATION, !is_pressed || self.step.settings_changed, || {
            format!("{:?} is brought unasked at {pressure:?} pressure", it.part)
        });
    }

    /// Records the charge of a device with a part that begins to come to it.
    pub(crate) fn record_charge_with(&mut self, part: PartRef, device: usize) {
        let (charged, _) = self.charged_to_all(device);
        self.step.charged_with.insert(part, charged);
    }
}
