//! All working sets that have not ended, and the turns on them.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{DeviceIndex, SessionId};

use super::{SetId, Turn, WorkingSet};
use crate::{
    error::Refusal,
    tenancy::{PinId, TenantId},
    time::Time,
};

#[derive(Debug, Default)]
pub(crate) struct Turns {
    sets: BTreeMap<SetId, WorkingSet>,
    turns: BTreeMap<SessionId, Turn>,
    /// The time that each tenant held turns that have ended, divided by its weight.
    settled: BTreeMap<(DeviceIndex, TenantId), u128>,
    /// Answers of the daemon's own pin calls that were not taken yet.
    answers: Vec<(PinId, Option<Refusal>)>,
    arrivals: u64,
    /// When turns are due to be looked at, if no event comes before.
    pub(crate) alarm: Option<Time>,
}

impl Turns {
    /// Whether no session wants or has a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether a turn waits until its set fits.
    pub(crate) fn has_waiting(&self) -> bool {
        self.turns.values().any(Turn::is_waiting)
    }

    pub(crate) fn set(&self, id: SetId) -> Option<&WorkingSet> {
        self.sets.get(&id)
    }

    pub(crate) fn set_mut(&mut self, id: SetId) -> Option<&mut WorkingSet> {
        self.sets.get_mut(&id)
    }

    pub(crate) fn sets(&self) -> impl Iterator<Item = (SetId, &WorkingSet)> {
        self.sets.iter().map(|(id, set)| (*id, set))
    }

    pub(crate) fn sets_of(&self, session: SessionId) -> impl Iterator<Item = (SetId, &WorkingSet)> {
        let of_session = self.sets.range((session, 0)..=(session, u64::MAX));
        of_session.map(|(id, set)| (*id, set))
    }

    pub(crate) fn insert_set(&mut self, id: SetId, set: WorkingSet) {
        self.sets.insert(id, set);
    }

    pub(crate) fn remove_set(&mut self, id: SetId) -> Option<WorkingSet> {
        self.sets.remove(&id)
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&Turn> {
        self.turns.get(&session)
    }

    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut Turn> {
        self.turns.get_mut(&session)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Turn)> {
        self.turns.iter().map(|(session, turn)| (*session, turn))
    }

    /// The devices on which a session wants or has a turn.
    pub(crate) fn devices(&self) -> BTreeSet<DeviceIndex> {
        self.turns.values().map(|turn| turn.device).collect()
    }

    /// The turns of a device.
    pub(crate) fn on(&self, device: DeviceIndex) -> impl Iterator<Item = (SessionId, &Turn)> {
        self.iter().filter(move |(_, turn)| turn.device == device)
    }

    pub(crate) fn insert(&mut self, session: SessionId, turn: Turn) {
        self.turns.insert(session, turn);
    }

    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Turn> {
        self.turns.remove(&session)
    }

    /// The next part of the set of a waiting turn is there, or on its way.
    pub(crate) fn pass_part(&mut self, session: SessionId) {
        if let Some(turn) = self.turns.get_mut(&session) {
            turn.looked_at = turn.looked_at.saturating_add(1);
        }
    }

    pub(crate) const fn next_arrival(&mut self) -> u64 {
        self.arrivals = self.arrivals.saturating_add(1);
        self.arrivals
    }

    /// `None` for a tenant that has held no turn there since the device last was without turns.
    pub(crate) fn settled(&self, device: DeviceIndex, tenant: TenantId) -> Option<u128> {
        self.settled.get(&(device, tenant)).copied()
    }

    /// Forgets what tenants used of devices where no session wants or has a turn.
    pub(crate) fn forget_unwanted(&mut self) {
        let wanted = self.devices();
        self.settled.retain(|(device, _), _| wanted.contains(device));
    }

    pub(super) fn settle(&mut self, device: DeviceIndex, tenant: TenantId, used: u128) {
        self.settled.insert((device, tenant), used);
    }

    /// Leaves the answer of a pin call of the daemon's own.
    pub(crate) fn report_answer(&mut self, call: PinId, refusal: Option<Refusal>) {
        self.answers.push((call, refusal));
    }

    pub(crate) fn take_answers(&mut self) -> Vec<(PinId, Option<Refusal>)> {
        std::mem::take(&mut self.answers)
    }
}
