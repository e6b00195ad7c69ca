//! Holds private writable memory until standard input ends: `scratch 64MiB`.
//!
//! However this process ends, the daemon takes the memory back: it was never sealed, so it lives no longer than its
//! writer.

use std::{
    env,
    error::Error,
    io::{self, Write as _},
};

use vramd_client::{Allocation, AllocationRequest, Client};
use vramd_types::Quantity;

fn main() -> Result<(), Box<dyn Error>> {
    let size = env::args().nth(1).ok_or("usage: scratch SIZE, for example 64MiB")?;
    let client = Client::connect()?;
    let mut memory = client.allocate(AllocationRequest::new(Quantity::parse_bytes(&size)?))?;
    fill(&mut memory)?;
    writeln!(io::stdout(), "{} holds {size}, mapped and written", memory.id())?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(memory.free().map(|_| ())?)
}

/// By copies, so that it may lie on a GPU as well.
fn fill(memory: &mut Allocation) -> Result<(), vramd_client::Error> {
    let chunk = vec![0xa5; 16 << 20];
    let size = memory.info().size.get();
    let mut offset = 0;
    while offset < size {
        let len = chunk.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        memory.copy_from_host(offset, &chunk[..len])?;
        offset += len as u64;
    }
    Ok(())
}
