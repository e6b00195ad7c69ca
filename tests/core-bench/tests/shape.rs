//! The shape of the costs, in seconds: the cost of one event of each kind may not grow with the number of
//! allocations. Where it does, something walks all of them.

use core_bench::{curve, kind::Kind};

/// Enough that a tenant's page is full, and that a session has more than a batch can free.
const FEW: usize = 5_000;
/// A walk over all would show as a factor of twenty.
const MANY: usize = 20 * FEW;
/// Allowance for the cache misses of a larger working set.
const GROWTH_MAX: u32 = 4;
/// Below this many nanoseconds a factor means nothing.
const FLOOR: u32 = 2_000;
const SAMPLES_MIN: usize = 20;

#[test]
fn no_kind_of_event_grows_with_what_lives() {
    let few = curve::measure(FEW, 3_000);
    let many = curve::measure(MANY, 3_000);
    let mut compared = 0;
    for kind in Kind::ALL.iter().copied() {
        let (Some(few), Some(many)) = (few.cost(kind), many.cost(kind)) else { continue };
        if few.samples.min(many.samples) < SAMPLES_MIN {
            continue;
        }
        compared += 1;
        let (few, many) = (few.median, many.median);
        assert!(
            many <= few.max(FLOOR) * GROWTH_MAX,
            "{}: {few} ns over {FEW}, {many} over {MANY}",
            kind.name()
        );
    }
    assert!(compared >= 18, "only {compared} kinds of event were seen often enough");
}
