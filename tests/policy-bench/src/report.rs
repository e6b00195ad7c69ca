//! The results: a table for people, and a file.

use std::{io::Write, iter};

use anyhow::Result;
use broker_core::EvictionPolicy;
use dev_kit::{machine, output_of};
use serde_json::{Value, json};
use vramd_types::GRANULARITY;

use crate::deadlines::{self, Counts};

/// The default may fetch so much more than LRU on any trace: a share.
const ABOVE_LRU_MAX: f64 = 1.02;

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    pub(crate) deadlines: Vec<deadlines::Row>,
}

/// One trace. Bytes are in granules.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) uses: u64,
    /// The sizes of all uses together.
    pub(crate) requested: u64,
    /// The bound is reached by some policy.
    pub(crate) is_exact: bool,
    pub(crate) bound: u64,
    pub(crate) best_static: u64,
    pub(crate) policies: Vec<(EvictionPolicy, u64)>,
    /// The same with uses that the policies see only when a daemon would harvest them.
    pub(crate) harvested: Vec<(EvictionPolicy, u64)>,
    /// The same where a part that has just come stays while another can leave.
    pub(crate) settled: Vec<(EvictionPolicy, u64)>,
}

impl Row {
    fn missed(&self, policy: EvictionPolicy) -> u64 {
        of(&self.policies, policy)
    }

    fn to_bound(&self, policy: EvictionPolicy) -> f64 {
        ratio(self.missed(policy), self.bound)
    }

    /// The ratios to the bound of the best static set, and of each policy.
    pub(crate) fn all_to_bound(&self) -> Vec<f64> {
        let policies = EvictionPolicy::ALL.into_iter().map(|policy| self.to_bound(policy));
        iter::once(ratio(self.best_static, self.bound)).chain(policies).collect()
    }
}

/// The share of deadlines met of one size of parts, at one load.
#[derive(Debug)]
pub(crate) struct DeadlineLine {
    pub(crate) name: String,
    /// By the least slack, in milliseconds.
    pub(crate) shares: Vec<(u64, f64)>,
}

fn of(missed: &[(EvictionPolicy, u64)], policy: EvictionPolicy) -> u64 {
    missed.iter().find(|(it, _)| *it == policy).map_or(0, |(_, missed)| *missed)
}

impl Report {
    fn mean(&self, policy: EvictionPolicy) -> f64 {
        let sum: f64 = self.rows.iter().map(|row| row.to_bound(policy)).sum();
        sum / self.rows.iter().map(|_| 1.0).sum::<f64>()
    }

    /// The largest ratio to what LRU misses.
    fn worst_to_lru(&self, policy: EvictionPolicy) -> f64 {
        let lru = |row: &Row| ratio(row.missed(policy), row.missed(EvictionPolicy::Lru));
        self.rows.iter().map(lru).fold(0.0, f64::max)
    }

    /// The policy with the lowest mean ratio to the bound, among those that are nowhere much worse than LRU.
    fn chosen(&self) -> EvictionPolicy {
        let allowed = EvictionPolicy::ALL.into_iter().filter(|it| self.worst_to_lru(*it) <= ABOVE_LRU_MAX);
        allowed.min_by(|one, other| self.mean(*one).total_cmp(&self.mean(*other))).unwrap_or_default()
    }

    /// The deadlines that the core meets of those that the reference meets, at the load where that is lowest.
    fn deadline_share(&self) -> f64 {
        let share = |row: &deadlines::Row| met_share(row.sum(|_| true));
        self.deadlines.iter().map(share).fold(1.0, f64::min)
    }

