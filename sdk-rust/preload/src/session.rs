//! The one session of this process with the daemon, and the devices that it sees.
//!
//! It begins with `cuInit`. A program that the daemon does not serve ends there, with the reason: it must not compute on
//! with memory that no tenant is charged for. A forked child begins one of its own when it uses CUDA. When the daemon
//! restarts, the next allocation begins another; earlier memory stays mapped.

#![allow(unsafe_code, reason = "one value for the life of the process, fork handlers and an immediate end")]

use std::{
    collections::BTreeSet,
    env,
    ffi::c_int,
    io::{self, Write as _},
    ptr,
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use vramd_client::{Bytes, Client, Error, OwnQuota, Pool, PoolConfig, SessionId, Tier, cuda_ordinal};

use crate::{
    counts, driver,
    entries::physical::Physical,
    gate,
    heap::Heap,
    pools::Pools,
    turns::{self, Turns, pieces::Pieces},
};

/// Sizes that the daemon hands out are multiples of this.
pub(crate) const GRANULE: u64 = 2 << 20;
/// `CUDA_ERROR_SYSTEM_NOT_READY`.
pub(crate) const NOT_READY: u32 = 802;
const UNKNOWN: u32 = 999;
/// Exit statuses, as of `vramctl`.
pub(crate) const REFUSED: c_int = 1;
const NO_DAEMON: c_int = 3;

#[derive(Debug)]
pub(crate) struct Session {
    client: Mutex<Client>,
    pub(crate) devices: Vec<Device>,
    pub(crate) heap: Heap,
    pub(crate) pools: Pools,
    pub(crate) physical: Physical,
    /// With `vramctl run --turns`.
    pub(crate) turns: Option<Turns>,
}

/// A device that both the daemon and CUDA show.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) uuid: String,
    /// Its number in CUDA.
    pub(crate) ordinal: c_int,
    /// Its whole memory.
    total: u64,
    /// The bytes that `vramctl run --limit` allows to the process.
    limit: u64,
    /// Bytes of this process, without those of the pool below.
    held: AtomicU64,
    /// Its primary context, once the program uses it.
    primary: AtomicU64,
    /// The program has reset it: nothing more is served there.
    is_reset: AtomicBool,
    /// Small blocks, with the session that they are of.
    small: Mutex<Option<(SessionId, Pool)>>,
    /// Small blocks that move with the turns of the process.
    pub(crate) pieces: Pieces,
    /// The devices that access its memory.
    pub(crate) peers: Mutex<BTreeSet<c_int>>,
    /// The daemon's last answer.
    quota: Mutex<Option<OwnQuota>>,
}

/// Where a call of this thread allocates.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the primary context of a device.
    Primary(&'static Device),
    /// In another context.
    Other(&'static Device, u64),
    /// On a device that the daemon does not manage.
    Unmanaged,
    /// No context is current: the driver says so.
    Nowhere,
}

/// The size of a device and its free bytes, as the program sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// Bytes that count against the limit of the process until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    device: &'static Device,
    pub(crate) bytes: u64,
}

static SESSION: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());
/// A thread begins the session. Not a lock: a forked child sets it back.
static IS_STARTING: AtomicBool = AtomicBool::new(false);

/// The session, if this process has begun it.
pub(crate) fn existing() -> Option<&'static Session> {
    // SAFETY: needed for a value that lives as long as the process. It was leaked when it was stored.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// The session, begun if need be. Ends the process if the daemon does not serve it.
