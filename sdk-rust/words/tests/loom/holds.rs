//! The right protocol holds in every interleaving within the bound.

use crate::caller::Act::{Read, UnpinTooMany, Write, WriteOrLeave};
use crate::scenario::{
    DEADLINE, EVICT, FAILED_WRITE_BACK, FENCE, IN_HOST, IN_HOST_FOR_TWO, Order, RESIDENT, RESIDENT_FOR_LONG,
    RESIDENT_FOR_TWO, Scenario, WRITE_BACK,
};

#[test]
fn an_evict_against_a_writer() {
    Scenario { callers: &[&[Write(2), Read]], orders: &[EVICT], ..RESIDENT }.holds(15_000);
}

#[test]
fn an_evict_against_a_writer_and_a_reader() {
    Scenario { callers: &[&[Write(2)], &[Read]], orders: &[EVICT], ..RESIDENT_FOR_TWO }.holds(39_000);
}

#[test]
fn a_fence_against_a_writer() {
    Scenario { callers: &[&[Write(2), Read]], orders: &[FENCE], ..RESIDENT }.holds(18_000);
}

#[test]
fn a_fence_against_a_writer_and_a_reader() {
    Scenario { callers: &[&[Write(2)], &[Read]], orders: &[FENCE], ..RESIDENT_FOR_TWO }.holds(39_000);
}

#[test]
fn an_evict_against_calls_that_bring_the_part_in() {
    Scenario { callers: &[&[Write(2), Read]], orders: &[EVICT], ..IN_HOST }.holds(4200);
    Scenario { callers: &[&[Write(2)], &[Read]], orders: &[EVICT], ..IN_HOST_FOR_TWO }.holds(440);
}

#[test]
fn a_write_back_against_a_writer() {
    Scenario { callers: &[&[Write(2), Write(3)]], orders: &[WRITE_BACK], ..RESIDENT }.holds(1800);
    Scenario { callers: &[&[Write(2)]], orders: &[WRITE_BACK, EVICT], ..RESIDENT }.holds(18_000);
}

#[test]
fn a_write_back_against_two_writers() {
    Scenario { callers: &[&[Write(2)], &[Write(3)]], orders: &[WRITE_BACK], ..RESIDENT_FOR_TWO }.holds(1600);
}

#[test]
fn a_write_back_that_fails() {
    Scenario { callers: &[&[Write(2)]], orders: &[FAILED_WRITE_BACK, EVICT], ..RESIDENT }.holds(15_000);
}

#[test]
fn a_call_that_gives_up_waiting() {
    Scenario { callers: &[&[WriteOrLeave(2)]], orders: &[EVICT], ..IN_HOST }.holds(1700);
    Scenario { callers: &[&[Read, WriteOrLeave(2)]], orders: &[EVICT], ..RESIDENT }.holds(24_000);
}

#[test]
fn a_call_that_gives_up_waiting_beside_one_that_does_not() {
    Scenario { callers: &[&[WriteOrLeave(2)], &[Write(3)]], orders: &[EVICT], ..RESIDENT_FOR_TWO }
        .holds(11_000);
}

#[test]
fn a_detach_against_a_revoke_and_a_call() {
    Scenario { callers: &[&[Write(2)]], orders: &[Order::Detach, EVICT], ..RESIDENT }.holds(74_000);
    Scenario { callers: &[&[Write(2)]], orders: &[FENCE, Order::Detach], ..RESIDENT }.holds(79_000);
}

#[test]
fn a_move_that_is_given_up_and_the_part_mapped_again() {
    Scenario { callers: &[&[Write(2), Read]], orders: &[EVICT, DEADLINE, EVICT], ..RESIDENT_FOR_LONG }
        .holds(8400);
    Scenario { callers: &[&[Write(2)]], orders: &[WRITE_BACK, EVICT, DEADLINE], ..RESIDENT_FOR_LONG }
        .holds(3200);
}

#[test]
fn a_reader_of_sealed_memory_that_writes() {
    Scenario { sealed: true, callers: &[&[Write(2)]], orders: &[EVICT], ..RESIDENT }.holds(10_000);
}

#[test]
fn an_unpin_too_many_against_an_evict() {
    Scenario { callers: &[&[Write(2), UnpinTooMany]], orders: &[EVICT], ..RESIDENT }.holds(12_000);
}
