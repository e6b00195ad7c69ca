//! What the broker shows: plain owned values, made when they are asked for.

use std::{collections::BTreeMap, time::Duration};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, Quantity, SessionId};

use crate::{
    event::{Kind, Lifetime, PartRef, Tier},
    migration::{Cause, MigrationState},
    pressure::Pressure,
    residency::{AllocationState, MapState},
    tenancy::SessionState,
    time::Time,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationView {
    pub id: AllocationId,
    /// `tenant/name`, or empty.
    pub name: String,
    pub tenant: String,
    /// UUID.
    pub device: String,
    pub kind: Kind,
    pub lifetime: Lifetime,
    pub discardable: bool,
    /// What of it lies in the host's memory is mapped there.
    pub accessed_by_device: bool,
    pub state: AllocationState,
    pub size: Bytes,
    pub charged: Bytes,
    pub resident: Bytes,
    pub in_host: Bytes,
    /// And on disk.
    pub on_disk: Bytes,
    /// In a file that is nobody's, and costs nothing.
    pub in_file: Bytes,
    /// The file whose bytes it has.
    pub file: Option<String>,
    pub unreturned: Bytes,
    pub digest: Option<[u8; 32]>,
    pub readers: Vec<String>,
    pub owner: Option<SessionId>,
    /// Empty in lists.
    pub parts: Vec<PartView>,
    pub mapper_count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartView {
    pub index: PartIndex,
    pub offset: Bytes,
    pub size: Bytes,
    pub tier: Tier,
    /// Where it is on its way to.
    pub moves_to: Option<Tier>,
    /// An operator holds it: it does not leave its device.
    pub operator_hold: bool,
    /// Its content was given up: it is nowhere.
    pub dropped: bool,
    /// `None` for clients.
    pub backing: Option<Backing>,
    /// Empty for clients.
    pub mappers: Vec<MapperView>,
}

/// What is behind a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backing {
    /// The driver is making it.
    Creating,
    Live,
    /// The driver has been told to let go.
    Releasing,
    /// The driver let go, and some process still holds the memory.
    Unreturned,
    /// Nothing any more: given back, or kept for the tenant's next allocations.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapperView {
    pub session: SessionId,
    /// [`MapState::Queued`] is no mapper yet.
    pub state: MapState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    pub id: SessionId,
    pub tenant: String,
    pub state: SessionState,
    pub silent_reason: Option<String>,
    pub pid: u32,
    pub uid: u32,
    pub client_name: String,
    pub allocations: usize,
    pub mapped: Bytes,
    pub fds_in_flight: usize,
    pub opened: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaView {
    pub tenant: String,
    /// UUID, or `*`.
    pub device: String,
    pub tier: Tier,
    pub guarantee: Quantity,
    pub limit: Quantity,
    /// `None` in a row of device `*`, and where the device is absent.
    pub in_force: Option<QuotaInForce>,
    /// The tenant has no stored quota there.
    pub default_quota: bool,
    pub device_absent: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaInForce {
    pub guarantee: Bytes,
    pub limit: Bytes,
    /// All that is charged: what lies there, what is reserved, what is unreturned.
    pub charged: Bytes,
    pub reserved: Bytes,
    pub unreturned: Bytes,
    /// Of what is held, what backs nothing and is the first to go when anybody needs room.
    pub cached: Bytes,
    /// Of what lies on the device, what can leave without being copied.
    pub clean: Bytes,
    /// Of what is held below the device, memory of parts that lie on it.
    pub backing: Bytes,
}

/// A tier below a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierView {
    pub total: Bytes,
    pub capacity: Bytes,
    pub charged: Bytes,
    pub unreturned: Bytes,
    pub committed: Bytes,
    pub shortfall: Bytes,
    pub pressure: Pressure,
    /// As clients were told last: thousandths.
    pub batch_factor: u32,
    pub full_in: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    pub index: DeviceIndex,
    pub uuid: String,
    pub name: String,
    pub total: Bytes,
    pub capacity: Bytes,
    pub charged: Bytes,
    pub unreturned: Bytes,
    pub cached: Bytes,
    /// Of that, what is in extents smaller than a part usually is, and in larger ones.
    pub cached_smaller: Bytes,
    pub cached_larger: Bytes,
    /// Of the host memory near it that its parts may move to, if there is any.
    pub host: Option<TierView>,
    /// Of the disk, the same.
    pub disk: Option<TierView>,
    /// On their way to it, and out of it.
    pub moving_in: Bytes,
    pub moving_out: Bytes,
    /// Parts of it that are wanted there and wait for room.
    pub parts_waiting: usize,
    pub unbrokered: Bytes,
    /// Kept for the contexts of clients.
    pub contexts: Bytes,
    pub committed: Bytes,
    pub shortfall: Bytes,
    pub pressure: Pressure,
    /// As clients were told last: thousandths.
    pub batch_factor: u32,
    pub full_in: Option<Duration>,
}

/// What waits for room on a device, or for its tenant to be below its limit there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitView {
    /// In the order of asking.
    pub id: u64,
    /// UUID.
    pub device: String,
    pub tenant: String,
    pub waiter: WaiterView,
    pub bytes: Bytes,
    pub since: Time,
    /// When a batch is refused.
    pub deadline: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaiterView {
    /// A part that these sessions pin, or are to be sent.
    Part { part: PartRef, sessions: Vec<SessionId> },
    /// An `AllocateBatch` of so many items.
    Batch { session: SessionId, items: usize },
}

/// A part on its way to another tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveView {
    pub part: PartRef,
    pub tenant: String,
    /// UUID.
    pub device: String,
    pub to: Tier,
    pub bytes: Bytes,
    pub cause: Cause,
    pub state: MigrationState,
    pub since: Time,
    /// Where it is copied to, by which the driver knows how far it has come.
    pub extent: ExtentId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub draining: bool,
    pub boot_epoch: u64,
    pub sessions: usize,
    pub allocations: usize,
    pub fds_in_flight: usize,
    /// Those that wait for room on devices.
    pub parts_waiting: usize,
    pub batches_waiting: usize,
    pub invariant_violations: u64,
}

/// Who is in which state; what there is none of is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub sessions: BTreeMap<SessionState, usize>,
    pub allocations: BTreeMap<AllocationState, usize>,
    /// By the tenant's name.
    pub allocations_by_tenant: BTreeMap<String, usize>,
    /// By the names of tenant and device: what allocations have beyond what was asked for, since sizes are rounded up.
    pub rounding: BTreeMap<(String, String), Bytes>,
    /// By the same names: what lies in the host's memory and is mapped there, or would be.
    pub in_place: BTreeMap<(String, String), Bytes>,
    /// By the same names: what lies in files that are nobody's, or goes back there from its device without being copied.
    pub in_file: BTreeMap<(String, String), Bytes>,
}

/// Everything about quotas that outlives the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredQuotas {
    pub quotas: Vec<StoredQuota>,
    /// The last request ids of operators that changed quotas, oldest first, so that a retry after a restart is
    /// still recognised.
    pub requests: Vec<StoredRequest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredQuota {
    pub tenant: String,
    /// UUID, or `*`.
    pub device: String,
    pub tier: Tier,
    pub guarantee: Quantity,
    pub limit: Quantity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRequest {
    pub uid: u32,
    /// True for a DeleteQuota.
    pub deleted: bool,
    pub id: [u8; 16],
    pub fingerprint: [u8; 16],
    /// What it changed.
    pub tenant: String,
    pub device: String,
    pub tier: Tier,
}
