//! Owners who say how their memory is used.

use broker_core::{Advice, ClientRequest, Tier};
use vramd_types::{AllocationId, ExtentId};

use super::World;
use crate::{coverage::PlaceStep, dice::Dice};

impl World {
    /// Whether who would ask for something advises instead.
    pub(super) fn advises(&self, dice: &mut Dice) -> bool {
        self.scenario.advising.is_some_and(|advising| dice.chance(advising.rate))
    }

    pub(super) fn some_advice(&self, id: AllocationId, dice: &mut Dice) -> ClientRequest {
        let sets = self.scenario.advising.map_or(0, |advising| advising.sets);
        let advice = if dice.chance(sets) { Advice::SetAccessedBy } else { Advice::UnsetAccessedBy };
        ClientRequest::Advise(id, advice)
    }

    /// A client has just mapped the extent, or written to it.
    pub(super) fn is_used_in_place(&mut self, extent: ExtentId, step: PlaceStep) {
        if self.driver.pieces.get(&extent).is_some_and(|piece| piece.tier == Tier::Host) {
            self.driver.in_place.insert(extent);
            self.coverage.saw(step);
        }
    }

    /// What it holds is in another extent now.
    pub(super) fn has_left_its_place(&mut self, extent: ExtentId) {
        if self.driver.in_place.remove(&extent) {
            self.coverage.saw(PlaceStep::Left);
        }
    }
}
