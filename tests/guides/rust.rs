//! Runs the code of `docs/guides/rust.md`, word for word. An end-to-end test starts this program.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use anyhow::{Result, ensure};
use vramd_client::{
    Access, AccessPattern, Advice, AllocationInfo, AllocationRequest, Bytes, Client, Error, MemoryClass,
    PoolConfig, PrefetchRequest, PrefetchState, Preset, Reason, SequenceRequest, SequenceState, aio,
};

fn main() -> Result<()> {
    connect()?;
    share()?;
    pins()?;
    refused()?;
    small()?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(tasks())?;
    // The test reads this line, restarts the daemon, and answers.
    let mut client = Client::connect()?;
    client.allocate(AllocationRequest::new(Bytes::mib(1)))?;
    writeln!(io::stdout(), "restart")?;
    io::stdin().read_line(&mut String::new())?;
    ensure!(names(&mut client)?.is_empty(), "the new daemon knows nothing");
    Ok(())
}

fn connect() -> Result<()> {
    let client = Client::connect()?;
    println(&format!("charged to {}, on {} devices", client.tenant(), client.devices().len()))?;

    let other = Client::builder().name("loader").request_timeout(Duration::from_secs(30)).connect()?;
    ensure!(other.session_id() != client.session_id(), "each client has a session of its own");
    Ok(())
}

fn share() -> Result<()> {
    let client = Client::connect()?;
    let request = AllocationRequest::new(Bytes::mib(5)).name("llama").persistent().reader("team-b");
    let mut weights = client.allocate(request)?;
    weights.copy_from_host(0, b"hello")?; // or a kernel of yours at weights.as_device_ptr()
    let sealed = weights.seal()?;
    println(&format!("{} has the digest {}", sealed.id(), sealed.digest()))?;

    let reader = Client::connect()?; // any process of the tenant, or of its readers
    let attached = reader.attach("llama")?;
    let mut word = [0; 5];
    attached.copy_to_host(0, &mut word)?;
    assert_eq!(&word, b"hello");
    attached.detach()?;
    sealed.free()?;

    let mut scratch = client.allocate(AllocationRequest::new(Bytes::mib(5)))?;
    if !scratch.is_device_memory() {
        scratch.as_mut_slice()?.fill(1);
    }
    drop(scratch);
    client.flush()?;

    let path = std::env::temp_dir().join(format!("weights-{}", std::process::id()));
    std::fs::write(&path, b"header, weights")?;
    let weights = client.load(&path, 8, AllocationRequest::whole_file())?;
    let mut first = [0; 7];
    weights.copy_to_host(0, &mut first)?;
    assert_eq!(&first, b"weights");
    weights.free()?;

    use vramd_client::LoadedFile;

    let copied_because = match client.load_in_place(&path, AllocationRequest::whole_file())? {
        LoadedFile::Mapped(file) => {
            assert_eq!(&file.as_slice()[8..], b"weights");
            None
        }
        LoadedFile::Copied(_memory, why) => Some(why.problem),
    };
    std::fs::remove_file(&path)?;
    ensure!(copied_because.is_some(), "the device of this guide is discrete");
    Ok(())
}

