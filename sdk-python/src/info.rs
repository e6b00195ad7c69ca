//! Descriptions of allocations, devices and pressure, from the daemon's messages.

use pyo3::prelude::*;
use vramd_client::{
    AccessPattern, AllocationKind, AllocationState, Lifetime, MemoryClass, PressureLevel, Tier,
};

/// One allocation as its tenant sees it.
#[pyclass(frozen, get_all, module = "vramd")]
#[derive(Clone, Debug)]
pub(crate) struct AllocationInfo {
    id: u64,
    name: Option<String>,
    tenant: String,
    device: String,
    kind: &'static str,
    lifetime: &'static str,
    state: &'static str,
    accessed_by_device: bool,
    advised_parts: Vec<AdvisedParts>,
    size: u64,
    charged: u64,
    resident: u64,
    file: Option<String>,
    in_file: u64,
    copied_because: Option<String>,
    unreturned: u64,
    digest: Option<String>,
    readers: Vec<String>,
    owner_session: Option<u64>,
    mapper_count: u32,
}

#[pymethods]
impl AllocationInfo {
    fn __repr__(&self) -> String {
        let name = self.name.as_deref().unwrap_or("unnamed");
        format!("<vramd.AllocationInfo a-{} {name} {} of {} bytes>", self.id, self.state, self.size)
    }
}

impl From<&vramd_client::AllocationInfo> for AllocationInfo {
    fn from(info: &vramd_client::AllocationInfo) -> Self {
        Self {
            id: info.id.get(),
            name: info.name.clone(),
            tenant: info.tenant.clone(),
            device: info.device.clone(),
            kind: match info.kind {
                AllocationKind::Movable => "movable",
                AllocationKind::Fixed => "fixed",
                AllocationKind::Managed => "managed",
                AllocationKind::Unspecified => "unknown",
            },
            lifetime: match info.lifetime {
                Lifetime::Session => "session",
                Lifetime::Persistent => "persistent",
                Lifetime::Unspecified => "unknown",
            },
            state: state(info.state),
            accessed_by_device: info.accessed_by_device,
            advised_parts: info.advised_parts.iter().map(Into::into).collect(),
            size: info.size.get(),
            charged: info.charged.get(),
            resident: info.resident.get(),
            file: info.file.clone(),
            in_file: info.in_file.get(),
            copied_because: info.copied_because.clone(),
            unreturned: info.unreturned.get(),
            digest: info.digest.clone(),
            readers: info.readers.clone(),
            owner_session: info.owner_session.map(vramd_client::SessionId::get),
            mapper_count: info.mapper_count,
        }
    }
}

/// The advice that stands for parts in a row.
#[pyclass(frozen, get_all, module = "vramd")]
#[derive(Clone, Debug)]
pub(crate) struct AdvisedParts {
    first: u32,
    count: u32,
    not_needed: bool,
    needed_within: Option<f64>,
    importance_percent: Option<u8>,
    memory_class: Option<&'static str>,
    location: Option<&'static str>,
    read_mostly: bool,
    pattern: Option<&'static str>,
    by_operator: bool,
    without_effect: bool,
}

#[pymethods]
impl AdvisedParts {
    fn __repr__(&self) -> String {
        format!(
            "<vramd.AdvisedParts {} to {}>",
            self.first,
            self.first.saturating_add(self.count).saturating_sub(1)
        )
    }
}

impl From<&vramd_client::AdvisedParts> for AdvisedParts {
    fn from(advised: &vramd_client::AdvisedParts) -> Self {
        Self {
            first: advised.parts.start,
            count: advised.parts.end.saturating_sub(advised.parts.start),
            not_needed: advised.not_needed,
            needed_within: advised.needed_within.map(|within| within.as_secs_f64()),
            importance_percent: advised.importance_percent,
            memory_class: advised.class.map(|class| match class {
                MemoryClass::Scratch => "scratch",
                MemoryClass::Weights => "weights",
                MemoryClass::Activations => "activations",
                MemoryClass::Cache => "cache",
            }),
            location: advised.location.map(tier),
            read_mostly: advised.read_mostly,
            pattern: advised.pattern.map(|pattern| match pattern {
                AccessPattern::Sequential => "sequential",
                AccessPattern::Strided => "strided",
                AccessPattern::Window => "window",
                AccessPattern::Loop => "loop",
                AccessPattern::Random => "random",
                AccessPattern::Sparse => "sparse",
            }),
            by_operator: advised.by_operator,
            without_effect: advised.without_effect,
        }
    }
}

