//! Refusals with their facts. There is one variant for each [`Reason`] that the core can give.

use std::{fmt, time::Duration};

use vramd_types::{AllocationId, Bytes, PartIndex, PrefetchNumber, Reason, SessionId, WaitId, printable};

use crate::event::Tier;

/// A refusal: nothing was changed. The client gets its reason, facts and message unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    SizeInvalid {
        field: &'static str,
        size: Bytes,
    },
    PartSizeInvalid {
        size: Bytes,
    },
    NameInvalid {
        field: &'static str,
        name: String,
    },
    /// A persistent allocation has no name.
    NameMissing,
    /// An operator named an allocation without its tenant.
    TenantMissing {
        name: String,
        /// The full name of an allocation with that name.
        full: Option<String>,
    },
    QuantityInvalid {
        field: &'static str,
        quantity: String,
        problem: String,
    },
    /// A setting has a wrong value. Bytes are bare integers; `allowed` says which values are possible.
    SettingInvalid {
        field: &'static str,
        given: String,
        allowed: String,
        problem: String,
    },
    DeviceUnknown {
        device: String,
    },
    RequestInvalid {
        field: &'static str,
        problem: &'static str,
    },
    RequestIdReused {
        request_id: [u8; 16],
    },
    BatchTooLarge {
        items_max: usize,
        items: usize,
    },
    AllocationNotFound {
        allocation: String,
    },
    /// The own tenant has no allocation of that name, and another tenant shares one.
    NameElsewhere {
        name: String,
        full: String,
    },
    SessionNotFound {
        session: SessionId,
    },
    QuotaNotFound {
        tenant: String,
        device: String,
    },
    NotOwner {
        allocation: AllocationId,
    },
    SessionForeign {
        session: SessionId,
        pid: u32,
    },
    QuotaLimit {
        tenant: String,
        device: String,
        tier: Tier,
        limit: Bytes,
        charged: Bytes,
        requested: Bytes,
        /// The limit is no less than the whole tier, so raising it changes nothing.
        is_whole_tier: bool,
    },
    DeviceFull {
        device: String,
        tier: Tier,
        free: Bytes,
        requested: Bytes,
        why: FullBecause,
    },
    /// The machine has less room than the ledger: no tenant's charge stands in the way.
    TierExhausted {
        device: String,
        tier: Tier,
        requested: Bytes,
        problem: String,
    },
    SetTooLarge {
        device: String,
        tier: Tier,
        requested: Bytes,
    },
    SessionsTooMany {
        tenant: String,
        limit: usize,
    },
    AllocationsTooMany {
        tenant: String,
        limit: usize,
    },
    QueueFull {
        limit: usize,
    },
    SlotsExhausted {
        session: SessionId,
        limit: u32,
    },
    NotSealed {
        allocation: AllocationId,
    },
    AlreadySealed {
        allocation: AllocationId,
    },
    StillMapped {
        allocation: AllocationId,
    },
    DeviceNotVisible {
        device: String,
    },
    SessionLost {
        session: SessionId,
    },
    SessionMissing,
    ProtocolBroken {
        problem: String,
    },
    GuaranteeUnbacked {
        tenant: String,
        device: String,
        tier: Tier,
        guarantee: Bytes,
        capacity: Bytes,
        committed: Bytes,
    },
    TierGuaranteed {
        device: String,
        tier: Tier,
        guaranteed: Bytes,
        requested: Bytes,
    },
    Raced {
        allocation: AllocationId,
    },
    PinStalled {
        session: SessionId,
    },
    /// The session itself could not map a part that it pins.
    MapFailed {
        allocation: AllocationId,
        problem: String,
    },
    /// A pin call was not answered within the time that the client allowed.
    WaitOver {
        within: Duration,
        /// The wait as a clause: its object, and the sessions in its way.
        waited: String,
    },
    /// A batch found no room within the time that the client allowed.
    NoRoom {
        waited: Duration,
        /// The wait as a clause, as in [`Self::WaitOver`].
        what: String,
        /// Its shortage, with the reason and the facts.
        why: Box<Refusal>,
    },
    WaitCancelled {
        wait: WaitId,
    },
    WaitNotFound {
        wait: WaitId,
    },
    PrefetchNotFound {
        session: SessionId,
        number: u64,
    },
    /// A session has a turn or waits for one, and requests another.
    TurnHeld {
        session: SessionId,
        /// The name of the working set whose turn it has or waits for.
        set: String,
    },
    /// A turn was not granted within the time that the client allowed.
    TurnWaitOver {
        within: Duration,
        /// The wait as a clause.
        waited: String,
    },
    TurnNotFound {
        session: SessionId,
        set: String,
    },
    /// A client cancelled a batch of its session that is not in the line.
    BatchNotWaiting {
        request_id: [u8; 16],
    },
    NameTaken {
        name: String,
    },
    Draining,
    DriverFailed {
        device: String,
        problem: String,
    },
    StoreFailed {
        problem: String,
    },
    FileInvalid {
        problem: String,
    },
    FileMutable {
        path: String,
        why: String,
    },
    /// The content on disk is not what was written there, or the file has changed.
    ContentLost {
        allocation: AllocationId,
        part: PartIndex,
        problem: String,
    },
    /// An operator or the configuration forbids the tenant's advice.
    AdviceForbidden {
        tenant: String,
    },
    AdviceContradicts {
        allocation: AllocationId,
        problem: &'static str,
    },
    KindUnsupported {
        kind: &'static str,
    },
    TierUnsupported {
        tier: Tier,
    },
    InvariantBroken {
        invariant: &'static str,
    },
}

