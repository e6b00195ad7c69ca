//! An allocation that is given a name has it.

use broker_core::{AllocationSpec, AllocationState, AllocationView, Broker, Target, invariants::UNIQUE};

use crate::oracle::Oracle;

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
}
