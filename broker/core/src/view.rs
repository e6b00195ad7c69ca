//! Views: plain owned values that show the broker's state at the time of the call.

use std::{collections::BTreeMap, time::Duration};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, Quantity, SessionId, WaitId};

use crate::{
    event::{Adviser, ChannelId, Kind, Lifetime, PartRef, PartSpan, Slot, Tier},
    eviction::PartAdvice,
    moves::{Cause, MigrationState},
    placement::Placement,
    prefetch::Speculation,
    pressure::Pressure,
    residency::{AllocationState, ManagedSums, MapState},
    tenancy::{SessionState, Standing},
    time::Time,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationView {
    pub id: AllocationId,
    /// `tenant/name`, or empty.
    pub name: String,
    pub tenant: String,
    /// The UUID of the device.
    pub device: String,
    pub kind: Kind,
    pub lifetime: Lifetime,
    pub discardable: bool,
    /// Its parts in host memory are mapped and accessed there.
    pub accessed_by_device: bool,
    /// Parts for which the order of leaving is advised. Empty in lists.
    pub advice: Vec<AdviceView>,
    /// How far it was right of late to bring its parts unasked.
    pub speculation: Speculation,
    /// The time of this view.
    pub as_of: Time,
    pub state: AllocationState,
    pub size: Bytes,
    pub charged: Bytes,
    pub resident: Bytes,
    pub in_host: Bytes,
    /// Bytes on disk.
    pub on_disk: Bytes,
    /// Bytes that lie in its file, which are charged to no tenant.
    pub in_file: Bytes,
    /// The file that it was loaded from.
    pub file: Option<String>,
    pub unreturned: Bytes,
    /// Only of managed memory.
    pub managed: Option<ManagedView>,
    pub digest: Option<[u8; 32]>,
    pub readers: Vec<String>,
    pub owner: Option<SessionId>,
    /// Empty in lists.
    pub parts: Vec<PartView>,
    pub mapper_count: usize,
}

/// Where managed memory was ordered. Only the driver of its process knows where its pages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedView {
    /// Where the last executed order sent it; `None` if there is none, if that order failed, or if a later one calls it back
    /// from the host.
    pub ordered: Option<Tier>,
    /// Where the last order that the client has not answered sends it.
    pub under_way: Option<Tier>,
}

/// Charged bytes of managed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagedBytes {
    pub charged: Bytes,
    /// The part of it that was ordered to the device.
    pub on_device: Bytes,
    /// The part of it that was ordered to the host.
    pub on_host: Bytes,
}

impl From<ManagedSums> for ManagedBytes {
    fn from(sums: ManagedSums) -> Self {
        Self { charged: sums.charged, on_device: sums.on_device, on_host: sums.on_host }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartView {
    pub index: PartIndex,
    pub offset: Bytes,
    pub size: Bytes,
    pub tier: Tier,
    /// The tier that it is moving to.
    pub moves_to: Option<Tier>,
    /// An operator hold keeps the part on its device.
    pub operator_hold: bool,
    /// The part was dropped: it lies nowhere.
    pub dropped: bool,
    /// How it came to where it lies; `None` if it was created there.
    pub placement: Option<Placement>,
    /// `None` for clients.
    pub backing: Option<Backing>,
    /// Empty for clients.
    pub mappers: Vec<MapperView>,
}

/// The state of the extent behind a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backing {
    /// The driver is creating it.
    Creating,
    Live,
    /// The driver was told to release it.
    Releasing,
    /// The driver released it, and a process still has the memory open.
    Unreturned,
    /// The extent is gone or cached.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapperView {
    pub session: SessionId,
    /// The state of the mapping. [`MapState::Queued`] is no mapper yet.
    pub state: MapState,
    /// The pin word of the session's mapping, which the shell can read; `None` if the session has no pins.
    pub word: Option<(ChannelId, Slot)>,
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
    /// UUID, or `*` for all devices.
    pub device: String,
    pub tier: Tier,
    pub guarantee: Quantity,
    pub limit: Quantity,
    /// `None` in a row of device `*`, and where the device is absent.
    pub in_force: Option<QuotaInForce>,
    /// The tenant has no stored quota there, so the default applies.
    pub default_quota: bool,
    pub device_absent: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaInForce {
    pub guarantee: Bytes,
    pub limit: Bytes,
    /// All charged bytes: resident, reserved and unreturned.
    pub charged: Bytes,
    pub reserved: Bytes,
    pub unreturned: Bytes,
    /// Managed memory that is charged there, and not known to be resident.
    pub managed: ManagedBytes,
    /// Charged bytes of cached extents. They are released first when a waiter needs room.
    pub cached: Bytes,
    /// Bytes on the device that can leave without a copy.
    pub clean: Bytes,
    /// Charged bytes below the device that back parts on it.
    pub backing: Bytes,
}

/// Advice for parts in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdviceView {
    pub parts: PartSpan,
    pub advice: PartAdvice,
    pub by: Adviser,
    /// False for an owner's advice while an operator overrides it, or its tenant's advice is forbidden.
    pub counts: bool,
}

/// A tenant with its class, its weight and its memory on all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    pub tenant: String,
    pub standing: Standing,
    pub source: StandingSource,
    /// All charged bytes: resident, reserved and unreturned.
    pub on_device: Bytes,
    pub in_host: Bytes,
    pub on_disk: Bytes,
    /// Sessions that are not gone.
    pub sessions: usize,
}

/// The source of a tenant's class and weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandingSource {
    Default,
    Configuration,
    Operator,
}

