//! Orders for managed memory. The daemon decides that pages go to the device or to the host, and their client executes
//! it, since advice and prefetches act in the process of the memory alone.
//!
//! The charge stays on the device, wherever the memory was ordered: page faults may bring it back at any time. An order
//! to the device is refused while the tenant's memory there would exceed its limit with it, as after an operator has
//! lowered the limit.

use vramd_types::{AllocationId, Bytes, DeviceIndex, SessionId};

use crate::{
    broker::Broker,
    command::{Command, DaemonFrame, Notice},
    error::Refusal,
    event::{Target, Tier},
    ledger::Place,
    residency::{Allocation, EndedOrder},
};

impl Broker {
    /// Orders managed memory to its device or to the host.
    pub(crate) fn order_managed(&mut self, id: AllocationId, to: Tier) -> Result<(), Refusal> {
        if to == Tier::Disk {
            return Err(Refusal::TierUnsupported { tier: to });
        }
        let (_, allocation) = self.find_settled(&Target::Id(id))?;
        let device = allocation.device;
        let session = self.executor_of(id, allocation)?;
        if to == Tier::Device {
            let fits = self.check_order_fits(id, allocation);
            planted!(self, ManagedOrderUnbounded => fits = Ok(()));
            fits?;
        }
        self.push_notice(Notice::ManagedOrdered { allocation: id, session, to });
        self.allocations.managed.order(id, to);
        planted!(self, ManagedOrderTakenAsDone => self.allocations.managed.set_ordered(id, to));
        self.send_orders(session, device);
        Ok(())
    }

    /// The session that executes orders for the memory.
    fn executor_of(&self, id: AllocationId, allocation: &Allocation) -> Result<SessionId, Refusal> {
        let not_found = || Refusal::AllocationNotFound { allocation: id.to_string() };
        let owner = allocation.owner.ok_or_else(not_found)?;
        let session = self.sessions.get(owner).filter(|session| session.is_connected());
        match session.ok_or(Refusal::SessionLost { session: owner })?.takes_orders {
            true => Ok(owner),
            false => Err(Refusal::KindUnsupported { kind: "ordered managed" }),
        }
    }

    /// Checks that no more of the tenant may be on the device than its limit, once the memory is. All that is charged there
    /// may be, except managed memory that was ordered to the host.
    fn check_order_fits(&self, id: AllocationId, allocation: &Allocation) -> Result<(), Refusal> {
        let (tenant, place) = (allocation.tenant, Place::device(allocation.device));
        let Some(account) = self.ledger.account(tenant, place) else { return Ok(()) };
        let on_host = self.allocations.managed.sums_of(tenant, place).on_host;
        let is_on_host = self.allocations.managed.view(id).is_some_and(|it| it.ordered == Some(Tier::Host));
        let bytes = self.allocations.managed.bytes_of(id);
        let staying = account.charged().saturating_sub(on_host);
        let coming = if is_on_host { bytes } else { Bytes::ZERO };
        if staying.saturating_add(coming) <= account.limit {
            return Ok(());
        }
        Err(Refusal::QuotaLimit {
            tenant: self.tenants.name(tenant).to_owned(),
            device: self.uuid(place.device).to_owned(),
            tier: place.tier,
            limit: account.limit,
            charged: staying,
            requested: bytes,
            is_whole_tier: false,
        })
    }

    /// Sends the orders that wait, unless the client still has others to answer.
    fn send_orders(&mut self, session: SessionId, device: DeviceIndex) {
        let Some(channel) = self.sessions.get(session).map(|session| session.channel) else { return };
        if let Some((number, orders)) = self.allocations.managed.next_batch(session, device) {
            self.push_command(Command::Send {
                channel,
                frame: DaemonFrame::ManagedOrders { number, orders },
            });
        }
    }

    /// The client has executed a batch of orders, except those that failed.
    pub(crate) fn on_orders_done(
        &mut self,
        session: SessionId,
        number: u64,
        failed: Vec<(AllocationId, String)>,
    ) -> Result<(), String> {
        let (device, ended) = self.allocations.managed.end_batch(session, number, failed)?;
        planted!(self, ManagedAnswerOfNewest => self.take_answer_for_newest(&ended));
        let Some(tenant) = self.sessions.get(session).map(|session| session.tenant) else { return Ok(()) };
        for EndedOrder { allocation, to, problem } in ended {
            let tenant = self.tenants.shared(tenant);
            self.push_notice(Notice::ManagedOrderEnded { allocation, session, tenant, to, problem });
        }
        self.send_orders(session, device);
        Ok(())
    }
}
