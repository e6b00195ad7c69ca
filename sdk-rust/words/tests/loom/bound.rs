//! The bound of the exploration, and the proof that it was explored.
//!
//! The checker silently takes bounds from variables of its own (`LOOM_MAX_PREEMPTIONS` and others): with a bound of 0
//! every test here would pass after a few runs. So this module sets each of them, and counts the explored runs.

use std::env;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use loom::model::Builder;

/// Raises the preemptions above what the tests ask for, never below.
const VARIABLE: &str = "VRAMD_LOOM_PREEMPTIONS";

/// How often a thread may be preempted, if that is bounded, and the least number of runs.
///
/// The runs were counted, not guessed: somewhat fewer than there were when the test was written. A change of a
/// protocol step may change them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) preemptions: Option<usize>,
    pub(crate) runs_min: u64,
}

/// Explores all runs of `model` within the bound. Panics as the model does, or if there were too few runs.
pub(crate) fn explore(what: &dyn Debug, bound: Bound, model: impl Fn() + Send + Sync + 'static) {
    let asked: Option<usize> =
        env::var(VARIABLE).ok().map(|text| text.parse().expect("the bound is a number"));
    let preemptions = bound.preemptions.map(|least| asked.map_or(least, |asked| asked.max(least)));
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.checkpoint_file = None;

    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let runs = runs.load(Relaxed);
    let limit = preemptions.map_or_else(|| "any number of".to_owned(), |most| format!("at most {most}"));
    eprintln!("{runs} runs with {limit} preemptions: {what:?}");
    assert!(runs >= bound.runs_min, "only {runs} runs of {what:?}, {} expected", bound.runs_min);
}
