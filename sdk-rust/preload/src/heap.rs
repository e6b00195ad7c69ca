//! The memory of this process, by address: served by the daemon, or the driver's own and charged.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::c_int,
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use vramd_client::{Allocation, AllocationRequest, Bytes, Charge, Client, Error, PoolBlock, Reason};

use crate::{
    driver, gate,
    session::{Device, GRANULE, Held, Session, code_of, is_for_room, lock},
    streams,
    turns::{self, Owned, Turns, pieces::Piece},
};

/// Blocks up to this size share an allocation of the daemon.
const SMALL_MAX: u64 = GRANULE / 4;
/// The driver aligns its own blocks so.
const ALIGNMENT: u64 = 512;
/// How long a device that is full may take to make room.
pub(crate) const WAIT: Duration = Duration::from_secs(10);
/// The same where programs take turns: the daemon asks one of them to yield after a quantum.
const WAIT_FOR_TURNS: Duration = Duration::from_secs(100);

#[derive(Debug, Default)]
pub(crate) struct Heap {
    blocks: Mutex<BTreeMap<u64, Block>>,
    /// Freed by the program while the work that may use it was not known.
    aside: Mutex<Vec<Block>>,
}

/// An allocation of the program.
#[derive(Debug)]
pub(crate) struct Block {
    memory: Memory,
    /// As the program asked for.
    pub(crate) size: u64,
    pub(crate) device: &'static Device,
    /// The context that was current.
    context: u64,
    /// The pool that it is of. 0 for none.
    pub(crate) pool: u64,
    /// The other devices that access it, as far as this knows.
    peers: BTreeSet<c_int>,
    /// Unique in this process, as the driver's buffers have it.
    id: u64,
    /// Small blocks count with their pool.
    held: Option<Held>,
}

/// Why memory was not to be had.
#[derive(Debug)]
enum Refusal {
    /// The process is at its own limit.
    Limit(&'static Device),
    Daemon(Error),
}

#[derive(Debug)]
enum Memory {
    Large(Allocation),
    Small(PoolBlock),
    /// These move with the turns of the process.
    Moving(Owned),
    Piece(Piece),
    /// The driver's own. The charge ends when it is dropped.
    Driver {
        charge: Charge,
    },
}

/// The facts that a program may ask of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) context: u64,
    pub(crate) id: u64,
}

impl Block {
    fn new(memory: Memory, (size, device, context): (u64, &'static Device, u64), held: Option<Held>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { memory, size, device, context, pool: 0, peers: BTreeSet::new(), id, held }
    }

    /// Has the daemon charge memory that the driver is about to serve.
    pub(crate) fn charge(
        session: &Session,
        device: &'static Device,
        context: u64,
        size: u64,
    ) -> Result<Self, u32> {
        let bytes = size.checked_next_multiple_of(GRANULE).ok_or(driver::OUT_OF_MEMORY)?;
        with_room(session, device, |wait| {
            let held = device.hold(bytes).ok_or(Refusal::Limit(device))?;
            let ask = |client: &Client| client.charge(Bytes::new(bytes), &*device.uuid, wait);
            let charge = session.call(ask).map_err(Refusal::Daemon)?;
            Ok(Self::new(Memory::Driver { charge }, (size, device, context), Some(held)))
        })
    }

    /// Lets orders of the daemon move the memory, which is managed memory at that address. Without orders it works all the
    /// same.
    pub(crate) fn take_orders(&self, address: u64) {
        if let Memory::Driver { charge } = &self.memory {
            let _ = charge.take_orders(address, usize::try_from(self.size).unwrap_or(usize::MAX));
        }
    }

    /// Waits until no order moves the memory any longer, so that the driver can free it.
    pub(crate) fn end_orders(&self) {
        if let Memory::Driver { charge } = &self.memory {
            charge.end_orders();
        }
    }

    /// Whether it is the driver's own.
    pub(crate) fn is_of_driver(&self) -> bool {
        matches!(self.memory, Memory::Driver { .. })
    }

    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            Memory::Large(allocation) => allocation.as_device_ptr(),
            Memory::Small(block) => block.as_device_ptr(),
            Memory::Moving(owned) => owned.address(),
            Memory::Piece(piece) => piece.address(),
            Memory::Driver { .. } => 0,
        }
    }

    /// The bytes that can be used at its address.
    pub(crate) fn capacity(&self) -> u64 {
        match &self.memory {
            Memory::Small(block) => block.capacity().get(),
            Memory::Piece(piece) => piece.capacity(),
            Memory::Large(_) | Memory::Moving(_) | Memory::Driver { .. } => {
                self.held.as_ref().map_or(0, |held| held.bytes)
            }
        }
    }

    /// Gives the memory to another call of the program.
    pub(crate) fn reuse(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    /// The address and the size of its mapping, if it is served.
    fn mapping(&self) -> Option<(u64, usize)> {
        let (address, size) = match &self.memory {
            Memory::Large(_) | Memory::Moving(_) => (self.address(), self.capacity()),
            // The whole chunk, which is one mapping.
            Memory::Small(block) => (block.as_device_ptr() - block.offset().get(), GRANULE),
            Memory::Piece(piece) => (piece.chunk_address(), GRANULE),
            Memory::Driver { .. } => return None,
        };
        Some((address, usize::try_from(size).unwrap_or(usize::MAX)))
    }
}

