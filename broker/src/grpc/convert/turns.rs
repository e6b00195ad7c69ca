//! Working sets and their turns as operators see them.

use std::time::SystemTime;

use broker_core::{TurnPhase, WorkingSetView};
use vramd_proto::v1;

use super::view::time_of_day;

/// Converts a working set. `started_at` is the wall clock's time at the start of the daemon.
pub(in crate::grpc) fn turn(view: &WorkingSetView, started_at: SystemTime) -> v1::TurnEntry {
    let phase = match view.phase {
        TurnPhase::Idle => v1::TurnPhase::Idle,
        TurnPhase::Waiting => v1::TurnPhase::Waiting,
        TurnPhase::HandOver => v1::TurnPhase::HandOver,
        TurnPhase::Owned => v1::TurnPhase::Granted,
        TurnPhase::Ending => v1::TurnPhase::Ending,
        TurnPhase::Overdue => v1::TurnPhase::Overdue,
    };
    v1::TurnEntry {
        session_id: view.session.shown(),
        set_id: view.number,
        name: view.name.to_string(),
        tenant: view.tenant.to_string(),
        device: view.device.clone(),
        allocation_count: u32::try_from(view.allocations).unwrap_or(u32::MAX),
        bytes: view.bytes.get(),
        phase: phase.into(),
        since: view.since.and_then(|since| time_of_day(since, started_at)),
        turn_count: view.turns,
        held_ms: u64::try_from(view.held.as_millis()).unwrap_or(u64::MAX),
    }
}
