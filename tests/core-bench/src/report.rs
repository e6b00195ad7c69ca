//! The results: a table for people, and a file with the raw samples.

use std::io::Write;

use anyhow::Result;
use dev_kit::{machine, output_of};
use serde_json::{Map, Value, json};

use crate::{
    curve::Point,
    kind::Kind,
    memory::Growth,
    moves::{AtOnce, Planned},
    throughput::Slice,
};

#[derive(Debug)]
pub struct Report {
    pub quick: bool,
    pub growth: Growth,
    /// Number of live allocations, and the slices over them; the first counts.
    pub throughput: Vec<(usize, Vec<Slice>)>,
    pub curve: Vec<Point>,
    pub planning: Planning,
}

#[derive(Debug)]
pub struct Planning {
    pub parts: u32,
    /// Number of pins that wait at a time, and the slices with that many.
    pub planned: Vec<(usize, Vec<Planned>)>,
    pub at_once: AtOnce,
}

impl Planning {
    pub fn json(&self) -> Value {
        let planned = self.planned.iter().map(|(waiting, slices)| {
            json!({
                "pins_waiting": waiting,
                "us_per_move": median(slices, Planned::micros_per_move),
                "us_per_move_with_stand_ins": median(slices, Planned::micros_per_move_of_all),
                "slices": slices.iter().map(planned_json).collect::<Vec<_>>(),
            })
        });
        let AtOnce { parts, longest_event, micros_per_part } = &self.at_once;
        json!({
            "parts": self.parts,
            "target_us": 10.0,
            "planned": planned.collect::<Vec<_>>(),
            "moved_by_one_call": {
                "parts": parts,
                "longest_event_us": longest_event.as_secs_f64() * 1e6,
                "us_per_move": micros_per_part,
            },
            "run": run("cargo run --release -p core-bench -- --moves docs/benchmarks/core/latest.json"),
        })
    }

    /// Prints the short table.
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        for (waiting, slices) in &self.planned {
            let (core, all) =
                (median(slices, Planned::micros_per_move), median(slices, Planned::micros_per_move_of_all));
            writeln!(
                out,
                "us per move, {waiting:>5} pins waiting: {core:>5.1}  with the stand-ins {all:>5.1}"
            )?;
        }
        let AtOnce { parts, longest_event, micros_per_part } = &self.at_once;
        let longest = longest_event.as_secs_f64() * 1e3;
        writeln!(
            out,
            "{parts} parts evicted by one call: longest event {longest:.1} ms, {micros_per_part:.1} us per move"
        )?;
        Ok(())
    }
}

impl Report {
    /// The median slice of the mixed workload.
    pub fn events_per_second(&self) -> f64 {
        self.throughput.first().map_or(0.0, |(_, slices)| median(slices, Slice::events_per_second))
    }

    pub fn json(&self) -> Value {
        let throughput = self.throughput.iter().map(|(live, slices)| {
            json!({
                "live_allocations": live,
                "events_per_second": median(slices, Slice::events_per_second).round(),
                "events_per_second_on_the_wall": median(slices, Slice::events_per_second_on_the_wall).round(),
                "events_per_second_with_stand_ins": median(slices, Slice::events_per_second_of_all).round(),
                "slices": slices.iter().map(slice_json).collect::<Vec<_>>(),
            })
        });
        json!({
            "events_per_second": self.events_per_second().round(),
            "bytes_per_allocation": self.growth.per_allocation().round(),
            "quick": self.quick,
            "memory": { "live_allocations": self.growth.allocations, "resident_growth_bytes": self.growth.bytes },
            "mixed": throughput.collect::<Vec<_>>(),
            "moves": self.planning.json(),
            "curve": self.curve.iter().map(point_json).collect::<Vec<_>>(),
            "machine": machine(),
            "commit": output_of("git", &["rev-parse", "HEAD"]),
            "changed_since": output_of("git", &["status", "--porcelain"]).is_none_or(|text| !text.is_empty()),
            "rustc": output_of("rustc", &["--version"]),
            "at": output_of("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            "command": "cargo run --release -p core-bench -- docs/benchmarks/core/latest.json",
        })
    }

    /// Prints the short table.
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "bytes per live allocation: {:.0}", self.growth.per_allocation())?;
        for (live, slices) in &self.throughput {
            let core = median(slices, Slice::events_per_second);
            let all = median(slices, Slice::events_per_second_of_all);
            let wall = median(slices, Slice::events_per_second_on_the_wall);
            writeln!(
                out,
                "events/s over {live:>8} live: {core:>9.0}  on the wall {wall:>9.0}  with the stand-ins {all:>9.0}"
            )?;
        }
        self.planning.print(out)?;
        write!(out, "\n{:<30}", "median ns (mean) by live")?;
        for point in &self.curve {
            write!(out, "{:>18}", point.live)?;
        }
        writeln!(out)?;
        for kind in Kind::ALL.iter().copied() {
            if self.curve.iter().all(|point| point.cost(kind).is_none()) {
                continue;
            }
            write!(out, "{:<30}", kind.name())?;
            for point in &self.curve {
                match point.cost(kind) {
                    Some(cost) => write!(out, "{:>18}", format!("{} ({})", cost.median, cost.mean))?,
                    None => write!(out, "{:>18}", "-")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
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

fn median<T>(slices: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let mut figures: Vec<_> = slices.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

fn slice_json(slice: &Slice) -> Value {
    json!({
        "events": slice.events,
        "queries": slice.queries,
        "core_seconds": slice.core.as_secs_f64(),
        "core_wall_seconds": slice.core_wall.as_secs_f64(),
        "all_seconds": slice.all.as_secs_f64(),
    })
}

fn planned_json(slice: &Planned) -> Value {
    json!({
        "moves": slice.moves,
        "core_seconds": slice.core.as_secs_f64(),
        "all_seconds": slice.all.as_secs_f64(),
    })
}

fn point_json(point: &Point) -> Value {
    let kinds = point.kinds.iter().map(|cost| {
        let figures = json!({
            "samples": cost.samples,
            "median_ns": cost.median,
            "p99_ns": cost.p99,
            "mean_ns": cost.mean,
        });
        (cost.kind.name().to_owned(), figures)
    });
    json!({ "live_allocations": point.live, "kinds": kinds.collect::<Map<_, _>>() })
}
