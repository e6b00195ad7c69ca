//! State that the driver's threads share.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
};

use vramd_types::{Bytes, DeviceIndex, ExtentId, HostNode};

use super::{
    api::Api,
    copies::buffers::Buffers,
    device::{Device, memory::ExtentMemory},
    host::headroom,
};
use crate::{
    Completion, DriverError, FreePinnedFacts, Sink,
    disk::{DiskExtent, HashedBytes, Registry},
};

pub(super) struct State {
    pub(super) devices: Vec<Arc<Device>>,
    api: Arc<Api>,
    pub(super) buffers: Arc<Buffers>,
    extents: Mutex<HashMap<ExtentId, Extent>>,
    /// Bytes left to pin ahead, by node.
    to_pin: Mutex<BTreeMap<HostNode, Bytes>>,
    free_pinned: Mutex<Vec<FreePinnedFacts>>,
    /// Whether host memory is charged to the process's cgroup.
    in_cgroup: bool,
    lost: AtomicBool,
    /// Of extents on disk and of files.
    pub(super) hashed: HashedBytes,
    sink: Sink,
}

/// The state of an id in use.
#[derive(Debug)]
pub(super) enum Extent {
    Making,
    Live(ExtentMemory),
    OnDisk(Arc<DiskExtent>),
    /// Released, and not yet found returned.
    Awaited,
    /// Not created after all, and not yet found returned. No completion reports it.
    Unmade,
}

/// An extent that can be copied.
#[derive(Debug)]
pub(super) enum Live {
    Memory(ExtentMemory),
    Disk(Arc<DiskExtent>),
}

impl Live {
    pub(super) fn size(&self) -> Bytes {
        match self {
            Self::Memory(held) => held.size(),
            Self::Disk(disk) => disk.size(),
        }
    }
}

impl State {
    pub(super) fn new(api: Arc<Api>, devices: Vec<Arc<Device>>, in_cgroup: bool, sink: Sink) -> Self {
        let (extents, to_pin, free_pinned) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (buffers, lost, hashed) = (Arc::default(), AtomicBool::new(false), HashedBytes::default());
        Self { devices, api, buffers, extents, to_pin, free_pinned, in_cgroup, lost, hashed, sink }
    }

    /// Sets the bytes left to pin ahead, by node, and the free memory.
    pub(super) fn set_host_memory(
        &self,
        to_pin: BTreeMap<HostNode, Bytes>,
        free_pinned: Vec<FreePinnedFacts>,
    ) {
        *self.to_pin.lock().unwrap_or_else(PoisonError::into_inner) = to_pin;
        *self.free_pinned.lock().unwrap_or_else(PoisonError::into_inner) = free_pinned;
    }

    pub(super) fn free_pinned(&self) -> Vec<FreePinnedFacts> {
        self.free_pinned.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The part of the host memory near one device that could not be pinned now.
    pub(super) fn host_missing(&self, node: HostNode) -> Bytes {
        let to_pin = self.to_pin.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(its) = to_pin.get(&node).copied().filter(|bytes| !bytes.is_zero()) else {
            return Bytes::ZERO;
        };
        let near = self.devices.iter().filter(|device| device.node() == node).count();
        let all = to_pin.values().copied().fold(Bytes::ZERO, Bytes::saturating_add);
        headroom::missing_share(its, all, near, headroom::available(self.in_cgroup))
    }

    /// Every change is complete before any code could panic, so a poisoned lock is still good.
    pub(super) fn extents(&self) -> MutexGuard<'_, HashMap<ExtentId, Extent>> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves an id. `false` if it is in use.
    pub(super) fn claim(&self, extent: ExtentId) -> bool {
        let mut extents = self.extents();
        let free = !extents.contains_key(&extent);
        if free {
            extents.insert(extent, Extent::Making);
        }
        free
    }

    /// Whether the extent is a range of a foreign file.
    pub(super) fn is_in_file(&self, extent: ExtentId) -> bool {
        matches!(self.find(extent), Ok(Live::Disk(disk)) if !disk.is_own())
    }

    /// Finds an extent that can be copied.
    pub(super) fn find(&self, extent: ExtentId) -> Result<Live, DriverError> {
        match self.extents().get(&extent) {
            Some(Extent::Live(held)) => Ok(Live::Memory(held.clone())),
            Some(Extent::OnDisk(disk)) => Ok(Live::Disk(Arc::clone(disk))),
            _ => Err(DriverError::Failed(format!("extent {extent} does not exist"))),
        }
    }

    pub(super) fn index_of(&self, device: &Arc<Device>) -> DeviceIndex {
        let found = (0..).map(DeviceIndex).zip(&self.devices).find(|(_, it)| Arc::ptr_eq(it, device));
        found.expect("memory is of one of our devices").0
    }

    /// Moves an extent from live to awaited. The caller is its only holder, except for digests and copies in
    /// flight.
    pub(super) fn retire(&self, extent: ExtentId) -> Option<Live> {
        let mut extents = self.extents();
        let entry = extents.get_mut(&extent)?;
        let (retired, next) = match std::mem::replace(entry, Extent::Awaited) {
            Extent::Live(held) => (Some(Live::Memory(held)), Extent::Awaited),
            Extent::OnDisk(disk) => (Some(Live::Disk(disk)), Extent::Awaited),
            other @ (Extent::Making | Extent::Awaited | Extent::Unmade) => (None, other),
        };
        *entry = next;
        retired
    }

    /// Never called with a lock held. Once a context is lost, the driver reports that and nothing more: the
    /// outcome of everything else is unknown.
    pub(super) fn report(&self, completion: Completion) {
        if let Some(poison) = self.api.poison() {
            if !self.lost.swap(true, Ordering::Relaxed) {
                let problem = format!("a CUDA error has ended a context of the daemon: {poison}");
                (self.sink)(Completion::Lost { problem });
            }
            return;
        }
        (self.sink)(completion);
    }
}

impl Registry for Arc<State> {
    fn claim(&self, extent: ExtentId) -> bool {
        State::claim(self, extent)
    }

    fn enter(&self, extent: ExtentId, made: Arc<DiskExtent>) {
        self.extents().insert(extent, Extent::OnDisk(made));
    }

    fn forget(&self, extent: ExtentId) {
        self.extents().remove(&extent);
    }

    fn report(&self, completion: Completion) {
        State::report(self, completion);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("devices", &self.devices).finish_non_exhaustive()
    }
}

/// Sends an order to another thread of the driver. A missing thread has panicked, in the sink or by a bug in
/// the driver. Its orders can never be answered, so this panics too.
pub(super) fn send<T>(to: &Sender<T>, order: T) {
    assert!(to.send(order).is_ok(), "a thread of the CUDA driver has panicked");
}