pub(crate) fn get() -> &'static Session {
    loop {
        if let Some(session) = existing() {
            return session;
        }
        if !IS_STARTING.swap(true, Ordering::AcqRel) {
            // Also if the start fails: another call starts it then.
            let _started = Started;
            let session = Box::leak(Box::new(start()));
            SESSION.store(session, Ordering::Release);
            if session.turns.is_some() {
                gate::open();
            }
            return session;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Marks the start as over when it is dropped.
struct Started;

impl Drop for Started {
    fn drop(&mut self) {
        IS_STARTING.store(false, Ordering::Release);
    }
}

fn start() -> Session {
    forget_in_children();
    counts::report_at_exit();
    let client = without_signals(connect);
    let limit = match limit_of_environment() {
        Ok(limit) => limit,
        Err(problem) => end(REFUSED, &problem),
    };
    let turns =
        turns::are_wanted().then(|| Turns::new(&client).unwrap_or_else(|problem| end(REFUSED, problem)));
    // Memory that may leave its device finds room beyond it, so the daemon would not refuse more than fits.
    let quotas = if turns.is_some() { client.quota().unwrap_or_default() } else { Vec::new() };
    let devices = client.devices().iter().filter_map(|device| {
        if device.simulated {
            end(REFUSED, "the daemon's devices are simulated, and CUDA cannot use them");
        }
        // This also has the SDK find its own functions, while this thread is inside.
        let ordinal = cuda_ordinal(&device.uuid)?;
        let total = driver::total_memory(ordinal).ok()?;
        let own = quotas.iter().find(|quota| quota.tier == Tier::Device && quota.device == device.uuid);
        let limit = own.map_or(limit, |own| limit.min(own.limit.get()).min(own.capacity.get()));
        Some(Device::new(device.uuid.clone(), ordinal, total as u64, limit))
    });
    let devices = devices.collect();
    Session {
        client: Mutex::new(client),
        devices,
        heap: Heap::default(),
        pools: Pools::default(),
        physical: Physical::default(),
        turns,
    }
}

/// Connects as the tenant that the user has named, if any.
pub(crate) fn connect() -> Client {
    let client = Client::connect().unwrap_or_else(|error| end(status_of(&error), &error.to_string()));
    match env::var("VRAMD_TENANT") {
        Ok(tenant) if !tenant.is_empty() && tenant != client.tenant() => {
            let own = client.tenant();
            end(REFUSED, &format!("the daemon knows this process as tenant `{own}`, not `{tenant}`"))
        }
        _ => client,
    }
}

/// How much this process can get at each place, by a session that ends at once and leaves CUDA alone. `None` if the daemon does
/// not serve it.
pub(crate) fn places_without_cuda() -> Option<Vec<OwnQuota>> {
    without_signals(|| {
        let client = Client::builder().connect_raw().ok()?;
        let wanted = env::var("VRAMD_TENANT").unwrap_or_default();
        let is_own = wanted.is_empty() || wanted == client.tenant();
        if is_own { client.quota().ok() } else { None }
    })
}

fn status_of(error: &Error) -> c_int {
    if matches!(error, Error::BrokerGone { .. }) { NO_DAEMON } else { REFUSED }
}

/// The limit of `vramctl run --limit`, in bytes.
pub(crate) fn limit_of_environment() -> Result<u64, String> {
    match env::var("VRAMD_LIMIT") {
        Ok(text) if !text.is_empty() => {
            text.parse().map_err(|_| format!("VRAMD_LIMIT is `{text}`, and no number of bytes"))
        }
        _ => Ok(u64::MAX),
    }
}

/// Ends the process at once: the CUDA runtime may hold locks here that its own end would wait for. Output that the program
/// has buffered is lost: writing it could wait for another thread.
pub(crate) fn end(status: c_int, problem: &str) -> ! {
    say(&format!("this program's GPU memory cannot be served: {problem}"));
    // SAFETY: needed to end the process here. Nothing of it runs afterwards.
    unsafe { libc::_exit(status) }
}

/// Writes a line to standard error, if that is still open.
pub(crate) fn say(text: &str) {
    // An error changes nothing: there is nowhere else to write to.
    let _ = io::stderr().write_all(format!("vramd: {text}\n").as_bytes());
}

/// Has a forked child begin a session of its own, if it uses CUDA at all.
fn forget_in_children() {
    extern "C" fn forget() {
        SESSION.store(ptr::null_mut(), Ordering::Release);
        IS_STARTING.store(false, Ordering::Release);
        gate::forget();
        counts::forget();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: needed to act in a forked child. The handler changes atomics, and lives as long as the process.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    });
}

/// Runs work whose threads take none of the program's signals.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: needed to change this thread's mask. Both sets are initialised before they are read.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        // A fault on a new thread must still end the process.
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        let outcome = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        outcome
    }
}

