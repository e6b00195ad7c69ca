//! An allocation that a tenant may not know of does not exist for it.

use broker_core::{AllocationView, Refusal, Target, invariants::VISIBLE};

use super::{
    Oracle,
    facts::{AllocationFacts, Tenant},
};

impl Oracle {
    pub(super) fn may_know(&self, tenant: Tenant, allocation: &AllocationFacts) -> bool {
        let name = self.facts.tenants.get(tenant).map(String::as_str);
        allocation.tenant == tenant
            || allocation.readers.iter().any(|reader| reader == "*" || Some(reader.as_str()) == name)
    }

    /// The answer to a question for one allocation.
    pub fn described(&mut self, tenant: &str, target: &Target, shown: Result<&AllocationView, &Refusal>) {
        if let Ok(view) = shown {
            self.is_shown(tenant, view);
            let fits = match target {
                Target::Id(id) => *id == view.id,
                Target::Name(name) => view.name == *name || view.name == format!("{tenant}/{name}"),
            };
            self.expect(VISIBLE, fits, || format!("{tenant} asked for {target} and was shown {}", view.id));
        }
    }

    pub fn listed(&mut self, tenant: &str, shown: Result<&[AllocationView], &Refusal>) {
        for view in shown.unwrap_or_default() {
            self.is_shown(tenant, view);
        }
    }

    pub(super) fn is_shown(&mut self, tenant: &str, view: &AllocationView) {
        let id = self.facts.tenant(tenant);
        let known = self.facts.allocations.get(&view.id);
        let may = match known {
            Some(allocation) => self.may_know(id, allocation),
            // It is being made: its tenant alone may know of it, or who may read it one day.
            None => {
                view.tenant == tenant || view.readers.iter().any(|reader| reader == "*" || reader == tenant)
            }
        };
        self.expect(VISIBLE, may, || format!("{tenant} is shown {} of {}", view.id, view.tenant));
    }
}
