//! Memory of a live allocation. This test is alone in its process, since it measures the growth of the
//! process.

use core_bench::memory;

#[test]
fn a_live_allocation_takes_less_than_480_bytes() {
    let growth = memory::measure(1_000_000).expect("statm can be read");
    assert!(growth.per_allocation() > 100.0, "{growth:?}: the process did not grow");
    assert!(growth.per_allocation() < 480.0, "{growth:?}");
}
