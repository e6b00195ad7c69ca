//! A name belongs to one allocation, from its creation until that is freed or another one that is sealed takes
//! it. Only an allocation that was requested with `replace` takes a name, and only from a sealed one.

use broker_core::{
    AllocationSpec, AllocationState, AllocationView, Broker, ClientRequest, Refusal, Target,
    invariants::UNIQUE,
};
use vramd_types::AllocationId;

use crate::oracle::{
    Oracle,
    facts::{Asked, Call, Tenant},
};

/// The name with its tenant. A name without one is of the caller's own.
pub(crate) fn full_name(text: &str, own: &str) -> String {
    match text.contains('/') {
        true => text.to_owned(),
        false => format!("{own}/{text}"),
    }
}

impl Oracle {
    /// Checks that an allocation has its name: when it is made under one, unless it is to replace another's,
    /// and when it is sealed.
    pub(crate) fn check_name(&mut self, view: &AllocationView, broker: &Broker) {
        if view.name.is_empty() || view.state == AllocationState::Freeing {
            return;
        }
        let bearer = broker.show(&Target::Name(view.name.clone())).map(|bearer| bearer.id);
        self.expect(UNIQUE, bearer == Ok(view.id), || {
            format!("{} was given the name {}, which {bearer:?} has", view.id, view.name)
        });
    }

    pub(crate) fn check_names(
        &mut self,
        specs: &[AllocationSpec],
        views: &[AllocationView],
        broker: &Broker,
    ) {
        for (_, view) in specs.iter().zip(views).filter(|(spec, _)| !spec.replace) {
            // It may have been freed meanwhile, if this is the answer to a repeated request.
            let shown = broker.show(&Target::Id(view.id));
            if let Some(now) = shown.ok().filter(|now| now.state == AllocationState::Open) {
                self.check_name(&now, broker);
            }
        }
    }

    /// Learns whether new memory has its name. One that is to replace another may have to wait for it.
    pub(crate) fn learn_name(&mut self, id: AllocationId, broker: &Broker) {
        let Some(allocation) = self.facts.allocations.get(&id).filter(|it| !it.name.is_empty()) else {
            return;
        };
        let name = allocation.name.clone();
        let before = self.facts.names.get(&name).copied();
        let bearer = broker.show(&Target::Name(name.clone())).map(|bearer| bearer.id);
        if bearer == Ok(id) {
            self.expect(UNIQUE, before.is_none_or(|before| before == id), || {
                format!("{id} was made as {name}, which {before:?} had")
            });
            self.facts.names.insert(name, id);
        }
    }

    /// Forgets the name of an allocation that is freed.
    pub(crate) fn forget_name(&mut self, id: AllocationId) {
        let Some(allocation) = self.facts.allocations.get(&id) else { return };
        if self.facts.names.get(&allocation.name) == Some(&id) {
            self.facts.names.remove(&allocation.name);
            self.step.names_freed.push((allocation.name.clone(), id));
        }
    }

    /// Records that an allocation is sealed, which gives it its name. Checks that it takes the name from no
    /// allocation but one that it may replace, which is freed.
    pub(crate) fn record_sealed(&mut self, id: AllocationId) {
        let Some((name, replace)) = self.name_when_sealed(id) else { return };
        let freed = self.step.names_freed.iter().find(|(freed, _)| *freed == name).map(|(_, id)| *id);
        let keeps = self.facts.names.insert(name.clone(), id).filter(|bearer| *bearer != id);
        self.expect(UNIQUE, keeps.is_none(), || {
            format!("{id} is sealed as {name}, which {keeps:?} has, and that one is not freed")
        });
        if let Some(replaced) = freed {
            let was_sealed = self.facts.allocations.get(&replaced).is_some_and(|it| it.sealed);
            self.expect(UNIQUE, replace && was_sealed, || {
                format!(
                    "{id} takes the name {name} from {replaced}; replace: {replace}, sealed: {was_sealed}"
                )
            });
            self.step.replaced = Some(replaced);
        }
    }

