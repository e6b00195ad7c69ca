//! Who waits for room, as operators see it: in the order of asking, and told to wait no more.

use super::{Start, Started};
use crate::{
    broker::Broker,
    error::Refusal,
    event::PartRef,
    migration::{Migration, Waiter},
    tenancy::{Arrival, Outcome},
    time::Time,
    view::{MoveView, WaitView, Waiting},
};

impl Broker {
    /// What waits, in the order of asking.
    pub fn waits(&self) -> Vec<WaitView> {
        self.demands
            .iter()
            .filter_map(|(id, demand)| self.wait_view(id, demand.waiter, demand.since))
            .collect()
    }

    fn wait_view(&self, id: Arrival, waiter: Waiter, since: Time) -> Option<WaitView> {
        let Waiter::Part(part) = waiter else { return None };
        let allocation = self.allocations.get(part.allocation)?;
        Some(WaitView {
            id: id.get(),
            device: self.uuid(allocation.device).to_owned(),
            tenant: self.tenants.name(allocation.tenant).to_owned(),
            what: Waiting::Part { part, sessions: self.wanting(part) },
            bytes: allocation.size_of(part.part),
            since,
            until: None,
        })
    }

    /// What is on its way between tiers.
    pub fn moves(&self) -> Vec<MoveView> {
        self.migrations.iter().filter_map(|(part, migration)| self.move_view(*part, migration)).collect()
    }

    fn move_view(&self, part: PartRef, migration: &Migration) -> Option<MoveView> {
        let allocation = self.allocations.get(part.allocation)?;
        Some(MoveView {
            part,
            tenant: self.tenants.name(allocation.tenant).to_owned(),
            device: self.uuid(allocation.device).to_owned(),
            to: migration.towards,
            bytes: allocation.size_of(part.part),
            cause: migration.cause,
            state: migration.state,
            since: migration.since,
            extent: migration.to,
        })
    }

    /// An operator has somebody wait no more: who pins the part is refused, and who was to be sent it keeps it away.
    pub(crate) fn cancel_wait(&mut self, wait: u64) -> Start {
        let waiter = self.demands.find(Arrival::from_raw(wait)).ok_or(Refusal::WaitNotFound { wait })?;
        let why = Refusal::WaitCancelled { wait };
        match waiter {
            Waiter::Part(part) => {
                self.comers.remove(&part);
                for (_, call) in self.pins.lacking(part).collect::<Vec<_>>() {
                    self.refuse_pin(call, why.clone());
                }
            }
            Waiter::Batch(op) => self.finish(op, Err(why)),
        }
        self.demands.remove(waiter);
        self.unsettled.demands = true;
        Ok(Started::Done(Outcome::WaitCancelled))
    }
}
