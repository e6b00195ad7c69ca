//! An allocation that a tenant may not know of does not exist for it.

use broker_core::{
    AllocationState, AllocationView, Broker, PartRef, Refusal, Target, Tier, invariants::VISIBLE,
};
use vramd_types::{ExtentId, PartIndex};

use crate::oracle::{
    Oracle,
    facts::{AllocationFacts, BackingFacts, ExtentFacts, ExtentPhase, SessionFacts, Tenant},
    requests::names::full_name,
};

impl Oracle {
    pub(crate) fn may_know(&self, tenant: Tenant, allocation: &AllocationFacts) -> bool {
        let name = self.facts.tenants.get(tenant).map(String::as_str);
        allocation.tenant == tenant
            || allocation.readers.iter().any(|reader| reader == "*" || Some(reader.as_str()) == name)
    }

    /// Checks the answer to a description of one allocation, by a session that can be reached.
    pub fn check_described(
        &mut self,
        tenant: &str,
        target: &Target,
        shown: Result<&AllocationView, &Refusal>,
        broker: &Broker,
    ) {
        match (shown, target) {
            (Ok(view), _) => {
                self.check_visible(tenant, view);
                self.check_view(view);
                let fits = match target {
                    Target::Id(id) => *id == view.id,
                    Target::Name(name) => {
                        let full = full_name(name, tenant);
                        view.name == full && self.facts.names.get(&full).is_none_or(|id| *id == view.id)
                    }
                };
                self.expect(VISIBLE, fits, || {
                    format!("{tenant} requested {target} and was shown {}", view.id)
                });
            }
            (Err(Refusal::AllocationNotFound { .. }), Target::Id(id)) => {
                let reader = self.facts.tenant(tenant);
                let may = self.facts.allocations.get(id).is_some_and(|known| self.may_know(reader, known));
                let there = broker.show(target).is_ok_and(|view| view.state != AllocationState::Freeing);
                self.expect(VISIBLE, !(may && there), || {
                    format!("{tenant} may know of {id}, and is told that it does not exist")
                });
            }
            _ => {}
        }
    }

    /// Checks a page of the allocations that a tenant may know of. A complete list has all of its own.
    pub fn check_listed(
        &mut self,
        tenant: &str,
        prefix: &str,
        shown: Result<&(Vec<AllocationView>, bool), &Refusal>,
        broker: &Broker,
    ) {
        let Ok((page, more)) = shown else { return };
        for view in page {
            self.check_visible(tenant, view);
            self.check_view(view);
            let full = if prefix.is_empty() { format!("{tenant}/") } else { full_name(prefix, tenant) };
            let fits = prefix.is_empty() || view.name.starts_with(&full);
            self.expect(VISIBLE, fits, || format!("{} is listed as {} under {full}", view.id, view.name));
        }
        self.check_names_listed((tenant, prefix), page, *more, broker);
        if !prefix.is_empty() || *more {
            return;
        }
        let own = self.facts.tenant(tenant);
        let listed: Vec<_> = page.iter().map(|view| view.id).collect();
        let known = self.facts.allocations.iter().filter(|(_, it)| it.tenant == own).map(|(id, _)| *id);
        let missing = known
            .filter(|id| listed.binary_search(id).is_err())
            .find(|id| broker.show(&Target::Id(*id)).is_ok());
        self.expect(VISIBLE, missing.is_none(), || format!("{missing:?} of {tenant} is not listed"));
    }

    /// Checks that a complete list of a prefix has each allocation of the tenant that has such a name.
    fn check_names_listed(
        &mut self,
        (tenant, prefix): (&str, &str),
        page: &[AllocationView],
        more: bool,
        broker: &Broker,
    ) {
        let full = full_name(prefix, tenant);
        if more || prefix.is_empty() || !full.starts_with(&format!("{tenant}/")) {
            return;
        }
        let named = self.facts.names.range(full.clone()..).take_while(|(name, _)| name.starts_with(&full));
        let mut missing = named.filter(|(_, id)| page.iter().all(|view| view.id != **id));
        let missing = missing.find(|(_, id)| broker.show(&Target::Id(**id)).is_ok()).map(|(_, id)| *id);
        self.expect(VISIBLE, missing.is_none(), || format!("{missing:?} is not listed under {full}"));
    }

