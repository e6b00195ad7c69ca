//! Requests as operators see them.

use crate::{
    broker::Broker,
    prefetch::{Phase, PrefetchPhase, PrefetchView},
};

impl Broker {
    /// All requests that have not ended, by session and number.
    pub fn prefetches(&self) -> Vec<PrefetchView> {
        let count = |parts: usize| u32::try_from(parts).unwrap_or(u32::MAX);
        let view = |((session, number), it): (_, &crate::prefetch::Prefetch)| {
            let (phase, missing, unused) = match &it.phase {
                Phase::Queued(why) => (PrefetchPhase::Queued(*why), it.parts.len(), 0),
                Phase::Fetching { missing, unused, .. } => {
                    (PrefetchPhase::Fetching, missing.len(), unused.len())
                }
                Phase::Arrived { unused, .. } => (PrefetchPhase::Arrived, 0, unused.len()),
            };
            PrefetchView {
                session,
                number,
                tenant: self.tenants.shared(it.tenant),
                device: self.uuid(it.device).to_owned(),
                parts: count(it.parts.len()),
                bytes: it.bytes,
                missing: count(missing),
                unused: count(unused),
                since: it.since,
                deadline: it.deadline,
                misses_deadline: it.misses_deadline,
                priority: it.priority,
                place: it.place,
                phase,
            }
        };
        self.moves.prefetches.iter().map(view).collect()
    }
}
