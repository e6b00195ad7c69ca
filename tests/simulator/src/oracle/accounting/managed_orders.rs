//! Orders for managed memory: which there are, which client executes them, and where the memory is shown to lie.
//!
//! The oracle takes an order as given by its notice, as sent by its frame, and as executed by the client's answer.

use std::collections::BTreeSet;

use broker_core::{
    Advice, AllocationView, Broker, ChannelId, ClientRequest, ManagedOrder, ManagedView, OperatorRequest,
    Refusal, Retention, Target, Tier,
    invariants::{CALLS, MANAGED_ORDERS},
};
use vramd_types::{AllocationId, SessionId};

use crate::oracle::{
    Oracle,
    facts::{Asked, Call, Tenant},
};

/// The most orders of a frame.
const ORDERS_MAX: usize = 512;

/// The orders of one allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OrderFacts {
    /// Where the last executed order sent it.
    executed: Option<Tier>,
    /// Sent, and not answered.
    sent: Option<Tier>,
    /// Not sent yet.
    waiting: Option<Tier>,
}

/// A frame that was not answered.
#[derive(Clone, Debug)]
pub(crate) struct BatchFacts {
    session: SessionId,
    place: usize,
    number: u64,
    allocations: Vec<AllocationId>,
}

impl OrderFacts {
    /// It lies in the host as far as orders say, and nothing calls it back.
    pub(super) fn is_on_host(&self) -> bool {
        self.executed == Some(Tier::Host)
            && self.sent != Some(Tier::Device)
            && self.waiting != Some(Tier::Device)
    }

    pub(super) fn is_on_device(&self) -> bool {
        self.executed == Some(Tier::Device)
    }

    fn view(&self) -> ManagedView {
        let ordered = self.executed.filter(|_| self.is_on_host() || self.is_on_device());
        ManagedView { ordered, under_way: self.waiting.or(self.sent) }
    }
}

impl Oracle {
    /// Records that the daemon gives an order: it was asked for just now, and its tenant may have the memory there.
    pub(crate) fn record_managed_order(&mut self, id: AllocationId, session: SessionId, to: Tier) {
        let Some(facts) = self.facts.managed.get(&id).copied() else {
            return self
                .expect(MANAGED_ORDERS, false, || format!("{id} is ordered to {to} and is not managed"));
        };
        let is_asked = self.step.call.as_ref().is_some_and(|(_, call)| asks_for(call, id, to));
        let is_heard = self.facts.sessions.get(&session).is_some_and(|it| self.facts.is_heard(it));
        self.expect(MANAGED_ORDERS, facts.session == session && is_asked && is_heard, || {
            format!(
                "{id} of {} is ordered to {to} by {session}: asked {is_asked}, open {is_heard}",
                facts.session
            )
        });
        if to == Tier::Device {
            let (there, limit) = self.with_order(id);
            self.expect(MANAGED_ORDERS, there <= limit, || {
                format!(
                    "{id} is ordered to the device, where its tenant may have {there} bytes of {limit} then"
                )
            });
        }
        if let Some(facts) = self.facts.managed.get_mut(&id) {
            facts.orders.waiting = Some(to).filter(|to| facts.orders.sent != Some(*to));
        }
    }

    /// The bytes that the tenant may have on the device once the memory is there too, and its limit.
    fn with_order(&self, id: AllocationId) -> (u64, u64) {
        let Some(facts) = self.facts.managed.get(&id) else { return (0, u64::MAX) };
        let (owner, place) = (facts.owner, facts.place);
        let of_account = self.facts.managed.iter().filter(|(_, it)| (it.owner, it.place) == (owner, place));
        let on_host = of_account.filter(|(other, it)| **other != id && it.orders.is_on_host());
        let on_host: u64 = on_host.map(|(_, it)| it.bytes).sum();
        (self.facts.charged(owner, place) - on_host, self.quota_now(owner, place).1)
    }

    /// Checks that an order is refused for the limit only if it would be exceeded.
    pub(crate) fn check_refused_order(&mut self, call: &Call, refusal: &Refusal) {
        let Refusal::QuotaLimit { limit, .. } = refusal else { return };
        let Some(id) = asked_for(call) else { return };
        let (there, bound) = self.with_order(id);
        self.expect(CALLS, there > bound && limit.get() == bound, || {
            format!("an order of {id} is refused by {refusal:?}: {there} bytes of {bound} would be there")
        });
    }

    /// Checks a frame: its session owns all of the memory, which is there, and was told to go there last.
    pub(crate) fn check_orders_frame(&mut self, channel: ChannelId, number: u64, orders: &[ManagedOrder]) {
        let session = self.facts.on_channel.get(&channel).copied().unwrap_or(SessionId::from_raw(0));
        let mut places: Vec<usize> = Vec::new();
        for ManagedOrder { allocation, to } in orders {
            let known = self.facts.managed.get_mut(allocation);
            let is_due = known.is_some_and(|it| {
                let is_due = it.session == session && it.orders.waiting.take() == Some(*to);
                it.orders.sent = Some(*to);
                places.push(it.place);
                is_due
            });
            self.expect(MANAGED_ORDERS, is_due, || {
                format!("{session} is told to move {allocation} to {to}, which is not ordered or not there")
            });
        }
        let place = places.first().copied().unwrap_or_default();
        let is_free = self.facts.batches.iter().all(|it| (it.session, it.place) != (session, place));
        let is_last = self.facts.batches.iter().all(|it| it.session != session || it.number < number);
        let fits = (1..=ORDERS_MAX).contains(&orders.len()) && places.iter().all(|it| *it == place);
        self.expect(MANAGED_ORDERS, is_free && is_last && fits, || {
            format!("{session} gets the batch {number} of {} orders beside others", orders.len())
        });
        let allocations = orders.iter().map(|order| order.allocation).collect();
        self.facts.batches.push(BatchFacts { session, place, number, allocations });
    }

