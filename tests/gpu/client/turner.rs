//! A process that owns more memory than its device has, uses a few parts at a time, and checks every byte of a part that comes back.

use std::{
    io::{self, Write as _},
    process,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use serde_json::json;
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client};

use crate::{bench::Driver, content, eye::Eye};

/// How many parts one pin names.
const PARTS_MAX: u32 = 3;

struct Turner {
    memory: Allocation,
    eye: Eye,
    dice: Rng,
    part_bytes: u64,
    /// The seed of each part's content.
    written: Vec<Written>,
    /// The seed of the newest content. No two processes ever write the same content.
    seed: u64,
}

/// The seed of parts that were never written, which are zero.
#[derive(Clone, Copy, Default)]
struct Written {
    seed: Option<u64>,
    sum: u64,
}

/// Takes turns for a given time and reports how many. On a further line of input the process compares all its memory, frees it and
/// reports the bytes. Its session stands until the input ends.
pub(crate) fn run(driver: Driver, parts: u32, part_bytes: u64, span: Duration) -> Result<()> {
    let client = Client::connect()?;
    let mut turner = Turner::new(&client, driver, parts, part_bytes)?;
    let (end, mut pins) = (Instant::now() + span, 0_u64);
    while Instant::now() < end {
        turner.turn()?;
        pins += 1;
    }
    writeln!(io::stdout(), "{}", json!({ "pins": pins }))?;
    io::stdin().read_line(&mut String::new())?;
    let compared = turner.compare_all()?;
    turner.memory.free()?;
    writeln!(io::stdout(), "{}", json!({ "pins": pins, "compared_bytes": compared }))?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

impl Turner {
    fn new(client: &Client, driver: Driver, parts: u32, part_bytes: u64) -> Result<Self> {
        let eye = Eye::open(driver)?;
        let request = AllocationRequest::new(Bytes::new(u64::from(parts) * part_bytes));
        let memory = client.allocate(request.part_size(Bytes::new(part_bytes)).unpinned())?;
        let pid = u64::from(process::id());
        let written = vec![Written::default(); usize::try_from(parts)?];
        Ok(Self { memory, eye, dice: Rng::with_seed(pid), part_bytes, written, seed: pid << 32 })
    }

    /// Pins some parts, checks that each is as it was left, and writes them anew. Some turns only read, so that the parts leave
    /// without a copy.
    fn turn(&mut self) -> Result<()> {
        let count = u32::try_from(self.written.len())?;
        let first = self.dice.u32(..count);
        let parts = first..count.min(first + self.dice.u32(1..=PARTS_MAX));
        let writes = self.dice.u32(..4) > 0;
        let access = if writes { Access::Write } else { Access::Read };
        let mut pinned = self.memory.pin_parts(parts.clone(), access)?;
        for (at, part) in (0_u64..).zip(parts) {
            let range = at * self.part_bytes..(at + 1) * self.part_bytes;
            let written = self.written.get_mut(usize::try_from(part)?).context("a part")?;
            let sum = self.eye.sum(&pinned, range.clone())?;
            ensure!(sum == written.sum, "part {part} has the sum {sum}, and {} was left there", written.sum);
            if writes {
                self.seed += 1;
                self.eye.fill(&mut pinned, range.clone(), self.seed)?;
                *written = Written { seed: Some(self.seed), sum: self.eye.sum(&pinned, range)? };
            }
        }
        Ok(())
    }

    /// Compares every part in turn with the content that the processor derives from its seed. Returns the number of bytes.
    fn compare_all(&mut self) -> Result<u64> {
        for (part, written) in (0_u32..).zip(&self.written) {
            let pinned = self.memory.pin_parts(part..part + 1, Access::Read)?;
            let found = self.eye.sum(&pinned, 0..self.part_bytes)?;
            drop(pinned);
            let should = written.seed.map_or(0, |seed| content::sum(seed, self.part_bytes));
            ensure!(found == should, "part {part} has the sum {found}, and {should} is that of its content");
        }
        Ok(self.written.len() as u64 * self.part_bytes)
    }
}
