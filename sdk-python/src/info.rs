//! What the daemon tells of allocations and devices.

use pyo3::prelude::*;
use vramd_client::{AllocationKind, AllocationState, Lifetime};

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
    size: u64,
    charged: u64,
    resident: u64,
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
            size: info.size.get(),
            charged: info.charged.get(),
            resident: info.resident.get(),
            unreturned: info.unreturned.get(),
            digest: info.digest.clone(),
            readers: info.readers.clone(),
            owner_session: info.owner_session.map(vramd_client::SessionId::get),
            mapper_count: info.mapper_count,
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

/// What became of memory that was freed.
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