    /// Records a client's answer. Returns whether there was such a batch.
    pub(crate) fn record_orders_done(
        &mut self,
        session: SessionId,
        number: u64,
        failed: &[(AllocationId, String)],
    ) -> bool {
        let mut batches = self.facts.batches.iter();
        let Some(at) = batches.position(|it| (it.session, it.number) == (session, number)) else {
            return false;
        };
        let batch = self.facts.batches.remove(at);
        if failed.iter().any(|(id, _)| !batch.allocations.contains(id)) {
            return false;
        }
        for id in batch.allocations {
            if let Some(facts) = self.facts.managed.get_mut(&id) {
                let has_failed = failed.iter().any(|(other, _)| *other == id);
                facts.orders.executed = facts.orders.sent.take().filter(|_| !has_failed);
                self.step.answered_orders.push(id);
            }
        }
        true
    }

    /// Forgets the orders of sessions that can no longer answer. Orders that were sent may have been executed, or not.
    pub(crate) fn forget_orders_of_closed(&mut self) {
        let facts = &mut self.facts;
        let is_open = |session: &SessionId| {
            let known = facts.sessions.get(session).filter(|it| !it.gone);
            known.is_some_and(|it| facts.open_channels.contains(&it.channel))
        };
        let closed = facts.managed.values().map(|it| it.session).filter(|session| !is_open(session));
        let closed: BTreeSet<_> = closed.collect();
        facts.batches.retain(|batch| is_open(&batch.session));
        for facts in facts.managed.values_mut().filter(|it| closed.contains(&it.session)) {
            facts.orders.waiting = None;
            if facts.orders.sent.take().is_some() {
                facts.orders.executed = None;
            }
        }
    }

    /// Checks after an event that no order waits although its session has none to answer, and what is shown of memory whose
    /// orders were answered.
    pub(crate) fn check_managed_orders(&mut self, broker: &Broker) {
        self.forget_orders_of_closed();
        let has_batch =
            |session, place| self.facts.batches.iter().any(|it| (it.session, it.place) == (session, place));
        let late = self
            .facts
            .managed
            .iter()
            .find(|(_, it)| it.orders.waiting.is_some() && !has_batch(it.session, it.place));
        let late = late.map(|(id, _)| *id);
        self.expect(MANAGED_ORDERS, late.is_none(), || format!("the order of {late:?} waits for nothing"));
        for id in std::mem::take(&mut self.step.answered_orders) {
            if let Ok(view) = broker.show(&Target::Id(id)) {
                self.check_managed_place(&view);
            }
        }
    }

    /// Checks where an allocation is shown to have been ordered.
    pub(crate) fn check_managed_place(&mut self, view: &AllocationView) {
        let expected = self.facts.managed.get(&view.id).map(|it| it.orders.view());
        self.expect(MANAGED_ORDERS, view.managed == expected, || {
            format!("{} is shown as {:?}, not {expected:?}", view.id, view.managed)
        });
    }

    /// The bytes of an account that were ordered to the device, and to the host.
    pub(super) fn ordered_of(&self, tenant: Tenant, place: usize) -> (u64, u64) {
        let of_account = self.facts.managed.values().filter(|it| (it.owner, it.place) == (tenant, place));
        of_account.fold((0, 0), |(device, host), it| {
            let if_so = |is_there| if is_there { it.bytes } else { 0 };
            (device + if_so(it.orders.is_on_device()), host + if_so(it.orders.is_on_host()))
        })
    }

    /// Whether the memory is managed, for which requests to move it are orders.
    pub(crate) fn is_managed(&self, id: AllocationId) -> bool {
        self.facts.managed.contains_key(&id)
    }
}

/// Whether a call asks for the memory to go there.
fn asks_for(call: &Call, id: AllocationId, to: Tier) -> bool {
    let asked = match &call.asked {
        Asked::Client { request: ClientRequest::Evict(_, tier), .. }
        | Asked::Operator { request: OperatorRequest::MoveParts { tier, .. }, .. } => Some(*tier),
        Asked::Client {
            request:
                ClientRequest::Advise(_, Advice::Retain { parts: None, change: Retention::Location(location) }),
            ..
        } => *location,
        _ => None,
    };
    asked == Some(to) && asked_for(call) == Some(id)
}

/// The allocation that a call asks to have elsewhere.
fn asked_for(call: &Call) -> Option<AllocationId> {
    match &call.asked {
        Asked::Client { request: ClientRequest::Evict(id, _) | ClientRequest::Advise(id, _), .. } => {
            Some(*id)
        }
        Asked::Operator { request: OperatorRequest::MoveParts { target, .. }, .. } => match target {
            Target::Id(id) => Some(*id),
            Target::Name(_) => call.named,
        },
        _ => None,
    }
}
