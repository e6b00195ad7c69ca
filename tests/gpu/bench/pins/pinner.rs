//! A process that pins at full rate: it pins an allocation, has kernels read and write all of it, unpins, and goes on with the next. It
//! checks each content that it wrote before. Its first line names its allocations. Once its input has ended, the last line has its results.

use std::{
    io::{self, Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Result, ensure};
use serde_json::json;
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client};

use crate::{content, cuda::Gpu};

pub(super) const ALLOCATIONS: usize = 8;
pub(super) const PARTS: u64 = 64;
pub(super) const PART: u64 = 2 << 20;
const SIZE: u64 = PARTS * PART;

/// The content of an allocation.
#[derive(Clone, Copy, Debug)]
struct Content {
    seed: u64,
    sum: u64,
}

struct Pinner {
    gpu: Gpu,
    contents: [Content; 2],
    /// The allocations with their last content.
    memory: Vec<(Allocation, usize)>,
    pins: u64,
}

pub(crate) fn run() -> Result<()> {
    let client = Client::connect()?;
    let gpu = Gpu::open(None)?;
    let own = u64::from(std::process::id());
    let contents = [own, own + (1 << 32)].map(|seed| Content { seed, sum: content::sum(seed, SIZE) });
    let mut pinner = Pinner { gpu, contents, memory: Vec::new(), pins: 0 };
    for _ in 0..ALLOCATIONS {
        pinner.memory.push((pinner.allocate(&client)?, 0));
    }
    let ids: Vec<u64> = pinner.memory.iter().map(|(memory, _)| memory.id().get()).collect();
    writeln!(io::stdout(), "{}", json!(ids))?;

    let over = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let over = Arc::clone(&over);
        move || {
            // Only the end of the input matters, not how it comes.
            let _ = io::stdin().read_to_end(&mut Vec::new());
            over.store(true, Ordering::Release);
        }
    });
    while !over.load(Ordering::Acquire) {
        pinner.round()?;
    }
    // Checks everything once more, also memory that was just revoked.
    pinner.round()?;
    writeln!(io::stdout(), "{}", json!({ "pins": pinner.pins, "bytes": SIZE * ALLOCATIONS as u64 }))?;
    Ok(())
}

impl Pinner {
    fn allocate(&self, client: &Client) -> Result<Allocation> {
        let mut memory =
            client.allocate(AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::new(PART)))?;
        self.gpu.fill(memory.as_device_ptr(), SIZE, self.contents[0].seed)?;
        memory.unpin()?;
        Ok(memory)
    }

    /// Pins and checks each allocation once.
    fn round(&mut self) -> Result<()> {
        for (memory, has) in &mut self.memory {
            let pinned = memory.pin(Access::Write)?;
            let (address, Content { seed, sum }) = (pinned.as_device_ptr(), self.contents[*has]);
            let found = self.gpu.sum(address, SIZE)?;
            ensure!(found == sum, "{} has the sum {found}, not {sum} of the seed {seed}", memory.id());
            *has = 1 - *has;
            self.gpu.fill(address, SIZE, self.contents[*has].seed)?;
            self.pins += 1;
        }
        Ok(())
    }
}
