//! State that the driver's threads share.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::Sender},
};

use vramd_types::{Bytes, ExtentId, HostNode};

use super::{accounts::Accounts, holders::Holders, memory::Memory};
use crate::{
    Completion, DeviceInfo, DriverError, Sink,
    disk::{DiskExtent, HashedBytes, Registry},
    location::Location,
};

pub(super) struct State {
    devices: Vec<DeviceInfo>,
    /// The node of host memory.
    pub(super) node: HostNode,
    pub(super) holders: Holders,
    accounts: Mutex<Accounts>,
    /// Of extents on disk and of files.
    pub(super) hashed: HashedBytes,
    sink: Sink,
}

/// An extent, wherever it lies.
#[derive(Debug)]
pub(super) enum Live {
    Memory(Arc<Memory>),
    Disk(Arc<DiskExtent>),
}

impl Live {
    pub(super) fn size(&self) -> Bytes {
        match self {
            Self::Memory(memory) => memory.size(),
            Self::Disk(disk) => disk.size(),
        }
    }
}

impl State {
    /// Surveys once: memory of an earlier driver that is still held is not free.
    pub(super) fn new(
        devices: Vec<DeviceInfo>,
        node: HostNode,
        host: Bytes,
        sink: Sink,
    ) -> Result<Self, DriverError> {
        let surveyed = Holders::new(&devices).and_then(|holders| Ok((holders.survey()?, holders)));
        let (seen, holders) =
            surveyed.map_err(|error| DriverError::Failed(format!("cannot read /proc: {error}")))?;
        let mut accounts = Accounts::new(&devices, host);
        accounts.apply_survey(&seen);
        Ok(Self {
            devices,
            node,
            holders,
            accounts: Mutex::new(accounts),
            hashed: HashedBytes::default(),
            sink,
        })
    }

    /// Every change of the accounts is complete before any code could panic, so a poisoned lock is still good.
    pub(super) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why host memory cannot lie on that node, if so.
    pub(super) fn refuse_node(&self, node: HostNode) -> Option<DriverError> {
        (node != self.node)
            .then(|| DriverError::Failed(format!("host node {node} has no CPU, or does not exist")))
    }

    /// The UUID in the names of memory at that location.
    pub(super) fn uuid(&self, location: Location) -> &str {
        let index = match location {
            Location::Device(device) => usize::from(device.0),
            Location::Host => 0,
        };
        &self.devices[index].uuid
    }

    /// Whether the extent is a range of a foreign file.
    pub(super) fn is_in_file(&self, extent: ExtentId) -> bool {
        matches!(self.find(extent), Ok(Live::Disk(disk)) if !disk.is_own())
    }

    /// Finds an extent that can be copied.
    pub(super) fn find(&self, extent: ExtentId) -> Result<Live, DriverError> {
        let accounts = self.accounts();
        let memory = accounts.live(extent).map(Live::Memory);
        let live = memory.or_else(|| accounts.on_disk(extent).map(Live::Disk));
        live.ok_or_else(|| DriverError::Failed(format!("extent {extent} does not exist")))
    }

    /// Never called with the accounts locked.
    pub(super) fn report(&self, completion: Completion) {
        (self.sink)(completion);
    }
}

impl Registry for Arc<State> {
    fn claim(&self, extent: ExtentId) -> bool {
        self.accounts().claim_on_disk(extent)
    }

    fn enter(&self, extent: ExtentId, made: Arc<DiskExtent>) {
        self.accounts().enter_on_disk(extent, made);
    }

    fn forget(&self, extent: ExtentId) {
        self.accounts().forget_on_disk(extent);
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
    assert!(to.send(order).is_ok(), "a thread of the simulated driver has panicked");
}
