//! A session with memory of every kind, which goes away and comes back.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, Pinned, Pool, PoolBlock, PoolConfig,
    PrefetchRequest, Sealed, SequenceRequest,
};
use vramd_tests::{MIB, content, digest};

use crate::fork;

const SIZE: u64 = 4 * MIB;
const BLOCK: u64 = 4096;

pub(crate) struct Traveller {
    /// Of two parts, with a handle pin.
    held: Allocation,
    /// Of two parts, without one.
    loose: Allocation,
    /// Its owner is another process.
    shared: Sealed,
    pool: Pool,
    block: PoolBlock,
    guard: Option<Pinned>,
    addresses: [u64; 4],
}

impl Traveller {
    pub(crate) fn new(client: &Client, shared: &str) -> Result<Self> {
        let request = || AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::mib(2));
        let mut held = client.allocate(request().name("held"))?;
        let mut loose = client.allocate(request().name("loose").unpinned())?;
        held.copy_from_host(0, &content(SIZE, 1))?;
        loose.copy_from_host(0, &content(SIZE, 2))?;
        let pool = client.pool(PoolConfig::default().chunk_size(Bytes::mib(2)))?;
        let mut block = pool.alloc(Bytes::new(BLOCK))?;
        block.copy_from_host(0, &content(BLOCK, 3))?;
        let shared = client.attach(shared)?;
        let mut this = Self { held, loose, shared, pool, block, guard: None, addresses: [0; 4] };
        this.addresses = this.places();
        Ok(this)
    }

    fn places(&self) -> [u64; 4] {
        let Self { held, loose, shared, block, .. } = self;
        [held.as_device_ptr(), loose.as_device_ptr(), shared.as_device_ptr(), block.as_device_ptr()]
    }

    /// Whether all of it has its addresses and its bytes.
    pub(crate) fn compare(&self) -> Result<Value> {
        ensure!(self.places() == self.addresses, "an address has changed");
        for (memory, seed) in [(&self.held, 1), (&self.loose, 2)] {
            let mut bytes = vec![0; usize::try_from(SIZE)?];
            memory.copy_to_host(0, &mut bytes)?;
            ensure!(bytes == content(SIZE, seed), "the bytes of {} have changed", memory.id());
        }
        let mut bytes = vec![0; usize::try_from(self.shared.info().size.get())?];
        self.shared.copy_to_host(0, &mut bytes)?;
        ensure!(digest(&bytes) == self.shared.digest(), "the shared bytes have changed");
        let mut bytes = vec![0; usize::try_from(BLOCK)?];
        self.block.copy_to_host(0, &mut bytes)?;
        ensure!(bytes == content(BLOCK, 3), "the bytes of the block have changed");
        // The guard takes and gives back the words that it knows.
        drop(self.loose.pin(Access::Write)?);
        drop(self.shared.pin(Access::Read)?);
        drop(self.pool.alloc(Bytes::new(BLOCK))?);
        Ok(json!({ "held": self.held.has_handle_pin() && self.held.is_mapped() }))
    }

    pub(crate) fn step(&mut self, command: &str) -> Result<Value> {
        match command {
            "hold" => self.guard = Some(self.loose.pin(Access::Read)?),
            "release" => drop(self.guard.take().context("nothing is pinned")?),
            "slice" => ensure!(self.held.as_slice()?.len() as u64 == SIZE, "all of it"),
            "unhold-all" => self.held.unpin()?,
            // A mutable use proves that the slice is gone.
            _ => self.held.repin()?,
        }
        Ok(json!({}))
    }

    /// Which calls were refused because the memory is away.
    pub(crate) fn try_all(&mut self, client: &Client) -> Value {
        let sized = || AllocationRequest::new(Bytes::mib(2));
        let mut byte = [0];
        let order = SequenceRequest::new().step().all(&self.loose);
        let outcomes = [
            ("pin", self.loose.pin(Access::Read).map(drop)),
            ("pin held", self.held.pin(Access::Read).map(drop)),
            (
                "pin set",
                client.pin_set(&[(&self.loose, Access::Read), (&self.shared, Access::Read)]).map(drop),
            ),
            ("copy", self.held.copy_to_host(0, &mut byte)),
            ("slice", self.held.as_slice().map(drop)),
            ("block", self.pool.alloc(Bytes::new(BLOCK)).map(drop)),
            ("block copy", self.block.copy_to_host(0, &mut byte)),
            ("prefetch", client.prefetch(PrefetchRequest::new().all(&self.loose)).map(drop)),
            ("sequence", client.declare_sequence(order).map(drop)),
            ("set", client.working_set("set", &[&self.loose]).map(drop)),
            ("allocate", client.allocate(sized()).map(drop)),
            ("attach", client.attach(self.shared.id()).map(drop)),
            ("load", client.load("/proc/self/exe", 0, AllocationRequest::whole_file()).map(drop)),
            ("detach", client.detach_all()),
        ];
        let is_away = |outcome: &Result<(), Error>| matches!(outcome, Err(Error::Away));
        let others: Vec<_> = outcomes
            .iter()
            .filter(|(_, it)| !is_away(it))
            .map(|(call, it)| format!("{call}: {it:?}"))
            .collect();
        json!({ "others": others, "listed": client.list("").is_ok() })
    }

    /// A child of either kind brings nothing back.
    pub(crate) fn fork(&mut self, client: &Client) -> Result<Value> {
        let mut statuses = Vec::new();
        for fork in [fork::fork, fork::raw_clone] {
            let loose = &self.loose;
            statuses.push(fork::run_by(fork, || {
                let calls = [client.attach_all(), client.detach_all(), loose.pin(Access::Read).map(drop)];
                !client.is_away() && calls.iter().all(|it| matches!(it, Err(Error::Forked { .. })))
            })?);
        }
        Ok(json!({ "statuses": statuses }))
    }
}