impl Heap {
    pub(crate) fn insert(&self, address: u64, block: Block) {
        let replaced = lock(&self.blocks).insert(address, block);
        // After the lock: this may call the daemon.
        drop(replaced);
    }

    /// Lets orders of the daemon move the managed memory that begins there.
    pub(crate) fn take_orders(&self, address: u64) {
        if let Some(block) = lock(&self.blocks).get(&address) {
            block.take_orders(address);
        }
    }

    /// Takes out the block that begins there.
    pub(crate) fn take(&self, address: u64) -> Option<Block> {
        lock(&self.blocks).remove(&address)
    }

    /// The served memory in which an address lies.
    pub(crate) fn find(&self, address: u64) -> Option<Found> {
        let blocks = lock(&self.blocks);
        let (base, block) = blocks.range(..=address).next_back()?;
        let is_inside = !block.is_of_driver() && address - base < block.size;
        is_inside.then_some(Found { base: *base, size: block.size, context: block.context, id: block.id })
    }

    /// Takes out what lies on a device and was served.
    pub(crate) fn take_served_on(&self, device: &'static Device) -> Vec<(u64, Block)> {
        self.take_all(|block| ptr::eq(block.device, device) && !block.is_of_driver())
    }

    /// Takes out the driver's own memory of a context, by address.
    pub(crate) fn take_of_context(&self, context: u64) -> Vec<(u64, Block)> {
        self.take_all(|block| block.context == context && block.is_of_driver())
    }

    /// Takes out what was put aside on a device.
    pub(crate) fn take_aside(&self, device: &'static Device) -> Vec<Block> {
        let mut aside = lock(&self.aside);
        let (taken, others) =
            std::mem::take(&mut *aside).into_iter().partition(|block| ptr::eq(block.device, device));
        *aside = others;
        taken
    }

    fn take_all(&self, is_meant: impl Fn(&Block) -> bool) -> Vec<(u64, Block)> {
        let mut blocks = lock(&self.blocks);
        let meant: Vec<u64> =
            blocks.iter().filter(|(_, block)| is_meant(block)).map(|(address, _)| *address).collect();
        meant.into_iter().filter_map(|address| Some((address, blocks.remove(&address)?))).collect()
    }

