//! Two processes that pin at full rate, and an operator that revokes their memory a given number of times.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use vramd_client::admin::AdminClient;
use vramd_proto::v1::{
    MappingState, Part, RevocationOutcome as Outcome, RevokeMappingsRequest, ShowAllocationRequest,
    revoke_mappings_request, show_allocation_request,
};
use vramd_tests::Daemon;

use super::pinner::{ALLOCATIONS, PART, PARTS};

const PROCESSES: u64 = 2;
const MAPPINGS: u64 = 100_000;
const MAPPINGS_QUICK: u64 = 10_000;
const BUDGET: Duration = Duration::from_secs(85);
/// Every call of this number is a fence and takes pinned memory too. The others leave pinned memory alone.
const FENCE_EVERY: u64 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    calls: u64,
    fences: u64,
    /// Mappings that existed before a call and not after it.
    revoked: u64,
    /// Parts that an eviction left alone.
    pinned: u64,
    /// Of those, the mappings that a fence revoked.
    fenced: u64,
}

pub(super) fn run(daemon: &Daemon, quick: bool, report: &mut Value) -> Result<()> {
    let each = if quick { MAPPINGS_QUICK } else { MAPPINGS } / PROCESSES;
    let mut pinners = (0..PROCESSES).map(|_| Pinner::start(&daemon.sockets())).collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    // Each process has an operator of its own, so that neither waits for the other's kernels.
    let counts = thread::scope(|scope| {
        let operators: Vec<_> = pinners
            .iter_mut()
            .map(|pinner| scope.spawn(|| pinner.revoke(&daemon.sockets(), each, started)))
            .collect();
        let counts = operators.into_iter().map(|operator| operator.join().expect("an operator"));
        counts.collect::<Result<Vec<_>>>()
    });
    let seconds = started.elapsed().as_secs_f64();
    let ends: Vec<Result<Value>> = pinners.into_iter().map(Pinner::end).collect();
    let ends = ends.into_iter().collect::<Result<Vec<_>>>()?;
    let counts = counts?.into_iter().fold(Counts::default(), Counts::and);
    let pins = ends.iter().filter_map(|end| end["pins"].as_u64()).sum::<u64>();
    writeln!(
        io::stdout(),
        "revocations {} mappings revoked in {seconds:.1} s, {} of them by fences, beside {pins} pins by {PROCESSES} \
         processes: every content as it was written, no illegal access",
        counts.revoked,
        counts.fenced,
    )?;
    report["revocations"] = json!({
        "revoked_mappings": counts.revoked, "of_them_by_fences": counts.fenced,
        "parts_left_alone_as_pinned": counts.pinned, "calls": counts.calls, "fences": counts.fences,
        "seconds": seconds, "processes": ends, "allocations_each": ALLOCATIONS, "parts_of_each": PARTS,
        "part_bytes": PART,
    });
    ensure!(
        counts.revoked >= each * PROCESSES,
        "only {} mappings were revoked in {BUDGET:?}",
        counts.revoked
    );
    Ok(())
}

impl Counts {
    fn and(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            fences: self.fences + other.fences,
            revoked: self.revoked + other.revoked,
            pinned: self.pinned + other.pinned,
            fenced: self.fenced + other.fenced,
        }
    }
}

#[derive(Debug)]
struct Pinner {
    child: Child,
    output: BufReader<ChildStdout>,
    allocations: Vec<u64>,
}

impl Pinner {
    fn start(sockets: &Path) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("pinner").env("VRAMD_SOCKET_DIR", sockets);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let mut pinner = Self { child, output, allocations: Vec::new() };
        pinner.allocations = serde_json::from_value(pinner.line()?)?;
        Ok(pinner)
    }

    /// Revokes its allocations in turn until enough mappings are revoked.
    fn revoke(&mut self, sockets: &Path, mappings: u64, started: Instant) -> Result<Counts> {
        let admin = AdminClient::new(sockets)?;
        let mut counts = Counts::default();
        for id in self.allocations.clone().into_iter().cycle() {
            if counts.revoked >= mappings || started.elapsed() > BUDGET {
                break;
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("a process that pins has ended: {status}");
            }
            one(&admin, id, &mut counts)?;
        }
        Ok(counts)
    }

    fn end(mut self) -> Result<Value> {
        drop(self.child.stdin.take());
        let seen = self.line();
        let status = self.child.wait()?;
        ensure!(status.success(), "a process that pins came to harm: {status}");
        seen
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).context("a process that pins has ended")
    }
}

impl Drop for Pinner {
    fn drop(&mut self) {
        // Harmless if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes one call. A mapping from before it that is gone after it was revoked, since nothing else unmaps.
fn one(admin: &AdminClient, id: u64, counts: &mut Counts) -> Result<()> {
    let target = Some(show_allocation_request::Target::AllocationId(id));
    let before = admin.show_allocation(ShowAllocationRequest { target })?.parts;
    if !before.iter().any(is_mapped) {
        return Ok(());
    }
    let wait = counts.calls.is_multiple_of(FENCE_EVERY);
    let target = Some(revoke_mappings_request::Target::AllocationId(id));
    let answer = admin.revoke_mappings(RevokeMappingsRequest { target, wait, ..Default::default() })?;
    counts.calls += 1;
    counts.fences += u64::from(wait);
    for part in answer.parts {
        let stood = before.iter().any(|other| other.index == part.part_index && is_mapped(other));
        match part.outcome() {
            Outcome::Revoked => {
                counts.revoked += u64::from(stood);
                counts.fenced += u64::from(stood && wait);
            }
            Outcome::Pinned if !wait => counts.pinned += 1,
            other => bail!("part {} of {id} was to be revoked: {other:?}", part.part_index),
        }
    }
    Ok(())
}

fn is_mapped(part: &Part) -> bool {
    part.mappers.iter().any(|mapper| mapper.state() == MappingState::Mapped)
}
