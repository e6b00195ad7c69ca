//! Changes of the class and the weight of tenants, and of whether their advice counts: stored on disk with the quotas,
//! then put into force.

use std::collections::BTreeMap;

use vramd_types::name;

use super::quota::{Change, Storing};
use crate::{
    broker::Broker,
    command::Notice,
    error::Refusal,
    event::PartRef,
    follow_up::Fact,
    handler::{Start, Started},
    ops::{OpKind, StandingChange, StandingEdit},
    tenancy::{AdvicePermission, OpId, Outcome, Standing, TenantClass, TenantId, TenantWeight},
    view::{StoredChange, StoredTenant},
};

impl Broker {
    pub(crate) fn plan_set_tenant(
        &mut self,
        tenant: &str,
        class: Option<TenantClass>,
        weight: Option<u32>,
        advice: Option<AdvicePermission>,
    ) -> Start {
        let invalid = |field, problem| Err(Refusal::RequestInvalid { field, problem });
        if class.is_none() && weight.is_none() && advice.is_none() {
            return invalid("class", "give a class, a weight, or whether advice is allowed");
        }
        let weight = match weight.map(TenantWeight::new) {
            Some(None) => return invalid("weight", "a weight is between 1 and 10000"),
            given => given.flatten(),
        };
        self.plan_standing(tenant, StandingEdit::Set { class, weight, advice })
    }

    pub(crate) fn plan_reset_tenant(&mut self, tenant: &str) -> Start {
        self.plan_standing(tenant, StandingEdit::Reset)
    }

    fn plan_standing(&mut self, tenant: &str, edit: StandingEdit) -> Start {
        if !name::is_valid(tenant) {
            return Err(Refusal::NameInvalid { field: "tenant", name: tenant.to_owned() });
        }
        let tenant = self.tenants.intern(tenant);
        Ok(Started::Waiting(OpKind::Standing(StandingChange { tenant, edit })))
    }

    /// Has a change stored: its turn has come.
    pub(super) fn store_standing(&mut self, op: OpId, StandingChange { tenant, edit }: StandingChange) {
        let (standing, change) = match edit {
            StandingEdit::Set { class, weight, advice } => {
                let now = self.tenants.standing(tenant);
                let standing = Standing {
                    class: class.unwrap_or(now.class),
                    weight: weight.unwrap_or(now.weight),
                    advice: advice.unwrap_or(now.advice),
                };
                (Some(standing), StoredChange::TenantSet)
            }
            StandingEdit::Reset => (None, StoredChange::TenantReset),
        };
        let request = self.request_of(op, tenant, change);
        let quotas = self.stored_rows(self.ledger.quotas());
        let tenants = self.stored_tenants(Some((tenant, standing)));
        self.store(Storing { op, change: Change::Standing(tenant, standing), request }, quotas, tenants);
    }

    /// The rows of tenants to store, in the order of their names, with one change.
    pub(super) fn stored_tenants(&self, change: Option<(TenantId, Option<Standing>)>) -> Vec<StoredTenant> {
        let mut rows: BTreeMap<&str, Standing> = self.tenants.stored().collect();
        match change {
            Some((id, Some(standing))) => _ = rows.insert(self.tenants.name(id), standing),
            Some((id, None)) => _ = rows.remove(self.tenants.name(id)),
            None => {}
        }
        let row = |(name, standing): (&str, Standing)| StoredTenant { tenant: name.to_owned(), standing };
        rows.into_iter().map(row).collect()
    }

    /// Puts a stored change into force: from now on memory leaves and requests begin by it.
    pub(super) fn apply_standing(&mut self, tenant: TenantId, standing: Option<Standing>) -> Outcome {
        self.tenants.store(tenant, standing);
        let class = self.tenants.standing(tenant).class;
        planted!(self, OldClassKept => class = TenantClass::default());
        let is_own = |part: &PartRef| {
            self.allocations.get(part.allocation).is_some_and(|allocation| allocation.tenant == tenant)
        };
        for residents in [&mut self.usage.residents, &mut self.usage.idle_on_host] {
            let own: Vec<_> = residents.iter().filter(is_own).collect();
            residents.change_class(&own, class);
        }
        // A scan resumes behind a part that may be of another class now.
        self.node.pressure.scanned_to.clear();
        // The advice of its sessions may be forbidden by now.
        let chosen: Vec<_> = self.mapping.chosen_in_place.iter().copied().collect();
        chosen.into_iter().for_each(|part| self.reconsider_in_place(part));
        self.follow_ups.push(Fact::StandingChanged);
        let view = self.tenant_view(tenant);
        let (standing, source) = (view.standing, view.source);
        self.push_notice(Notice::TenantChanged { tenant: self.tenants.shared(tenant), standing, source });
        Outcome::TenantChanged(tenant)
    }
}
