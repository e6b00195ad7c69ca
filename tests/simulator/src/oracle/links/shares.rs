//! The chunks that lanes begin, in worlds that have lanes. The oracle keeps its own accounts of each chunk,
//! and does not know how a link chooses.
//!
//! A class that waits in a lane without a break is owed its share of what begins there, less what began of
//! it. It owes nothing for an excess that it had while no other class waited, and no class saves up share. On
//! a link that lanes share, a class is owed its share of what begins in all of them, except demand of lanes
//! in which it does not wait: nothing holds that back.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{
    Time,
    invariants::{LINK_AWAITED, LINK_ORDER, LINK_SHARES},
};
use vramd_types::{CopyClass, ExtentId, Shares};

use crate::oracle::Oracle;
use crate::{
    scenario::Lanes,
    world::{ChunkStart, LaneId},
};

/// A prefetch goes before demand once it was passed by this many chunks and has waited for [`WAITED_MIN`].
const PASSED_MIN: u64 = 16;
/// How long it must have waited; without a chunk passing if the lane began none for as long.
const WAITED_MIN: Duration = Duration::from_secs(1);

/// Chunks of the largest size that a class may at any moment miss of its share, or have had above it.
const APART_CHUNKS: u64 = 3;

/// The same where prefetches wait: a link owes a class up to four chunks, and pays the prefetches once demand is
/// through, when another class may be short of four already. Also where lanes share a link: a class is then owed a
/// share of both.
const FAR_APART_CHUNKS: u64 = 8;

/// The account of a class in a lane, since it began to wait there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassWait {
    /// When it began to wait, or last had a chunk.
    since: Time,
    /// Chunks of other classes since then.
    passed: u64,
    /// When the last chunk of any class began.
    last: Time,
    /// Prefetches have waited meanwhile.
    with_prefetch: bool,
    /// Shortage of its share, in hundredths of a byte.
    missing: u64,
    /// Excess over its share while a class of higher priority waited, in hundredths of a byte.
    excess: u64,
}

/// Accounts by lane and class.
pub(crate) type ClassWaits = BTreeMap<(LaneId, CopyClass), ClassWait>;

/// Shortage of each class on the link that lanes share, since it began to wait; in hundredths of a byte.
pub(crate) type MissingOnBus = BTreeMap<CopyClass, u64>;

impl Oracle {
    /// Sets the lanes that copies of this world go by.
    pub fn set_lanes(&mut self, lanes: Option<Lanes>) {
        self.lanes = lanes;
    }

    /// Counts shares anew. Changed shares end no wait.
    pub(crate) fn restart_shares(&mut self, shares: Shares) {
        self.facts.shares = Some(shares);
        for wait in self.facts.class_waits.values_mut() {
            (wait.with_prefetch, wait.missing, wait.excess) = (false, 0, 0);
        }
        self.facts.missing_on_bus.clear();
    }

    /// Updates which classes wait in a lane: an account ends with the wait and begins anew with the next.
    pub(crate) fn record_lane_waiters(&mut self, now: Time, lane_id: LaneId, waiting: &[ExtentId]) {
        let waiting = self.classes_of(waiting);
        for class in CopyClass::ALL {
            match waiting.contains(&class) {
                true => {
                    _ = self.facts.class_waits.insert((lane_id, class), self.class_wait(lane_id, class, now))
                }
                false => _ = self.facts.class_waits.remove(&(lane_id, class)),
            }
        }
        let on_bus: Vec<CopyClass> = self.classes_on_bus().collect();
        self.facts.missing_on_bus.retain(|class, _| on_bus.contains(class));
    }

    /// Checks a chunk that a lane begins.
    pub(crate) fn check_chunk(&mut self, now: Time, start: &ChunkStart) {
        let Some(lanes) = self.lanes else { return };
        let shares = self.facts.shares.unwrap_or(lanes.shares);
        let ChunkStart { lane_id, to, class, length, .. } = *start;
        let ordered = self.facts.copies.get(&to).copied();
        self.expect(LINK_AWAITED, ordered == Some(class), || {
            format!("a chunk goes to {to} as {class:?}, and was ordered as {ordered:?}")
        });
        let waiting = self.classes_of(&start.waiting);
        let waits = waiting.iter().map(|of| (*of, self.class_wait(lane_id, *of, now)));
        let mut waits: BTreeMap<CopyClass, ClassWait> = waits.collect();
        let is_waiting = |of: CopyClass| waiting.contains(&of);
        let has_waited = |wait: &ClassWait| {
            wait.since.after(WAITED_MIN) <= now
                && (wait.passed >= PASSED_MIN || wait.last.after(WAITED_MIN) <= now)
        };
        let by_right = waits.get(&class).is_some_and(has_waited);
        let overtakes = class == CopyClass::Prefetch && is_waiting(CopyClass::Demand) && !by_right;
        self.expect(LINK_ORDER, !overtakes, || {
            format!("a prefetch goes to {to} before waiting demand: {start:?}")
        });
        // Where lanes share a link, they hold back each other's classes, except demand, and take shares of
        // that link too.
        let is_alone = lanes.shared_percent.is_none() || !lane_id.is_on_bus();
        for (of, wait) in &mut waits {
            let is_higher = |other: CopyClass| {
                other < *of && is_waiting(other) && (is_alone || other == CopyClass::Demand)
            };
            let share = length.get() * u64::from(shares.percent(*of));
            let had = if *of == class { length.get() * 100 } else { 0 };
            let due = if *of == CopyClass::Prefetch && is_waiting(CopyClass::Demand) { 0 } else { share };
            wait.missing = (wait.missing + due).saturating_sub(had);
            let taken = if by_right { 0 } else { had };
            let is_lent = !CopyClass::ALL.into_iter().any(is_higher);
            let of_both = if is_alone { share } else { 2 * share };
            wait.excess = if is_lent { 0 } else { (wait.excess + taken).saturating_sub(of_both) };
            wait.last = now;
            wait.with_prefetch |= is_waiting(CopyClass::Prefetch);
            match *of == class {
                true => (wait.since, wait.passed) = (now, 0),
                false => wait.passed += 1,
            }
        }
        self.check_lane_shares(start, &waits, lanes, is_alone);
        for of in CopyClass::ALL {
            match waits.get(&of) {
                Some(wait) => _ = self.facts.class_waits.insert((lane_id, of), *wait),
                None => _ = self.facts.class_waits.remove(&(lane_id, of)),
            }
        }
        if let Some(percent) = lanes.shared_percent.filter(|_| lane_id.is_on_bus()) {
            self.record_crossing(start, shares, percent);
            self.check_bus_shares(start, lanes);
        }
    }

