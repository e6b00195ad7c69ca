//! Runs the code of `docs/guides/moving.md`, word for word, on a device of 16 MiB with 64 MiB of the host beside it. An
//! end-to-end test starts this program. It prints the byte that is left of a write without a pin to write.

#![allow(unsafe_code, reason = "a kernel writes by an address")]

use std::{
    io::{self, Write as _},
    ptr,
    sync::mpsc,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client, Error};

fn main() -> Result<()> {
    let (mut cache, mut crowd) = pins(&Client::connect()?)?;
    let byte = writes(&mut cache, &mut crowd)?;
    nested(&cache, &crowd)?;
    made_again(&Client::connect()?, &crowd)?;
    host(&Client::connect()?)?;
    drop((cache, crowd));
    large(&Client::connect()?)?;
    tight()?;
    sealed()?;
    writeln!(io::stdout(), "{byte}")?;
    Ok(())
}

fn pins(client: &Client) -> Result<(Allocation, Allocation)> {
    let mut cache = client.allocate(AllocationRequest::new(Bytes::mib(12)))?; // its handle pins it: it stays on the device
    cache.unpin()?; // from now on it may leave
    let address = cache.as_device_ptr();
    {
        let pinned = cache.pin(Access::Write)?; // the memory is here, and stays
        assert_eq!(pinned.as_device_ptr(), address);
        kernel(pinned.as_device_ptr(), 1); // launched, and waited for
    } // it may leave again

    let crowd = client.allocate(AllocationRequest::new(Bytes::mib(12)).unpinned())?; // not even mapped
    drop(crowd.pin(Access::Read)?); // the device has room for one of them
    ensure!(!cache.is_mapped(), "it has gone");
    drop(cache.pin(Access::Read)?);
    ensure!(cache.as_device_ptr() == address && cache.is_mapped(), "it is back");
    Ok((cache, crowd))
}

fn writes(cache: &mut Allocation, crowd: &mut Allocation) -> Result<u8> {
    {
        let pinned = cache.pin(Access::Read)?;
        kernel(pinned.as_device_ptr(), 2); // wrong: the pin says that it reads
    }
    drop(crowd.pin(Access::Read)?); // another needs the room
    let mut byte = [0];
    cache.copy_to_host(0, &mut byte)?; // 1: the write is lost
    Ok(byte[0])
}

fn tight() -> Result<()> {
    let (sender, told) = mpsc::channel();
    let client = Client::builder().on_pressure(move |pressure| drop(sender.send(pressure))).connect()?;
    let first = told.recv()?; // each session begins with a report
    println(&format!("{} is {:?}", first.device, first.level))?;

    let batch = 64.0 * client.pressure(None).map_or(1.0, |pressure| pressure.batch_factor);
    ensure!((48.0..80.0).contains(&batch), "64 pages at a time, more or less");
    Ok(())
}

fn nested(cache: &Allocation, crowd: &Allocation) -> Result<()> {
    let first = cache.pin(Access::Read)?;
    match crowd.pin(Access::Read) {
        Err(Error::PinStalled { .. }) => drop(first), // it waited for what this thread pins itself
        Err(error) => return Err(error.into()),
        Ok(_) => bail!("there is no room for both"),
    }
    drop(crowd.pin(Access::Read)?);
    Ok(())
}

fn made_again(client: &Client, crowd: &Allocation) -> Result<()> {
    let request = AllocationRequest::new(Bytes::mib(8)).discardable();
    let mut scratch = client.allocate(request.wait(Duration::from_secs(10)))?;
    scratch.unpin()?;
    let drop_count = scratch.pin(Access::Write)?.drop_count();
    drop(crowd.pin(Access::Read)?); // another needs the room
    let pinned = scratch.pin(Access::Write)?;
    ensure!(pinned.drop_count() > drop_count, "its content was dropped");
    kernel(pinned.as_device_ptr(), 3); // computed again
    Ok(())
}

fn host(client: &Client) -> Result<()> {
    match client.allocate(AllocationRequest::new(Bytes::mib(48)).unpinned()) {
        Err(Error::QuotaLimit { tier, limit, held, .. }) if tier == "host" => {
            println(&format!("the host is full: {held} of {limit} in use"))?;
        }
        Err(error) => return Err(error.into()),
        Ok(_) => bail!("the host has room for it"),
    }
    Ok(())
}

fn large(client: &Client) -> Result<()> {
    client.flush()?;
    let request = AllocationRequest::new(Bytes::mib(32)).part_size(Bytes::mib(2)).unpinned();
    let archive = client.allocate(request.wait(Duration::from_secs(10)))?;
    for part in 0..16 {
        let page = archive.pin_parts(part..part + 1, Access::Write)?; // the parts used least recently make room
        kernel(page.as_device_ptr(), 7);
    }
    match archive.pin(Access::Read) {
        Err(Error::DeviceFull { asked, .. }) => println(&format!("{asked} never fit at once"))?,
        Err(error) => return Err(error.into()),
        Ok(_) => bail!("it is larger than the device"),
    }
    Ok(())
}

fn sealed() -> Result<()> {
    let client = Client::connect()?;
    let weights = client.allocate(AllocationRequest::new(Bytes::mib(4)).name("weights"))?;
    let mut sealed = weights.seal()?;
    sealed.unpin()?; // for this process

    let reader = Client::connect()?;
    let mut attached = reader.attach("weights")?;
    attached.unpin()?; // for that process: now it may leave
    drop(attached.pin(Access::Read)?);
    attached.detach()?;
    sealed.free()?;
    Ok(())
}

/// Writes by an address, as a kernel does: the SDK does not see it.
fn kernel(address: u64, byte: u8) {
    let address = usize::try_from(address).expect("an address of this process");
    // SAFETY: needed to write as a kernel does. The caller has it pinned, so it is mapped for writing, the driver being
    // simulated; no slice of it is lent, and no other thread looks.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write(byte) };
}

fn println(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{text}")
}
