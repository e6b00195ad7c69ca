//! The protocol holds, whatever crosses whatever.

use crate::caller::Act::{Read, UnpinTooMany, Write, WriteOrLeave};
use crate::scenario::{
    DEADLINE, EVICT, FAILED_WRITE_BACK, FENCE, IN_HOST, IN_HOST_FOR_TWO, Order, RESIDENT, RESIDENT_FOR_LONG,
    RESIDENT_FOR_TWO, Scenario, WRITE_BACK,
};

fn holds(scenario: Scenario) {
    scenario.explore(None);
}

#[test]
fn an_evict_against_a_writer() {
    holds(Scenario { callers: &[&[Write(2), Read]], orders: &[EVICT], ..RESIDENT });
}

#[test]
fn an_evict_against_a_writer_and_a_reader() {
    holds(Scenario { callers: &[&[Write(2)], &[Read]], orders: &[EVICT], ..RESIDENT_FOR_TWO });
}

#[test]
fn a_fence_against_a_writer() {
    holds(Scenario { callers: &[&[Write(2), Read]], orders: &[FENCE], ..RESIDENT });
}

#[test]
fn a_fence_against_a_writer_and_a_reader() {
    holds(Scenario { callers: &[&[Write(2)], &[Read]], orders: &[FENCE], ..RESIDENT_FOR_TWO });
}

#[test]
fn an_evict_against_calls_that_bring_the_part_in() {
    holds(Scenario { callers: &[&[Write(2), Read]], orders: &[EVICT], ..IN_HOST });
    holds(Scenario { callers: &[&[Write(2)], &[Read]], orders: &[EVICT], ..IN_HOST_FOR_TWO });
}

#[test]
fn a_write_back_against_a_writer() {
    holds(Scenario { callers: &[&[Write(2), Write(3)]], orders: &[WRITE_BACK], ..RESIDENT });
    holds(Scenario { callers: &[&[Write(2)]], orders: &[WRITE_BACK, EVICT], ..RESIDENT });
}

#[test]
fn a_write_back_against_two_writers() {
    holds(Scenario { callers: &[&[Write(2)], &[Write(3)]], orders: &[WRITE_BACK], ..RESIDENT_FOR_TWO });
}

#[test]
fn a_write_back_that_fails() {
    holds(Scenario { callers: &[&[Write(2)]], orders: &[FAILED_WRITE_BACK, EVICT], ..RESIDENT });
}

#[test]
fn a_call_that_gives_up_waiting() {
    holds(Scenario { callers: &[&[WriteOrLeave(2)]], orders: &[EVICT], ..IN_HOST });
    holds(Scenario { callers: &[&[Read, WriteOrLeave(2)]], orders: &[EVICT], ..RESIDENT });
}

#[test]
fn a_call_that_gives_up_waiting_beside_one_that_does_not() {
    holds(Scenario { callers: &[&[WriteOrLeave(2)], &[Write(3)]], orders: &[EVICT], ..RESIDENT_FOR_TWO });
}

#[test]
fn a_detach_against_a_revoke_and_a_call() {
    holds(Scenario { callers: &[&[Write(2)]], orders: &[Order::Detach, EVICT], ..RESIDENT });
    holds(Scenario { callers: &[&[Write(2)]], orders: &[FENCE, Order::Detach], ..RESIDENT });
}

#[test]
fn a_move_that_is_given_up_and_the_part_mapped_again() {
    holds(Scenario { callers: &[&[Write(2), Read]], orders: &[EVICT, DEADLINE, EVICT], ..RESIDENT_FOR_LONG });
    holds(Scenario { callers: &[&[Write(2)]], orders: &[WRITE_BACK, EVICT, DEADLINE], ..RESIDENT_FOR_LONG });
}

#[test]
fn a_reader_of_sealed_memory_that_writes() {
    holds(Scenario { sealed: true, callers: &[&[Write(2)]], orders: &[EVICT], ..RESIDENT });
}

#[test]
fn an_unpin_too_many_against_an_evict() {
    holds(Scenario { callers: &[&[Write(2), UnpinTooMany]], orders: &[EVICT], ..RESIDENT });
}
