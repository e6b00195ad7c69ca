//! A pool: arenas of one tag on one device, and what PyTorch has of them.
//!
//! No lock is held while the daemon is asked. A pool that goes to sleep or wakes up lends its arenas to the thread that
//! does it; meanwhile allocations are refused, and frees are kept until it is done.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use vramd_client::{Access, Bytes, Client, Error, Pinnable, Tier, cuda_ordinal};

use super::{
    arena::{Arena, GRANULE, Memory, PARTS_MAX},
    symbols::Allocator,
};
use crate::error::Fault;

/// How many arenas leave at once, so that a copy begins while the next request is on its way.
const EVICTING_THREADS: usize = 4;
/// How long a sleep waits for memory that has moved to be released.
const RELEASE_MAX: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Settings {
    pub(super) device: Option<String>,
    /// The least size of an arena.
    pub(super) arena: Bytes,
    /// How long an allocation may wait for room.
    pub(super) wait: Duration,
}

#[derive(Debug)]
pub(super) struct Pool {
    client: Client,
    /// UUID.
    device: String,
    /// The number of the device in PyTorch.
    ordinal: i32,
    arena_bytes: u64,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// By their addresses.
    arenas: BTreeMap<u64, Arena>,
    /// The addresses that were freed during a change.
    freed_meanwhile: Vec<u64>,
    /// Why the last allocation failed.
    refusal: Option<Fault>,
    closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Awake,
    /// A thread has the arenas.
    Changing,
    Asleep,
}

impl Pool {
    pub(super) fn new(client: Client, settings: Settings) -> Result<Self, Fault> {
        let Settings { device, arena, wait } = settings;
        let (device, ordinal) = device_of(&client, device.as_deref())?;
        let arena_bytes = rounded(arena.get()).unwrap_or(GRANULE).max(GRANULE);
        let state = State {
            mode: Mode::Awake,
            arenas: BTreeMap::new(),
            freed_meanwhile: Vec::new(),
            refusal: None,
            closed: false,
        };
        Ok(Self { client, device, ordinal, arena_bytes, wait, state: Mutex::new(state) })
    }

    pub(super) fn device(&self) -> &str {
        &self.device
    }

    pub(super) fn ordinal(&self) -> i32 {
        self.ordinal
    }

    fn try_alloc(&self, size: isize, device: i32) -> Result<u64, Fault> {
        let invalid = || Fault::unfitting(format!("a segment cannot have {size} bytes"));
        let asked =
            u64::try_from(size).ok().filter(|size| *size > 0).and_then(rounded).ok_or_else(invalid)?;
        if device != self.ordinal {
            let problem =
                format!("the pool is on device {}, and device {device} was asked for", self.ordinal);
            return Err(Fault::unfitting(problem));
        }
        {
            let mut state = self.lock();
            state.check_open()?;
            if let Some(address) = state.arenas.values_mut().find_map(|arena| arena.carve(asked)) {
                return Ok(address);
            }
        }
        let mut arena = self.allocate_arena(asked)?;
        let carved = arena.carve(asked).ok_or_else(invalid)?;
        let mut state = self.lock();
        // Otherwise it is dropped again, after the lock.
        state.check_open()?;
        state.arenas.insert(arena.address, arena);
        Ok(carved)
    }

    /// Of the usual size if that has room at once, otherwise of the size that is needed, which may wait.
    fn allocate_arena(&self, asked: u64) -> Result<Arena, Fault> {
        let allocate = |size, wait| Arena::allocate(&self.client, &self.device, size, wait);
        if asked < self.arena_bytes
            && let Ok(arena) = allocate(self.arena_bytes, Duration::ZERO)
        {
            return Ok(arena);
        }
        Ok(allocate(asked, self.wait)?)
    }

    pub(super) fn nbytes(&self) -> u64 {
        self.lock().arenas.values().map(Arena::held).sum()
    }

    pub(super) fn used(&self) -> u64 {
        self.lock().arenas.values().map(Arena::used).sum()
    }

    pub(super) fn is_awake(&self) -> bool {
        self.lock().mode == Mode::Awake
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        self.lock().arena_of(address).is_some()
    }

    pub(super) fn take_refusal(&self) -> Option<Fault> {
        self.lock().refusal.take()
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
    }

