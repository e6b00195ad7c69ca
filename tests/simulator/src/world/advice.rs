//! Owners that advise how their memory is used.

use broker_core::{Advice, ClientRequest, Tier};
use vramd_types::{AllocationId, ExtentId};

use super::World;
use crate::{coverage::InPlaceStep, dice::Dice};

impl World {
    /// Whether a process that would make a request gives advice instead.
    pub(super) fn chooses_advice(&self, dice: &mut Dice) -> bool {
        self.scenario.advising.is_some_and(|advising| dice.chance(advising.rate))
    }

    pub(super) fn some_advice(&self, id: AllocationId, dice: &mut Dice) -> ClientRequest {
        let sets = self.scenario.advising.map_or(0, |advising| advising.sets);
        let advice = if dice.chance(sets) { Advice::SetAccessedBy } else { Advice::UnsetAccessedBy };
        ClientRequest::Advise(id, advice)
    }

    /// Counts that a client has just mapped the extent in host memory, or written to it there.
    pub(super) fn record_in_place_use(&mut self, extent: ExtentId, step: InPlaceStep) {
        if self.driver.pieces.get(&extent).is_some_and(|piece| piece.tier == Tier::Host) {
            self.driver.in_place.insert(extent);
            self.coverage.count_step(step);
        }
    }

    /// Counts that content that was mapped in host memory has moved to another extent.
    pub(super) fn record_left_host(&mut self, extent: ExtentId) {
        if self.driver.in_place.remove(&extent) {
            self.coverage.count_step(InPlaceStep::Left);
        }
    }
}
