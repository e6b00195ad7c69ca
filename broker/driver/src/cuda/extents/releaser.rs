//! Releases movable extents, and passes on all other releases and the surveys.
//!
//! CUDA does not say whether released memory has returned. So the thread reads the device's use before and
//! after a release. The driver zeroes released memory, so the thread polls up to [`RETURN_WAIT_MAX`] for what
//! did not return at once. From then on the extent is awaited (`accounts`), until surveys find it returned
//! (`surveys`).

use std::{
    iter,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::cuda::{
    api::CudaError,
    device::{
        Device,
        accounts::{explained_by, sum},
        memory::{DeviceMemory, ExtentMemory, Trace},
    },
    extents::{deferred::DeferredReleases, freer::FreeOrder, surveys::Surveys},
    host::maker::HostOrder,
    state::{Extent, Live, State, send},
};
use crate::{Completion, ExtentKind, disk::DiskOrder};

/// Scrubbing takes about 0.35 ms for a GiB.
pub(crate) const RETURN_WAIT_MAX: Duration = Duration::from_millis(40);
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(2);
/// How often to check for a return; each check takes some 10 us.
const RETURN_POLL_EVERY: Duration = Duration::from_micros(250);

/// Extents released between two readings of the figures, since a reading takes longer than a release. If only
/// some of them return, the oldest count.
const BATCH_MAX: usize = 16;

#[derive(Debug)]
pub(crate) enum ReleaserOrder {
    Release {
        extent: ExtentId,
    },
    ReleaseNow {
        device: DeviceIndex,
    },
    Survey {
        device: DeviceIndex,
        clients: Vec<u32>,
    },
    /// A completion that needs no survey, but is reported by a thread of the driver.
    Report(Completion),
}

/// The threads that free what takes time.
#[derive(Debug)]
pub(crate) struct Destinations {
    pub(crate) frees: Sender<FreeOrder>,
    pub(crate) hosts: Sender<HostOrder>,
    pub(crate) disk: Sender<DiskOrder>,
}

/// Runs until all senders are gone.
pub(crate) fn run(state: &State, orders: &Receiver<ReleaserOrder>, destinations: &Destinations) {
    let deferred = state.devices.iter().map(|_| DeferredReleases::new()).collect();
    let mut releaser = Releaser { state, destinations, surveys: Surveys::of(state), deferred };
    loop {
        match next(orders, releaser.due()) {
            Ok(first) => releaser.serve(iter::once(first).chain(orders.try_iter()).collect()),
            Err(RecvTimeoutError::Timeout) => releaser.release(DeferredReleases::take_due),
            Err(RecvTimeoutError::Disconnected) => return releaser.release(|all, _| all.take_all()),
        }
        releaser.surveys.confirm(state);
    }
}

struct Releaser<'a> {
    state: &'a State,
    destinations: &'a Destinations,
    surveys: Surveys,
    /// By device.
    deferred: Vec<DeferredReleases<Release>>,
}

/// Waits for an order, or until a deferred release or a survey is due.
fn next(orders: &Receiver<ReleaserOrder>, due: Option<Instant>) -> Result<ReleaserOrder, RecvTimeoutError> {
    match due {
        Some(due) => orders.recv_timeout(due.saturating_duration_since(Instant::now())),
        None => Ok(orders.recv()?),
    }
}

impl Releaser<'_> {
    fn due(&self) -> Option<Instant> {
        self.deferred.iter().filter_map(DeferredReleases::due).chain(self.surveys.due()).min()
    }

    fn serve(&mut self, batch: Vec<ReleaserOrder>) {
        for order in &batch {
            match *order {
                ReleaserOrder::Release { extent } => self.begin_release(extent),
                ReleaserOrder::ReleaseNow { device } => {
                    if let Some(deferred) = self.deferred.get_mut(usize::from(device.0)) {
                        deferred.expire();
                    }
                }
                ReleaserOrder::Survey { .. } | ReleaserOrder::Report(_) => {}
            }
        }
        self.release(DeferredReleases::take_due);
        for order in batch {
            match order {
                ReleaserOrder::Release { .. } | ReleaserOrder::ReleaseNow { .. } => {}
                ReleaserOrder::Survey { device, clients } => self.surveys.answer(self.state, device, clients),
                ReleaserOrder::Report(completion) => self.state.report(completion),
            }
        }
    }

    fn begin_release(&mut self, extent: ExtentId) {
        let Self { state, destinations, .. } = *self;
        match state.retire(extent) {
            // No process holds an extent that does not exist.
            None => state.report(Completion::Released { extent, returned: !is_awaited(state, extent) }),
            Some(Live::Disk(released)) => send(&destinations.disk, DiskOrder::Release { extent, released }),
            Some(Live::Memory(ExtentMemory::Host(memory))) => {
                send(&destinations.hosts, HostOrder::Release { extent, memory })
            }
            Some(Live::Memory(ExtentMemory::Device(memory))) if memory.kind() == ExtentKind::Fixed => {
                send(&destinations.frees, FreeOrder::Released { extent, memory })
            }
            Some(Live::Memory(ExtentMemory::Device(memory))) => {
                let DeviceIndex(at) = state.index_of(memory.device());
                self.deferred[usize::from(at)].add(Release::of(extent, memory));
            }
        }
    }

    fn release(&mut self, which: impl Fn(&mut DeferredReleases<Release>, &Device) -> Vec<Release>) {
        for (device, deferred) in self.state.devices.iter().zip(&mut self.deferred) {
            let releases = which(deferred, device);
            if !releases.is_empty() {
                release(self.state, device, releases);
            }
        }
    }
}