    /// Has all memory leave the device: to a lower tier, or nowhere if its bytes are discarded. Addresses stay. If bytes
    /// cannot leave, the pool is awake again.
    pub(super) fn sleep(&self, discard: bool) -> Result<(), Fault> {
        let mut change = self.begin_change()?;
        let was_awake = change.was_awake;
        let leaving: u64 = if was_awake { change.arenas.values().map(Arena::held).sum() } else { 0 };
        let target = self.charged().map(|charged| charged.saturating_sub(leaving));
        let outcome = match discard {
            true => change.arenas.values_mut().try_for_each(Arena::discard),
            false => {
                change.arenas.values_mut().for_each(Arena::unpin);
                evict_all(&change.arenas)
            }
        };
        if outcome.is_ok() {
            self.await_release(target);
        }
        let stays_awake =
            outcome.is_err() && was_awake && !discard && self.pin_all(&mut change.arenas, self.wait).is_ok();
        change.end(if stays_awake { Mode::Awake } else { Mode::Asleep });
        Ok(outcome?)
    }

    /// The tenant's charge on the device, without memory that it may reuse at once.
    fn charged(&self) -> Option<u64> {
        let places = self.client.quota().ok()?;
        let place = places.iter().find(|it| it.tier == Tier::Device && it.device == self.device)?;
        Some(place.used.get().saturating_sub(place.cached.get()))
    }

    /// Waits until the driver has the memory back, for others to see it: the daemon returns it when it has moved. Other
    /// programs of the tenant may allocate meanwhile, so the wait is short.
    fn await_release(&self, target: Option<u64>) {
        let until = Instant::now() + RELEASE_MAX;
        while self.charged() > target && target.is_some() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Brings all memory back to its addresses. If that fails, all of it is asleep as before.
    pub(super) fn wake_up(&self, wait: Duration) -> Result<(), Fault> {
        let mut change = self.begin_change()?;
        if change.was_awake {
            change.end(Mode::Awake);
            return Ok(());
        }
        let outcome = self.arrive(&mut change.arenas, wait);
        change.end(if outcome.is_ok() { Mode::Awake } else { Mode::Asleep });
        Ok(outcome?)
    }

    fn arrive(&self, arenas: &mut BTreeMap<u64, Arena>, wait: Duration) -> Result<(), Error> {
        let discarded = self.allocate_again(arenas, wait)?;
        let outcome = self.pin_all(arenas, wait);
        if outcome.is_err() {
            for arena in arenas.values_mut() {
                arena.unpin();
                // The error of the pin is the one to report. Memory that cannot leave now leaves when its room is needed.
                let _ = match discarded.contains(&arena.address) {
                    true => arena.discard(),
                    false => arena.evict(),
                };
            }
        }
        outcome
    }

    /// Allocates what was discarded, all or nothing, and returns the addresses of these arenas.
    fn allocate_again(&self, arenas: &mut BTreeMap<u64, Arena>, wait: Duration) -> Result<Vec<u64>, Error> {
        let mut kept = Vec::new();
        for arena in arenas.values_mut() {
            match mem::replace(&mut arena.memory, Memory::Gone) {
                Memory::Discarded(addresses) => kept.push(*addresses),
                other => arena.memory = other,
            }
        }
        let at: Vec<_> = kept.iter().map(vramd_client::Addresses::as_device_ptr).collect();
        if kept.is_empty() {
            return Ok(at);
        }
        let (memory, outcome): (Vec<Memory>, _) = match self.client.allocate_at(kept, wait) {
            Ok(made) => (made.into_iter().map(Memory::Away).collect(), Ok(())),
            Err(failed) => {
                let kept = failed.addresses.into_iter().map(Box::new);
                (kept.map(Memory::Discarded).collect(), Err(failed.error))
            }
        };
        for (address, memory) in at.iter().zip(memory) {
            if let Some(arena) = arenas.get_mut(address) {
                arena.memory = memory;
            }
        }
        outcome.map(|()| at)
    }

    /// Pins all arenas, as many together as one request may name.
    fn pin_all(&self, arenas: &mut BTreeMap<u64, Arena>, wait: Duration) -> Result<(), Error> {
        let mut away: Vec<_> =
            arenas.values_mut().filter(|arena| matches!(arena.memory, Memory::Away(_))).collect();
        while !away.is_empty() {
            let mut parts = 0_u32;
            let fitting = away.iter().take_while(|arena| {
                parts = parts.saturating_add(arena.part_count());
                parts <= PARTS_MAX
            });
            let count = fitting.count();
            let rest = away.split_off(count.max(1));
            self.pin_together(mem::replace(&mut away, rest), wait)?;
        }
        Ok(())
    }

    fn pin_together(&self, mut arenas: Vec<&mut Arena>, wait: Duration) -> Result<(), Error> {
        if let [alone] = arenas.as_mut_slice() {
            return alone.pin(wait);
        }
        let set: Vec<(&dyn Pinnable, Access)> = arenas
            .iter()
            .filter_map(|arena| match &arena.memory {
                Memory::Away(allocation) => Some((allocation as &dyn Pinnable, Access::Write)),
                _ => None,
            })
            .collect();
        let guards = self.client.pin_set_timeout(&set, wait)?.into_guards();
        arenas.iter_mut().zip(guards).for_each(|(arena, pinned)| arena.adopt(pinned));
        Ok(())
    }

    fn begin_change(&self) -> Result<Change<'_>, Fault> {
        let mut state = self.lock();
        if state.mode == Mode::Changing {
            return Err(Fault::unfitting("another thread has the pool go to sleep or wake up"));
        }
        let was_awake = mem::replace(&mut state.mode, Mode::Changing) == Mode::Awake;
        let arenas = mem::take(&mut state.arenas);
        Ok(Change { pool: self, arenas, was_awake, mode: Mode::Asleep })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for Pool {
    fn alloc(&self, size: isize, device: i32, _stream: u64) -> Option<usize> {
        match self.try_alloc(size, device) {
            Ok(address) => usize::try_from(address).ok(),
            Err(error) => {
                self.lock().refusal = Some(error);
                None
            }
        }
    }

    /// An address that is not one of the pool's is ignored, as one that was freed before.
    fn free(&self, address: usize, stream: u64) {
        let mut state = self.lock();
        let address = address as u64;
        if state.mode == Mode::Changing {
            return state.freed_meanwhile.push(address);
        }
        if let Some(arena) = state.arena_of(address) {
            arena.wait_for(stream);
        }
        let unused = state.free(address);
        drop(state);
        // The daemon gets it back, by the SDK's own thread.
        drop(unused);
    }

    fn is_over(&self) -> bool {
        let state = self.lock();
        state.closed && state.mode != Mode::Changing && state.arenas.is_empty()
    }
}

/// The arenas while they change. They return to the pool when this is dropped, also by a panic.
struct Change<'a> {
    pool: &'a Pool,
    arenas: BTreeMap<u64, Arena>,
    was_awake: bool,
    mode: Mode,
}

impl Change<'_> {
    fn end(mut self, mode: Mode) {
        self.mode = mode;
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.arenas.append(&mut self.arenas);
        state.mode = self.mode;
        let freed = mem::take(&mut state.freed_meanwhile);
        let unused: Vec<_> = freed.into_iter().filter_map(|address| state.free(address)).collect();
        drop(state);
        drop(unused);
    }
}

