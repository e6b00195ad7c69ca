//! A request that can begin does. Only one tenant has requests queued on its device, and it is the first of them. Nothing
//! that it names moves, no client waits for room, nothing else goes to a device, and there is room for all that it needs.
//! Such a request begins before the daemon has tried queued requests twice.

use broker_core::{Broker, MoveView, Tier, invariants::PREFETCH_BEGINS, limits::PREFETCH_RETRY};

use super::{PrefetchId, RequestFacts, order::place};
use crate::oracle::Oracle;

impl Oracle {
    /// Checks the requests that are queued after the event.
    pub(super) fn check_queued(&mut self, broker: &Broker, moves: &[MoveView]) {
        let now = self.facts.now;
        let goes_to_device = moves.iter().any(|it| it.to == Tier::Device);
        let is_quiet = !goes_to_device && broker.waits().is_empty();
        let queued = self.facts.prefetches.requests.iter().filter(|(_, it)| it.is_queued());
        let able: Vec<PrefetchId> = queued
            .filter(|(id, it)| is_quiet && self.can_surely_begin(**id, it))
            .map(|(id, _)| *id)
            .collect();
        for (id, request) in &mut self.facts.prefetches.requests {
            request.able_since = able.contains(id).then(|| request.able_since.unwrap_or(now));
        }
        let is_forgotten = |it: &RequestFacts| {
            it.able_since.is_some_and(|since| since.after(PREFETCH_RETRY.saturating_mul(2)) < now)
        };
        let forgotten = self.facts.prefetches.requests.iter().find(|(_, it)| is_forgotten(it));
        let forgotten = forgotten.map(|(id, it)| (*id, it.clone()));
        self.expect(PREFETCH_BEGINS, forgotten.is_none(), || {
            format!("{forgotten:?} could begin and stays queued")
        });
    }

    fn can_surely_begin(&self, id: PrefetchId, request: &RequestFacts) -> bool {
        let Some(device) = request.device else { return false };
        let may_pass = |(of, it): (&PrefetchId, &RequestFacts)| {
            let is_behind = it.tenant == request.tenant && place(*of, it) >= place(id, request);
            it.is_queued() && it.device == request.device && !is_behind
        };
        !self.facts.prefetches.requests.iter().any(may_pass)
            && self.facts.prefetches.sequences.waiting_tenants(device).is_empty()
            && !self.may_be_paused(request)
            && !request.spec.parts.iter().any(|part| self.is_in_place(*part))
            && self.surely_fits(request, self.committed_all()[device])
    }
}
