//! Batches of the line: a batch waits only while one of its devices is short, however many it has, and a batch
//! that arrives takes no room that a waiting batch needs.

use std::collections::BTreeSet;

use broker_core::{Broker, Cause, MoveView, PartRef, Tier, WaitView, invariants::LINE_ORDER};
use vramd_types::WaitId;

use super::{
    needs::WaiterNeeds,
    waiting::{Leavable, Shortage},
};
use crate::oracle::Oracle;

impl Oracle {
    /// Checks each batch that no earlier waiter may hold back: it is short on one of its devices, and within its
    /// deadline.
    pub(crate) fn check_first_batches(
        &mut self,
        line: &[WaitView],
        leavable: &[Leavable],
        passed: &BTreeSet<WaitId>,
        broker: &Broker,
    ) {
        let mut held = BTreeSet::new();
        for wait in line.iter().filter(|wait| !passed.contains(&wait.id)) {
            let Some(needs) = self.facts.needs.get(&wait.id) else { continue };
            let leads = !needs.bytes.keys().any(|device| held.contains(device));
            held.extend(needs.bytes.keys().copied());
            if leads && needs.call.is_some() && !self.may_await_move(needs, broker) {
                self.check_first_batch(wait, &needs.clone(), leavable);
            }
        }
    }

    /// Whether a part leaves one of the batch's devices. The facts do not show each such move: one that joined an
    /// operator's revocation goes on when that has ended.
    fn may_await_move(&self, needs: &WaiterNeeds, broker: &Broker) -> bool {
        let leaves = |it: &MoveView| it.from == Tier::Device && it.cause != Cause::WriteBack;
        let mut leaving = broker.moves().into_iter().filter(leaves);
        leaving.any(|it| self.device_of_part(it.part).is_none_or(|device| needs.bytes.contains_key(&device)))
    }

    fn check_first_batch(&mut self, wait: &WaitView, needs: &WaiterNeeds, leavable: &[Leavable]) {
        // Operators may have moved the parts that they had unmapped. After a driver ran out of memory, the core
        // retries only when something has changed.
        let is_unsure = |device: &usize| {
            self.facts.places[*device].surveys_left > 0 || self.is_something_leaving(*device)
        };
        if !self.facts.revoking.is_empty()
            || self.is_resting(needs.key)
            || self.may_lack_extents(needs)
            || needs.bytes.keys().any(is_unsure)
        {
            return;
        }
        let shortage = |(device, bytes): (&usize, &u64)| {
            self.shortage(needs.tenant, *device, *bytes, &leavable[*device])
        };
        let shortages: Vec<_> = needs.bytes.iter().map(shortage).collect();
        let is_short = shortages.iter().any(|shortage| *shortage != Shortage::None);
        let in_time = wait.deadline.is_some_and(|until| until > self.facts.now);
        self.expect(LINE_ORDER, is_short && in_time, || {
            format!(
                "{wait:?} needs {:?} and is short of {shortages:?}, {leavable:?} could leave",
                needs.bytes
            )
        });
    }

    /// Whether the node may have too few extents left for the waiter.
    pub(crate) fn may_lack_extents(&self, needs: &WaiterNeeds) -> bool {
        self.facts.extents.len().saturating_add(needs.extents) > self.limits.extents_max
    }

    /// Whether an earlier batch of the line needs room on the part's device.
    pub(crate) fn is_behind_batch(
        &self,
        part: PartRef,
        line: &[WaitView],
        passed: &BTreeSet<WaitId>,
    ) -> bool {
        let holding = line.iter().filter(|wait| !passed.contains(&wait.id));
        let needs = holding.filter_map(|wait| self.facts.needs.get(&wait.id));
        let device = self.facts.allocations.get(&part.allocation).map(|it| it.device);
        let mut earlier = needs.take_while(|needs| needs.part != Some(part));
        earlier.any(|needs| {
            needs.part.is_none() && device.is_none_or(|device| needs.bytes.contains_key(&device))
        })
    }

    /// The first batch that needs room on a device, has stood in the line over the whole event, and let none pass.
    pub(crate) fn first_batch_on(&self, device: usize, line: &[WaitView], broker: &Broker) -> Option<WaitId> {
        let stood = line.iter().map(|wait| wait.id).filter(|id| self.facts.waits.contains_key(id));
        let needs = |id: &WaitId| {
            let needs = self.facts.needs.get(id);
            needs.is_some_and(|it| it.call.is_some() && it.bytes.contains_key(&device))
        };
        stood.into_iter().find(|id| needs(id) && !self.may_let_pass(*id, broker))
    }
}
