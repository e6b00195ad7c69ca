//! Owners that advise how their memory is used, and operators who overrule them.

use std::time::Duration;

use broker_core::{
    Advice, AdvicePermission, ClientRequest, MemoryClass, OperatorRequest, PartSpan, Pattern, Preset,
    Retention, Target, Tier,
};
use vramd_types::{AllocationId, ExtentId, PartIndex};

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

    /// Whether a process that would make a request says which parts leave first instead.
    pub(super) fn chooses_retention(&self, dice: &mut Dice) -> bool {
        self.scenario.retaining.is_some_and(|retaining| dice.chance(retaining.rate))
    }

    pub(super) fn some_retention(id: AllocationId, dice: &mut Dice) -> ClientRequest {
        let (parts, change) = Self::some_change(dice);
        ClientRequest::Advise(id, Advice::Retain { parts, change })
    }

    /// Forbids or allows the advice of a tenant, and advises about memory of others or clears that.
    pub(super) fn overrule_some(&mut self) {
        let Some(overruling) = self.scenario.overruling else { return };
        let mut dice = Dice::new(self.plan.seed, u64::MAX / 32 + self.operator_acts);
        if dice.chance(overruling.permissions) {
            let tenant = dice.one(&self.scenario.tenants).to_owned();
            let advice = dice.one(&AdvicePermission::ALL);
            if advice.is_forbidden() {
                self.advise_beside(&tenant, &mut dice);
            }
            let request =
                OperatorRequest::SetTenant { tenant, class: None, weight: None, advice: Some(advice) };
            let key = dice.chance(300).then(|| self.new_key());
            self.remember_request(key, &request);
            self.operator_call(key, request);
        }
        if dice.chance(overruling.advice) {
            let (target, _) = self.some_parts(&mut dice);
            let (parts, change) = Self::some_change(&mut dice);
            let change = dice.chance(800).then_some(change);
            let request = OperatorRequest::AdviseParts { target, parts, change };
            let key = dice.chance(300).then(|| self.new_key());
            self.remember_request(key, &request);
            self.operator_call(key, request);
        }
    }

    /// Advises about one part of a tenant whose advice is being forbidden. The other parts rank equally from then on,
    /// before or behind this one.
    fn advise_beside(&mut self, tenant: &str, dice: &mut Dice) {
        let of_tenant = self.processes.values().filter(|it| self.scenario.seats[it.seat].tenant == tenant);
        let own: Vec<_> = of_tenant.flat_map(|it| &it.known).filter(|known| known.own).collect();
        let Some(target) = dice.pick(&own).map(|known| Target::Id(known.id)) else { return };
        let parts = dice.chance(500).then_some(PartSpan { first: PartIndex(0), count: 1 });
        let change = Some(Retention::Importance(Some(dice.one(&[40, 60]))));
        self.operator_call(None, OperatorRequest::AdviseParts { target, parts, change });
    }

    fn some_change(dice: &mut Dice) -> (Option<PartSpan>, Retention) {
        // Small allocations have no such parts.
        let parts = dice.chance(700).then(|| PartSpan {
            first: PartIndex(u32::try_from(dice.roll(4)).unwrap_or(0)),
            count: u32::try_from(dice.roll(4)).unwrap_or(0),
        });
        let classes =
            [MemoryClass::Scratch, MemoryClass::Weights, MemoryClass::Activations, MemoryClass::Cache];
        let patterns = [
            Pattern::Sequential,
            Pattern::Strided,
            Pattern::Window,
            Pattern::Loop,
            Pattern::Loop,
            Pattern::Random,
            Pattern::Sparse,
        ];
        let presets = [Preset::Weights, Preset::KvCache, Preset::Activations, Preset::Staging];
        let mut parts = parts;
        let change = match dice.roll(13) {
            0 | 1 => Retention::Needed(dice.chance(200)),
            2 | 3 => Retention::Class(dice.chance(800).then(|| dice.one(&classes))),
            4 | 5 => Retention::Importance(dice.chance(800).then(|| dice.one(&[0, 10, 50, 90, 100, 101]))),
            6 => Retention::NeededWithin(Duration::from_millis(dice.roll(2000))),
            7 => {
                let tiers = [Tier::Device, Tier::Host, Tier::Disk];
                Retention::Location(dice.chance(800).then(|| dice.one(&tiers)))
            }
            8 => Retention::ReadMostly(dice.chance(800)),
            9..12 => {
                // A pattern orders several parts.
                parts = parts.filter(|_| dice.chance(300));
                Retention::Pattern(dice.chance(900).then(|| dice.one(&patterns)))
            }
            _ => Retention::Preset(dice.one(&presets)),
        };
        (parts, change)
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
