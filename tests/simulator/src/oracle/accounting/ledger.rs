//! The ledger, worked out from events and commands alone, compared with what the core shows.

use broker_core::{Broker, QuotaView, SessionView, Tier, invariants::LEDGER_ORACLE};
use vramd_types::{GRANULARITY, Quantity};

use crate::oracle::{
    Oracle,
    facts::{QuotaTable, Tenant},
};

/// Surveys of a device until the core retries waiters that a driver had no memory for, while nothing leaves:
/// one may be under way, one reports, and one more triggers the retry.
pub(crate) const SURVEYS: u8 = 3;

/// Bytes of a quantity of a place's share, by the documented rule rather than by the core's code.
fn bytes_of(quantity: Quantity, share: u64) -> u64 {
    match quantity {
        Quantity::Bytes(bytes) => bytes.get(),
        Quantity::Percent(percent) => {
            u64::try_from(u128::from(share) * u128::from(percent) / 100).unwrap_or(u64::MAX)
        }
    }
}

impl Oracle {
    /// Guarantee and limit of a tenant in a place by one table: its own row, the row of all devices, or the
    /// default.
    pub(crate) fn quota_in(&self, book: &QuotaTable, tenant: Tenant, place: usize) -> (u64, u64) {
        let facts = &self.facts.places[place];
        if facts.in_files {
            return (0, 0);
        }
        let name = &self.facts.tenants[tenant];
        let row = |device: &str| book.get(&(name.clone(), device.to_owned(), facts.tier));
        let (guarantee, limit) = match row(&facts.uuid).or_else(|| row("*")) {
            Some((guarantee, limit)) => (bytes_of(*guarantee, facts.share), bytes_of(*limit, facts.share)),
            None => {
                let limit = match facts.tier {
                    Tier::Device => self.default_limit,
                    Tier::Host => self.default_host_limit,
                    Tier::Disk => self.default_disk_limit,
                };
                (0, bytes_of(limit, facts.share))
            }
        };
        (guarantee, limit)
    }

    /// Quota in force now. While a change is being stored, the larger of both guarantees applies.
    pub(crate) fn quota_now(&self, tenant: Tenant, place: usize) -> (u64, u64) {
        if let Some(known) = self.facts.quotas.borrow().get(&(tenant, place)) {
            return *known;
        }
        let (mut guarantee, limit) = self.quota_in(&self.facts.quotas_in_force, tenant, place);
        if let Some(staged) = &self.facts.staged {
            guarantee = guarantee.max(self.quota_in(&staged.quotas, tenant, place).0);
        }
        self.facts.quotas.borrow_mut().insert((tenant, place), (guarantee, limit));
        (guarantee, limit)
    }

    pub(crate) fn capacity(&self, place: usize) -> u64 {
        let usual = self.capacity_without_shortage(place);
        self.facts.places[place].available_max.map_or(usual, |max| usual.min(max))
    }

    /// The capacity, disregarding a shortage that the driver reported.
    pub(crate) fn capacity_without_shortage(&self, place: usize) -> u64 {
        let facts = &self.facts.places[place];
        let contexts = facts.context * (facts.contexts.max(self.sessions_reserved) + 1);
        let share = facts.share.saturating_sub(facts.unbrokered).saturating_sub(contexts);
        share.min(self.offered(facts.tier))
    }

    /// The driver ran out of memory for `size` bytes: bounds the capacity by what is charged and that.
    pub(crate) fn record_out_of_memory(&mut self, place: usize, size: u64) {
        if self.facts.places[place].tier == Tier::Device {
            let max = self.charged_to_all(place).0 + size - GRANULARITY.get();
            let facts = &mut self.facts.places[place];
            facts.available_max = Some(facts.available_max.map_or(max, |before| before.min(max)));
            facts.survey_outdated = facts.surveying;
            facts.surveys_left = SURVEYS;
            self.step.ran_out = Some(place);
        }
    }

    /// A survey begins. One that a timer ordered before the core took a failure of the same event is too early
    /// to show which process has the memory.
    pub(crate) fn record_survey(&mut self, place: usize) {
        let facts = &mut self.facts.places[place];
        facts.surveying = true;
        facts.survey_outdated |= self.step.ran_out == Some(place);
    }

    /// Compares one account, after an event changed it.
    pub(crate) fn compare_account(&mut self, tenant: Tenant, place: usize, broker: &Broker) {
        if self.facts.places[place].in_files {
            return;
        }
        let (uuid, tier) = (self.facts.places[place].uuid.clone(), self.facts.places[place].tier);
        let name = self.facts.tenants[tenant].clone();
        let Ok(view) = broker.quota(&name, Some(&uuid), tier) else { return };
        self.compare_view(tenant, place, &view);
    }