fn is_awaited(state: &State, extent: ExtentId) -> bool {
    state.extents().get(&extent).is_some_and(|it| !matches!(it, Extent::Unmade))
}

#[derive(Debug)]
struct Release {
    extent: ExtentId,
    size: Bytes,
    memory: Arc<DeviceMemory>,
}

impl Release {
    fn of(extent: ExtentId, memory: Arc<DeviceMemory>) -> Self {
        Self { extent, size: memory.size(), memory }
    }
}

/// Ends the driver's own use of extents on one device, and reports for each whether it returned.
fn release(state: &State, device: &Device, mut releases: Vec<Release>) {
    let all: Vec<(ExtentId, Bytes)> = releases.iter().map(|it| (it.extent, it.size)).collect();
    let mut back: Vec<ExtentId> = Vec::new();
    let mut missing: Vec<(ExtentId, Bytes)> = Vec::new();
    device.learn_contexts();
    let base = used_beside_live(device);
    while !releases.is_empty() {
        let few = releases.drain(..releases.len().min(BATCH_MAX)).collect();
        // Without figures, all of them are awaited.
        if let Ok(seen) = release_batch(device, few) {
            back.extend(seen.back);
            missing.extend(seen.missing);
        }
    }
    if let Ok(base) = base {
        let held = sum(all.iter().filter(|(extent, _)| !back.contains(extent)).map(|(_, size)| *size));
        back.extend(await_return(device, base.saturating_add(held), missing));
    }
    mark_returned(state, device, &back);
    for (extent, _) in all {
        state.report(Completion::Released { extent, returned: back.contains(&extent) });
    }
}

fn mark_returned(state: &State, device: &Device, back: &[ExtentId]) {
    let mut accounts = device.accounts();
    for extent in back {
        accounts.mark_returned(*extent);
    }
    drop(accounts);
    let mut extents = state.extents();
    for extent in back {
        extents.remove(extent);
    }
}

fn used_beside_live(device: &Device) -> Result<Bytes, CudaError> {
    device.used_beside_live(&device.accounts())
}

struct BatchOutcome {
    back: Vec<ExtentId>,
    /// They may still return.
    missing: Vec<(ExtentId, Bytes)>,
}

/// Releases a few extents between two readings of the figures.
fn release_batch(device: &Device, mut few: Vec<Release>) -> Result<BatchOutcome, CudaError> {
    for release in &mut few {
        // Its page tables return too, and before the first reading. A digest in flight keeps the mapping.
        if let Some(memory) = Arc::get_mut(&mut release.memory) {
            memory.unmap();
        }
    }
    let before = used_beside_live(device);
    let mut traces = Vec::new();
    for Release { extent, size, memory } in few {
        traces.push((extent, size, memory.trace()));
        device.accounts().retire(extent, size, memory.trace());
    }
    let after = used_beside_live(device);
    let (before, after) = (before?, after?);
    let full = before.saturating_add(sum(traces.iter().map(|(_, size, _)| *size)));
    let mut drop = full.saturating_sub(after);
    let gone =
        traces.iter().filter(|(.., trace)| !trace.is_alive()).map(|(extent, size, _)| (*extent, *size));
    let gone: Vec<(ExtentId, Bytes)> = gone.collect();
    let back = explained_by(gone.iter().copied(), &mut drop);
    let missing = gone.into_iter().filter(|(extent, _)| !back.contains(extent)).collect();
    Ok(BatchOutcome { back, missing })
}

/// Enters the extent as awaited. Returns the use beside live extents before that.
pub(crate) fn retire(
    device: &Device,
    extent: ExtentId,
    size: Bytes,
    trace: Trace,
) -> Result<Bytes, CudaError> {
    let mut accounts = device.accounts();
    let before = device.used_beside_live(&accounts);
    accounts.retire(extent, size, trace);
    before
}

/// Polls for extents that did not return at once. `full` is the use beside live extents if none returns.
pub(crate) fn await_return(
    device: &Device,
    full: Bytes,
    mut missing: Vec<(ExtentId, Bytes)>,
) -> Vec<ExtentId> {
    let deadline = Instant::now() + RETURN_WAIT_MAX;
    let mut back = Vec::new();
    let mut full = full;
    while !missing.is_empty() {
        let Ok(used_beside_live) = used_beside_live(device) else { break };
        let mut drop = full.saturating_sub(used_beside_live);
        let come = explained_by(missing.iter().copied(), &mut drop);
        full = full
            .saturating_sub(sum(missing.iter().filter(|(it, _)| come.contains(it)).map(|(_, size)| *size)));
        missing.retain(|(extent, _)| !come.contains(extent));
        back.extend(come);
        if Instant::now() >= deadline {
            break;
        }
        thread::sleep(RETURN_POLL_EVERY);
    }
    back
}
