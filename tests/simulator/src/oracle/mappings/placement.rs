//! Parts in host memory that a session wants: the daemon says by which sum they move or are read there.

use broker_core::{PartRef, PlacementSum, Tier, invariants::PLACEMENT};

use crate::oracle::Oracle;

impl Oracle {
    /// Checks a decision, and learns where the part is read.
    pub(crate) fn record_placement(&mut self, part: PartRef, sum: &PlacementSum, in_place: bool) {
        let (benefit, cost) = (sum.benefit.as_micros() * 100, sum.cost.as_micros() * u128::from(sum.factor));
        self.expect(PLACEMENT, in_place == (benefit <= cost), || {
            format!("{part:?} is read in place: {in_place}, by {sum:?}")
        });
        let is_possible = [100, 150, 200].contains(&sum.factor) && sum.expected_uses >= 100;
        self.expect(PLACEMENT, is_possible, || format!("{part:?} is placed by {sum:?}"));
        let has_pattern = self.has_pattern(part);
        self.expect(PLACEMENT, has_pattern, || format!("{part:?} is placed by {sum:?}, and has no pattern"));
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

    /// The part is to be unmapped where it is read, like one that is no longer advised to be accessed there.
    pub(crate) fn record_read_in_place_end(&mut self, part: PartRef) {
        let was_read = self.facts.read_in_place.remove(&part);
        self.expect(PLACEMENT, was_read, || format!("{part:?} is no longer read in place, and never was"));
        if self.may_need_unmap(part) {
            self.facts.in_place_to_unmap.insert(part);
        }
    }
}
