//! The report of a long run: what was run, which transitions were taken, which bugs were found after how many seeds.

use std::{ops::Range, path::Path, time::Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use simulator::{campaign, coverage::Coverage};

/// Seeds within which a planted bug must be found.
const SEEDS_TO_FIND: u64 = 200;

pub(crate) fn write(out: &Path, seeds: Range<u64>, events: u64, jobs: usize) -> anyhow::Result<bool> {
    let started = Instant::now();
    let all = campaign::run_all(seeds.clone(), events, jobs, super::tell_failure);
    let run_seconds = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let hunts = campaign::hunt_all(SEEDS_TO_FIND, events, jobs, super::tell_hunt);
    let bugs: Vec<Value> = hunts
        .iter()
        .map(|hunt| match &hunt.found {
            Some((seeds, failure)) => json!({
                "bug": hunt.bug.name(),
                "what": hunt.bug.what(),
                "found_after_seeds": seeds,
                "by": failure.invariant,
                "at_event": failure.event,
            }),
            None => json!({"bug": hunt.bug.name(), "what": hunt.bug.what(), "found_after_seeds": null}),
        })
        .collect();
    let never = all.coverage.never_taken();
    let page = json!({
        "seeds": {"from": seeds.start, "to": seeds.end, "count": all.seeds},
        "events": all.events,
        "run_seconds": run_seconds,
        "us_per_event": run_seconds * 1e6 * num(jobs) / num(all.events),
        "jobs": jobs,
        "failures": all.failures.iter().map(|(seed, failure)| json!({"seed": seed, "failure": failure.to_string()})).collect::<Vec<_>>(),
        "transitions": transitions(&all.coverage),
        "planted_bugs": bugs,
        "hunt_seconds": started.elapsed().as_secs_f64(),
    });
    let text = serde_json::to_string_pretty(&page)?;
    std::fs::write(out, text + "\n").with_context(|| format!("write {}", out.display()))?;
    Ok(all.failures.is_empty() && never.is_empty() && hunts.iter().all(|hunt| hunt.found.is_some()))
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn num(count: impl TryInto<u64>) -> f64 {
    count.try_into().map_or(f64::INFINITY, |count| count as f64)
}

/// Legal ones with how often they were taken. Illegal ones with how often a run tried them and was refused; those with
/// none are never tried by the core, and the table refuses them when it is asked directly.
fn transitions(coverage: &Coverage) -> Value {
    let rows = coverage.rows();
    let of = |legal: bool| {
        let cells = rows.iter().filter(|row| row.legal == legal);
        cells
            .map(|row| {
                let how = match (legal, row.count) {
                    (true, _) => "taken",
                    (false, 0) => "refused when asked directly",
                    (false, _) => "refused in runs",
                };
                json!({"table": row.table, "transition": row.cell, "count": row.count, "how": how})
            })
            .collect::<Vec<_>>()
    };
    json!({"legal": of(true), "illegal": of(false)})
}