    /// Lets another device access everything on a device. The first failure is returned, after all were tried.
    pub(crate) fn let_access(&self, device: &'static Device, peer: c_int) -> Result<(), u32> {
        let mappings = |(address, block): (&u64, &Block)| Some((*address, block.id, block.mapping()?));
        let is_meant = |(_, block): &(&u64, &Block)| ptr::eq(block.device, device);
        let meant: Vec<_> = lock(&self.blocks).iter().filter(is_meant).filter_map(mappings).collect();
        let outcomes = meant.into_iter().map(|(address, id, mapping)| {
            let outcome = let_access(mapping, peer);
            // The program may have freed it meanwhile.
            let is_there = || lock(&self.blocks).get(&address).is_some_and(|block| block.id == id);
            if outcome.is_err() && is_there() { outcome } else { Ok(()) }
        });
        outcomes.fold(Ok(()), Result::and)
    }
}

/// The least bytes that a block of that size has. It has at most a quarter more.
pub(crate) fn least_capacity(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(if size > SMALL_MAX { GRANULE } else { ALIGNMENT })
}

/// Has the daemon serve memory in the primary context of a device.
pub(crate) fn allocate(
    session: &'static Session,
    device: &'static Device,
    context: u64,
    size: u64,
) -> Result<Block, u32> {
    session.pools.release_idle();
    let capacity = least_capacity(size).ok_or(driver::OUT_OF_MEMORY)?;
    let turns = turns::of(session, device.ordinal);
    let (memory, held) = with_room(session, device, |wait| match (turns, size > SMALL_MAX) {
        (None, true) => large(session, device, capacity, wait),
        (None, false) => small(session, device, capacity),
        (Some(turns), true) => {
            let (owned, held) = moving(session, device, turns, capacity, wait)?;
            Ok((Memory::Moving(owned), Some(held)))
        }
        (Some(turns), false) => piece(session, device, turns, capacity, wait),
    })?;
    Ok(Block::new(memory, (size, device, context), held))
}

/// Gives a served block to the program, and access to it to the device's peers. Returns its address.
pub(crate) fn publish(session: &Session, mut block: Block) -> Result<u64, u32> {
    let (device, address, mapping) = (block.device, block.address(), block.mapping());
    let mut known = block.peers.clone();
    let mut let_peers_access = || {
        let peers = lock(&device.peers).clone();
        let fresh: Vec<_> = peers.difference(&known).copied().collect();
        known.extend(&fresh);
        let mut give = |peer| mapping.map_or(Ok(()), |mapping| let_access(mapping, peer));
        fresh.into_iter().try_for_each(&mut give).map(|()| known.clone())
    };
    block.peers = let_peers_access()?;
    session.heap.insert(address, block);
    // A peer that came in between has not found it in the heap.
    let_peers_access().inspect_err(|_| drop(session.heap.take(address)))?;
    Ok(address)
}

/// Lets another device access memory, once that is there.
fn let_access(mapping: (u64, usize), peer: c_int) -> Result<(), u32> {
    let give = || driver::let_access(mapping, peer).err().unwrap_or(0);
    match gate::pass(|| driver::LEGACY_STREAM, give) {
        0 => Ok(()),
        code => Err(code),
    }
}

fn large(
    session: &Session,
    device: &'static Device,
    bytes: u64,
    wait: Duration,
) -> Result<(Memory, Option<Held>), Refusal> {
    let (allocation, held) = held_allocation(session, device, bytes, wait)?;
    Ok((Memory::Large(allocation), Some(held)))
}

fn held_allocation(
    session: &Session,
    device: &'static Device,
    bytes: u64,
    wait: Duration,
) -> Result<(Allocation, Held), Refusal> {
    let held = device.hold(bytes).ok_or(Refusal::Limit(device))?;
    let request = AllocationRequest::new(Bytes::new(bytes)).device(&*device.uuid).uninitialized().wait(wait);
    let allocation = session.call(|client| client.allocate(request.clone())).map_err(Refusal::Daemon)?;
    Ok((allocation, held))
}

