//! Effort: no part leaves that need not. Pressure evicts until its target is reached, and waiters have evicted what
//! they need and no more.
//!
//! The core chooses one victim after the other and stops as soon as that is enough. So the last one was necessary:
//! if it would have been enough without any single one of them, whichever was the last, too many were chosen.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{Broker, Cause, MoveView, PartRef, Tier, WaitView, invariants::EFFORT};

use crate::oracle::{
    Oracle,
    facts::{ExtentFacts, ExtentPhase, Tenant},
    line::{needs::WaiterNeeds, room::Requested, waiting::Leavable},
    sessions::silences::Doubt,
};

/// A part that began to leave a place in this event, or left at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    part: PartRef,
    place: usize,
    tenant: Tenant,
    bytes: u64,
    cause: Cause,
    /// Its extent was handed to another part of its tenant, or cached for one, and is no longer charged to it.
    is_handed_over: bool,
}

impl Oracle {
    /// Records a part that has left a tier, if it began to in this event.
    pub(crate) fn record_left_at_once(&mut self, part: PartRef, tier: Tier, cause: Cause, is_new: bool) {
        // No session was sent it, so nothing here knows where it lay.
        self.step.left_from_unknown |= is_new && self.tier_of(part).is_none();
        if let Some(victim) = self.victim(part, tier, cause).filter(|_| is_new) {
            let extent =
                self.facts.allocations.get(&part.allocation).and_then(|it| it.parts.get(&part.part.0));
            let is_handed_over = extent.is_some_and(|extent| !self.step.released.contains(extent));
            self.step.left_at_once.push(Victim { is_handed_over, ..victim });
        }
    }

    /// The part as a victim, if it leaves for a lower tier.
    fn victim(&self, part: PartRef, to: Tier, cause: Cause) -> Option<Victim> {
        let from = self.tier_of(part).filter(|from| *from < to)?;
        let allocation = self.facts.allocations.get(&part.allocation)?;
        let (place, bytes) = (self.facts.place(allocation.device, from)?, self.size_of(part)?);
        let tenant = allocation.tenant;
        Some(Victim { part, place, tenant, bytes, cause, is_handed_over: false })
    }

    pub(crate) fn check_effort(&mut self, line: &[WaitView], broker: &Broker) {
        let left = std::mem::take(&mut self.step.left_at_once);
        if left.is_empty() && !self.step.began_to_move {
            return;
        }
        let moves = broker.moves();
        let is_new = |it: &&MoveView| it.since == self.facts.now && it.cause != Cause::WriteBack;
        let moving = moves.iter().filter(is_new).filter_map(|it| self.victim(it.part, it.to, it.cause));
        // A part may have left for a request after room was planned for waiters.
        let left_for_prefetches: BTreeSet<usize> =
            left.iter().filter(|it| it.cause == Cause::Prefetch).map(|it| it.place).collect();
        let mut by_place: BTreeMap<(usize, bool), Vec<Victim>> = BTreeMap::new();
        let mut for_prefetches = Vec::new();
        for victim in moving.chain(left) {
            match victim.cause {
                Cause::Pressure => by_place.entry((victim.place, true)).or_default().push(victim),
                Cause::Demand => by_place.entry((victim.place, false)).or_default().push(victim),
                Cause::Prefetch => {
                    for_prefetches.push(victim);
                }
                Cause::WriteBack | Cause::Rebalance | Cause::Operator | Cause::Owner | Cause::Speculation => {
                }
            }
        }
        let leaving: BTreeSet<PartRef> = by_place.values().flatten().map(|victim| victim.part).collect();
        for victim in by_place.values().flatten().filter(|victim| victim.cause == Cause::Demand) {
            let of = (victim.part, victim.tenant, victim.place);
            self.check_advised_order(of, &leaving, |_, _| true);
            self.check_sequence_order(of, &leaving, |_, _| true);
            self.check_turn_order(of, &leaving, broker);
        }
        let leaving: BTreeSet<PartRef> =
            leaving.into_iter().chain(for_prefetches.iter().map(|victim| victim.part)).collect();
        for victim in &for_prefetches {
            let of = (victim.part, victim.tenant, victim.place);
            self.check_advised_order(of, &leaving, |oracle, other| {
                oracle.leaves_for_requests(other, of, broker)
            });
            self.check_sequence_order(of, &leaving, |oracle, other| {
                oracle.leaves_for_requests(other, of, broker)
                    && oracle.is_needed_behind_requests((other, victim.tenant, victim.place), broker)
            });
            self.check_prefetch_victim(of, broker);
        }
        for victim in by_place.values().flatten().chain(&for_prefetches) {
            let is_on_device = self.facts.places[victim.place].tier == Tier::Device;
            if is_on_device && matches!(victim.cause, Cause::Pressure | Cause::Prefetch) {
                self.check_class_order(
                    (victim.part, victim.tenant, victim.place),
                    victim.cause,
                    &leaving,
                    broker,
                );
            }
        }
        for ((place, for_pressure), victims) in &by_place {
            // A waiter may have the extent of a part that pressure evicted after room was planned.
            let is_handed_over =
                by_place.get(&(*place, true)).is_some_and(|of| of.iter().any(|it| it.is_handed_over));
            match for_pressure {
                true => self.check_pressure_effort(*place, victims, &moves),
                false if is_handed_over || left_for_prefetches.contains(place) => {}
                false => self.check_waiters_effort(*place, victims, line, &moves),
            }
        }
    }