impl Session {
    pub(crate) fn device(&'static self, ordinal: c_int) -> Option<&'static Device> {
        self.devices.iter().find(|device| device.ordinal == ordinal)
    }

    /// Where this thread allocates now.
    pub(crate) fn place(&'static self) -> Result<Place, u32> {
        let Some((context, ordinal)) = driver::current()? else { return Ok(Place::Nowhere) };
        let Some(device) = self.device(ordinal) else { return Ok(Place::Unmanaged) };
        let is_primary = device.primary()? == Some(context) && !device.is_reset.load(Ordering::Acquire);
        Ok(if is_primary { Place::Primary(device) } else { Place::Other(device, context) })
    }

    /// The primary contexts whose work may use memory that is served on a device: its own, and those of its peers. Work of
    /// other devices may wait for this very thread.
    pub(crate) fn contexts_of(&self, owner: &Device) -> Vec<u64> {
        let peers = lock(&owner.peers).clone();
        let is_user = |device: &&Device| device.ordinal == owner.ordinal || peers.contains(&device.ordinal);
        let known = self.devices.iter().filter(is_user);
        let known = known.filter(|device| !device.is_reset.load(Ordering::Acquire));
        known.map(|device| device.primary.load(Ordering::Acquire)).filter(|context| *context != 0).collect()
    }

    /// Calls the daemon, with a new session if the last one has ended.
    pub(crate) fn call<T>(&self, call: impl Fn(&Client) -> Result<T, Error>) -> Result<T, Error> {
        let client = lock(&self.client).clone();
        match call(&client) {
            Err(Error::SessionLost { .. } | Error::BrokerGone { .. }) => {
                self.reconnected(&client).and_then(|fresh| call(&fresh))
            }
            outcome => outcome,
        }
    }

    fn reconnected(&self, lost: &Client) -> Result<Client, Error> {
        let known = lock(&self.client).clone();
        if known.session_id() != lost.session_id() {
            return Ok(known);
        }
        let fresh = without_signals(|| lost.reconnect())?;
        *lock(&self.client) = fresh.clone();
        Ok(fresh)
    }

    /// Waits until the daemon has what this process has freed.
    pub(crate) fn flush(&self) {
        let client = lock(&self.client).clone();
        // Without a daemon there is nothing to wait for.
        let _ = client.flush();
    }

    /// The size and the free bytes that the program sees now.
    pub(crate) fn room(&self, device: &Device) -> Room {
        self.pools.release_idle();
        self.flush();
        let fresh = self.call(Client::quota).unwrap_or_default();
        let fresh = fresh.into_iter().find(|quota| quota.tier == Tier::Device && quota.device == device.uuid);
        let mut known = lock(&device.quota);
        if fresh.is_some() {
            *known = fresh;
        }
        let room = room_within(device.total, device.limit, device.used(), known.as_ref());
        // In its turn the process gets what other programs have now.
        let free = if self.turns.is_some() { room.total.saturating_sub(device.used()) } else { room.free };
        Room { free, ..room }
    }
}

/// The room of a process that holds so much, within all limits.
pub(crate) fn room_within(total: u64, limit: u64, used: u64, quota: Option<&OwnQuota>) -> Room {
    let allowed = quota.map_or(u64::MAX, |quota| quota.limit.get().min(quota.capacity.get()));
    let total = total.min(limit).min(allowed);
    let free = quota.map_or(u64::MAX, |quota| quota.free.get()).min(total.saturating_sub(used));
    Room { total, free }
}

/// Whether a refusal is for lack of memory.
pub(crate) fn is_for_room(error: &Error) -> bool {
    matches!(
        error,
        Error::QuotaLimit { .. }
            | Error::DeviceFull { .. }
            | Error::SetTooLarge { .. }
            | Error::PoolFull { .. }
            | Error::AllocationsTooMany { .. }
            | Error::SlotsExhausted { .. }
            | Error::QueueFull { .. }
            | Error::WaitCancelled { .. }
            | Error::Deadline { .. }
    )
}

/// The code that the driver would return. A refusal for lack of memory is kept for the report; others are written at once.
pub(crate) fn code_of(error: &Error) -> u32 {
    if is_for_room(error) {
        counts::refused(error.to_string());
        return driver::OUT_OF_MEMORY;
    }
    say(&error.to_string());
    let is_gone = matches!(error, Error::BrokerGone { .. } | Error::SessionLost { .. });
    if is_gone { NOT_READY } else { UNKNOWN }
}

impl Device {
    fn new(uuid: String, ordinal: c_int, total: u64, limit: u64) -> Self {
        Self {
            uuid,
            ordinal,
            total,
            limit,
            held: AtomicU64::new(0),
            primary: AtomicU64::new(0),
            is_reset: AtomicBool::new(false),
            small: Mutex::default(),
            pieces: Pieces::default(),
            peers: Mutex::default(),
            quota: Mutex::default(),
        }
    }

