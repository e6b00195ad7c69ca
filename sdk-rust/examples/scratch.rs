//! Holds writable memory that nobody else sees, until standard input ends: `scratch 64MiB`.
//!
//! However this process ends, the daemon takes the memory back: it was never sealed, so it lives no longer than its
//! writer.

use std::{
    env,
    error::Error,
    io::{self, Write as _},
};

use vramd_client::{AllocationRequest, Client};
use vramd_types::Quantity;

fn main() -> Result<(), Box<dyn Error>> {
    let size = env::args().nth(1).ok_or("usage: scratch SIZE, for example 64MiB")?;
    let client = Client::connect()?;
    let mut memory = client.allocate(AllocationRequest::new(Quantity::parse_bytes(&size)?))?;
    memory.as_mut_slice().fill(0xa5);
    writeln!(io::stdout(), "{} holds {size}, mapped and written", memory.id())?;
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(memory.free().map(|_| ())?)
}