/// The quota, the use and the free room of a tenant in one place, as its own clients see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnQuotaView {
    pub device: DeviceIndex,
    /// The UUID of the device.
    pub uuid: String,
    pub tier: Tier,
    pub in_force: QuotaInForce,
    /// Bytes that would be admitted now, cached ones included.
    pub free: Bytes,
    pub capacity: Bytes,
    pub default_quota: bool,
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
    /// The factor in the last report to clients, in thousandths.
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
    /// Cached bytes in extents smaller than an ordinary part, and in larger ones.
    pub cached_smaller: Bytes,
    pub cached_larger: Bytes,
    /// The host tier of the device, if there is one.
    pub host: Option<TierView>,
    /// The disk tier of the device, if there is one.
    pub disk: Option<TierView>,
    /// Bytes moving to the device, and away from it.
    pub moving_in: Bytes,
    pub moving_out: Bytes,
    /// Parts that wait for room on the device.
    pub parts_waiting: usize,
    pub unbrokered: Bytes,
    /// Managed memory that is charged there, and not known to be resident.
    pub managed: ManagedBytes,
    /// Bytes kept free for the contexts of clients.
    pub contexts: Bytes,
    pub committed: Bytes,
    pub shortfall: Bytes,
    pub pressure: Pressure,
    /// The factor in the last report to clients, in thousandths.
    pub batch_factor: u32,
    pub full_in: Option<Duration>,
}

/// One waiter in the line: it waits for room on a device, or for its tenant to be below its limit there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitView {
    pub id: WaitId,
    /// The UUID of the device.
    pub device: String,
    pub tenant: String,
    pub waiter: WaiterView,
    pub bytes: Bytes,
    pub since: Time,
    /// When the batch is refused, if it still waits.
    pub deadline: Option<Time>,
    /// The request that waits. The waiting parts of one pin share it.
    pub request: u64,
    pub reason: WaitReason,
    /// How many earlier requests it stands behind, and a wait of the last of them.
    pub ahead: (usize, Option<WaitId>),
}

/// Why a waiter has not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    pub cause: WaitCause,
    /// The tenant's limit on the device with [`WaitCause::Limit`], else the capacity of the device.
    pub bound: Bytes,
    /// The charge of the tenant there with [`WaitCause::Limit`], else of all tenants.
    pub charged: Bytes,
    /// Sessions that keep memory on the device; with [`WaitCause::Limit`] memory of the tenant.
    pub sessions: Vec<SessionId>,
    /// Tenants whose guarantees keep the free room.
    pub tenants: Vec<String>,
    /// Bytes on the device that operators hold.
    pub operator_held: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// The tenant is at its limit on the device.
    Limit,
    /// The free room is kept for guarantees of other tenants.
    Guarantee,
    /// The device is full, and too little can leave.
    InUse,
    /// The device is full, and enough is leaving.
    Leaving,
    /// There is room, and an earlier waiter has it first.
    Turn,
    /// The driver had no memory, although the ledger has room.
    Driver,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaiterView {
    /// A part that these sessions pin, or wait for after an attach.
    Part { part: PartRef, sessions: Vec<SessionId> },
    /// An `AllocateBatch` with this number of items.
    Batch { session: SessionId, items: usize },
}

/// A part that is moving to another tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveView {
    pub part: PartRef,
    pub tenant: String,
    /// The UUID of the device.
    pub device: String,
    /// The tier that the part lies in.
    pub from: Tier,
    pub to: Tier,
    pub bytes: Bytes,
    pub cause: Cause,
    pub state: MigrationState,
    pub since: Time,
    /// The destination, by which the driver reports the progress.
    pub extent: ExtentId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub draining: bool,
    pub boot_epoch: u64,
    pub sessions: usize,
    pub allocations: usize,
    pub fds_in_flight: usize,
    /// Parts that wait for room on devices.
    pub parts_waiting: usize,
    pub batches_waiting: usize,
    pub invariant_violations: u64,
}

/// Counts by state. A state or key with no entry is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub sessions: BTreeMap<SessionState, usize>,
    pub allocations: BTreeMap<AllocationState, usize>,
    /// By tenant name.
    pub allocations_by_tenant: BTreeMap<String, usize>,
    /// By tenant name: sessions that are not gone.
    pub sessions_by_tenant: BTreeMap<String, usize>,
    /// By the names of tenant and device: bytes of allocations beyond what was requested, since sizes are
    /// rounded up.
    pub rounding: BTreeMap<(String, String), Bytes>,
    /// By the same names: bytes in host memory that are, or would be, accessed there.
    pub in_place: BTreeMap<(String, String), Bytes>,
    /// By the same names: bytes that lie in files, or that go back there from their device without a copy.
    pub in_file: BTreeMap<(String, String), Bytes>,
}

/// Everything about quotas that survives a restart of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredQuotas {
    pub quotas: Vec<StoredQuota>,
    pub tenants: Vec<StoredTenant>,
    /// The last request ids of operators that changed quotas, oldest first, so that a retry after a restart
    /// is recognised.
    pub requests: Vec<StoredRequest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredQuota {
    pub tenant: String,
    /// UUID, or `*` for all devices.
    pub device: String,
    pub tier: Tier,
    pub guarantee: Quantity,
    pub limit: Quantity,
}

/// The class and the weight that operators have set for a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTenant {
    pub tenant: String,
    pub standing: Standing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRequest {
    pub uid: u32,
    pub id: [u8; 16],
    pub fingerprint: [u8; 16],
    /// The tenant for which the request changed something.
    pub tenant: String,
    pub change: StoredChange,
}

/// The change that a remembered request made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredChange {
    /// UUID, or `*` for all devices.
    QuotaSet {
        device: String,
        tier: Tier,
    },
    QuotaDeleted {
        device: String,
        tier: Tier,
    },
    TenantSet,
    TenantReset,
}
