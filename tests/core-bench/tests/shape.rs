//! The shape of the costs, in seconds: what one event of each kind costs may not grow with what lives. Where it does,
//! something looks at everything.

use core_bench::{curve, kind::Kind};

/// So many that a tenant's page is full, and a session has more than a batch can free.
const FEW: usize = 5_000;
/// A scan would show as a factor of twenty.
const MANY: usize = 20 * FEW;
/// What a larger working set costs in misses of the cache is allowed for.
const GROWTH_MAX: u32 = 4;
/// Below so many nanoseconds a factor says nothing.
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
