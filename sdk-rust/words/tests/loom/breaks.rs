//! Each form that looks as good as the right one, and what the checker finds it to do.
//!
//! The small worlds are those in which the right protocol holds: only the form differs, so only it can be the cause.

use crate::caller::Act;
use crate::form::Form;
use crate::scenario::{
    DEADLINE, EVICT, FAILED_WRITE_BACK, IN_HOST, RESIDENT, RESIDENT_FOR_LONG, Scenario, WRITE_BACK,
};

/// That the right protocol holds there, and that the form breaks there, saying so.
fn breaks(scenario: Scenario, form: Form, finding: &str) {
    scenario.explore(None);
    let found = std::panic::catch_unwind(|| scenario.explore(Some(form)));
    let panic = found.expect_err("the checker found nothing wrong with this form");
    let said = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .expect("a panic with a message");
    assert!(said.contains(finding), "{form:?} breaks otherwise: {said}");
}

#[test]
fn a_bring_in_for_a_write_pin_without_written() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], ..IN_HOST };
    breaks(scenario, Form::BringInWithoutWritten, "a byte was lost");
}

#[test]
fn a_restoring_map_that_forgets_written() {
    let scenario = Scenario { callers: &[&[Act::Write(2), Act::Read]], orders: &[EVICT], ..RESIDENT };
    breaks(scenario, Form::RestoreForgetsWritten, "a byte was lost");
}

#[test]
fn a_write_back_in_two_steps() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], orders: &[WRITE_BACK], ..RESIDENT };
    breaks(scenario, Form::WriteBackInTwoSteps, "a byte was lost");
}

#[test]
fn an_older_shadow_kept_across_a_failed_write_back() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], orders: &[FAILED_WRITE_BACK], ..RESIDENT };
    breaks(scenario, Form::OldShadowKept, "a byte was lost");
}

#[test]
fn a_readers_written_believed_on_sealed_memory() {
    let scenario = Scenario { sealed: true, callers: &[&[Act::Write(2)]], orders: &[EVICT], ..RESIDENT };
    breaks(scenario, Form::ReadersWrittenBelieved, "a byte was lost");
}

#[test]
fn an_absent_word_taken_for_nobody_maps() {
    let scenario = Scenario { callers: &[&[Act::Write(2)]], orders: &[EVICT], ..IN_HOST };
    breaks(scenario, Form::AbsentTakenForUnmapped, "given away");
}

#[test]
fn a_roll_back_after_the_frame_was_sent() {
    let scenario = Scenario {
        callers: &[&[Act::Write(2), Act::Read]],
        orders: &[EVICT, DEADLINE, EVICT],
        ..RESIDENT_FOR_LONG
    };
    breaks(scenario, Form::RollBackAfterFrame, "does not fit");
}

#[test]
fn a_late_answer_ignored() {
    let scenario = Scenario { orders: &[EVICT, DEADLINE], ..RESIDENT };
    breaks(scenario, Form::LateAnswerIgnored, "deadlock");
}

#[test]
fn pins_for_calls_that_no_longer_wait() {
    let scenario = Scenario { callers: &[&[Act::WriteOrLeave(2)]], ..IN_HOST };
    breaks(scenario, Form::PinsForWhoLeft, "a pin was left behind");
}

#[test]
fn an_unpin_by_subtraction() {
    let scenario = Scenario { callers: &[&[Act::Write(2), Act::UnpinTooMany]], orders: &[EVICT], ..RESIDENT };
    breaks(scenario, Form::UnpinBySubtraction, "a pin was left behind");
}