    /// Checks bytes and mappers of a view against what the oracle saw, where each part's extent is known, and
    /// the tier of each part.
    fn check_view(&mut self, view: &AllocationView) {
        for shown in &view.parts {
            let part = PartRef { allocation: view.id, part: shown.index };
            let lies_in = self.tier_of(part).unwrap_or(shown.tier);
            self.expect(VISIBLE, shown.tier == lies_in, || {
                format!("{part:?} is shown in {} and lies in {lies_in}", shown.tier)
            });
        }
        let Some(facts) = self.facts.allocations.get(&view.id) else { return };
        if facts.parts.len() < facts.part_count || facts.left_unseen {
            return;
        }
        let own = facts.parts.iter().filter_map(|(part, id)| {
            let part = PartRef { allocation: view.id, part: PartIndex(*part) };
            self.facts.extents.get(id).filter(|extent| extent.part == Some(part) && !extent.detached)
        });
        let of_it = |extent: &ExtentFacts| extent.part.is_some_and(|part| part.allocation == view.id);
        let backs = |id: &ExtentId, extent: &ExtentFacts| {
            let backing = extent.part.and_then(|part| self.facts.backings.get(&part));
            let leaves = self.facts.places[extent.place].tier != Tier::Device && !facts.leaving;
            backing == Some(&BackingFacts::Kept(*id)) || (leaves && self.facts.moves.contains_key(id))
        };
        // The backing of a part on its device is not shown, nor the target of its move.
        let detached_extents = self.facts.extents.iter();
        let detached_extents =
            detached_extents.filter(|(id, it)| it.detached && of_it(it) && !backs(id, it)).map(|(_, it)| it);
        let (mut charged, mut resident, mut unreturned) = (self.managed_bytes(view.id), 0, 0);
        let (mut in_host, mut on_disk, mut in_file) = (0, 0, 0);
        for extent in own.chain(detached_extents) {
            match extent.phase {
                ExtentPhase::Cached | ExtentPhase::GivenUp => continue,
                ExtentPhase::Live if extent.in_file => in_file += extent.size,
                ExtentPhase::Live => match self.facts.places[extent.place].tier {
                    Tier::Device => resident += extent.size,
                    Tier::Host => in_host += extent.size,
                    Tier::Disk => on_disk += extent.size,
                },
                ExtentPhase::Unreturned => unreturned += extent.size,
                ExtentPhase::Creating | ExtentPhase::Releasing => {}
            }
            charged += extent.cost();
        }
        let holds = |session: &&SessionFacts| session.mappings.keys().any(|part| part.allocation == view.id);
        let mappers = self.facts.sessions.values().filter(holds).count();
        let expected = ([charged, resident, unreturned, in_host, on_disk, in_file], mappers);
        let (above, below) = ([view.charged, view.resident, view.unreturned], [view.in_host, view.on_disk]);
        let [charged, resident, unreturned] = above.map(vramd_types::Bytes::get);
        let [in_host, on_disk] = below.map(vramd_types::Bytes::get);
        let bytes = [charged, resident, unreturned, in_host, on_disk, view.in_file.get()];
        let is = (bytes, view.mapper_count);
        self.expect(VISIBLE, is == expected, || {
            format!(
                "{}: charged, resident, unreturned, in the host, on disk, in its file, and mappers are {is:?}, not {expected:?}",
                view.id
            )
        });
    }

    pub(crate) fn check_visible(&mut self, tenant: &str, view: &AllocationView) {
        let id = self.facts.tenant(tenant);
        let known = self.facts.allocations.get(&view.id);
        let may = match known {
            Some(allocation) => self.may_know(id, allocation),
            // It is being made: only its tenant and its future readers may know of it.
            None => {
                view.tenant == tenant || view.readers.iter().any(|reader| reader == "*" || reader == tenant)
            }
        };
        self.expect(VISIBLE, may, || format!("{tenant} is shown {} of {}", view.id, view.tenant));
    }
}
