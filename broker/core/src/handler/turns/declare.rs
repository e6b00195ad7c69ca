//! Working sets are taken and ended.

use std::collections::BTreeSet;

use vramd_types::{AllocationId, SessionId};

use crate::{
    broker::Broker,
    command::{Caller, Command, DaemonFrame, Notice},
    error::Refusal,
    event::{Kind, PartRef},
    limits::{WORKING_SET_ALLOCATIONS_MAX, WORKING_SET_PARTS_MAX, WORKING_SETS_PER_SESSION_MAX},
    residency::{AllocationState, MapState},
    turns::{TurnEnd, WorkingSet, WorkingSetSpec},
};

impl Broker {
    /// Takes a working set, or refuses it.
    pub(crate) fn on_working_set(
        &mut self,
        id: SessionId,
        number: u64,
        spec: WorkingSetSpec,
    ) -> Result<(), String> {
        let session = self.sessions.get_mut(id);
        let Some(words) = session.and_then(|session| session.words.as_mut()) else {
            return Err("a working set in a session without pins".to_owned());
        };
        if let Some(last) = words.last_set.filter(|last| number <= *last) {
            return Err(format!("working set {number} after {last}"));
        }
        let count = spec.allocations.len();
        if count > WORKING_SET_ALLOCATIONS_MAX {
            return Err(format!(
                "a working set of {count} allocations: at most {WORKING_SET_ALLOCATIONS_MAX} are allowed"
            ));
        }
        words.last_set = Some(number);
        let refusal = match self.check_working_set(id, spec) {
            Ok(set) => {
                self.sessions.turns.insert_set((id, number), set);
                None
            }
            Err(refusal) => Some(refusal),
        };
        self.answer_working_set(id, number, refusal);
        Ok(())
    }

    /// Ends a set for its client. It may have been refused.
    pub(crate) fn on_working_set_ended(&mut self, id: SessionId, number: u64) -> Result<(), String> {
        self.check_set_number(id, number)?;
        if self.sessions.turns.get(id).is_some_and(|turn| turn.set == number) {
            self.end_turn(id, TurnEnd::Yielded);
        }
        self.sessions.turns.remove_set((id, number));
        Ok(())
    }

    pub(super) fn check_set_number(&self, id: SessionId, number: u64) -> Result<(), String> {
        let words = self.sessions.get(id).and_then(|session| session.words.as_ref());
        match words.and_then(|words| words.last_set).is_none_or(|last| number > last) {
            true => Err(format!("working set {number} was never declared")),
            false => Ok(()),
        }
    }

    fn answer_working_set(&mut self, id: SessionId, number: u64, refusal: Option<Refusal>) {
        let Some(session) = self.sessions.get(id) else { return };
        let channel = session.channel;
        if let Some(refusal) = refusal.clone() {
            let by = Caller::Session { session: id, tenant: self.tenants.shared(session.tenant) };
            self.push_notice(Notice::Refused { by, request: "WorkingSet", refusal });
        }
        self.push_command(Command::Send { channel, frame: DaemonFrame::WorkingSet { number, refusal } });
    }

    fn check_working_set(&self, id: SessionId, spec: WorkingSetSpec) -> Result<WorkingSet, Refusal> {
        let invalid = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        let session = self.sessions.get(id).filter(|session| !session.ending);
        let tenant = session.ok_or(Refusal::SessionLost { session: id })?.tenant;
        if !vramd_types::name::is_valid(&spec.name) {
            return Err(Refusal::NameInvalid { field: "name", name: spec.name });
        }
        if self.sessions.turns.sets_of(id).any(|(_, set)| *set.name == spec.name) {
            return invalid("name", "the session has a working set of that name. End that one first");
        }
        if self.sessions.turns.sets_of(id).count() >= WORKING_SETS_PER_SESSION_MAX {
            return Err(Refusal::QueueFull { limit: WORKING_SETS_PER_SESSION_MAX });
        }
        let (mut device, mut members, mut parts) = (None, BTreeSet::new(), 0usize);
        for allocation in spec.allocations {
            let entry = self.find_member(id, allocation)?;
            if *device.get_or_insert(entry.device) != entry.device {
                return invalid(
                    "allocations",
                    "they lie on several devices. Make one working set for each device",
                );
            }
            if !members.insert(allocation) {
                return invalid("allocations", "one is named twice");
            }
            parts = parts.saturating_add(entry.indices().count());
            if parts > WORKING_SET_PARTS_MAX {
                return invalid(
                    "allocations",
                    "they have more than 16384 parts. Allocate them with larger parts",
                );
            }
        }
        let Some(device) = device else { return invalid("allocations", "there are none") };
        let (name, members) = (spec.name.into(), members.into_iter().collect());
        Ok(WorkingSet { tenant, device, name, members, granted: 0, held: std::time::Duration::ZERO })
    }

    /// All parts of a set, in order.
    pub(super) fn parts_of_set(&self, set: &WorkingSet) -> Result<Vec<PartRef>, Refusal> {
        let mut parts = Vec::new();
        for allocation in set.members.iter().copied() {
            let not_found = || Refusal::AllocationNotFound { allocation: allocation.to_string() };
            let entry = self.allocations.get(allocation).ok_or_else(not_found)?;
            parts.extend(entry.indices().map(|part| PartRef { allocation, part }));
        }
        Ok(parts)
    }

    /// An allocation that can be in a working set of the session: it moves, and the session maps it.
    fn find_member(
        &self,
        id: SessionId,
        allocation: AllocationId,
    ) -> Result<&crate::residency::Allocation, Refusal> {
        let not_found = || Refusal::AllocationNotFound { allocation: allocation.to_string() };
        let first = PartRef { allocation, part: vramd_types::PartIndex(0) };
        let is_mapped = self.map_state(id, first).is_some_and(|state: MapState| !state.is_leaving());
        let entry = self.allocations.get(allocation).ok_or_else(not_found)?;
        match entry.kind {
            Kind::Managed if entry.owner == Some(id) => {
                Err(Refusal::KindUnsupported { kind: "grouped managed" })
            }
            Kind::Fixed if is_mapped => Err(Refusal::KindUnsupported { kind: "grouped fixed" }),
            _ if !is_mapped || entry.state == AllocationState::Freeing => Err(not_found()),
            _ => Ok(entry),
        }
    }
}
