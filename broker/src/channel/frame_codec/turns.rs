//! The frames of working sets and turns.

use std::time::Duration;

use broker_core::{ClientFrame, Refusal, TurnState, WorkingSetSpec};
use vramd_proto::{
    channel::WORKING_SET_ALLOCATIONS_MAX,
    v1::{self, daemon_frame::Frame, turn_progress::Step},
};
use vramd_types::AllocationId;

use crate::channel::refusal_frames::of_core;

pub(super) fn answer(number: u64, refusal: Option<&Refusal>) -> Frame {
    Frame::WorkingSetAnswer(v1::WorkingSetAnswer { set_id: number, refused: refusal.map(of_core) })
}

pub(super) fn progress(turn: u64, state: &TurnState) -> Frame {
    let step = match state {
        TurnState::Granted => Step::Granted(v1::TurnGranted {}),
        TurnState::Ending { within } => {
            let deadline_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
            Step::Ending(v1::TurnEnding { deadline_ms })
        }
        TurnState::Refused(refusal) => Step::Refused(of_core(refusal)),
    };
    Frame::TurnProgress(v1::TurnProgress { turn_id: turn, step: Some(step) })
}

/// The core bounds the name and the parts.
pub(super) fn working_set(named: v1::WorkingSet) -> Result<ClientFrame, String> {
    let (count, most) = (named.allocation_ids.len(), WORKING_SET_ALLOCATIONS_MAX);
    if count > most {
        return Err(format!("a working set has {count} allocations, at most {most} are allowed"));
    }
    let allocations = named.allocation_ids.into_iter().map(AllocationId::from_shown).collect();
    let spec = WorkingSetSpec { name: named.name, allocations };
    Ok(ClientFrame::WorkingSet { number: named.set_id, spec })
}

pub(super) fn set_ended(ended: &v1::WorkingSetEnded) -> ClientFrame {
    ClientFrame::WorkingSetEnded { number: ended.set_id }
}

pub(super) fn requested(wanted: &v1::TurnAcquire) -> ClientFrame {
    let wait = wanted.wait_ms.map(Duration::from_millis);
    ClientFrame::TurnRequested { turn: wanted.turn_id, set: wanted.set_id, wait }
}

pub(super) fn yielded(yielded: &v1::TurnYielded) -> ClientFrame {
    ClientFrame::TurnYielded { turn: yielded.turn_id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(allocations: usize) -> v1::WorkingSet {
        let allocation_ids = (0..allocations as u64).collect();
        v1::WorkingSet { set_id: 3, name: "llama".to_owned(), allocation_ids }
    }

    #[test]
    fn the_frames_of_clients_are_read() {
        let Ok(ClientFrame::WorkingSet { number: 3, spec }) = working_set(named(4096)) else { panic!() };
        assert_eq!((&*spec.name, spec.allocations[7]), ("llama", AllocationId::from_shown(7)));
        let refused = working_set(named(4097)).unwrap_err();
        assert_eq!(refused, "a working set has 4097 allocations, at most 4096 are allowed");
        assert_eq!(WORKING_SET_ALLOCATIONS_MAX, broker_core::limits::WORKING_SET_ALLOCATIONS_MAX);
        let wanted = v1::TurnAcquire { turn_id: 5, set_id: 3, wait_ms: Some(20) };
        let ClientFrame::TurnRequested { turn: 5, set: 3, wait } = requested(&wanted) else { panic!() };
        assert_eq!(wait, Some(Duration::from_millis(20)));
    }

    #[test]
    fn the_frames_of_the_daemon_are_written() {
        let refusal = Refusal::QueueFull { limit: 64 };
        let Frame::WorkingSetAnswer(refused) = answer(3, Some(&refusal)) else { panic!() };
        assert_eq!((refused.set_id, &*refused.refused.unwrap().reason), (3, "QUEUE_FULL"));
        assert_eq!(
            answer(3, None),
            Frame::WorkingSetAnswer(v1::WorkingSetAnswer { set_id: 3, refused: None })
        );
        let within = Duration::from_secs(10);
        for (state, step) in [
            (TurnState::Granted, Step::Granted(v1::TurnGranted {})),
            (TurnState::Ending { within }, Step::Ending(v1::TurnEnding { deadline_ms: 10_000 })),
            (TurnState::Refused(refusal.clone()), Step::Refused(of_core(&refusal))),
        ] {
            let expected = Frame::TurnProgress(v1::TurnProgress { turn_id: 5, step: Some(step) });
            assert_eq!(progress(5, &state), expected);
        }
    }
}
