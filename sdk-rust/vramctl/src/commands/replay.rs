//! `vramctl replay`: plays a trace offline, with the core of the daemon.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use broker_replay::{Counts, Options, Policy, Recorded, Scenario, TraceError, UnknownPolicy, play, read};
use clap::Args;
use serde_json::{Value, json};

use super::settings;
use crate::output::{
    Output,
    failure::Failure,
    table::{Column, table},
    text::{count_or_dash, facts, size},
};

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// A trace: of `vramctl trace save`, written by hand, or libCacheSim's CSV.
    file: PathBuf,
    /// Play with this eviction policy: one of the daemon's, `known-future`, or `all`. May be repeated [default: all].
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<Choice>,
    /// Memory of each device, like 24GiB, in place of what the trace says. A CSV of libCacheSim says nothing.
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    device_bytes: Option<u64>,
    /// Bytes per second of the link to each device, for the time that stalls take.
    #[arg(long, value_name = "SIZE", default_value = "25GB", value_parser = some_bytes)]
    link: u64,
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    All,
    One(Policy),
}

impl FromStr for Choice {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        if name == "all" { Ok(Self::All) } else { name.parse().map(Self::One) }
    }
}

/// Parses bytes of which there are some.
fn some_bytes(text: &str) -> Result<u64, String> {
    match settings::bytes(text)? {
        0 => Err("it is 0".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(crate) fn run(replay: &Replay, output: &Output) -> Result<(), Failure> {
    let Replay { file, device_bytes, link, .. } = replay;
    let invalid = |problem: String| Failure::Trace { path: file.display().to_string(), problem };
    let trace = open(file).map(BufReader::new)?;
    let trace = read(trace).map_err(|error| match error {
        TraceError::Io(error) => Failure::file(file)(error),
        error => invalid(error.to_string()),
    })?;
    let options = Options { device_bytes: *device_bytes, link_bytes_per_second: *link };
    let scenario = Scenario::new(&trace, options).map_err(|error| invalid(error.to_string()))?;
    drop(trace);
    let mut played = Vec::new();
    for policy in replay.policies() {
        let counts = play(&scenario, policy).map_err(|refusal| invalid(refusal.to_string()))?;
        played.push((policy, counts));
    }
    let report = Report { scenario: &scenario, bound: scenario.bound(), played };
    output.show(|| report.text(), report.json())
}

fn open(file: &Path) -> Result<File, Failure> {
    File::open(file).map_err(Failure::file(file))
}

impl Replay {
    /// The policies to play, each once, in the order in which they are named.
    fn policies(&self) -> Vec<Policy> {
        let all = || Policy::all().collect::<Vec<_>>();
        if self.policies.is_empty() {
            return all();
        }
        let mut policies = Vec::new();
        for choice in &self.policies {
            let named = match choice {
                Choice::All => all(),
                Choice::One(policy) => vec![*policy],
            };
            policies
                .extend(named.into_iter().filter(|policy| !policies.contains(policy)).collect::<Vec<_>>());
        }
        policies
    }
}

struct Report<'a> {
    scenario: &'a Scenario,
    /// Bytes, and whether some policy reaches them.
    bound: (vramd_client::Bytes, bool),
    played: Vec<(Policy, Counts)>,
}

impl Report<'_> {
    /// The ratio of fetched bytes to the bound. `None` if the bound is 0 and something was fetched.
    fn to_bound(&self, fetched_bytes: u64) -> Option<f64> {
        match (fetched_bytes, self.bound.0.get()) {
            (0, 0) => Some(1.0),
            (_, 0) => None,
            (fetched, bound) => Some(fetched as f64 / bound as f64),
        }
    }

    fn text(&self) -> String {
        let (uses, used_bytes) = self.scenario.uses();
        let (parts, part_bytes) = (self.scenario.part_count(), self.scenario.part_bytes());
        let devices = self.scenario.devices().map(|(name, bytes)| format!("{name} with {bytes}"));
        let bound = match self.bound {
            (bytes, true) => format!("{bytes} (some policy reaches it)"),
            (bytes, false) => format!("{bytes} (a lower bound)"),
        };
        let head = facts(&[
            ("devices", devices.collect::<Vec<_>>().join(", ")),
            ("parts", format!("{parts} of {part_bytes} together")),
            ("uses", format!("{uses} of {used_bytes} together")),
            ("bound", bound),
        ]);
        let recorded = self.scenario.recorded().map(|recorded| self.recorded_row(&recorded, uses));
        let played = self.played.iter().map(|(policy, counts)| self.row(policy.name(), counts));
        let rows = table(
            &[
                Column::text("POLICY").key(),
                Column::number("HITS").always(),
                Column::number("STALLS").always(),
                Column::number("FETCHED").always(),
                Column::number("WRITTEN BACK").always(),
                Column::number("STALLED").always(),
                Column::number("DEADLINES MISSED"),
                Column::number("UNSERVED"),
                Column::number("TO BOUND").always(),
            ],
            recorded.into_iter().chain(played),
        );
        format!("{head}\n\n{rows}")
    }

    fn row(&self, name: &str, counts: &Counts) -> Vec<String> {
        let missed = match counts.deadlines {
            0 => "-".to_owned(),
            all => format!("{} of {all}", counts.deadlines_missed),
        };
        vec![
            name.to_owned(),
            counts.hits.to_string(),
            counts.stalls.to_string(),
            size(counts.fetched_bytes),
            size(counts.written_back_bytes),
            time(counts.stalled_micros),
            missed,
            count_or_dash(counts.unserved),
            self.ratio(counts.fetched_bytes),
        ]
    }

    /// The work of the daemon while it was recorded, with the policy that it had then.
    fn recorded_row(&self, recorded: &Recorded, uses: u64) -> Vec<String> {
        vec![
            "(recorded)".to_owned(),
            uses.saturating_sub(recorded.fetches).to_string(),
            recorded.fetches.to_string(),
            size(recorded.fetched_bytes),
            size(recorded.written_back_bytes),
            time(recorded.stalled_micros),
            "-".to_owned(),
            "-".to_owned(),
            self.ratio(recorded.fetched_bytes),
        ]
    }

    fn ratio(&self, fetched_bytes: u64) -> String {
        self.to_bound(fetched_bytes).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
    }

    fn json(&self) -> Value {
        let (uses, used_bytes) = self.scenario.uses();
        let devices =
            self.scenario.devices().map(|(name, bytes)| json!({ "device": name, "bytes": bytes.get() }));
        let recorded = self.scenario.recorded().map(|recorded| {
            json!({
                "fetch_count": recorded.fetches,
                "fetched_bytes": recorded.fetched_bytes,
                "written_back_bytes": recorded.written_back_bytes,
                "wait_count": recorded.stalls,
                "waited_us": recorded.stalled_micros,
                "to_bound": self.to_bound(recorded.fetched_bytes),
            })
        });
        let played = self.played.iter().map(|(policy, counts)| {
            json!({
                "policy": policy.name(),
                "hits": counts.hits,
                "stalls": counts.stalls,
                "fetched_bytes": counts.fetched_bytes,
                "written_back_bytes": counts.written_back_bytes,
                "stalled_us": counts.stalled_micros,
                "deadlines": counts.deadlines,
                "deadlines_missed": counts.deadlines_missed,
                "unserved": counts.unserved,
                "to_bound": self.to_bound(counts.fetched_bytes),
            })
        });
        json!({
            "devices": devices.collect::<Vec<_>>(),
            "part_count": self.scenario.part_count(),
            "part_bytes": self.scenario.part_bytes().get(),
            "use_count": uses,
            "used_bytes": used_bytes.get(),
            "bound_bytes": self.bound.0.get(),
            "bound_is_exact": self.bound.1,
            "recorded": recorded,
            "policies": played.collect::<Vec<_>>(),
        })
    }
}

fn time(micros: u64) -> String {
    format!("{:.1?}", Duration::from_micros(micros))
}