    /// Its primary context, if the program uses it.
    pub(crate) fn primary(&self) -> Result<Option<u64>, u32> {
        let known = self.primary.load(Ordering::Acquire);
        if known != 0 {
            return Ok(Some(known));
        }
        let found = driver::primary_context(self.ordinal)?;
        self.primary.store(found.unwrap_or(0), Ordering::Release);
        Ok(found)
    }

    /// Serves nothing more there.
    pub(crate) fn set_reset(&self) {
        self.is_reset.store(true, Ordering::Release);
    }

    /// Bytes that this process has there.
    fn used(&self) -> u64 {
        self.held.load(Ordering::Acquire) + self.small_bytes()
    }

    fn small_bytes(&self) -> u64 {
        lock(&self.small).as_ref().map_or(0, |(_, pool)| pool.chunk_bytes().get())
    }

    /// Counts bytes against the limit of the process, if it has room for them.
    pub(crate) fn hold(&'static self, bytes: u64) -> Option<Held> {
        let small = self.small_bytes();
        let within = |held: u64| {
            let sum = held.checked_add(bytes)?;
            (sum.saturating_add(small) <= self.limit).then_some(sum)
        };
        let is_within = self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).is_ok();
        is_within.then(|| Held { device: self, bytes })
    }

    /// Keeps for the report that the process is at its limit.
    pub(crate) fn refuse(&self) {
        counts::refused(format!("the process is at its limit of {}", Bytes::new(self.limit)));
    }

    pub(crate) fn is_over_limit(&self) -> bool {
        self.used() > self.limit
    }

    /// The pool of small blocks, of the client's session.
    pub(crate) fn small(&self, client: &Client) -> Result<Pool, Error> {
        let mut small = lock(&self.small);
        if let Some((session, pool)) = small.as_ref()
            && *session == client.session_id()
        {
            return Ok(pool.clone());
        }
        let config = PoolConfig::default().device(&*self.uuid).chunk_size(Bytes::new(GRANULE));
        let pool = client.pool(config)?;
        *small = Some((client.session_id(), pool.clone()));
        Ok(pool)
    }

    /// Gives back small blocks' memory that is not used.
    pub(crate) fn trim_small(&self) {
        let pool = lock(&self.small).as_ref().map(|(_, pool)| pool.clone());
        if let Some(pool) = pool {
            pool.trim();
        }
        self.pieces.trim();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.device.held.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
