//! Computes on memory that it shares: `compute NAME`.
//!
//! It attaches the allocation, sums its bytes by a kernel that reads them where they are mapped, sums them again on the
//! CPU from a copy, and compares. The kernel's result goes to memory of the daemon's as well. Ends with status 1 if the
//! sums differ, 2 if there is no GPU.

mod gpu;

use std::{
    env,
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
};

use vramd_client::{AllocationRequest, Bytes, Client, Sealed};

const CHUNK_BYTES: usize = 16 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            // If standard error has no reader, nothing is left to do.
            let _ = writeln!(io::stderr(), "compute: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let name = env::args().nth(1).ok_or("usage: compute NAME, for example team-a/llama")?;
    let client = Client::connect()?;
    let shared = client.attach(name)?;
    if !shared.is_device_memory() {
        writeln!(io::stderr(), "compute: {} is simulated; this needs a GPU", shared.info().device)?;
        return Ok(ExitCode::from(2));
    }
    let (device, size) = (&shared.info().device, shared.info().size.get());

    // Fresh memory is zero.
    let total = client.allocate(AllocationRequest::new(Bytes::new(8)).device(device))?;
    gpu::sum_bytes(device, shared.as_device_ptr(), size, total.as_device_ptr())?;
    let mut sum = [0; 8];
    total.copy_to_host(0, &mut sum)?;
    let sum = u64::from_le_bytes(sum);
    total.free()?;

    let expected = sum_on_cpu(&shared)?;
    if sum != expected {
        return Err(format!("the kernel has summed {sum:#018x}, the CPU {expected:#018x}").into());
    }
    writeln!(io::stdout(), "computed sum={sum:#018x} over {size} bytes on {device}")?;
    shared.detach()?;
    Ok(ExitCode::SUCCESS)
}

/// As the kernel does it.
fn sum_on_cpu(shared: &Sealed) -> Result<u64, vramd_client::Error> {
    let size = shared.info().size.get();
    let mut buffer = vec![0; CHUNK_BYTES];
    let (mut sum, mut offset) = (0u64, 0);
    while offset < size {
        let len = usize::try_from(size - offset).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        shared.copy_to_host(offset, &mut buffer[..len])?;
        for byte in &buffer[..len] {
            offset += 1;
            sum = sum.wrapping_add(offset.wrapping_mul(u64::from(*byte)));
        }
    }
    Ok(sum)
}
