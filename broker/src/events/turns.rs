//! Events of turns.

use std::time::Duration;

use broker_core::{Notice, Time, TurnEnd};
use vramd_proto::v1::{self, turn_event::Change};
use vramd_types::{DeviceIndex, SessionId};

/// Converts a notice of a turn, at the time `now`.
pub(super) fn event(notice: &Notice, now: Time) -> Option<v1::TurnEvent> {
    let since = |began: &Time| now.since(*began);
    Some(match notice {
        Notice::TurnGranted { session, device, set, bytes, since: asked, .. } => v1::TurnEvent {
            bytes: bytes.get(),
            ..of_turn(Change::Granted, *session, *device, set, since(asked))
        },
        Notice::TurnEnding { session, device, set, by_operator, .. } => {
            let change = if *by_operator { Change::OperatorAsked } else { Change::QuantumOver };
            of_turn(change, *session, *device, set, Duration::ZERO)
        }
        Notice::TurnOverdue { session, device, set, asked, .. } => {
            of_turn(Change::Overdue, *session, *device, set, since(asked))
        }
        Notice::TurnEnded { session, device, set, granted, end, .. } => {
            let change = match end {
                TurnEnd::Yielded => Change::Yielded,
                TurnEnd::SessionEnded => Change::SessionEnded,
            };
            of_turn(change, *session, *device, set, since(granted))
        }
        _ => return None,
    })
}

fn of_turn(
    change: Change,
    session: SessionId,
    device: DeviceIndex,
    set: &str,
    duration: Duration,
) -> v1::TurnEvent {
    v1::TurnEvent {
        change: change.into(),
        session_id: session.shown(),
        set_name: set.to_owned(),
        device: device.0.into(),
        bytes: 0,
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
    }
}
