//! Whatever needs a look at how much of a device is taken: releases, and surveys.
//!
//! A release asks whether the memory came back, which CUDA does not say. What is taken of the device is read before
//! and after; what did not come back at once is looked for until [`PATIENCE`] has passed, since the driver zeroes what
//! is released, and is awaited from then on (`accounts`), until surveys show it back (`surveys`).

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
        accounts::{covered, sum},
        memory::{Held, Memory, Trace},
    },
    extents::{deferred::PutOff, freer::Free, surveys::Surveys},
    host::maker::HostOrder,
    state::{Extent, Live, State, hand},
};
use crate::{Completion, ExtentKind, disk::DiskOrder};

/// Scrubbing takes about 0.35 ms for a GiB.
pub(crate) const PATIENCE: Duration = Duration::from_millis(40);
pub(crate) const NAP: Duration = Duration::from_millis(2);
/// Between two looks whether something has come back: each takes some 10 us.
const LOOK_AGAIN: Duration = Duration::from_micros(250);

/// Released between two readings of the figures, which take longer than a release. Of those that share one, the
/// oldest are taken to be back where only some are.
const AT_ONCE: usize = 16;

#[derive(Debug)]
pub(crate) enum Look {
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
    /// What needs no look, and is told by a thread of ours all the same.
    Answer(Completion),
}

/// Who gives up what takes its time.
#[derive(Debug)]
pub(crate) struct Onward {
    pub(crate) frees: Sender<Free>,
    pub(crate) hosts: Sender<HostOrder>,
    pub(crate) disk: Sender<DiskOrder>,
}

/// Until nobody can send any more.
pub(crate) fn run(state: &State, looks: &Receiver<Look>, onward: &Onward) {
    let put_off = state.devices.iter().map(|_| PutOff::new()).collect();
    let mut looker = Looker { state, onward, surveys: Surveys::of(state), put_off };
    loop {
        match next(looks, looker.due()) {
            Ok(first) => looker.serve(iter::once(first).chain(looks.try_iter()).collect()),
            Err(RecvTimeoutError::Timeout) => looker.release(PutOff::take),
            Err(RecvTimeoutError::Disconnected) => return looker.release(|all, _| all.take_all()),
        }
        looker.surveys.confirm(state);
    }
}

struct Looker<'a> {
    state: &'a State,
    onward: &'a Onward,
    surveys: Surveys,
    /// By device.
    put_off: Vec<PutOff<Release>>,
}

/// What was asked for, or a timeout once we have to look by ourselves.
fn next(looks: &Receiver<Look>, due: Option<Instant>) -> Result<Look, RecvTimeoutError> {
    match due {
        Some(due) => looks.recv_timeout(due.saturating_duration_since(Instant::now())),
        None => Ok(looks.recv()?),
    }
}

