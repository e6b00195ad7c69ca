//! Managed memory: its tenant is charged from the moment at which the daemon allows it, until it is freed or its
//! session ends. Each of its bytes counts once, although a driver takes resident ones for another program's.

use broker_core::{
    AllocationView, Kind, ManagedBytes, Tier,
    invariants::{CALLS, MANAGED, MANAGED_ORDERS},
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, GRANULARITY, SessionId};

use super::managed_orders::OrderFacts;
use crate::oracle::{Oracle, facts::Tenant};

/// One charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManagedFacts {
    pub(super) session: SessionId,
    pub(super) owner: Tenant,
    pub(super) place: usize,
    pub(super) bytes: u64,
    pub(super) orders: OrderFacts,
}

impl Oracle {
    /// Records a charge. The tenant of the requesting session pays.
    pub(crate) fn record_managed(
        &mut self,
        id: AllocationId,
        session: SessionId,
        device: DeviceIndex,
        bytes: Bytes,
    ) {
        self.step.ordered_count += 1;
        let owner = self.record_new_memory(id);
        let place = self.facts.place(usize::from(device.0), Tier::Device);
        let is_live =
            self.facts.sessions.get(&session).is_some_and(|it| !it.gone && Some(it.tenant) == owner);
        self.expect(MANAGED, is_live, || format!("{id} is charged to {owner:?} for {session}"));
        let Some((owner, place)) = owner.zip(place) else { return };
        let bytes = bytes.get();
        self.facts.balance(owner, place).settled += bytes;
        *self.step.taken.entry((owner, place)).or_default() += bytes;
        self.step.admitted.push((owner, place));
        self.step.changed_accounts.push((owner, place));
        if self.step.retried_tenant.is_none() {
            let in_use = self.charged_in_use(owner, place);
            self.step.made_at_once.insert((owner, place), in_use);
        }
        self.facts
            .managed
            .insert(id, ManagedFacts { session, owner, place, bytes, orders: OrderFacts::default() });
    }

    /// The managed memory of each tenant in a place.
    pub(crate) fn managed_by_tenant(&self, place: usize) -> impl Iterator<Item = (Tenant, u64)> {
        self.facts.managed.values().filter(move |it| it.place == place).map(|it| (it.owner, it.bytes))
    }

    /// Ends a charge: the allocation is gone.
    pub(crate) fn record_managed_end(&mut self, id: AllocationId) {
        let Some(ManagedFacts { owner, place, bytes, .. }) = self.facts.managed.remove(&id) else { return };
        self.facts.balance(owner, place).settled -= bytes;
        self.step.changed_accounts.push((owner, place));
    }

    /// Checks that managed memory is answered with its charge, and with nothing that could be mapped.
    pub(crate) fn check_managed_reply(&mut self, view: &AllocationView) {
        if view.kind != Kind::Managed {
            return;
        }
        let span = view.size.checked_round_up(GRANULARITY).map_or(0, Bytes::get);
        let is_charged = self.facts.managed.get(&view.id).is_some_and(|it| it.bytes == span);
        let is_shown = (view.charged.get(), view.resident.get(), view.parts.len()) == (span, 0, 0);
        self.expect(MANAGED, is_charged && is_shown, || {
            format!("{} has {span} bytes of managed memory, and is shown as {view:?}", view.id)
        });
    }

    /// Checks that no charge has outlived its session.
    pub(crate) fn check_managed_sessions(&mut self) {
        let is_gone = |it: &&ManagedFacts| self.facts.sessions.get(&it.session).is_none_or(|it| it.gone);
        let left = self.facts.managed.values().find(is_gone).copied();
        self.expect(MANAGED, left.is_none(), || format!("{left:?} outlives its session"));
    }

    /// Checks the managed bytes that the core shows of an account.
    pub(crate) fn compare_managed(&mut self, tenant: Tenant, place: usize, shown: ManagedBytes) {
        let of_account = self.facts.managed.values().filter(|it| (it.owner, it.place) == (tenant, place));
        let (charged, expected): (_, u64) = (shown.charged.get(), of_account.map(|it| it.bytes).sum());
        self.expect(MANAGED, charged == expected, || {
            format!("{charged} managed bytes in place {place} are shown of tenant {tenant}, not {expected}")
        });
        let ordered = (shown.on_device.get(), shown.on_host.get());
        let expected = self.ordered_of(tenant, place);
        self.expect(MANAGED_ORDERS, ordered == expected, || {
            format!(
                "{ordered:?} ordered bytes of place {place} are shown of tenant {tenant}, not {expected:?}"
            )
        });
    }

    /// The managed bytes of one allocation; none if it is of another kind.
    pub(crate) fn managed_bytes(&self, id: AllocationId) -> u64 {
        self.facts.managed.get(&id).map_or(0, |it| it.bytes)
    }

    /// The managed bytes in a place, by which a survey is corrected.
    pub(crate) fn managed_in(&self, place: usize) -> u64 {
        self.facts.managed.values().filter(|it| it.place == place).map(|it| it.bytes).sum()
    }

    /// Checks that a request for managed memory that can only be shared or moved was refused.
    pub(crate) fn expect_not_managed(&mut self, id: AllocationId, what: &str) {
        let is_managed = self.facts.managed.contains_key(&id);
        self.expect(CALLS, !is_managed, || format!("{id} is managed memory, and is {what}"));
    }
}