impl State {
    fn check_open(&self) -> Result<(), Fault> {
        match self.mode {
            _ if self.closed => Err(Fault::unfitting("the pool is closed")),
            Mode::Awake => Ok(()),
            Mode::Changing | Mode::Asleep => {
                Err(Fault::unfitting("the pool is asleep: wake it up before it allocates"))
            }
        }
    }

    fn arena_of(&mut self, address: u64) -> Option<&mut Arena> {
        let (_, arena) = self.arenas.range_mut(..=address).next_back()?;
        arena.contains(address).then_some(arena)
    }

    /// Frees a segment, and takes out its arena if nothing of it is used any more.
    fn free(&mut self, address: u64) -> Option<Arena> {
        let arena = self.arena_of(address)?;
        let base = arena.address;
        if arena.free(address) && arena.is_unused() { self.arenas.remove(&base) } else { None }
    }
}

/// Has all arenas leave their device. After a failure no further arena is asked to.
fn evict_all(arenas: &BTreeMap<u64, Arena>) -> Result<(), Error> {
    let all: Vec<_> = arenas.values().collect();
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        while let Some(arena) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = arena.evict() {
                next.store(all.len(), Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..EVICTING_THREADS.min(all.len()) {
            // Without a thread the others do its work.
            let _ = thread::Builder::new().name("vramd-sleep".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn rounded(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(GRANULE)
}

/// The UUID and the number in PyTorch of the device that is named by either; without a name, of the session's first.
pub(super) fn device_of(client: &Client, name: Option<&str>) -> Result<(String, i32), Fault> {
    let numbered = client.devices().iter().zip(0..).map(|(device, index)| {
        // Simulated devices have no number in CUDA.
        (device.uuid.clone(), cuda_ordinal(&device.uuid).unwrap_or(index))
    });
    let mut named = numbered
        .filter(|(uuid, ordinal)| name.is_none_or(|name| uuid == name || ordinal.to_string() == name));
    named.next().ok_or_else(|| {
        Fault::unfitting(format!("this session does not see device {}", name.unwrap_or_default()))
    })
}
