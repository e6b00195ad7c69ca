//! The ledger, worked out from events and commands alone, against what the core shows of its own.

use broker_core::{Broker, QuotaView, SessionView, Tier, invariants::LEDGER_ORACLE};
use vramd_types::Quantity;

use super::{
    Oracle,
    facts::{Book, Tenant},
};

/// Bytes of a quantity of a device's share, by the book of rules rather than by the core's code.
fn of(quantity: Quantity, share: u64) -> u64 {
    match quantity {
        Quantity::Bytes(bytes) => bytes.get(),
        Quantity::Percent(percent) => {
            u64::try_from(u128::from(share) * u128::from(percent) / 100).unwrap_or(u64::MAX)
        }
    }
}

impl Oracle {
    /// Guarantee and limit of a tenant on a device by one book: its own row, the row of all devices, or the default.
    pub(super) fn quota_in(&self, book: &Book, tenant: Tenant, device: usize) -> (u64, u64) {
        let facts = &self.facts.devices[device];
        let name = &self.facts.tenants[tenant];
        let row = |device: &str| book.get(&(name.clone(), device.to_owned()));
        let (guarantee, limit) = match row(&facts.uuid).or_else(|| row("*")) {
            Some((guarantee, limit)) => (of(*guarantee, facts.share), of(*limit, facts.share)),
            None => (0, of(self.default_limit, facts.share)),
        };
        (guarantee, limit)
    }

    /// What holds now: while a change is being written, the larger of both guarantees.
    pub(super) fn quota_now(&mut self, tenant: Tenant, device: usize) -> (u64, u64) {
        if let Some(known) = self.facts.quotas.get(&(tenant, device)) {
            return *known;
        }
        let (mut guarantee, limit) = self.quota_in(&self.facts.book, tenant, device);
        if let Some(staged) = &self.facts.staged {
            guarantee = guarantee.max(self.quota_in(staged, tenant, device).0);
        }
        self.facts.quotas.insert((tenant, device), (guarantee, limit));
        (guarantee, limit)
    }

    pub(super) fn capacity(&self, device: usize) -> u64 {
        let facts = &self.facts.devices[device];
        let contexts = facts.context * (facts.contexts.max(self.sessions_reserved) + 1);
        facts.share.saturating_sub(facts.unbrokered).saturating_sub(contexts)
    }

    /// One account, after something changed it.
    pub(super) fn compare_account(&mut self, tenant: Tenant, device: usize, broker: &Broker) {
        let uuid = self.facts.devices[device].uuid.clone();
        let name = self.facts.tenants[tenant].clone();
        let Ok(view) = broker.quota(&name, Some(&uuid), Tier::Device) else { return };
        self.compare_view(tenant, device, &view);
    }

    fn compare_view(&mut self, tenant: Tenant, device: usize, view: &QuotaView) {
        let balance = self.facts.balances.get(&(tenant, device)).copied().unwrap_or_default();
        let (guarantee, limit) = self.quota_now(tenant, device);
        let cached = self.cached(tenant, device);
        let should = [balance.held(), balance.reserved, balance.unreturned, cached, guarantee, limit];
        let is =
            view.in_force.map(|it| [it.held, it.reserved, it.unreturned, it.cached, it.guarantee, it.limit]);
        let is = is.map(|it| it.map(vramd_types::Bytes::get));
        self.expect(LEDGER_ORACLE, is == Some(should), || {
            format!(
                "{} on device {device}: held, reserved, unreturned, cached, guarantee, limit are {is:?}, not {should:?}",
                view.tenant
            )
        });
    }

    /// Every account, and every device.
    pub fn compare_all(&mut self, broker: &Broker) {
        self.learn_tenants();
        let committed = self.committed_all();
        for (device, view) in broker.devices().into_iter().enumerate() {
            let balances = self.facts.balances.iter().filter(|((_, of), _)| *of == device);
            let (mut held, mut unreturned) = (0, 0);
            for (_, balance) in balances {
                held += balance.held();
                unreturned += balance.unreturned;
            }
            let capacity = self.capacity(device);
            let committed = u64::try_from(committed[device]).unwrap_or(u64::MAX);
            let should = [held, unreturned, capacity, committed, committed.saturating_sub(capacity)];
            let is = [view.held, view.unreturned, view.capacity, view.committed, view.shortfall];
            let is = is.map(vramd_types::Bytes::get);
            self.expect(LEDGER_ORACLE, is == should, || {
                format!(
                    "device {device}: held, unreturned, capacity, committed, shortfall are {is:?}, not {should:?}"
                )
            });
            for tenant in 0..self.facts.tenants.len() {
                self.compare_account(tenant, device, broker);
            }
        }
    }

    pub fn quotas_listed(&mut self, rows: &[QuotaView]) {
        for row in rows.iter().filter(|row| row.in_force.is_some()) {
            let tenant = self.facts.tenant(&row.tenant);
            let device = self.facts.devices.iter().position(|device| device.uuid == row.device);
            if let Some(device) = device {
                self.compare_view(tenant, device, row);
            }
        }
    }

    pub fn sessions_listed(&mut self, rows: &[SessionView]) {
        let live = self.facts.sessions.values().filter(|session| !session.gone).count();
        self.expect(LEDGER_ORACLE, live == rows.len(), || format!("{} sessions, not {live}", rows.len()));
        for row in rows {
            let session = self.facts.sessions.get(&row.id);
            let should = session.map(|it| (self.facts.tenants[it.tenant].clone(), it.in_flight));
            let is = (row.tenant.clone(), row.fds_in_flight);
            self.expect(LEDGER_ORACLE, should.as_ref() == Some(&is), || {
                format!("{}: tenant and descriptors are {is:?}, not {should:?}", row.id)
            });
        }
    }

    /// Whoever has a quota counts, heard of or not.
    pub(super) fn learn_tenants(&mut self) {
        let books = self.facts.book.keys().chain(self.facts.staged.iter().flat_map(|book| book.keys()));
        let names: Vec<_> = books.map(|(tenant, _)| tenant.clone()).collect();
        names.iter().for_each(|name| _ = self.facts.tenant(name));
    }
}