    /// Checks that the last victim of pressure was chosen above the target.
    fn check_pressure_effort(&mut self, place: usize, victims: &[Victim], moves: &[MoveView]) {
        // Memory that a session in doubt has to unmap comes last, though it is leaving.
        if self.step.settings_changed || self.step.quotas_changed || self.is_any_in_doubt() {
            return;
        }
        let before = self.leaving_before(place, moves, true);
        let target = u128::from(self.capacity(place)) * u128::from(self.bounds().evict_to_percent) / 100;
        let charged = u128::from(self.charged_to_all(place).0);
        // Pressure starts again once another part took an extent that it had freed.
        let still_held: Vec<_> = victims.iter().copied().filter(|it| !it.is_handed_over).collect();
        let is_enough_without = |last: &Victim| {
            let leaving = leaving_with(&before, &still_held, last);
            let counted: u64 = leaving.into_iter().map(|(of, bytes)| self.counted(of, place, bytes)).sum();
            charged.saturating_sub(u128::from(counted)) <= target
        };
        let too_many = victims.iter().all(is_enough_without);
        self.expect(EFFORT, !too_many, || {
            format!(
                "place {place} has {charged} charged, {before:?} leaving, and evicts to {target}: {victims:?}"
            )
        });
    }

    /// Bytes of a tenant that the core certainly counts as leaving: on a device no more than it has above its
    /// guarantee.
    fn counted(&self, tenant: Tenant, place: usize, leaving: u64) -> u64 {
        match self.facts.places[place].tier {
            Tier::Device => {
                let guarantee = self.quota_now(tenant, place).0;
                leaving.min(self.facts.charged(tenant, place).saturating_sub(guarantee))
            }
            Tier::Host | Tier::Disk => leaving,
        }
    }

    /// Checks that the last victim was chosen while the waiters of the device, all together, were short of room.
    fn check_waiters_effort(
        &mut self,
        device: usize,
        victims: &[Victim],
        line: &[WaitView],
        moves: &[MoveView],
    ) {
        // A batch for which room was made may then be refused because too many extents exist.
        let is_refused = self.facts.extents_ran_out || self.step.too_many_refused;
        let is_changed = self.step.quotas_changed || self.step.settings_changed;
        let is_unsure = is_refused || is_changed || self.step.left_from_unknown;
        let Some(mut requested) = self.requested_of_all(device, line).filter(|_| !is_unsure) else { return };
        let mut before = self.leaving_before(device, moves, false);
        // Bytes that were taken in this event were requested before.
        for ((tenant, _), bytes) in self.step.taken.iter().filter(|((_, on), _)| *on == device) {
            *requested.entry(*tenant).or_default() += bytes;
            *before.entry(*tenant).or_default() += bytes;
        }
        self.check_helps(device, victims, line, moves);
        // Memory that was handed over has left the charge already.
        let still_held: Vec<_> = victims.iter().copied().filter(|it| !it.is_handed_over).collect();
        let is_enough_without = |last: &Victim| {
            let stays = last.is_handed_over.then_some((last.tenant, last.bytes));
            self.fits_together(device, &requested, &leaving_with(&before, &still_held, last), stays)
        };
        let too_many = victims.iter().all(is_enough_without);
        self.expect(EFFORT, !too_many, || {
            format!("the waiters of device {device} request {requested:?}, {before:?} is leaving, and more is evicted: {victims:?}")
        });
    }