fn moving(
    session: &Session,
    device: &'static Device,
    turns: &'static Turns,
    bytes: u64,
    wait: Duration,
) -> Result<(Owned, Held), Refusal> {
    let (allocation, held) = held_allocation(session, device, bytes, wait)?;
    Ok((Owned::new(turns, allocation), held))
}

fn piece(
    session: &Session,
    device: &'static Device,
    turns: &'static Turns,
    bytes: u64,
    wait: Duration,
) -> Result<(Memory, Option<Held>), Refusal> {
    if let Some(piece) = device.pieces.take(bytes) {
        return Ok((Memory::Piece(piece), None));
    }
    let (owned, held) = moving(session, device, turns, GRANULE, wait)?;
    // A fresh chunk has room for any small block.
    let piece = device.pieces.grow(bytes, owned, held).ok_or(Refusal::Limit(device))?;
    Ok((Memory::Piece(piece), None))
}

fn small(session: &Session, device: &'static Device, bytes: u64) -> Result<(Memory, Option<Held>), Refusal> {
    let ask =
        |client: &Client| -> Result<PoolBlock, Error> { device.small(client)?.alloc(Bytes::new(bytes)) };
    let block = session.call(ask).map_err(Refusal::Daemon)?;
    if device.is_over_limit() {
        drop(block);
        device.trim_small();
        return Err(Refusal::Limit(device));
    }
    Ok((Memory::Small(block), None))
}

/// Asks at once; if there is no room, asks again without what this process keeps for later calls; and then, if the device
/// is full, with a wait: what other programs do not use may leave it.
fn with_room<T>(
    session: &Session,
    device: &'static Device,
    ask: impl Fn(Duration) -> Result<T, Refusal>,
) -> Result<T, u32> {
    let outcome = match ask(Duration::ZERO) {
        Err(refusal) if refusal.is_for_room() => {
            release_kept(session, device);
            ask(Duration::ZERO)
        }
        outcome => outcome,
    };
    let outcome = match outcome {
        Err(Refusal::Daemon(Error::DeviceFull { .. })) if session.turns.is_some() => {
            match ask(WAIT_FOR_TURNS) {
                // The daemon's own limit for calls is shorter.
                Err(Refusal::Daemon(error)) if error.reason() == Some(Reason::RequestInvalid) => ask(WAIT),
                outcome => outcome,
            }
        }
        Err(Refusal::Daemon(Error::DeviceFull { .. })) => ask(WAIT),
        outcome => outcome,
    };
    outcome.map_err(|refusal| refusal.code())
}

/// Gives back what this process keeps on a device without using it.
fn release_kept(session: &Session, device: &'static Device) {
    session.pools.release_all(device);
    let aside = session.heap.take_aside(device);
    if !aside.is_empty() {
        // A block that cannot be freed is aside again.
        let _ = end(session, device, aside);
    }
    device.trim_small();
    session.flush();
}

/// Gives back blocks of a device that the program has freed, once the work that may use them is done. They are put aside
/// while a stream is being captured: the driver cannot say what is done then. The same if the driver fails.
pub(crate) fn end(session: &Session, device: &'static Device, freed: Vec<Block>) -> Result<(), u32> {
    match streams::wait(&session.contexts_of(device)) {
        Ok(true) => Ok(()),
        outcome => {
            lock(&session.heap.aside).extend(freed);
            outcome.map(|_| ())
        }
    }
}

impl Refusal {
    fn is_for_room(&self) -> bool {
        match self {
            Self::Limit(_) => true,
            Self::Daemon(error) => is_for_room(error),
        }
    }

    /// The code that the driver would return. It is kept for the report.
    fn code(&self) -> u32 {
        match self {
            Self::Limit(device) => {
                device.refuse();
                driver::OUT_OF_MEMORY
            }
            Self::Daemon(error) => code_of(error),
        }
    }
}