    fn compare_view(&mut self, tenant: Tenant, place: usize, view: &QuotaView) {
        let balance = self.facts.balances.get(&(tenant, place)).copied().unwrap_or_default();
        let (guarantee, limit) = self.quota_now(tenant, place);
        let cached = self.cached(tenant, place);
        self.compare_managed(tenant, place, view.in_force.map(|it| it.managed).unwrap_or_default());
        let expected = [balance.charged(), balance.reserved, balance.unreturned, cached, guarantee, limit];
        let is = view
            .in_force
            .map(|it| [it.charged, it.reserved, it.unreturned, it.cached, it.guarantee, it.limit]);
        let is = is.map(|it| it.map(vramd_types::Bytes::get));
        self.expect(LEDGER_ORACLE, is == Some(expected), || {
            format!(
                "{} in place {place}: charged, reserved, unreturned, cached, guarantee, limit are {is:?}, not {expected:?}",
                view.tenant
            )
        });
    }

    /// Compares every account and every place.
    pub fn compare_all(&mut self, broker: &Broker) {
        self.learn_tenants();
        self.check_all_names(broker);
        let committed = self.committed_all();
        for view in broker.devices() {
            let Some(place) = self.facts.place_of(&view.uuid, Tier::Device) else { continue };
            let (held, unreturned) = self.charged_to_all(place);
            let capacity = self.capacity(place);
            let committed = u64::try_from(committed[place]).unwrap_or(u64::MAX);
            let expected = [held, unreturned, capacity, committed, committed.saturating_sub(capacity)];
            let is = [view.charged, view.unreturned, view.capacity, view.committed, view.shortfall];
            let is = is.map(vramd_types::Bytes::get);
            self.expect(LEDGER_ORACLE, is == expected, || {
                format!(
                    "{}: charged, unreturned, capacity, committed, shortfall are {is:?}, not {expected:?}",
                    view.uuid
                )
            });
            for (tier, shown) in [(Tier::Host, view.host), (Tier::Disk, view.disk)] {
                let below = self.facts.place_of(&view.uuid, tier);
                let expected = below.map(|place| [self.capacity(place), self.charged_to_all(place).0]);
                let is = shown.map(|shown| [shown.capacity.get(), shown.charged.get()]);
                self.expect(LEDGER_ORACLE, is == expected, || {
                    format!("{tier} of {}: capacity and charged are {is:?}, not {expected:?}", view.uuid)
                });
            }
        }
        for place in 0..self.facts.places.len() {
            for tenant in 0..self.facts.tenants.len() {
                self.compare_account(tenant, place, broker);
            }
        }
    }

    /// Bytes charged to all tenants in a place, and how many of these are unreturned.
    pub(crate) fn charged_to_all(&self, place: usize) -> (u64, u64) {
        let balances = self.facts.balances.iter().filter(|((_, of), _)| *of == place);
        let sums = balances.map(|(_, balance)| (balance.charged(), balance.unreturned));
        sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    pub fn check_quota_list(&mut self, rows: &[QuotaView]) {
        self.check_absent_rows(rows);
        for row in rows.iter().filter(|row| row.in_force.is_some()) {
            let tenant = self.facts.tenant(&row.tenant);
            if let Some(place) = self.facts.place_of(&row.device, row.tier) {
                self.compare_view(tenant, place, row);
            }
        }
    }

    pub fn check_session_list(&mut self, rows: &[SessionView]) {
        let live = self.facts.sessions.values().filter(|session| !session.gone).count();
        self.expect(LEDGER_ORACLE, live == rows.len(), || {
            format!("{} sessions are listed, not {live}", rows.len())
        });
        for row in rows {
            self.check_shown_state(row);
            let session = self.facts.sessions.get(&row.id);
            let expected = session.map(|it| (self.facts.tenants[it.tenant].clone(), it.in_flight));
            let is = (row.tenant.clone(), row.fds_in_flight);
            self.expect(LEDGER_ORACLE, expected.as_ref() == Some(&is), || {
                format!("{}: tenant and descriptors are {is:?}, not {expected:?}", row.id)
            });
        }
    }

    /// Makes every tenant with a quota known, whether or not it has connected.
    pub(crate) fn learn_tenants(&mut self) {
        let books = self
            .facts
            .quotas_in_force
            .keys()
            .chain(self.facts.staged.iter().flat_map(|staged| staged.quotas.keys()));
        let names: Vec<_> = books.map(|(tenant, ..)| tenant.clone()).collect();
        names.iter().for_each(|name| _ = self.facts.tenant(name));
    }
}
