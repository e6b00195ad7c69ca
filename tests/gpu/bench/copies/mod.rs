//! The cost of the driver's copies over plain ones of the same bytes, between a `cuMemAlloc` block and memory of `cuMemHostAlloc`, which are
//! waited for once at their end.
//!
//! | | |
//! |---|---|
//! | `out`, `in` | 64 parts of 256 MiB from the device to the host, and back: from the first submission to the last completion |
//! | `both` | both at once, between other extents |
//! | `exchange` | both through the same extents of the device: each part's copy in is submitted when its copy out was told |
//! | `one_part` | a single part, in: what is beyond the plain copy a pin pays for |

mod mover;

use std::{
    io::{self, Write as _},
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use vramd_types::{Bytes, ExtentId};

use self::mover::{Mover, Part};
use super::{
    measure::{Beside, Measure},
    plain::Plain,
};
use crate::{
    cuda::{Extent, Gpu, Span},
    machine,
    nvml::Witness,
};

const PART: usize = 256 << 20;
const PARTS: usize = 64;
const PARTS_QUICK: usize = 16;
const PAIRS: usize = 15;
const PAIRS_QUICK: usize = 7;
/// 97 % of a plain copy's speed, and 93 % of it where both directions run.
const ONE_WAY: f64 = 1.0 / 0.97;
const BOTH_WAYS: f64 = 1.0 / 0.93;

/// Returns true if every question has an answer, of any value, and every byte was where it should be.
pub(crate) fn run(quick: bool, save: impl Fn(&Value) -> Result<()>) -> Result<bool> {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    let gpu = Gpu::open(None)?;
    let (parts, pairs) = if quick { (PARTS_QUICK, PAIRS_QUICK) } else { (PARTS, PAIRS) };
    let started = Instant::now();
    let mut ours = Ours::new(&gpu, parts)?;
    let pinning = started.elapsed();
    let mut plain = Plain::new(&gpu, parts, PART)?;
    let mut report = json!({
        "machine": machine::facts(&Witness::new()?)?,
        "host": ours.mover.host(),
        "parts": parts, "part_bytes": PART,
        "extents_made_in_s": pinning.as_secs_f64(),
        "samples": {},
    });
    type Question = fn(&Gpu, &mut Ours, &mut Plain<'_>, usize) -> Result<Measure>;
    let questions: [(&str, usize, Question); 5] = [
        ("out", parts, out),
        ("in", parts, back),
        ("both", 2 * parts, both),
        ("exchange", 2 * parts, exchange),
        ("one_part", 1, one_part),
    ];
    let mut good = true;
    for (name, moved, question) in questions {
        match question(&gpu, &mut ours, &mut plain, pairs) {
            Ok(measure) => {
                writeln!(io::stdout(), "{}", measure.line(name))?;
                report[name] = json!(measure.median());
                report["samples"][name] = measure.json_of(moved * PART);
            }
            Err(error) => {
                good = false;
                writeln!(io::stdout(), "{name:9} FAILED: {error:#}")?;
                report["samples"][name] = json!({ "problem": format!("{error:#}") });
            }
        }
        save(&report)?;
    }
    Ok(good)
}

/// Extents on the device and in the host, as many in each.
struct Ours {
    device: Place,
    other: Place,
    host: Vec<Part>,
    other_host: Vec<Part>,
    /// Declared last, because it owns the memory that the others map.
    mover: Mover,
}

/// Extents of the device, mapped here in sequence so that kernels write and sum them.
struct Place {
    span: Span,
    _imported: Vec<Extent>,
    parts: Vec<Part>,
}

impl Place {
    fn new(gpu: &Gpu, mover: &mut Mover, parts: usize) -> Result<Self> {
        let parts = mover.on_device(parts, Bytes::new(PART as u64))?;
        let import = |part: &Part| {
            let fd = part.handle.fd().context("an extent without a descriptor")?;
            gpu.import(fd.as_fd(), PART)
        };
        let imported = parts.iter().map(import).collect::<Result<Vec<_>>>()?;
        Ok(Self { span: gpu.map(&imported, true)?, _imported: imported, parts })
    }

    fn bytes(&self) -> u64 {
        (self.parts.len() * PART) as u64
    }

    /// Fills the memory and returns its sum.
    fn fill(&self, gpu: &Gpu, seed: u64) -> Result<u64> {
        gpu.fill(self.span.address(), self.bytes(), seed)?;
        self.sum(gpu)
    }

    fn sum(&self, gpu: &Gpu) -> Result<u64> {
        Ok(gpu.sum(self.span.address(), self.bytes())?)
    }
}

fn pairs(from: &[Part], to: &[Part]) -> Vec<(ExtentId, ExtentId)> {
    from.iter().zip(to).map(|(from, to)| (from.extent, to.extent)).collect()
}

impl Ours {
    fn new(gpu: &Gpu, parts: usize) -> Result<Self> {
        let mut mover = Mover::open(gpu.uuid())?;
        let device = Place::new(gpu, &mut mover, parts)?;
        let other = Place::new(gpu, &mut mover, parts)?;
        let host = mover.in_host(parts, Bytes::new(PART as u64))?;
        let other_host = mover.in_host(parts, Bytes::new(PART as u64))?;
        Ok(Self { device, other, host, other_host, mover })
    }

    fn copy(
        &mut self,
        first: &[(ExtentId, ExtentId)],
        after: &[(ExtentId, ExtentId)],
    ) -> Result<(Duration, Beside)> {
        let started = Instant::now();
        self.mover.copy(first, after, Bytes::new(PART as u64))?;
        Ok((started.elapsed(), Beside::new()))
    }
}

fn out(gpu: &Gpu, ours: &mut Ours, plain: &mut Plain<'_>, rounds: usize) -> Result<Measure> {
    let expected = ours.device.fill(gpu, 1)?;
    let there = pairs(&ours.device.parts, &ours.host);
    let measure = Measure::take(ONE_WAY, rounds, || ours.copy(&there, &[]), || plain.copy(true, false))?;
    ours.copy(&pairs(&ours.host, &ours.other.parts), &[])?;
    ensure!(ours.other.sum(gpu)? == expected, "the bytes that came back differ from those that went out");
    Ok(measure)
}

fn back(gpu: &Gpu, ours: &mut Ours, plain: &mut Plain<'_>, rounds: usize) -> Result<Measure> {
    let expected = ours.device.fill(gpu, 2)?;
    ours.copy(&pairs(&ours.device.parts, &ours.host), &[])?;
    let here = pairs(&ours.host, &ours.other.parts);
    let measure = Measure::take(ONE_WAY, rounds, || ours.copy(&here, &[]), || plain.copy(false, true))?;
    ensure!(ours.other.sum(gpu)? == expected, "the bytes that arrived differ from those that left");
    Ok(measure)
}

fn both(gpu: &Gpu, ours: &mut Ours, plain: &mut Plain<'_>, rounds: usize) -> Result<Measure> {
    let coming = ours.device.fill(gpu, 3)?;
    ours.copy(&pairs(&ours.device.parts, &ours.other_host), &[])?;
    let going = ours.device.fill(gpu, 4)?;
    let out = pairs(&ours.device.parts, &ours.host);
    let back = pairs(&ours.other_host, &ours.other.parts);
    // In turns, in the order of real requests.
    let all: Vec<_> = out.into_iter().zip(back).flat_map(|(out, back)| [out, back]).collect();
    let measure = Measure::take(BOTH_WAYS, rounds, || ours.copy(&all, &[]), || plain.copy(true, true))?;
    ensure!(ours.other.sum(gpu)? == coming, "the bytes that arrived are not the original ones");
    ours.copy(&pairs(&ours.host, &ours.other.parts), &[])?;
    ensure!(ours.other.sum(gpu)? == going, "the bytes that left are not the original ones");
    Ok(measure)
}

/// Exchanges the contents of device and host. The two sets of the host change their parts with each round.
fn exchange(gpu: &Gpu, ours: &mut Ours, plain: &mut Plain<'_>, rounds: usize) -> Result<Measure> {
    let first = ours.device.fill(gpu, 5)?;
    ours.copy(&pairs(&ours.device.parts, &ours.other_host), &[])?;
    let second = ours.device.fill(gpu, 6)?;
    let mut resident_is_first = false;
    let mut swap = |ours: &mut Ours| {
        let out = pairs(&ours.device.parts, &ours.host);
        let back = pairs(&ours.other_host, &ours.device.parts);
        let took = ours.copy(&out, &back)?;
        std::mem::swap(&mut ours.host, &mut ours.other_host);
        resident_is_first = !resident_is_first;
        Ok(took)
    };
    let measure = Measure::take(BOTH_WAYS, rounds, || swap(ours), || plain.copy(true, true))?;
    let (here, there) = if resident_is_first { (first, second) } else { (second, first) };
    ensure!(ours.device.sum(gpu)? == here, "the device does not have the host's bytes");
    ours.copy(&pairs(&ours.other_host, &ours.device.parts), &[])?;
    ensure!(ours.device.sum(gpu)? == there, "the host does not have the device's bytes");
    Ok(measure)
}

fn one_part(_: &Gpu, ours: &mut Ours, plain: &mut Plain<'_>, rounds: usize) -> Result<Measure> {
    let one: Vec<_> = pairs(&ours.host, &ours.device.parts).into_iter().take(1).collect();
    Measure::take(ONE_WAY, rounds, || ours.copy(&one, &[]), || plain.piece_in())
}
