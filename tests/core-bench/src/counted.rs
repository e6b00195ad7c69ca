//! Regions of code whose instructions are counted by Valgrind.
//!
//! Each region is a function that the compiler keeps apart. Callgrind collects only inside these functions
//! ([`PATTERN`]), and its output has the instructions of each, with all that it calls.

/// The functions that callgrind collects in.
pub const PATTERN: &str = "core_bench::counted::regions::*";

macro_rules! regions {
    ($($function:ident,)*) => {
        pub mod regions {
            $(
                #[inline(never)]
                pub fn $function<R>(work: impl FnOnce() -> R) -> R {
                    // The compiler would merge functions with the same body.
                    std::hint::black_box(stringify!($function));
                    work()
                }
            )*
        }
    };
}

regions! {
    whole,
    hello,
    process_ended,
    allocate_batch,
    free_batch,
    attach,
    detach,
    seal,
    mapped,
    unmapped,
    created,
    released,
    returned,
    digested,
    surveyed,
    operator,
    quotas_stored,
    tick,
    other,
    describe,
    list_visible,
    list_prefix,
    show,
    list_allocations,
    list_sessions,
    quota,
}
