//! Wrong forms of the protocol that look right, and the failure that the checker finds in each.
//!
//! The small worlds are those in which the right protocol holds: only the form differs, so only it can be the cause.

use crate::caller::Act;
use crate::form::Form;
use crate::scenario::{
    DEADLINE, EVICT, FAILED_WRITE_BACK, IN_HOST, IN_HOST_FOR_TWO, RESIDENT, RESIDENT_FOR_LONG, Scenario,
    WRITE_BACK,
};

/// Checks that the right protocol holds in a world, and that the form fails there with this message.
fn breaks(scenario: Scenario, form: Form, runs_min: u64, finding: &str) {
    scenario.holds(runs_min);
    scenario.breaks(form, finding);
}

#[test]
fn a_bring_in_for_a_write_pin_without_written() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], ..IN_HOST };
    breaks(scenario, Form::BringInWithoutWritten, 24, "a byte was lost");
}

#[test]
fn a_restoring_map_that_forgets_written() {
    let scenario = Scenario { callers: &[&[Act::Write(2), Act::Read]], orders: &[EVICT], ..RESIDENT };
    breaks(scenario, Form::RestoreForgetsWritten, 15_000, "a byte was lost");
}

#[test]
fn a_write_back_in_two_steps() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], orders: &[WRITE_BACK], ..RESIDENT };
    breaks(scenario, Form::WriteBackInTwoSteps, 890, "a byte was lost");
}

#[test]
fn an_older_shadow_kept_across_a_failed_write_back() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], orders: &[FAILED_WRITE_BACK], ..RESIDENT };
    breaks(scenario, Form::OldShadowKept, 510, "a byte was lost");
}

#[test]
fn a_readers_written_believed_on_sealed_memory() {
    let scenario = Scenario { sealed: true, callers: &[&[Act::Write(2)]], orders: &[EVICT], ..RESIDENT };
    breaks(scenario, Form::ReadersWrittenBelieved, 10_000, "a byte was lost");
}

#[test]
fn absent_word_taken_for_unmapped() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], orders: &[EVICT], ..IN_HOST };
    breaks(scenario, Form::AbsentTakenForUnmapped, 1900, "given away");
}

/// A roll-back fails at once with the right worker: it gets a frame without its revoke.
#[test]
fn a_roll_back_after_the_frame_was_sent() {
    let scenario = Scenario { orders: &[EVICT, DEADLINE], ..RESIDENT };
    breaks(scenario, Form::RollBackAfterFrame, 88, "a frame without its revoke");
}

/// If both sides tolerate it, the harm comes later. The move is ordered again, so there are two frames. The first is
/// answered, the part is mapped again, and the second answer is taken for the unmapping of the new mapping.
///
/// The channel keeps its order, so that answer precedes the next `mapped` and never meets a third revoke. A daemon
/// that quarantines an unrequested `mapped` would notice; the form's daemon does not.
#[test]
fn a_roll_back_after_the_frame_was_sent_and_an_answer_to_each() {
    let scenario = Scenario {
        callers: &[&[Act::Write(2), Act::Read]],
        orders: &[EVICT, DEADLINE, EVICT],
        ..RESIDENT_FOR_LONG
    };
    breaks(scenario, Form::RollBackWithTwoAnswers, 8400, "copied out while in use");
}

#[test]
fn a_late_answer_ignored() {
    let scenario = Scenario { orders: &[EVICT, DEADLINE], ..RESIDENT };
    breaks(scenario, Form::LateAnswerIgnored, 88, "deadlock");
}

#[test]
fn pins_for_calls_that_no_longer_wait() {
    let scenario = Scenario { callers: &[&[Act::WriteOrLeave(2)]], ..IN_HOST };
    breaks(scenario, Form::PinsForWhoLeft, 150, "a pin was left behind");
}

#[test]
fn an_unpin_by_subtraction() {
    let scenario = Scenario { callers: &[&[Act::Write(2), Act::UnpinTooMany]], orders: &[EVICT], ..RESIDENT };
    breaks(scenario, Form::UnpinBySubtraction, 12_000, "a pin was left behind");
}

/// Two callers are bounded to one preemption. The failure needs both: no preemption is too few, and so is one caller.
#[test]
fn an_unpin_in_two_steps() {
    let one = Scenario { callers: &[&[Act::Read]], ..IN_HOST };
    one.explore(Some(Form::UnpinInTwoSteps), 24);
    let two = Scenario { callers: &[&[Act::Read], &[Act::Read]], ..IN_HOST_FOR_TWO };
    Scenario { preemptions: 0, ..two }.explore(Some(Form::UnpinInTwoSteps), 4);
    breaks(two, Form::UnpinInTwoSteps, 230, "a pin was left behind");
}
