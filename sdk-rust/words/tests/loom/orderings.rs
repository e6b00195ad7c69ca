//! The orderings are needed: each step that another relies on, with its necessary half of the ordering, and without
//! it.
//!
//! With AcqRel, executed by the model instead of the crate, the step holds; so only the ordering can break it.
//! Without the named half it breaks, with the other half or with none.
//!
//! The rest of AcqRel saves no byte in these small worlds, since every step of a word is a read-modify-write, and
//! passes on what an earlier one released. It stays, so that a reader of the crate need not ask which half is left
//! out where.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

use crate::caller::Act::{Read, Write};
use crate::form::Form;
use crate::scenario::{EVICT, FENCE, IN_HOST_FOR_TWO, RESIDENT, Scenario, WRITE_BACK};
use crate::step::Step;

/// Two callers, so that one can find the part mapped for the other, and learns of it by the word alone.
const BROUGHT_IN: Scenario = Scenario { callers: &[&[Read], &[Read]], ..IN_HOST_FOR_TWO };
const EVICTED: Scenario = Scenario { callers: &[&[Write(2)]], orders: &[EVICT], ..RESIDENT };
/// A fence, unlike an evict, does not wait for the pin: so the worker learns of the unpin by the word alone.
const FENCED: Scenario = Scenario { callers: &[&[Write(2)]], orders: &[FENCE], ..RESIDENT };
const WRITTEN_BACK: Scenario = Scenario { callers: &[&[Write(2)]], orders: &[WRITE_BACK], ..RESIDENT };

fn needs(half: Ordering, step: Step, scenario: Scenario, runs_min: u64, finding: &str) {
    let other = if half == Acquire { Release } else { Acquire };
    scenario.holds(runs_min);
    scenario.explore(Some(Form::Ordered(step, AcqRel)), runs_min);
    for without in [Relaxed, other] {
        scenario.breaks(Form::Ordered(step, without), finding);
    }
}

#[test]
fn an_unpin_releases_what_was_done_under_the_pin() {
    needs(Release, Step::Unpin, EVICTED, 10_000, "a byte was lost");
}

#[test]
fn a_beginning_unmap_acquires_it() {
    needs(Acquire, Step::BeginUnmap, FENCED, 11_000, "unmapped before it was written");
}

#[test]
fn a_beginning_write_back_acquires_it() {
    needs(Acquire, Step::BeginWriteBack, WRITTEN_BACK, 890, "a byte was lost");
}

#[test]
fn set_mapped_releases_the_mapping() {
    needs(Release, Step::SetMapped, BROUGHT_IN, 230, "a byte was lost");
}

#[test]
fn a_pin_acquires_it() {
    needs(Acquire, Step::Pin, BROUGHT_IN, 230, "a byte was lost");
}
