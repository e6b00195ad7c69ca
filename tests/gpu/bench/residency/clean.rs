//! Memory that was only read since it came in leaves again.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use vramd_proto::v1::Tier;
use vramd_tests::{Daemon, wait::soon};

use super::{answer::Answer, bare::Bare, holder::Holder, operator::Eviction, scene::Scene};
use crate::bench::measure::{WARM_UP, median_ms};

const UNMAPPED_MS_MAX: f64 = 3.0;
const SETTLED_MS_MAX: f64 = 12.0;

/// What the daemon has counted of parts that left.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Left {
    /// Parts that were not copied.
    clean: u64,
    /// Parts that were, and their bytes.
    copied: u64,
    copied_bytes: u64,
}

impl Left {
    fn of(daemon: &Daemon) -> Self {
        let scrape = daemon.metrics();
        let sum = |metric: &str, outcome: &str| {
            let outcome = format!("vramd_migration_outcome=\"{outcome}\"");
            let lines = scrape.lines().filter(|line| line.starts_with(metric) && line.contains(&outcome));
            let out = lines.filter(|line| line.contains("vramd_migration_direction=\"out\""));
            out.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
        };
        Self {
            clean: sum("vramd_migrations_total{", "clean"),
            copied: sum("vramd_migrations_total{", "moved"),
            copied_bytes: sum("vramd_migration_io_bytes_total{", "moved"),
        }
    }

    /// That all have left since then without a copy. What was in the way of a round is tried again, so there may be more.
    fn is_clean_since(daemon: &Daemon, before: Self, parts: u64) -> Result<()> {
        let all = before.clean + before.copied + parts;
        soon("all that left is counted", || {
            let now = Self::of(daemon);
            now.clean + now.copied >= all
        })?;
        let after = Self::of(daemon);
        let copied = (after.copied - before.copied, after.copied_bytes - before.copied_bytes);
        ensure!(
            copied == (0, 0),
            "{} parts, {} bytes, were copied: {before:?}, {after:?}",
            copied.0,
            copied.1
        );
        Ok(())
    }
}

pub(super) fn ask(scene: &Scene, bare: &mut dyn Bare) -> Result<Answer> {
    let (mut holder, earlier) = (Holder::start(scene, None)?, Left::of(&scene.daemon));
    holder.fill()?;
    scene.operator.move_all(holder.memory(), Tier::Host)?;
    // What has just been copied may not be counted yet.
    let copied = earlier.copied + scene.parts as u64;
    soon("the first way out is counted", || Left::of(&scene.daemon).copied >= copied)?;
    let before = Left::of(&scene.daemon);
    let rounds = WARM_UP + scene.pairs;
    let (mut evictions, mut plainly) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let given_back = bare.give_back()?;
        scene.operator.move_all(holder.memory(), Tier::Device)?;
        holder.check()?;
        let eviction = scene.operator.evict_watched(holder.memory())?;
        if round >= WARM_UP {
            evictions.push(eviction);
            plainly.push(given_back);
        }
    }
    Left::is_clean_since(&scene.daemon, before, (rounds * scene.parts) as u64)?;
    holder.check()?;
    holder.leave();
    let times = |of: fn(&Eviction) -> _| evictions.iter().map(of).collect::<Vec<_>>();
    let [unmapped, answered, settled] = [
        times(|eviction| eviction.unmapped),
        times(|eviction| eviction.answered),
        times(|eviction| eviction.settled),
    ];
    let line = |name: &str, ms: f64, most: f64| {
        let verdict = if ms <= most { "within" } else { "MISSED" };
        format!("{name} {ms:.2} ms ({} evictions); target {most:.2}: {verdict}", evictions.len())
    };
    let (to_unmapped, to_settled) = (median_ms(&unmapped), median_ms(&settled));
    let bare_ms = median_ms(&plainly);
    let all_ms = |times: &[Duration]| times.iter().map(|time| time.as_secs_f64() * 1e3).collect::<Vec<_>>();
    Ok(Answer {
        figures: vec![
            ("evict_clean_unmapped_ms", to_unmapped),
            ("evict_clean_settled_ms", to_settled),
            ("give_back_plainly_ms", bare_ms),
        ],
        samples: json!({
            "bytes": scene.bytes(), "warm_up_rounds": WARM_UP,
            "unmapped_ms": all_ms(&unmapped), "answered_ms": all_ms(&answered), "settled_ms": all_ms(&settled),
            "give_back_plainly_ms": all_ms(&plainly),
        }),
        lines: vec![
            line("evict_clean_unmapped", to_unmapped, UNMAPPED_MS_MAX),
            line("evict_clean_settled", to_settled, SETTLED_MS_MAX),
            format!("give_back_plainly {bare_ms:.2} ms"),
        ],
    })
}
