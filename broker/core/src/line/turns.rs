//! The turns of a hopeless waiter: no eviction helps it, so what it waits for would only lie idle.
//!
//! It lets others pass and holds its device in turns that double: it lets others pass until it has waited for
//! `hold_after`, holds until twice that, lets pass until four times that, holds until eight times that, and so on.
//!
//! - While it lets others pass, waiters behind it start as if it were not there.
//! - While it holds, no waiter behind it starts except within its guarantee. Memory that is released meanwhile stays
//!   for it. A turn of holding is as long as the whole wait before it, so sooner or later it outlasts the programs
//!   that have the memory: no waiter starves behind others that come and go.
//! - It holds for at most two thirds of its wait, and not at all if it waits for less than `hold_after`.

use std::time::Duration;

/// Whether a hopeless waiter lets others pass after it has waited so long. Zero for `hold_after` means never.
pub(super) fn lets_pass(waited: Duration, hold_after: Duration) -> bool {
    match turn_of(waited, hold_after) {
        Some(turn) => turn % 2 == 0,
        None => false,
    }
}

/// After how long a wait its next turn of letting pass begins. `None` if there is none within the times that can be
/// told.
pub(super) fn next_pass(waited: Duration, hold_after: Duration) -> Option<Duration> {
    let turn = turn_of(waited, hold_after)?;
    // The turn with number n begins after 2^(n-1) times `hold_after`.
    let doublings = if turn % 2 == 0 { turn.saturating_add(1) } else { turn };
    hold_after.checked_mul(1u32.checked_shl(doublings)?)
}

/// The number of the turn that the waiter is in: it lets pass in the even ones.
fn turn_of(waited: Duration, hold_after: Duration) -> Option<u32> {
    let times = waited.as_nanos().checked_div(hold_after.as_nanos())?;
    Some(times.checked_ilog2().map_or(0, |doublings| doublings.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn turns_double() {
        let passes = |waited: u64| lets_pass(Duration::from_millis(waited), SECOND);
        let changes: Vec<u64> = (1..20_000).filter(|at| passes(*at) != passes(at - 1)).collect();
        assert_eq!(changes, [1_000, 2_000, 4_000, 8_000, 16_000]);
        assert!(passes(0));
    }

    #[test]
    fn the_next_turn_of_letting_pass_is_the_next_change_to_it() {
        let next = |waited: u64| next_pass(Duration::from_millis(waited), SECOND).unwrap().as_secs();
        assert_eq!(
            [0, 999, 1_000, 1_999, 2_000, 3_999, 4_000, 7_999, 8_000].map(next),
            [2, 2, 2, 2, 8, 8, 8, 8, 32]
        );
    }

    #[test]
    fn without_a_time_a_waiter_always_holds() {
        assert!(!lets_pass(SECOND, Duration::ZERO));
        assert_eq!(next_pass(SECOND, Duration::ZERO), None);
    }
}