fn state(state: AllocationState) -> &'static str {
    match state {
        AllocationState::Creating => "creating",
        AllocationState::Open => "open",
        AllocationState::Sealing => "sealing",
        AllocationState::Sealed => "sealed",
        AllocationState::Freeing => "freeing",
        AllocationState::Unspecified => "unknown",
    }
}

/// One of the daemon's devices.
#[pyclass(frozen, get_all, module = "vramd")]
#[derive(Clone, Debug)]
pub(crate) struct Device {
    uuid: String,
    index: u32,
    name: String,
}

#[pymethods]
impl Device {
    fn __repr__(&self) -> String {
        format!("<vramd.Device {} {} {}>", self.index, self.uuid, self.name)
    }
}

impl From<&vramd_client::Device> for Device {
    fn from(device: &vramd_client::Device) -> Self {
        Self { uuid: device.uuid.clone(), index: device.index, name: device.name.clone() }
    }
}

/// The outcome of freeing memory.
#[pyclass(frozen, get_all, module = "vramd")]
#[derive(Clone, Debug)]
pub(crate) struct Released {
    still_charged: u64,
    mapper_count: u32,
}

#[pymethods]
impl Released {
    fn __repr__(&self) -> String {
        format!("<vramd.Released: {} bytes charged, {} mappers>", self.still_charged, self.mapper_count)
    }
}

impl From<vramd_client::Released> for Released {
    fn from(released: vramd_client::Released) -> Self {
        Self { still_charged: released.still_charged.get(), mapper_count: released.mapper_count }
    }
}

/// How full a device is, or a tier below it.
#[pyclass(frozen, get_all, module = "vramd")]
#[derive(Clone, Debug)]
pub(crate) struct Pressure {
    device: String,
    tier: &'static str,
    level: &'static str,
    batch_factor: f64,
    full_in: Option<f64>,
}

#[pymethods]
impl Pressure {
    fn __repr__(&self) -> String {
        format!("<vramd.Pressure {} in tier {} of {}>", self.level, self.tier, self.device)
    }
}

impl From<&vramd_client::Pressure> for Pressure {
    fn from(pressure: &vramd_client::Pressure) -> Self {
        Self {
            device: pressure.device.clone(),
            tier: tier(pressure.tier),
            level: match pressure.level {
                PressureLevel::Normal => "normal",
                PressureLevel::Elevated => "elevated",
                PressureLevel::High => "high",
                PressureLevel::Critical => "critical",
                PressureLevel::Unspecified => "unknown",
            },
            batch_factor: pressure.batch_factor,
            full_in: pressure.full_in.map(|duration| duration.as_secs_f64()),
        }
    }
}

/// The quota, the use and the free room of the client's tenant in one tier of one device.
#[pyclass(frozen, get_all, module = "vramd")]
#[derive(Clone, Debug)]
pub(crate) struct OwnQuota {
    device: String,
    device_index: u32,
    tier: &'static str,
    guarantee: u64,
    limit: u64,
    used: u64,
    cached: u64,
    managed: u64,
    unreturned: u64,
    free: u64,
    capacity: u64,
    is_default: bool,
}

#[pymethods]
impl OwnQuota {
    fn __repr__(&self) -> String {
        let Self { tier, device_index, used, limit, free, .. } = self;
        format!(
            "<vramd.OwnQuota in tier {tier} of device {device_index}: {used} of {limit} bytes used, {free} free>"
        )
    }
}

impl From<&vramd_client::OwnQuota> for OwnQuota {
    fn from(quota: &vramd_client::OwnQuota) -> Self {
        Self {
            device: quota.device.clone(),
            device_index: quota.device_index,
            tier: tier(quota.tier),
            guarantee: quota.guarantee.get(),
            limit: quota.limit.get(),
            used: quota.used.get(),
            cached: quota.cached.get(),
            managed: quota.managed.get(),
            unreturned: quota.unreturned.get(),
            free: quota.free.get(),
            capacity: quota.capacity.get(),
            is_default: quota.is_default,
        }
    }
}

fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Host => "host",
        Tier::Disk => "disk",
        Tier::Unspecified => "unknown",
    }
}