    /// Name and `replace` of an allocation that is sealed, or is loaded.
    fn name_when_sealed(&self, id: AllocationId) -> Option<(String, bool)> {
        if let Some(allocation) = self.facts.allocations.get(&id) {
            return Some((allocation.name.clone(), allocation.replace)).filter(|(name, _)| !name.is_empty());
        }
        let load = self.facts.loading.get(&id)?;
        let session = self.facts.sessions.get(&load.by)?;
        match Self::request_of(self.facts.calls.get(&load.call)?)? {
            ClientRequest::Load { spec, .. } => {
                let name = full_name(spec.name.as_deref()?, &self.facts.tenants[session.tenant]);
                Some((name, spec.replace))
            }
            _ => None,
        }
    }

    /// Checks that each name still leads to the allocation that has it.
    pub(crate) fn check_all_names(&mut self, broker: &Broker) {
        let bearer = |name: &str| broker.show(&Target::Name(name.to_owned())).ok().map(|bearer| bearer.id);
        let wrong = self.facts.names.iter().find(|(name, id)| bearer(name) != Some(**id));
        let wrong = wrong.map(|(name, id)| (name.clone(), *id));
        self.expect(UNIQUE, wrong.is_none(), || {
            format!("{wrong:?} is a name whose allocation does not have it any longer")
        });
    }

    /// Resolves the name that a call gives.
    pub(crate) fn named_by(&self, asked: &Asked) -> Option<AllocationId> {
        use broker_core::OperatorRequest as R;
        let target = match asked {
            Asked::Operator { request, .. } => match request {
                R::FreeAllocation(target)
                | R::RevokeMappings { target, .. }
                | R::MoveParts { target, .. }
                | R::WriteBackParts { target, .. }
                | R::HoldParts { target, .. } => target,
                _ => return None,
            },
            Asked::Client { .. } => return None,
        };
        match target {
            Target::Name(name) => self.facts.names.get(name).copied(),
            Target::Id(_) => None,
        }
    }

    /// Whether a name that a call needs belongs to an allocation that the call may not replace.
    pub(crate) fn is_name_taken(&self, call: &Call, tenant: Option<Tenant>, broker: &Broker) -> bool {
        let Some(tenant) = tenant.map(|tenant| self.facts.tenants[tenant].as_str()) else { return false };
        let blocked = |name: String, replace: bool, own: Option<AllocationId>| {
            let bearer = broker.show(&Target::Name(name));
            bearer.is_ok_and(|it| Some(it.id) != own && !(replace && it.state == AllocationState::Sealed))
        };
        let is_kept = |spec: &AllocationSpec| {
            let name = spec.name.as_deref();
            name.is_some_and(|name| blocked(full_name(name, tenant), spec.replace, None))
        };
        match Self::request_of(call) {
            Some(ClientRequest::AllocateBatch { items: specs, .. }) => {
                let names: Vec<_> = specs.iter().filter_map(|spec| spec.name.as_deref()).collect();
                let twice = |name: &&str| names.iter().filter(|other| *other == name).count() > 1;
                names.iter().any(twice) || specs.iter().any(is_kept)
            }
            Some(ClientRequest::Load { spec, .. }) => is_kept(spec),
            Some(ClientRequest::Seal(id)) => self
                .facts
                .allocations
                .get(id)
                .is_some_and(|it| blocked(it.name.clone(), it.replace, Some(*id))),
            _ => false,
        }
    }

    /// Checks that a seal that is refused at once leaves the allocation open.
    pub(crate) fn expect_open_after(&mut self, id: AllocationId, refusal: &Refusal, broker: &Broker) {
        let changes_nothing = matches!(
            refusal,
            Refusal::NameTaken { .. } | Refusal::SlotsExhausted { .. } | Refusal::KindUnsupported { .. }
        );
        self.expect_open(id, changes_nothing, broker);
    }

    /// Checks that an allocation whose hash has ended without a seal is open again.
    pub(crate) fn check_failed_seal(&mut self, broker: &Broker) {
        let Some(id) = self.step.hashed else { return };
        let failed = self.facts.allocations.get(&id).is_some_and(|it| !it.sealed && !it.leaving);
        self.expect_open(id, failed, broker);
    }

    fn expect_open(&mut self, id: AllocationId, is_known: bool, broker: &Broker) {
        if !is_known {
            return;
        }
        let state = broker.show(&Target::Id(id)).map(|view| view.state);
        self.expect(UNIQUE, state == Ok(AllocationState::Open), || {
            format!("{id} could not be sealed, and is not open again: {state:?}")
        });
    }
}