    /// Accounts for a chunk on the link that lanes share, which carries `percent` of one lane's speed.
    fn record_crossing(&mut self, start: &ChunkStart, shares: Shares, percent: u64) {
        let waiting: Vec<CopyClass> = self.classes_on_bus().collect();
        let is_behind_demand = waiting.contains(&CopyClass::Demand);
        let waits_here = self.classes_of(&start.waiting);
        for of in waiting {
            // A class wants no more than its lanes carry.
            let lanes = self
                .facts
                .class_waits
                .keys()
                .filter(|(lane_id, class)| lane_id.is_on_bus() && *class == of)
                .count();
            let fill = lanes as u64 * (10_000 / percent).min(100);
            let share = start.length.get() * u64::from(shares.percent(of)).min(fill);
            let cannot_go = of == CopyClass::Prefetch && is_behind_demand;
            let is_free = start.class == CopyClass::Demand && !waits_here.contains(&of);
            let due = if cannot_go || is_free { 0 } else { share };
            let had = if of == start.class { start.length.get() * 100 } else { 0 };
            let missing = self.facts.missing_on_bus.entry(of).or_default();
            *missing = (*missing + due).saturating_sub(had);
        }
        for ((lane_id, of), wait) in &mut self.facts.class_waits {
            if lane_id.is_on_bus() && *lane_id != start.lane_id {
                let share = start.length.get() * u64::from(shares.percent(*of));
                wait.excess = wait.excess.saturating_sub(share);
            }
        }
    }

    fn check_bus_shares(&mut self, start: &ChunkStart, lanes: Lanes) {
        let apart = lanes.chunk().get() * 100 * FAR_APART_CHUNKS;
        for (of, missing) in self.facts.missing_on_bus.clone() {
            self.expect(LINK_SHARES, missing <= apart, || {
                format!(
                    "{of:?} is short of {} bytes of its share of the link that lanes share: {start:?}",
                    missing / 100
                )
            });
        }
    }

    /// The classes that wait in any lane of the shared link.
    fn classes_on_bus(&self) -> impl Iterator<Item = CopyClass> {
        let waits = |class: &CopyClass| {
            self.facts.class_waits.keys().any(|(lane_id, of)| lane_id.is_on_bus() && of == class)
        };
        CopyClass::ALL.into_iter().filter(waits)
    }

    fn check_lane_shares(
        &mut self,
        start: &ChunkStart,
        waits: &BTreeMap<CopyClass, ClassWait>,
        lanes: Lanes,
        is_alone: bool,
    ) {
        for (of, wait) in waits {
            let is_near = is_alone && !wait.with_prefetch;
            let apart = if is_near { APART_CHUNKS } else { FAR_APART_CHUNKS };
            let apart = lanes.chunk().get() * 100 * apart;
            let has_its_share = wait.missing <= apart;
            self.expect(LINK_SHARES, has_its_share || !(is_alone || *of == CopyClass::Demand), || {
                format!("{of:?} is short of {} bytes of its share: {start:?}", wait.missing / 100)
            });
            self.expect(LINK_SHARES, wait.excess <= apart, || {
                format!("{of:?} had {} bytes above its share: {start:?}", wait.excess / 100)
            });
        }
    }

    fn class_wait(&self, lane_id: LaneId, class: CopyClass, now: Time) -> ClassWait {
        let new = ClassWait { since: now, passed: 0, last: now, with_prefetch: false, missing: 0, excess: 0 };
        self.facts.class_waits.get(&(lane_id, class)).copied().unwrap_or(new)
    }

    /// The classes of these copies, as ordered or hastened.
    fn classes_of(&self, copies: &[ExtentId]) -> Vec<CopyClass> {
        let classes = copies.iter().filter_map(|to| self.facts.copies.get(to).copied());
        let mut classes: Vec<_> = classes.collect();
        classes.sort();
        classes.dedup();
        classes
    }
}
