//! A program that uses more memory than there is, a few parts at a time, and looks at every byte whenever it has one again.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vramd_client::{Access, AllocationRequest, Bytes, Client};

const PAGE: usize = 4096;

/// What a page holds: where it is and how often that was written, and a pattern made of both.
struct Content {
    seed: u64,
}

impl Content {
    fn page(&self, part: u32, version: u64) -> Vec<u8> {
        let first = self.seed ^ (u64::from(part) << 32) ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = (0..PAGE as u64 / 8).map(|at| (first ^ at).wrapping_mul(0xd6e8_feb8_6659_fd93));
        words.flat_map(u64::to_ne_bytes).collect()
    }
}

/// Allocates so many parts of so many bytes each, none of which it holds, and for so many milliseconds pins a few of them,
/// looks at what it wrote there last and writes them anew. In the end it looks at all of them.
pub(crate) fn over(client: &Client, words: &[&str]) -> Result<Value> {
    let number = |at: usize| -> Result<u64> { Ok(words.get(at).context("a number")?.parse()?) };
    let (parts, size, millis, seed) = (number(0)?, number(1)?, number(2)?, number(3)?);
    let parts = u32::try_from(parts)?;
    let request = AllocationRequest::new(Bytes::new(u64::from(parts) * size)).part_size(Bytes::new(size));
    let memory = client.allocate(request.unheld())?;
    let (content, mut dice) = (Content { seed }, seed | 1);
    let mut versions = vec![0_u64; usize::try_from(parts)?];
    let (end, mut pins) = (Instant::now() + Duration::from_millis(millis), 0_u64);
    while Instant::now() < end || versions.contains(&0) {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let first = u32::try_from(dice % u64::from(parts))?;
        let some: Range<u32> = first..parts.min(first + 1 + u32::try_from((dice >> 32) % 3)?);
        let writes = dice >> 60 != 0 || versions.contains(&0);
        let access = if writes { Access::Write } else { Access::Read };
        let mut pinned = memory.pin_parts(some.clone(), access)?;
        let each = usize::try_from(size)?;
        for (at, part) in some.enumerate() {
            let version = versions.get_mut(usize::try_from(part)?).context("a part")?;
            let is = pinned.as_slice()?.get(at * each..(at + 1) * each).context("its bytes")?;
            let should = if *version == 0 { vec![0; PAGE] } else { content.page(part, *version) };
            ensure!(is.chunks(PAGE).all(|page| page == should), "part {part} is not as it was written last");
            if writes {
                *version += 1;
                let page = content.page(part, *version);
                let bytes =
                    pinned.as_mut_slice()?.get_mut(at * each..(at + 1) * each).context("its bytes")?;
                bytes.chunks_mut(PAGE).for_each(|chunk| chunk.copy_from_slice(&page));
            }
        }
        pins += 1;
    }
    for (part, version) in (0..parts).zip(versions) {
        let pinned = memory.pin_parts(part..part + 1, Access::Read)?;
        let page = content.page(part, version);
        let is_whole = pinned.as_slice()?.chunks(PAGE).all(|is| is == page);
        ensure!(is_whole, "part {part} is not as it was written last, in the end");
    }
    Ok(json!({ "pins": pins, "compared": parts }))
}