    /// Checks that parts leave only if that helps: with all that may be leaving, at least one waiter has room, or the
    /// batch would have that arrived in this event.
    fn check_helps(&mut self, device: usize, victims: &[Victim], line: &[WaitView], moves: &[MoveView]) {
        if self.step.taken.keys().any(|(_, on)| *on == device) {
            return;
        }
        let most = self.leaving_at_most(device, moves);
        let batch = self.arrived_batch();
        let mut waiters = line.iter().filter_map(|wait| self.facts.needs.get(&wait.id)).chain(&batch);
        let helped = |needs: &WaiterNeeds| {
            let request = |bytes: &u64| Requested::from([(needs.tenant, *bytes)]);
            let requested = needs.bytes.get(&device).map(request);
            requested.is_some_and(|requested| self.fits_together(device, &requested, &most, None))
        };
        let is_any_helped = waiters.any(helped);
        self.expect(EFFORT, is_any_helped, || {
            format!("parts leave device {device} although that helps no waiter: {victims:?}")
        });
    }

    /// The batch that arrived in this event, unless it has its room. Room was made for it, also if it was refused since.
    fn arrived_batch(&self) -> Option<WaiterNeeds> {
        self.new_batch().or_else(|| self.step.refused_batch.clone())
    }

    /// The requests of all waiters of a device: those that wait, that waited before this event, and a batch that
    /// arrived in it. `None` if that is not known.
    fn requested_of_all(&self, device: usize, line: &[WaitView]) -> Option<Requested> {
        let waits: BTreeSet<_> =
            line.iter().map(|wait| wait.id).chain(self.facts.line.iter().copied()).collect();
        let mut requested = Requested::new();
        for needs in waits.iter().filter_map(|id| self.facts.needs.get(id)) {
            let Some(bytes) = needs.bytes.get(&device) else { continue };
            if !needs.is_known() {
                return None;
            }
            let all = requested.entry(needs.tenant).or_default();
            *all = all.saturating_add(*bytes);
        }
        if let Some(needs) = self.arrived_batch() {
            let all = requested.entry(needs.tenant).or_default();
            *all = all.saturating_add(needs.bytes.get(&device).copied().unwrap_or_default());
        }
        Some(requested)
    }

    /// Bytes that were leaving a place before this event and still are. Cached memory counts only if it is asked
    /// for.
    fn leaving_before(&self, place: usize, moves: &[MoveView], with_cached: bool) -> Leavable {
        let mut leaving = Leavable::new();
        let older = moves.iter().filter(|it| it.since < self.facts.now && it.cause != Cause::WriteBack);
        // Room is not counted on while a session in doubt has to unmap the part.
        let certain = older.filter(|it| with_cached || self.doubt_about(it.part) == Doubt::Nothing);
        let moving = certain.filter_map(|it| self.victim(it.part, it.to, it.cause));
        let moving = moving.filter(|it| it.place == place).map(|it| (it.tenant, it.bytes));
        let is_released = |id: &vramd_types::ExtentId, it: &ExtentFacts| {
            let phase =
                it.phase == ExtentPhase::Releasing || (with_cached && it.phase == ExtentPhase::GivenUp);
            it.place == place && phase && !self.step.released.contains(id)
        };
        let released = self.facts.extents.iter().filter(|(id, it)| is_released(id, it));
        for (tenant, bytes) in moving.chain(released.map(|(_, it)| (it.owner, it.size))) {
            *leaving.entry(tenant).or_default() += bytes;
        }
        leaving
    }
}

/// The bytes that leave with all of the victims but one.
fn leaving_with(before: &Leavable, victims: &[Victim], without: &Victim) -> Leavable {
    let mut leaving = before.clone();
    for victim in victims.iter().filter(|victim| victim.part != without.part) {
        *leaving.entry(victim.tenant).or_default() += victim.bytes;
    }
    leaving
}
