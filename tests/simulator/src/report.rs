//! The report of a long run: seeds, transitions taken, and how often each planted bug was found.

use std::{env, ops::Range, path::Path, time::Instant};

use anyhow::Context as _;
use broker_core::Bug;
use dev_kit::{machine, output_of};
use serde_json::{Value, json};
use simulator::{
    campaign::{self, Hunt, SEEDS_RATED, Search},
    coverage::Coverage,
};

/// Seeds within which a planted bug must be found.
const SEEDS_TO_FIND: u64 = 1000;

pub(crate) fn write(out: &Path, seeds: Range<u64>, events: u64, jobs: usize) -> anyhow::Result<bool> {
    let commit = output_of("git", &["rev-parse", "HEAD"]);
    let changed = output_of("git", &["status", "--porcelain"]).is_none_or(|text| !text.is_empty());
    let started = Instant::now();
    let all = campaign::run_all(seeds.clone(), events, jobs, super::print_failure);
    let run_seconds = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let search = Search { rated: SEEDS_RATED, seeds_max: SEEDS_TO_FIND, events };
    let hunts = campaign::hunt_all(Bug::ALL, search, jobs, super::print_hunt);
    let complete = all.coverage.never_taken().is_empty() && all.coverage.not_refused().is_empty();
    let page = json!({
        "commit": commit,
        "changed_since": changed,
        "at": output_of("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        "machine": machine(),
        "command": command(),
        "seeds": {"from": seeds.start, "to": seeds.end, "count": all.seeds},
        "events": all.events,
        "run_seconds": run_seconds,
        "us_per_event": run_seconds * 1e6 * num(jobs) / num(all.events),
        "jobs": jobs,
        "failures": all.failures.iter().map(|(seed, failure)| json!({"seed": seed, "failure": failure.to_string()})).collect::<Vec<_>>(),
        "transitions": transitions(&all.coverage),
        "seeds_rated": SEEDS_RATED,
        "planted_bugs": hunts.iter().map(bug).collect::<Vec<_>>(),
        "hunt_seconds": started.elapsed().as_secs_f64(),
    });
    let text = serde_json::to_string_pretty(&page)?;
    std::fs::write(out, text + "\n").with_context(|| format!("write {}", out.display()))?;
    Ok(all.failures.is_empty() && complete && hunts.iter().all(Hunt::is_good))
}

/// Which seed found the bug first, how often it was found among the first seeds, by which invariants, and whether
/// these are the ones that it breaks.
fn bug(hunt: &Hunt) -> Value {
    let first = hunt.found.as_ref();
    json!({
        "bug": hunt.bug.name(),
        "what": hunt.bug.description(),
        "breaks": hunt.bug.breaks(),
        "found_by_seed": first.map(|(seed, _)| seed),
        "by": first.map(|(_, failure)| &failure.invariant),
        "at_event": first.map(|(_, failure)| failure.event),
        "found_in_rated": hunt.hits,
        "hit_rate": num(hunt.hits) / num(SEEDS_RATED),
        "how_often_by": hunt.by,
        "as_expected": hunt.is_good(),
    })
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn num(count: impl TryInto<u64>) -> f64 {
    count.try_into().map_or(f64::INFINITY, |count| count as f64)
}

/// Legal transitions with how often they were taken. Illegal ones with how often runs tried them and were
/// refused, and whether they are refused when forced.
fn transitions(coverage: &Coverage) -> Value {
    let rows = coverage.rows();
    let of = |legal: bool| {
        let cells = rows.iter().filter(|row| row.legal == legal);
        cells
            .map(|row| match legal {
                true => json!({"table": row.table, "transition": row.cell, "taken": row.count}),
                false => json!({
                    "table": row.table,
                    "transition": row.cell,
                    "refused_in_runs": row.count,
                    "refused_when_forced": row.refused,
                }),
            })
            .collect::<Vec<_>>()
    };
    json!({"legal": of(true), "illegal": of(false)})
}

/// The command line of this run.
fn command() -> String {
    let arguments: Vec<_> = env::args().skip(1).collect();
    format!("cargo run -p simulator -- {}", arguments.join(" "))
}