impl Looker<'_> {
    fn due(&self) -> Option<Instant> {
        self.put_off.iter().filter_map(PutOff::due).chain(self.surveys.due()).min()
    }

    fn serve(&mut self, batch: Vec<Look>) {
        for look in &batch {
            match *look {
                Look::Release { extent } => self.begin_release(extent),
                Look::ReleaseNow { device } => {
                    if let Some(put_off) = self.put_off.get_mut(usize::from(device.0)) {
                        put_off.hurry();
                    }
                }
                Look::Survey { .. } | Look::Answer(_) => {}
            }
        }
        self.release(PutOff::take);
        for look in batch {
            match look {
                Look::Release { .. } | Look::ReleaseNow { .. } => {}
                Look::Survey { device, clients } => self.surveys.answer(self.state, device, clients),
                Look::Answer(completion) => self.state.tell(completion),
            }
        }
    }

    fn begin_release(&mut self, extent: ExtentId) {
        let Self { state, onward, .. } = *self;
        match state.retire(extent) {
            // Nobody holds what is not there.
            None => state.tell(Completion::Released { extent, returned: !is_awaited(state, extent) }),
            Some(Live::Disk(released)) => hand(&onward.disk, DiskOrder::Release { extent, released }),
            Some(Live::Memory(Held::Host(memory))) => {
                hand(&onward.hosts, HostOrder::Release { extent, memory })
            }
            Some(Live::Memory(Held::Device(memory))) if memory.kind() == ExtentKind::Fixed => {
                hand(&onward.frees, Free::Released { extent, memory })
            }
            Some(Live::Memory(Held::Device(memory))) => {
                let DeviceIndex(at) = state.index_of(memory.device());
                self.put_off[usize::from(at)].add(Release::of(extent, memory));
            }
        }
    }

    fn release(&mut self, which: impl Fn(&mut PutOff<Release>, &Device) -> Vec<Release>) {
        for (device, put_off) in self.state.devices.iter().zip(&mut self.put_off) {
            let releases = which(put_off, device);
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
    memory: Arc<Memory>,
}

impl Release {
    fn of(extent: ExtentId, memory: Arc<Memory>) -> Self {
        Self { extent, size: memory.size(), memory }
    }
}

/// Gives up the driver's own hold on extents of one device, and tells of each whether it came back.
fn release(state: &State, device: &Device, mut releases: Vec<Release>) {
    let all: Vec<(ExtentId, Bytes)> = releases.iter().map(|it| (it.extent, it.size)).collect();
    let mut back: Vec<ExtentId> = Vec::new();
    let mut missing: Vec<(ExtentId, Bytes)> = Vec::new();
    let base = rest(device);
    while !releases.is_empty() {
        let few = releases.drain(..releases.len().min(AT_ONCE)).collect();
        // Where the figures are not to be had, all of them are awaited until they are.
        if let Ok(seen) = let_go(device, few) {
            back.extend(seen.back);
            missing.extend(seen.missing);
        }
    }
    if let Ok(base) = base {
        let held = sum(all.iter().filter(|(extent, _)| !back.contains(extent)).map(|(_, size)| *size));
        back.extend(linger(device, base.saturating_add(held), missing));
    }
    settle(state, device, &back);
    for (extent, _) in all {
        state.tell(Completion::Released { extent, returned: back.contains(&extent) });
    }
}

fn settle(state: &State, device: &Device, back: &[ExtentId]) {
    let mut accounts = device.accounts();
    for extent in back {
        accounts.forget(*extent);
    }
    drop(accounts);
    let mut extents = state.extents();
    for extent in back {
        extents.remove(extent);
    }
}

fn rest(device: &Device) -> Result<Bytes, CudaError> {
    device.rest(&device.accounts())
}

struct Seen {
    back: Vec<ExtentId>,
    /// They may come yet.
    missing: Vec<(ExtentId, Bytes)>,
}

/// Gives up a few, between two looks at the figures.
fn let_go(device: &Device, mut few: Vec<Release>) -> Result<Seen, CudaError> {
    for release in &mut few {
        // Its page tables come back too, and before the first look. A digest under way keeps the mapping.
        if let Some(memory) = Arc::get_mut(&mut release.memory) {
            memory.unmap();
        }
    }
    let before = rest(device);
    let mut traces = Vec::new();
    for Release { extent, size, memory } in few {
        traces.push((extent, size, memory.trace()));
        device.accounts().retire(extent, size, memory.trace());
    }
    let after = rest(device);
    let (before, after) = (before?, after?);
    let full = before.saturating_add(sum(traces.iter().map(|(_, size, _)| *size)));
    let mut drop = full.saturating_sub(after);
    let gone =
        traces.iter().filter(|(.., trace)| !trace.is_alive()).map(|(extent, size, _)| (*extent, *size));
    let gone: Vec<(ExtentId, Bytes)> = gone.collect();
    let back = covered(gone.iter().copied(), &mut drop);
    let missing = gone.into_iter().filter(|(extent, _)| !back.contains(extent)).collect();
    Ok(Seen { back, missing })
}

/// Enters it as awaited. What was taken beside live extents before that.
pub(crate) fn retire(
    device: &Device,
    extent: ExtentId,
    size: Bytes,
    trace: Trace,
) -> Result<Bytes, CudaError> {
    let mut accounts = device.accounts();
    let before = device.rest(&accounts);
    accounts.retire(extent, size, trace);
    before
}

/// Looks for what did not come back at once. `full` is what would be taken beside live extents if none of it did.
pub(crate) fn linger(device: &Device, full: Bytes, mut missing: Vec<(ExtentId, Bytes)>) -> Vec<ExtentId> {
    let deadline = Instant::now() + PATIENCE;
    let mut back = Vec::new();
    let mut full = full;
    while !missing.is_empty() {
        let Ok(rest) = rest(device) else { break };
        let mut drop = full.saturating_sub(rest);
        let come = covered(missing.iter().copied(), &mut drop);
        full = full
            .saturating_sub(sum(missing.iter().filter(|(it, _)| come.contains(it)).map(|(_, size)| *size)));
        missing.retain(|(extent, _)| !come.contains(extent));
        back.extend(come);
        if Instant::now() >= deadline {
            break;
        }
        thread::sleep(LOOK_AGAIN);
    }
    back
}
