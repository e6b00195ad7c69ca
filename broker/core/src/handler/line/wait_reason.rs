//! The reason why a waiter has not started, and the requests that it stands behind, as operators and clients read
//! them.
//!
//! The reason is made when it is asked for. The scan decides by the same figures, and stores no reason.

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, SessionId, WaitId};

use crate::{
    broker::Broker,
    event::{PartRef, Tier},
    ledger::{Place, Shortage},
    line::{Footprint, Position, Waiter},
    residency::{MapState, Mapping},
    tenancy::{Arrival, TenantId},
    view::{WaitCause, WaitReason},
};

/// The most sessions and tenants that a reason names.
const NAMED_MAX: usize = 16;

/// Finds what keeps waiters waiting. It walks the allocations once for each device, and for each tenant at its limit.
pub(super) struct Blockers<'a> {
    broker: &'a Broker,
    users: BTreeMap<(DeviceIndex, Option<TenantId>), Users>,
}

/// The sessions that keep memory on a device, and what operators hold there.
#[derive(Clone, Debug, Default)]
struct Users {
    sessions: Vec<SessionId>,
    operator_held: Bytes,
}

/// The requests in line for each device, and of each tenant there.
#[derive(Debug, Default)]
pub(super) struct Queues(BTreeMap<(DeviceIndex, Option<TenantId>), Queue>);

#[derive(Debug, Default)]
struct Queue {
    requests: usize,
    /// The last request, and its first wait.
    last: Option<(Arrival, WaitId)>,
    /// A wait of the request before it.
    before: Option<WaitId>,
}

impl<'a> Blockers<'a> {
    pub(super) fn new(broker: &'a Broker) -> Self {
        Self { broker, users: BTreeMap::new() }
    }

    /// Why the waiter, which needs that room, has not started.
    pub(super) fn reason(&mut self, waiter: Waiter, footprint: Footprint) -> WaitReason {
        let Footprint { tenant, device, size } = footprint;
        let (place, broker) = (Place::device(device), self.broker);
        let admitted = match waiter {
            Waiter::Part(part) => broker.check_part_room(part),
            Waiter::Batch(_) => broker.ledger.admit(tenant, place, size),
        };
        let balances = broker.ledger.balances(place);
        let capacity = balances.map_or(Bytes::ZERO, |balances| balances.capacity());
        let charged = balances.map_or(Bytes::ZERO, |balances| balances.charged());
        let of_device = |cause| WaitReason {
            cause,
            bound: capacity,
            charged,
            sessions: Vec::new(),
            tenants: Vec::new(),
            operator_held: Bytes::ZERO,
        };
        let free = match admitted {
            Ok(()) if broker.line.is_suspended(waiter) => return of_device(WaitCause::Driver),
            Ok(()) => return of_device(WaitCause::Turn),
            // The limit leaves nothing to other tenants: the device itself is full.
            Err(Shortage::Limit { limit, .. }) if limit >= capacity => capacity.saturating_sub(charged),
            Err(Shortage::Limit { limit, charged }) => {
                let Users { sessions, operator_held } = self.users(device, Some(tenant));
                let (cause, tenants) = (WaitCause::Limit, Vec::new());
                return WaitReason { cause, bound: limit, charged, sessions, tenants, operator_held };
            }
            Err(Shortage::Room { free }) => free,
        };
        let leaving = broker.line.room.iter().filter(|(_, was)| was.device == device);
        let leaving = leaving.map(|(_, was)| was.size).fold(free, Bytes::saturating_add);
        if leaving >= size {
            return of_device(WaitCause::Leaving);
        }
        if charged.saturating_add(size) <= capacity {
            let below = broker.tenants_below_guarantee(place, tenant).take(NAMED_MAX);
            let tenants = below.map(|of| broker.tenants.name(of).to_owned()).collect();
            return WaitReason { tenants, ..of_device(WaitCause::Guarantee) };
        }
        let Users { sessions, operator_held } = self.users(device, None);
        WaitReason { sessions, operator_held, ..of_device(WaitCause::InUse) }
    }

    fn users(&mut self, device: DeviceIndex, of: Option<TenantId>) -> Users {
        let broker = self.broker;
        self.users.entry((device, of)).or_insert_with(|| broker.users_of(device, of)).clone()
    }
}

impl Queues {
    /// Adds a waiter of the line, which must come in order. Returns how many earlier requests it stands behind, and a
    /// wait of the last of them.
    pub(super) fn enter(
        &mut self,
        position: Position,
        (tenant, device): (TenantId, DeviceIndex),
        cause: WaitCause,
    ) -> (usize, Option<WaitId>) {
        let on_device = self.queue((device, None)).enter(position);
        let of_tenant = self.queue((device, Some(tenant))).enter(position);
        match cause {
            WaitCause::Limit => of_tenant,
            _ => on_device,
        }
    }

    fn queue(&mut self, key: (DeviceIndex, Option<TenantId>)) -> &mut Queue {
        self.0.entry(key).or_default()
    }
}

impl Queue {
    fn enter(&mut self, position: Position) -> (usize, Option<WaitId>) {
        let arrived = position.arrived;
        if self.last.is_none_or(|(last, _)| last != arrived) {
            self.before = self.last.map(|(_, wait)| wait);
            self.last = Some((arrived, position.wait()));
            self.requests = self.requests.saturating_add(1);
        }
        (self.requests.saturating_sub(1), self.before)
    }
}

impl Broker {
    /// The sessions that keep memory on a device, of one tenant or of all.
    fn users_of(&self, device: DeviceIndex, of: Option<TenantId>) -> Users {
        let (mut sessions, mut operator_held) = (BTreeSet::new(), Bytes::ZERO);
        for (id, allocation) in self.allocations.iter_after(None) {
            if allocation.device != device || of.is_some_and(|of| of != allocation.tenant) {
                continue;
            }
            for (index, part) in allocation.indices().zip(&allocation.parts) {
                let of_part = PartRef { allocation: id, part: index };
                if self.tier_of(of_part) != Some(Tier::Device) {
                    continue;
                }
                if self.moves.is_held(of_part) {
                    operator_held = operator_held.saturating_add(allocation.size_of(index));
                }
                let using = part.mappings.iter().filter(|mapping| self.keeps(of_part, mapping));
                sessions.extend(using.map(|mapping| mapping.session));
            }
        }
        Users { sessions: sessions.into_iter().take(NAMED_MAX).collect(), operator_held }
    }

    /// Whether the session keeps the part where it is: it pins the part, as far as the daemon knows, or has no pins, or
    /// does not answer.
    fn keeps(&self, part: PartRef, mapping: &Mapping) -> bool {
        let Some(session) = self.sessions.get(mapping.session) else { return false };
        let pins = || self.usage.residents.is_pinned_by(part, mapping.session);
        // Memory without backing cannot leave, whether it is pinned or not.
        let cannot_leave = || !self.moves.backings.contains(&part);
        mapping.state != MapState::Away
            && (session.words.is_none()
                || !session.is_answering()
                || mapping.state != MapState::Mapped
                || cannot_leave()
                || pins())
    }
}
