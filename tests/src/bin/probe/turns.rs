//! A program that uses more memory than there is, a few parts at a time, and compares every byte whenever it has a part
//! again.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client};

const PAGE: usize = 4096;

/// The program's memory, and how often it has written each part.
pub(crate) struct Turner {
    memory: Allocation,
    size: usize,
    seed: u64,
    versions: Vec<u64>,
}

/// The content of a page: its place, how often it was written, and a pattern made of both. The first word names the
/// page within its part.
struct Content {
    seed: u64,
    page: Vec<u8>,
}

impl Turner {
    /// Allocates this many unpinned parts of this size.
    pub(crate) fn new(client: &Client, parts: u32, size: u64, seed: u64) -> Result<Self> {
        let request = AllocationRequest::new(Bytes::new(u64::from(parts) * size));
        let memory = client.allocate(request.part_size(Bytes::new(size)).unpinned())?;
        let versions = vec![0; usize::try_from(parts)?];
        Ok(Self { memory, size: usize::try_from(size)?, seed, versions })
    }

    /// For this long, pins a few parts, compares their content and writes them anew. Ends once every part was written.
    pub(crate) fn turn(&mut self, span: Duration) -> Result<Value> {
        let (mut dice, parts) = (self.seed | 1, u32::try_from(self.versions.len())?);
        let (end, mut pins) = (Instant::now() + span, 0_u64);
        while Instant::now() < end || self.versions.contains(&0) {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let first = u32::try_from(dice % u64::from(parts))?;
            let some = first..parts.min(first + 1 + u32::try_from((dice >> 32) % 3)?);
            let writes = dice >> 60 != 0 || self.versions.contains(&0);
            self.use_some(some, writes)?;
            pins += 1;
        }
        Ok(json!({ "pins": pins }))
    }

    fn use_some(&mut self, some: Range<u32>, writes: bool) -> Result<()> {
        let access = if writes { Access::Write } else { Access::Read };
        let mut pinned = self.memory.pin_parts(some.clone(), access)?;
        for (at, part) in some.enumerate() {
            let bytes = at * self.size..(at + 1) * self.size;
            let version = self.versions.get_mut(usize::try_from(part)?).context("a part")?;
            let is = pinned.as_slice()?.get(bytes.clone()).context("its bytes")?;
            ensure!(
                is_as_written(self.seed, part, *version, is),
                "part {part} is not as it was written last"
            );
            if writes {
                *version += 1;
                let bytes = pinned.as_mut_slice()?.get_mut(bytes).context("its bytes")?;
                Content::of(self.seed, part, *version).write(bytes);
            }
        }
        Ok(())
    }

    /// Compares all parts.
    pub(crate) fn compare(&self) -> Result<Value> {
        for (part, version) in (0..).zip(&self.versions) {
            let pinned = self.memory.pin_parts(part..part + 1, Access::Read)?;
            let is_whole = is_as_written(self.seed, part, *version, pinned.as_slice()?);
            ensure!(is_whole, "part {part} is not as it was written last, in the end");
        }
        Ok(json!({ "compared": self.versions.len() }))
    }
}

/// Checks the content of a part. A part that was never written is zeros.
fn is_as_written(seed: u64, part: u32, version: u64, bytes: &[u8]) -> bool {
    match version {
        0 => bytes.chunks(PAGE).all(|page| page == [0; PAGE]),
        version => Content::of(seed, part, version).is(bytes),
    }
}

impl Content {
    fn of(seed: u64, part: u32, version: u64) -> Self {
        let seed = seed ^ (u64::from(part) << 32) ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = (0..PAGE as u64 / 8).map(|at| (seed ^ at).wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self { seed, page: words.flat_map(u64::to_ne_bytes).collect() }
    }

    fn is(&self, bytes: &[u8]) -> bool {
        let mut pages = (0..).zip(bytes.chunks(PAGE));
        pages
            .all(|(number, page)| page.starts_with(&self.head(number)) && page.get(8..) == self.page.get(8..))
    }

    fn write(&self, bytes: &mut [u8]) {
        for (number, page) in (0..).zip(bytes.chunks_mut(PAGE)) {
            page.copy_from_slice(&self.page);
            let (head, _) = page.split_at_mut(8);
            head.copy_from_slice(&self.head(number));
        }
    }

    fn head(&self, number: u64) -> [u8; 8] {
        (self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_ne_bytes()
    }
}
