//! Prefetch requests as operators see them.

use std::time::SystemTime;

use broker_core::{PrefetchPhase, PrefetchView};
use vramd_proto::v1;

use super::view::time_of_day;
use crate::events::deferral;

/// Converts a request. `started_at` is the wall clock's time at the start of the daemon.
pub(in crate::grpc) fn prefetch(view: &PrefetchView, started_at: SystemTime) -> v1::PrefetchEntry {
    let (phase, deferred) = match view.phase {
        PrefetchPhase::Queued(why) => (v1::PrefetchPhase::Queued, deferral(why)),
        PrefetchPhase::Fetching => (v1::PrefetchPhase::Fetching, v1::PrefetchDeferral::Unspecified),
        PrefetchPhase::Arrived => (v1::PrefetchPhase::Arrived, v1::PrefetchDeferral::Unspecified),
    };
    v1::PrefetchEntry {
        session_id: view.session.shown(),
        prefetch_id: view.number,
        tenant: view.tenant.to_string(),
        device: view.device.clone(),
        part_count: view.parts,
        bytes: view.bytes.get(),
        parts_missing: view.missing,
        parts_unused: view.unused,
        began_at: time_of_day(view.since, started_at),
        deadline: view.deadline.and_then(|deadline| time_of_day(deadline, started_at)),
        priority: view.priority.into(),
        phase: phase.into(),
        deferred: deferred.into(),
        sequence: view.place.map(|place| v1::SequencePlace { sequence_id: place.sequence, step: place.step }),
    }
}