/// Why a tier has too little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullBecause {
    /// The whole tier is smaller than the request.
    TooSmall { capacity: Bytes },
    /// The rest is charged, or guaranteed to other tenants.
    InUse {
        capacity: Bytes,
        /// A guarantee of another tenant keeps some of the rest.
        is_guaranteed: bool,
        /// Parts can leave the device for a tier below.
        has_below: bool,
    },
    /// There is room, and an earlier waiter has it first.
    Behind {
        capacity: Bytes,
        wait: WaitId,
        /// The earlier waiter is of the same tenant.
        is_own: bool,
    },
    /// The driver had no memory, although the tier should have room.
    Driver,
}

impl Tier {
    /// The setting that says how large the tier is.
    const fn setting(self) -> &'static str {
        match self {
            Self::Device => "memory.device_share",
            Self::Host => "memory.host_size",
            Self::Disk => "disk.size",
        }
    }

    /// The name in metadata and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Refusal {
    pub const fn reason(&self) -> Reason {
        match self {
            Self::SizeInvalid { .. } => Reason::SizeInvalid,
            Self::PartSizeInvalid { .. } => Reason::PartSizeInvalid,
            Self::NameInvalid { .. } | Self::NameMissing | Self::TenantMissing { .. } => Reason::NameInvalid,
            Self::QuantityInvalid { .. } => Reason::QuantityInvalid,
            Self::SettingInvalid { .. } => Reason::SettingInvalid,
            Self::DeviceUnknown { .. } => Reason::DeviceUnknown,
            Self::RequestInvalid { .. } => Reason::RequestInvalid,
            Self::RequestIdReused { .. } => Reason::RequestIdReused,
            Self::BatchTooLarge { .. } => Reason::BatchTooLarge,
            Self::AllocationNotFound { .. } | Self::NameElsewhere { .. } => Reason::AllocationNotFound,
            Self::SessionNotFound { .. } => Reason::SessionNotFound,
            Self::QuotaNotFound { .. } => Reason::QuotaNotFound,
            Self::NotOwner { .. } => Reason::NotOwner,
            Self::SessionForeign { .. } => Reason::SessionForeign,
            Self::QuotaLimit { .. } => Reason::QuotaLimit,
            Self::DeviceFull { .. } | Self::TierExhausted { .. } => Reason::DeviceFull,
            Self::SetTooLarge { .. } => Reason::SetTooLarge,
            Self::SessionsTooMany { .. } => Reason::SessionsTooMany,
            Self::AllocationsTooMany { .. } => Reason::AllocationsTooMany,
            Self::QueueFull { .. } => Reason::QueueFull,
            Self::SlotsExhausted { .. } => Reason::SlotsExhausted,
            Self::NotSealed { .. } => Reason::NotSealed,
            Self::AlreadySealed { .. } => Reason::AlreadySealed,
            Self::StillMapped { .. } => Reason::StillMapped,
            Self::DeviceNotVisible { .. } => Reason::DeviceNotVisible,
            Self::SessionLost { .. } => Reason::SessionLost,
            Self::SessionMissing => Reason::SessionMissing,
            Self::ProtocolBroken { .. } => Reason::ProtocolBroken,
            Self::GuaranteeUnbacked { .. } => Reason::GuaranteeUnbacked,
            Self::TierGuaranteed { .. } => Reason::TierGuaranteed,
            Self::Raced { .. } => Reason::Raced,
            Self::PinStalled { .. } => Reason::PinStalled,
            Self::MapFailed { .. } => Reason::MapFailed,
            Self::WaitOver { .. } | Self::TurnWaitOver { .. } => Reason::Deadline,
            Self::TurnHeld { .. } => Reason::TurnHeld,
            Self::TurnNotFound { .. } => Reason::TurnNotFound,
            Self::NoRoom { why, .. } => why.reason(),
            Self::WaitCancelled { .. } => Reason::WaitCancelled,
            Self::WaitNotFound { .. } | Self::BatchNotWaiting { .. } => Reason::WaitNotFound,
            Self::PrefetchNotFound { .. } => Reason::PrefetchNotFound,
            Self::NameTaken { .. } => Reason::NameTaken,
            Self::Draining => Reason::Draining,
            Self::DriverFailed { .. } => Reason::DriverFailed,
            Self::StoreFailed { .. } => Reason::StoreFailed,
            Self::FileInvalid { .. } => Reason::FileInvalid,
            Self::FileMutable { .. } => Reason::FileMutable,
            Self::ContentLost { .. } => Reason::ContentLost,
            Self::AdviceForbidden { .. } => Reason::AdviceForbidden,
            Self::AdviceContradicts { .. } => Reason::AdviceContradicts,
            Self::KindUnsupported { .. } => Reason::KindUnsupported,
            Self::TierUnsupported { .. } => Reason::TierUnsupported,
            Self::InvariantBroken { .. } => Reason::InvariantBroken,
        }
    }

    /// The refusal without what a wait adds to it.
    pub const fn cause(&self) -> &Self {
        match self {
            Self::NoRoom { why, .. } => why.cause(),
            cause => cause,
        }
    }

    /// The facts for `ErrorInfo.metadata`: the keys that the registry lists for the reason, bytes as bare
    /// integers.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let bytes = |bytes: &Bytes| bytes.get().to_string();
        match self {
            Self::SizeInvalid { field, size } => vec![("field", (*field).to_owned()), ("size", bytes(size))],
            Self::PartSizeInvalid { size } => {
                vec![("field", "part_size_bytes".to_owned()), ("size", bytes(size))]
            }
            Self::NameInvalid { field, name } => vec![("field", (*field).to_owned()), ("name", name.clone())],
            Self::NameMissing => vec![("field", "name".to_owned()), ("name", String::new())],
            Self::TenantMissing { name, .. } => vec![("field", "name".to_owned()), ("name", name.clone())],
            Self::NameElsewhere { name, .. } => vec![("allocation", name.clone())],
            Self::QuantityInvalid { field, quantity, .. } => {
                vec![("field", (*field).to_owned()), ("quantity", quantity.clone())]
            }
            Self::SettingInvalid { field, given, allowed, .. } => {
                vec![("field", (*field).to_owned()), ("given", given.clone()), ("allowed", allowed.clone())]
            }
            Self::DeviceUnknown { device } => {
                vec![("field", "device".to_owned()), ("device", device.clone())]
            }
            Self::RequestInvalid { field, problem } => {
                vec![("field", (*field).to_owned()), ("problem", (*problem).to_owned())]
            }
            Self::RequestIdReused { request_id } => {
                vec![("request_id", hex(request_id))]
            }
            Self::BatchTooLarge { items_max, items } => {
                vec![("items_max", items_max.to_string()), ("items", items.to_string())]
            }
            Self::AllocationNotFound { allocation } => vec![("allocation", allocation.clone())],
            Self::SessionNotFound { session }
            | Self::SessionLost { session }
            | Self::PinStalled { session } => {
                vec![("session", session.to_string())]
            }
            Self::QuotaNotFound { tenant, device } => {
                vec![("tenant", tenant.clone()), ("device", device.clone())]
            }
            Self::NotOwner { allocation }
            | Self::NotSealed { allocation }
            | Self::AlreadySealed { allocation }
            | Self::StillMapped { allocation }
            | Self::Raced { allocation } => vec![("allocation", allocation.to_string())],
            Self::FileInvalid { problem } => vec![("problem", problem.clone())],
            Self::FileMutable { path, why } => vec![("path", path.clone()), ("problem", why.clone())],
            Self::ContentLost { allocation, part, .. } => {
                vec![("allocation", allocation.to_string()), ("part_index", part.0.to_string())]
            }
            Self::SessionForeign { session, pid } => {
                vec![("session", session.to_string()), ("pid", pid.to_string())]
            }
            Self::QuotaLimit { tenant, device, tier, limit, charged, requested, .. } => vec![
                ("tenant", tenant.clone()),
                ("device", device.clone()),
                ("tier", tier.to_string()),
                ("limit", bytes(limit)),
                ("held", bytes(charged)),
                ("asked", bytes(requested)),
            ],
            Self::DeviceFull { device, tier, free, requested, .. } => vec![
                ("device", device.clone()),
                ("tier", tier.to_string()),
                ("free", bytes(free)),
                ("asked", bytes(requested)),
            ],
            Self::TierExhausted { device, tier, requested, .. } => vec![
                ("device", device.clone()),
                ("tier", tier.to_string()),
                ("free", bytes(&Bytes::ZERO)),
                ("asked", bytes(requested)),
            ],
            Self::SetTooLarge { device, tier, requested } => {
                vec![("device", device.clone()), ("tier", tier.to_string()), ("asked", bytes(requested))]
            }
            Self::SessionsTooMany { tenant, limit } | Self::AllocationsTooMany { tenant, limit } => {
                vec![("tenant", tenant.clone()), ("limit_count", limit.to_string())]
            }
            Self::QueueFull { limit } => vec![("limit_count", limit.to_string())],
            Self::SlotsExhausted { session, limit } => {
                vec![("session", session.to_string()), ("limit_count", limit.to_string())]
            }
            Self::DeviceNotVisible { device } => vec![("device", device.clone())],
            Self::ProtocolBroken { problem } | Self::StoreFailed { problem } => {
                vec![("problem", problem.clone())]
            }
            Self::GuaranteeUnbacked { tenant, device, tier, guarantee, capacity, committed } => vec![
                ("tenant", tenant.clone()),
                ("device", device.clone()),
                ("tier", tier.to_string()),
                ("guarantee", bytes(guarantee)),
                ("capacity", bytes(capacity)),
                ("committed", bytes(committed)),
            ],
            Self::TierGuaranteed { device, tier, guaranteed, requested } => vec![
                ("device", device.clone()),
                ("tier", tier.to_string()),
                ("guaranteed", bytes(guaranteed)),
                ("asked", bytes(requested)),
            ],
            Self::NoRoom { why, .. } => why.facts(),
            Self::WaitCancelled { wait } | Self::WaitNotFound { wait } => vec![("wait", wait.to_string())],
            Self::PrefetchNotFound { session, number } => {
                vec![("session", session.to_string()), ("prefetch", number.to_string())]
            }
            Self::TurnHeld { session, set } | Self::TurnNotFound { session, set } => {
                vec![("session", session.to_string()), ("set", set.clone())]
            }
            Self::BatchNotWaiting { request_id } => vec![("wait", hex(request_id))],
            Self::NameTaken { name } => vec![("name", name.clone())],
            Self::DriverFailed { device, problem } => {
                vec![("device", device.clone()), ("problem", problem.clone())]
            }
            Self::MapFailed { allocation, problem } => {
                vec![("allocation", allocation.to_string()), ("problem", problem.clone())]
            }
            Self::AdviceForbidden { tenant } => vec![("tenant", tenant.clone())],
            Self::AdviceContradicts { allocation, problem } => {
                vec![("allocation", allocation.to_string()), ("problem", (*problem).to_owned())]
            }
            Self::KindUnsupported { kind } => vec![("kind", (*kind).to_owned())],
            Self::TierUnsupported { tier } => vec![("tier", tier.to_string())],
            Self::InvariantBroken { invariant } => vec![("invariant", (*invariant).to_owned())],
            Self::SessionMissing | Self::Draining | Self::WaitOver { .. } | Self::TurnWaitOver { .. } => {
                vec![]
            }
        }
    }
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The message for people: what happened, to which object, with the numbers, and what to do.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SizeInvalid { field, size } => {
                write!(f, "{field}: {} bytes is not a valid size", size.get())
            }
            Self::PartSizeInvalid { size } => {
                write!(
                    f,
                    "part_size_bytes: {} is not a multiple of 2 MiB between 2 MiB and 16 GiB",
                    size.get()
                )
            }
            Self::NameInvalid { field, name } if name.is_empty() => write!(
                f,
                "{field}: it is empty. Use 1 to 128 letters, digits, `.`, `_` or `-`, beginning with a letter or digit, or \
                 leave out a name that is not needed"
            ),
            Self::NameInvalid { field, name } => {
                write!(
                    f,
                    "{field}: `{}` is not a valid name. Use 1 to 128 letters, digits, `.`, `_` or `-`, beginning with a letter or \
                     digit",
                    name.escape_default()
                )?;
                match *field == "name" && name.contains('/') {
                    true => write!(
                        f,
                        ". A `/` stands only between a tenant and a name: write `{}`",
                        name.replace('/', "--").escape_default()
                    ),
                    false => Ok(()),
                }
            }
            Self::NameMissing => write!(
                f,
                "name: a persistent allocation needs a name, by which others find it after its session has ended. Give it \
                 a name, or the lifetime of its session"
            ),
            Self::TenantMissing { name, full } => {
                write!(f, "name: `{}` lacks its tenant. ", name.escape_default())?;
                match full {
                    Some(full) => write!(f, "Name it as `{full}`"),
                    None => write!(f, "Name it as `tenant/{}`", name.escape_default()),
                }
            }
            Self::NameElsewhere { name, full } => write!(
                f,
                "the caller's own tenant has no allocation `{}`. Another tenant shares one: name it as `{full}`",
                name.escape_default()
            ),
            Self::QuantityInvalid { field, problem, .. } => write!(f, "{field}: {problem}"),
            Self::SettingInvalid { field, allowed, problem, .. } => {
                write!(f, "{field}: {problem} (allowed: {allowed})")
            }
            Self::DeviceUnknown { device } if device.is_empty() => {
                write!(f, "device: it is empty. Name a device by its UUID or index, or leave it out")
            }
            Self::DeviceUnknown { device } => {
                write!(
                    f,
                    "device: this node has no device `{}`. Name a device by its UUID or index",
                    device.escape_default()
                )
            }
            Self::RequestInvalid { field, problem } => write!(f, "{field}: {problem}"),
            Self::RequestIdReused { .. } => {
                write!(
                    f,
                    "request_id: it was used before for a request with other content. Use a new id for each new request"
                )
            }
            Self::BatchTooLarge { items_max, items } => {
                write!(f, "the batch has {items} items, and at most {items_max} are allowed. Split it")
            }
            Self::AllocationNotFound { allocation } => {
                write!(
                    f,
                    "no allocation `{}` exists that the caller may see. Check the name, its tenant and its readers",
                    allocation.escape_default()
                )?;
                // A name without a tenant is looked for among those of the caller's own.
                match allocation.contains('/') || allocation.parse::<AllocationId>().is_ok() {
                    true => Ok(()),
                    false => write!(
                        f,
                        ". An allocation of another tenant is named `tenant/{}`",
                        allocation.escape_default()
                    ),
                }
            }
            Self::SessionNotFound { session } => write!(f, "no session {session} exists"),
            Self::QuotaNotFound { tenant, device } => {
                write!(f, "tenant `{tenant}` has no stored quota on device `{device}`")
            }
            Self::NotOwner { allocation } => {
                write!(f, "{allocation} belongs to another session or tenant. Only its owner can do this")
            }
            Self::SessionForeign { session, pid } => {
                write!(
                    f,
                    "session {session} belongs to another process than {pid}. Use a session of the calling process"
                )
            }
            Self::QuotaLimit { tenant, device, tier, limit, charged, requested, is_whole_tier: true } => {
                write!(
                    f,
                    "tier {tier} of {device} has {limit} in all: {requested} requested, and tenant `{tenant}` uses \
                     {charged} of it. "
                )?;
                match tier {
                    Tier::Device => write!(f, "Free memory, request less, or use another device"),
                    tier => {
                        write!(f, "Free memory, or ask an operator to enlarge the tier ({})", tier.setting())
                    }
                }
            }
            Self::QuotaLimit { tenant, device, tier, limit, charged, requested, is_whole_tier: false } => {
                write!(
                    f,
                    "tenant `{tenant}` is at its limit in tier {tier} of {device}: {requested} requested, {charged} of {limit} \
                 in use. Free memory, or ask an operator to raise the limit (vramctl quota set {tenant} --tier {tier} \
                 --limit …)"
                )
            }
            Self::DeviceFull { device, tier, requested, why: FullBecause::TooSmall { capacity }, .. } => {
                let elsewhere = if *tier == Tier::Device { ", use another device" } else { "" };
                write!(
                    f,
                    "tier {tier} of {device} is too small: {requested} requested, {capacity} in all. Request less at a \
                     time{elsewhere}, or ask an operator to enlarge it ({})",
                    tier.setting()
                )
            }
            Self::DeviceFull { device, tier, requested, why: FullBecause::Driver, .. } => write!(
                f,
                "the driver has no memory in tier {tier} of {device}: {requested} requested. Another program may have \
                 taken it (vramctl device show). Try again later"
            ),
            Self::DeviceFull {
                device,
                tier,
                free,
                requested,
                why: FullBecause::InUse { capacity, is_guaranteed, has_below },
            } => {
                let rest = if *is_guaranteed { "charged, or guaranteed to other tenants" } else { "charged" };
                write!(
                    f,
                    "tier {tier} of {device} is full: {requested} requested, {free} available of {capacity} (the rest is \
                     {rest}). "
                )?;
                match (tier, has_below) {
                    (Tier::Device, true) => write!(f, "Free memory, or allow the request to wait"),
                    (Tier::Device, false) => write!(
                        f,
                        "Free memory, or allow the request to wait. No tier below the device is configured \
                         (memory.host_size, disk.size), so nothing can leave it"
                    ),
                    (tier, _) => {
                        write!(f, "Free memory, or ask an operator to enlarge the tier ({})", tier.setting())
                    }
                }
            }
            Self::DeviceFull {
                device,
                tier,
                free,
                requested,
                why: FullBecause::Behind { capacity, wait, is_own },
            } => {
                let of = if *is_own { "the same tenant" } else { "another tenant" };
                write!(
                    f,
                    "an earlier request waits for room in tier {tier} of {device} and goes first (wait {wait} of {of}): \
                     {requested} requested, {free} of {capacity} available. Try again later, or allow the request to wait"
                )
            }
            Self::TierExhausted { device, tier, requested, problem } => write!(
                f,
                "tier {tier} of {device} has no room for {requested}, though no quota stands in the way: {problem}"
            ),
            Self::SetTooLarge { device, tier, requested } => write!(
                f,
                "the set needs {requested} of another tenant's memory in tier {tier} of {device} at once, which is more than \
                 that tenant can have there. Pin fewer parts at a time"
            ),
            Self::SessionsTooMany { tenant, limit } => {
                write!(
                    f,
                    "tenant `{tenant}` cannot open another session: it, or the node, has reached the limit of {limit}. End a session, or ask an operator to raise the limit"
                )
            }
            Self::AllocationsTooMany { tenant, limit } => {
                write!(
                    f,
                    "tenant `{tenant}` cannot have more allocations or parts: a limit of {limit} is reached. Free allocations, use larger parts, or ask an operator to raise the limit"
                )
            }
            Self::QueueFull { limit } => write!(
                f,
                "{limit} requests, or parts of pins, are waiting, which is the limit. Try again later"
            ),
            Self::SlotsExhausted { session, limit } => {
                write!(
                    f,
                    "session {session} has too few free slots for these parts: its word table has {limit}. Detach or free parts, or use larger ones"
                )
            }
            Self::NotSealed { allocation } => {
                write!(f, "{allocation} is not sealed. Its owner must seal it first")
            }
            Self::AlreadySealed { allocation } => {
                write!(f, "{allocation} is sealed or being sealed. Allocate new memory to write")
            }
            Self::StillMapped { allocation } => {
                write!(
                    f,
                    "this session is still unmapping an earlier mapping of {allocation}. Try again when it has"
                )
            }
            Self::DeviceNotVisible { device } => {
                write!(f, "the session does not see device {device}. Name a device that its process can use")
            }
            Self::SessionLost { session } => {
                write!(f, "the calling process has no session {session}, or it has ended. Open a new one")
            }
            Self::SessionMissing => write!(f, "the call names no session. Open one on channel.sock first"),
            Self::ProtocolBroken { problem } => write!(f, "the client broke the channel protocol: {problem}"),
            Self::GuaranteeUnbacked { tenant, device, tier, guarantee, capacity, committed } => write!(
                f,
                "a guarantee of {guarantee} for tenant `{tenant}` in tier {tier} of {device} would commit {committed} \
                 of {capacity}. Lower this guarantee or another"
            ),
            Self::TierGuaranteed { device, tier, guaranteed, requested } => write!(
                f,
                "tier {tier} of {device} cannot shrink to {requested}: {guaranteed} is guaranteed there. Lower guarantees first"
            ),
            Self::FileInvalid { problem } => write!(f, "the file cannot be loaded: {}", printable(problem)),
            Self::FileMutable { path, why } => write!(
                f,
                "{} may change: {}. Enable fs-verity for it, have an operator list its path (files.immutable_paths), or \
                 copy the file instead",
                printable(path),
                printable(why)
            ),
            Self::ContentLost { allocation, part, problem } => {
                write!(
                    f,
                    "the content of part {} of {allocation} is lost: {problem}. Load or compute it again; other parts are not affected",
                    part.0
                )
            }
            Self::Raced { allocation } => {
                write!(f, "another request changed {allocation} meanwhile. Try again")
            }
            Self::PinStalled { session } => write!(
                f,
                "session {session} waited only for parts that are pinned by sessions which wait themselves. Unpin other parts \
                 and try again"
            ),
            Self::MapFailed { allocation, problem } => {
                write!(
                    f,
                    "the session could not map {allocation}: {problem}. The memory is unchanged: remove the cause and try again"
                )
            }
            Self::WaitOver { within, waited } => {
                if within.is_zero() {
                    write!(f, "the pin would have to wait, and may not: {waited}")?;
                } else {
                    write!(f, "the pin was not answered within {} ms: {waited}", within.as_millis())?;
                }
                write!(f, ". Allow more time, or pin fewer parts")
            }
            Self::NoRoom { waited, what, .. } => {
                write!(
                    f,
                    "the request had no room within {} ms: {what}. Free memory, or allow more time",
                    waited.as_millis()
                )
            }
            Self::WaitCancelled { wait } => {
                write!(
                    f,
                    "wait {wait} for room was cancelled, by an operator or by its own client. A new request waits again"
                )
            }
            Self::WaitNotFound { wait } => {
                write!(f, "no wait has the number {wait}. `vramctl wait list` shows the waits")
            }
            Self::PrefetchNotFound { session, number } => {
                write!(
                    f,
                    "{session} has no prefetch {}. `vramctl prefetch list` shows those that have not ended",
                    PrefetchNumber(*number)
                )
            }
            Self::TurnHeld { session, set } => write!(
                f,
                "{session} has the turn of `{set}` or waits for it, and may not request another: a program that has one \
                 turn and waits for another could wait for itself. Yield first"
            ),
            Self::TurnWaitOver { within, waited } => write!(
                f,
                "the turn was not granted within {} ms: {waited}. Allow more time, or use smaller working sets",
                within.as_millis()
            ),
            Self::TurnNotFound { session, set } => write!(
                f,
                "{session} has no turn of a working set `{}`. `vramctl turn list` shows those that have",
                set.escape_default()
            ),
            Self::BatchNotWaiting { request_id } => write!(
                f,
                "no batch of this session with request id {} waits for room. Repeat the request to learn what became of it",
                hex(request_id)
            ),
            Self::NameTaken { name } => {
                write!(f, "the name `{name}` is taken. Choose another, or replace the allocation that has it")
            }
            Self::Draining => write!(
                f,
                "the node is being taken out of service and admits nothing new. Use another node, or ask an operator (vramctl node undrain)"
            ),
            Self::DriverFailed { device, problem } => write!(f, "the driver of {device} failed: {problem}"),
            Self::StoreFailed { problem } => {
                write!(
                    f,
                    "the quota could not be stored and is unchanged: {problem}. Check the file system of the state directory"
                )
            }
            Self::AdviceForbidden { tenant } => write!(
                f,
                "advice of tenant {tenant} is forbidden. Go on without, or ask an operator (vramctl tenant set {tenant} --advice allowed)"
            ),
            Self::AdviceContradicts { allocation, problem } => {
                write!(
                    f,
                    "the advice contradicts itself or what stands for {allocation}: {problem}. Withdraw the other first"
                )
            }
            Self::KindUnsupported { kind } => match kind.split_once(' ') {
                Some(("backed", kind)) => write!(f, "{kind} allocations cannot be written back"),
                Some(("freed", _)) => {
                    write!(
                        f,
                        "managed allocations cannot be freed by operators: end the session, and its process"
                    )
                }
                Some(("ordered", _)) => {
                    write!(
                        f,
                        "the client of this managed memory takes no orders: its SDK is older than the daemon"
                    )
                }
                Some(("advised", kind @ "discardable")) => {
                    write!(
                        f,
                        "{kind} allocations lie on their device or nowhere, and take no advice about other places"
                    )
                }
                Some((participle, kind)) => write!(f, "{kind} allocations cannot be {participle}"),
                None => write!(f, "{kind} allocations are not supported here"),
            },
            Self::TierUnsupported { tier } => {
                write!(f, "the device has no usable {tier} tier for this request")
            }
            Self::InvariantBroken { invariant } => {
                write!(
                    f,
                    "a bug in the daemon: invariant {invariant} does not hold. Please report it with the daemon's log"
                )
            }
        }
    }
}

impl std::error::Error for Refusal {}
