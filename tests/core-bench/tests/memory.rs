//! What a live allocation takes. Alone in its process, since it is the growth of that which is looked at.

use core_bench::memory;

#[test]
fn a_live_allocation_takes_less_than_half_a_kibibyte() {
    let growth = memory::measure(100_000).expect("statm can be read");
    assert!(growth.per_allocation() > 100.0, "{growth:?}: what was made is not seen");
    assert!(growth.per_allocation() < 512.0, "{growth:?}");
}