fn pins() -> Result<()> {
    let client = Client::connect()?;
    let mut cache = client.allocate(AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(4)))?;
    cache.unpin()?;
    {
        let mut pinned = cache.pin_parts(0..1, Access::Write)?; // waits until the first part is here
        if !pinned.is_device_memory() {
            pinned.as_mut_slice()?[0] = 1;
        }
    } // unpins

    let mut index = client.allocate(AllocationRequest::new(Bytes::mib(2)))?;
    index.unpin()?;
    let both = client.pin_set(&[(&cache, Access::Read), (&index, Access::Read)])?; // both or neither
    drop(both);
    cache.repin()?; // the handle pins all parts again
    ensure!(cache.as_slice()?[0] == 1, "the written byte is there");

    let request = AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2)).unpinned();
    let mut archive = client.allocate(request.wait(Duration::from_secs(10)))?;
    archive.copy_from_host(0, b"kept")?; // pins the parts that it needs, then unpins
    let pages = archive.pin_parts(2..4, Access::Read)?; // the third and the fourth part
    drop(pages);

    let request = PrefetchRequest::new().parts(&archive, 0..2).within(Duration::from_secs(5));
    let prefetch = client.prefetch(request)?; // returns at once; an error if it can never be served
    if prefetch.wait()? == (PrefetchState::Ready { parts_left_out: 0, is_late: false }) {
        drop(archive.pin_parts(0..2, Access::Read)?); // finds the parts there
    }

    let order = SequenceRequest::new().parts(&archive, 0..2).step().parts(&archive, 2..4);
    let sequence = client.declare_sequence(order.passes(3))?;
    for step in 0..6 {
        sequence.begin_next()?; // the earlier step is over; this waits for nothing
        let first = if step % 2 == 0 { 0 } else { 2 };
        drop(archive.pin_parts(first..first + 2, Access::Read)?);
    }
    if let SequenceState::Running(window) = sequence.state()? {
        println(&format!("{} steps ahead, {}", window.steps, window.bytes))?;
    }
    drop(sequence); // ends it

    archive.advise(Advice::SetAccessedBy)?; // parts in the host are used there
    drop(archive.pin(Access::Read)?); // takes no room on the device
    archive.advise(Advice::UnsetAccessedBy)?; // the next pin fetches the parts

    archive.advise(Advice::SetClass(MemoryClass::Weights))?; // leaves before activations and caches
    archive.advise_parts(0..2, Advice::SetImportance(90))?; // these two stay longer
    archive.advise_parts(2..4, Advice::DoNotNeed)?; // these leave before all others, once
    archive.advise(Advice::Need)?;
    archive.advise(Advice::SetPattern(AccessPattern::Loop))?; // the part that was used last leaves first
    archive.advise_parts(0..1, Advice::WillNeed(Duration::from_secs(2)))?; // this one leaves last
    archive.advise(Advice::Preset(Preset::KvCache))?; // class cache, preferred on the device

    let scratch = client.allocate(AllocationRequest::new(Bytes::mib(8)).discardable().unpinned())?;
    let pinned = scratch.pin(Access::Write)?;
    let made_at = pinned.drop_count(); // then compute the content
    drop(pinned);
    let pinned = scratch.pin(Access::Read)?; // later
    if pinned.drop_count() != made_at {
        println("some of it was dropped: compute it again")?;
    }
    drop(pinned);
    Ok(())
}

fn refused() -> Result<()> {
    let client = Client::connect()?;
    match client.allocate(AllocationRequest::new(Bytes::gib(1 << 20))) {
        Ok(memory) => println(&format!("{} is mapped", memory.id()))?,
        Err(Error::QuotaLimit { limit, held, .. }) => println(&format!("{held} of {limit} in use"))?,
        Err(Error::DeviceFull { free, .. }) => println(&format!("only {free} free"))?,
        Err(Error::QueueFull { .. }) => println("try again in a while")?,
        Err(Error::Refused(refusal)) if refusal.reason == Reason::SizeInvalid => println(&refusal.message)?,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn small() -> Result<()> {
    let client = Client::connect()?;
    let config = PoolConfig::default()
        .chunk_size(Bytes::mib(32))
        .max_bytes(Bytes::gib(1))
        .idle_after(Duration::from_secs(10));
    let pool = client.pool(config)?;
    let mut block = pool.alloc(Bytes::new(3_000))?;
    block.copy_from_host(0, &[7; 3_000])?;
    assert_eq!(block.as_device_ptr() % 256, 0);
    std::thread::spawn(move || drop(block)).join().expect("any thread may drop it");
    Ok(())
}

async fn tasks() -> Result<()> {
    let client = aio::Client::connect().await?;
    let request = AllocationRequest::new(Bytes::mib(5)).name("llama").persistent();
    let mut weights = client.allocate(request).await?;
    weights.copy_from_host_async(0, b"hello").await?;
    let sealed = weights.seal_async().await?;

    let attach = client.attach("mistral");
    match tokio::time::timeout(Duration::from_secs(5), attach).await {
        Ok(Err(error)) => println(&format!("there is none: {error}"))?,
        Ok(Ok(attached)) => attached.detach_async().await?,
        Err(_elapsed) => println("the call is given up, and leaves nothing behind")?,
    }
    sealed.free_async().await?;
    Ok(())
}

fn names(client: &mut Client) -> Result<Vec<AllocationInfo>, Error> {
    match client.list("") {
        Err(Error::SessionLost { .. } | Error::BrokerGone { .. }) => {
            *client = client.reconnect()?;
            client.list("")
        }
        answer => answer,
    }
}

fn println(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{text}")
}