    pub(crate) fn policy_names() -> impl Iterator<Item = &'static str> {
        EvictionPolicy::ALL.into_iter().map(EvictionPolicy::name)
    }

    pub(crate) fn deadline_lines(&self) -> Vec<DeadlineLine> {
        let lines = self.deadlines.iter().flat_map(|row| {
            row.groups.chunk_by(|one, other| one.part_size == other.part_size).map(|groups| DeadlineLine {
                name: format!("load {} %, parts of {}", row.load, groups[0].part_size),
                shares: groups
                    .iter()
                    .map(|group| (group.slack_micros / 1000, met_share(group.counts)))
                    .collect(),
            })
        });
        lines.collect()
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> Result<()> {
        write!(out, "{:14}{:>12}{:>12}{:>12}", "miss bytes", "all", "bound", "static")?;
        EvictionPolicy::ALL.iter().try_for_each(|policy| write!(out, "{:>14}", policy.name()))?;
        writeln!(out)?;
        for row in &self.rows {
            write!(
                out,
                "{:14}{:>12}{:>12}{:>12}",
                row.name,
                gib(row.requested),
                gib(row.bound),
                gib(row.best_static)
            )?;
            row.policies.iter().try_for_each(|(_, missed)| write!(out, "{:>14}", gib(*missed)))?;
            write!(
                out,
                "\n{:38}{:>12.3}",
                if row.is_exact { "  to the bound" } else { "  to the lower bound" },
                ratio(row.best_static, row.bound)
            )?;
            row.policies.iter().try_for_each(|(policy, _)| write!(out, "{:>14.3}", row.to_bound(*policy)))?;
            for (name, missed) in [
                ("  by harvested use, to the bound", &row.harvested),
                ("  if what has just come stays, to the bound", &row.settled),
            ] {
                write!(out, "\n{name:50}")?;
                let to_bound = |(_, missed): &(_, u64)| write!(out, "{:>14.3}", ratio(*missed, row.bound));
                missed.iter().try_for_each(to_bound)?;
            }
            writeln!(out)?;
        }
        write!(out, "{:50}", "mean ratio to the bound")?;
        EvictionPolicy::ALL.iter().try_for_each(|policy| write!(out, "{:>14.3}", self.mean(*policy)))?;
        write!(out, "\n{:50}", "largest ratio to LRU")?;
        EvictionPolicy::ALL
            .iter()
            .try_for_each(|policy| write!(out, "{:>14.3}", self.worst_to_lru(*policy)))?;
        writeln!(out, "\nby the rule: {}", self.chosen())?;
        self.print_deadlines(out)
    }

    fn print_deadlines(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "\n{:38}{:>12}{:>12}{:>12}{:>12}",
            "deadlines met", "all", "reference", "core", "share"
        )?;
        for row in &self.deadlines {
            let mut line = |name: &str, counts: Counts| {
                let Counts { all, reference, core } = counts;
                writeln!(out, "{name:38}{all:>12}{reference:>12}{core:>12}{:>12.3}", met_share(counts))
            };
            line(&format!("load {} %", row.load), row.sum(|_| true))?;
            for group in &row.groups {
                let slack = group.slack_micros / 1000;
                line(&format!("  parts of {}, slack from {slack} ms", group.part_size), group.counts)?;
            }
        }
        writeln!(out, "lowest share: {:.3}", self.deadline_share())?;
        Ok(())
    }

    pub(crate) fn json(&self) -> Value {
        let row = |name: &str| self.rows.iter().find(|row| row.name == name);
        let chosen = self.chosen();
        let default = EvictionPolicy::default();
        let rows = self.rows.iter().map(|row| {
            let policies = row.policies.iter().map(|(policy, missed)| {
                let of_lru = ratio(*missed, row.missed(EvictionPolicy::Lru));
                json!({
                    "policy": policy.name(),
                    "miss_bytes": bytes(*missed),
                    "miss_bytes_by_harvested_use": bytes(of(&row.harvested, *policy)),
                    "miss_bytes_if_what_has_just_come_stays": bytes(of(&row.settled, *policy)),
                    "to_bound": row.to_bound(*policy),
                    "to_best_static": ratio(*missed, row.best_static),
                    "to_lru": of_lru,
                })
            });
            json!({
                "trace": row.name,
                "uses": row.uses,
                "requested_bytes": bytes(row.requested),
                "bound_bytes": bytes(row.bound),
                "bound_is_exact": row.is_exact,
                "best_static_bytes": bytes(row.best_static),
                "policies": policies.collect::<Vec<_>>(),
            })
        });
        let means = EvictionPolicy::ALL.map(|policy| {
            json!({
                "policy": policy.name(),
                "mean_to_bound": self.mean(policy),
                "worst_to_lru": self.worst_to_lru(policy),
            })
        });
        let loads = self.deadlines.iter().map(|row| {
            let groups = row.groups.iter().map(|group| {
                let mut value = met(group.counts);
                value["part_bytes"] = json!(group.part_size.get());
                value["slack_ms_min"] = json!(group.slack_micros / 1000);
                value
            });
            let mut value = met(row.sum(|_| true));
            value["load_percent"] = json!(row.load);
            value["groups"] = json!(groups.collect::<Vec<_>>());
            value
        });
        json!({
            "deadline_share": self.deadline_share(),
            "deadlines": loads.collect::<Vec<_>>(),
            "default": default.name(),
            "by_the_rule": chosen.name(),
            "default_mean_ratio": self.mean(default),
            "default_worst_to_lru": self.worst_to_lru(default),
            "zipf_over_static": row("zipf").map(|row| ratio(row.missed(default), row.best_static)),
            "loop_over_bound": row("loop").map(|row| row.to_bound(default)),
            "seeds": crate::SEEDS,
            "policies": means,
            "traces": rows.collect::<Vec<_>>(),
            "run": run("cargo run -p policy-bench -- docs/benchmarks/order/latest.json --stream docs/benchmarks/stream/latest.json --plots docs/benchmarks/order"),
        })
    }
}

fn met(counts: Counts) -> Value {
    let Counts { all, reference, core } = counts;
    json!({ "requests": all, "met_by_reference": reference, "met_by_core": core, "share": met_share(counts) })
}

fn met_share(counts: Counts) -> f64 {
    ratio(counts.core, counts.reference)
}

fn run(command: &str) -> Value {
    json!({
        "machine": machine(),
        "commit": output_of("git", &["rev-parse", "HEAD"]),
        "changed_since": output_of("git", &["status", "--porcelain"]).is_none_or(|text| !text.is_empty()),
        "rustc": output_of("rustc", &["--version"]),
        "at": output_of("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
        "command": command,
    })
}

fn bytes(granules: u64) -> u64 {
    granules * GRANULARITY.get()
}

fn gib(granules: u64) -> String {
    format!("{} GiB", granules / 512)
}

/// Both are far below 2^53.
fn ratio(part: u64, whole: u64) -> f64 {
    let number = |granules: u64| granules.to_string().parse::<f64>().unwrap_or(f64::NAN);
    number(part) / number(whole)
}
