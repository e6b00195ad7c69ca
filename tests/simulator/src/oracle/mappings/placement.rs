//! Parts in host memory that a session wants: the daemon says by which sum they move or are read there.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{PartRef, Pattern, PlacementSum, Tier, Time, invariants::PLACEMENT};
use vramd_types::ExtentId;

use crate::oracle::{Oracle, prefetch::Told};

/// The time to map a part anew, and the bytes that a device reads in its own memory in a microsecond.
const REMAP: Duration = Duration::from_micros(200);
const LOCAL_BYTES_PER_MICROSECOND: u64 = 2_000_000;

/// The copies from host memory to one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkFacts {
    /// When those under way began.
    began: BTreeMap<ExtentId, Time>,
    last_end: Option<Time>,
    /// The least and the most microseconds that each terabyte has taken.
    least: Option<u128>,
    most: u128,
}

impl LinkFacts {
    /// Whether so many bytes may take that long, by a mean of the copies so far.
    fn may_take(&self, bytes: u64, time: Duration) -> bool {
        let Some(least) = self.least else { return false };
        let of = |rate: u128| rate * u128::from(bytes) / 1_000_000_000_000;
        // Both sides have lost fractions of a microsecond.
        let (from, to) = (of(least) * 98 / 100, of(self.most) * 102 / 100 + 2);
        (from.saturating_sub(1)..=to).contains(&time.as_micros())
    }
}

impl Oracle {
    /// Checks a decision, and learns where the part is read.
    pub(crate) fn record_placement(&mut self, part: PartRef, sum: &PlacementSum, in_place: bool) {
        let (benefit, cost) = (sum.benefit.as_micros() * 100, sum.cost.as_micros() * u128::from(sum.factor));
        self.expect(PLACEMENT, in_place == (benefit <= cost), || {
            format!("{part:?} is read in place: {in_place}, by {sum:?}")
        });
        let is_possible = [100, 150, 200].contains(&sum.factor) && sum.expected_uses >= 100;
        self.expect(PLACEMENT, is_possible, || format!("{part:?} is placed by {sum:?}"));
        let pattern = self.pattern_to_place_by(part);
        self.expect(PLACEMENT, pattern.is_some(), || {
            format!("{part:?} is placed by {sum:?}, and has no pattern")
        });
        self.check_sum(part, sum, pattern);
        let lies = self.tier_of(part);
        self.expect(PLACEMENT, lies.is_none_or(|tier| tier == Tier::Host), || {
            format!("{part:?} is placed by {sum:?}, and lies in {lies:?}")
        });
        if in_place {
            self.facts.read_in_place.insert(part);
            self.facts.in_place_to_unmap.remove(&part);
        } else {
            self.facts.read_in_place.remove(&part);
        }
    }

    /// Checks the terms of a sum against the copies so far.
    fn check_sum(&mut self, part: PartRef, sum: &PlacementSum, pattern: Option<Pattern>) {
        let Some(allocation) = self.facts.allocations.get(&part.allocation) else { return };
        let (device, Some(bytes)) = (allocation.device, self.size_of(part)) else { return };
        let copy = sum.cost.saturating_sub(REMAP);
        let is_measured = self.facts.links.get(&device).is_some_and(|link| link.may_take(bytes, copy));
        self.expect(PLACEMENT, is_measured, || {
            format!("{part:?} of {bytes} bytes is placed by {sum:?}, and copies took otherwise")
        });
        let reads_one_of = if pattern == Some(Pattern::Sparse) { 16 } else { 1 };
        let local = Duration::from_micros(bytes / LOCAL_BYTES_PER_MICROSECOND);
        let benefit = copy.saturating_sub(local) / reads_one_of * sum.expected_uses / 100;
        self.expect(PLACEMENT, sum.benefit == benefit, || {
            format!("{part:?} is placed by {sum:?}, and the benefit is {benefit:?}")
        });
    }

    /// A copy to a device begins.
    pub(crate) fn record_link_copy(&mut self, from: ExtentId, to: ExtentId) {
        let tier_of = |id| {
            self.facts.extents.get(&id).map(|extent| (extent.place, self.facts.places[extent.place].tier))
        };
        if let (Some((_, Tier::Host)), Some((device, Tier::Device))) = (tier_of(from), tier_of(to)) {
            self.facts.links.entry(device).or_default().began.insert(to, self.facts.now);
        }
    }

    /// It has ended. `arrived`: the part is on its device. Of copies that overlap, each counts from the end of the one
    /// before.
    pub(crate) fn record_link_copy_end(&mut self, to: ExtentId, part: PartRef, arrived: bool) {
        let (now, bytes) = (self.facts.now, self.size_of(part));
        for link in self.facts.links.values_mut() {
            let Some(began) = link.began.remove(&to) else { continue };
            let Some(bytes) = bytes.filter(|_| arrived) else { continue };
            let took = now.since(link.last_end.map_or(began, |last| last.max(began))).as_micros().max(1);
            let rate = took * 1_000_000_000_000 / u128::from(bytes.max(1));
            link.last_end = Some(now);
            link.least = Some(link.least.map_or(rate, |least| least.min(rate)));
            link.most = link.most.max(rate);
        }
    }

    /// Checks that parts are read in place only as long as the sum applies to them. A pin call may count on it.
    pub(crate) fn check_read_in_place(&mut self) {
        let names = |part: &PartRef| {
            let mut calls = self.facts.sessions.values().flat_map(|session| session.pin_calls.values());
            calls.any(|call| call.parts.contains(part))
        };
        let is_requested = |part: &PartRef| {
            let mut requests =
                self.facts.prefetches.requests.values().filter(|request| request.told != Told::End);
            requests.any(|request| request.spec.parts.contains(part))
                || self.facts.prefetches.sequences.is_named(*part)
        };
        let is_advised = |part: &PartRef| {
            self.facts.allocations.get(&part.allocation).is_some_and(|allocation| allocation.in_place)
        };
        let applies = |part: &PartRef| {
            self.pattern_to_place_by(*part).is_some()
                && !self.facts.operator_holds.contains(part)
                && !is_requested(part)
                && !is_advised(part)
        };
        let is_settled = |part: &PartRef| {
            let allocation = self.facts.allocations.get(&part.allocation);
            allocation.is_some_and(|allocation| !allocation.leaving && !allocation.freed)
        };
        let mut chosen = self.facts.read_in_place.iter().filter(|part| is_settled(part));
        let stale = chosen.find(|part| !applies(part) && !names(part)).copied();
        self.expect(PLACEMENT, stale.is_none(), || {
            format!("{stale:?} goes on being read in place, and the sum does not apply to it")
        });
    }

    /// The part is to be unmapped where it is read, like one that is no longer advised to be accessed there.
    pub(crate) fn record_read_in_place_end(&mut self, part: PartRef) {
        let was_read = self.facts.read_in_place.remove(&part);
        self.expect(PLACEMENT, was_read, || format!("{part:?} is no longer read in place, and never was"));
        self.record_prefetched_in_place([part]);
        // Its owner may have advised by now that it is read there.
        if !self.is_advised(part) && self.may_need_unmap(part) {
            self.facts.in_place_to_unmap.insert(part);
        }
    }
}
