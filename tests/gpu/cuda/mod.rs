//! A GPU as a plain program uses it, without the daemon and the SDK. It is the bare side of every comparison, and an independent reader
//! of the memory that the daemon handed out.
//!
//! The device's primary context is current on the thread that opens it, as in PyTorch, and on threads that enter it.

mod capture;
mod kernels;
mod managed;
mod pinned;
mod table;
mod vmm;

use anyhow::{Context as _, Result};

pub(crate) use capture::{Graph, Mode};
use kernels::Kernels;
pub(crate) use managed::Managed;
pub(crate) use pinned::Pinned;
pub(crate) use table::Failed;
use table::{Opaque, Table};
pub(crate) use vmm::{Extent, Span};

/// The flag of a stream that does not synchronise with the default stream.
const STREAM_NON_BLOCKING: u32 = 1;
const RDMA_WITH_VMM: i32 = 110;

#[derive(Debug)]
pub(crate) struct Gpu {
    table: &'static Table,
    device: i32,
    context: Opaque,
    uuid: String,
    kernels: Kernels,
    /// The stream of work that the caller waits for.
    work: Opaque,
    /// The stream of kernels that run beside the caller.
    aside: Opaque,
    /// The stream of captures.
    captured: Opaque,
    rdma_capable: bool,
}

/// Returns UUIDs in the driver's order and NVML's form.
pub(crate) fn uuids() -> Result<Vec<String>> {
    let table = Table::get()?;
    let mut count = 0;
    table.device_count(&mut count)?;
    (0..count).map(|ordinal| uuid_of(table, device(table, ordinal)?)).collect()
}

pub(crate) fn driver_version() -> Result<i32> {
    let mut version = 0;
    Table::get()?.driver_version(&mut version)?;
    Ok(version)
}

/// Tells whether the thread has no current context, as code that pushes one must leave it.
pub(crate) fn nothing_is_current() -> Result<bool> {
    let mut context = Opaque::default();
    Table::get()?.get_current(&mut context)?;
    Ok(context == Opaque::default())
}

impl Gpu {
    /// Makes the primary context of that device, or of the first one, current.
    pub(crate) fn open(uuid: Option<&str>) -> Result<Self> {
        let table = Table::get()?;
        let there = uuids()?;
        let wanted = uuid.map_or_else(|| there.first().cloned(), |uuid| Some(uuid.to_owned()));
        let uuid = wanted.context("this process sees no GPU")?;
        let ordinal = there.iter().position(|there| *there == uuid);
        let ordinal = ordinal.with_context(|| format!("no {uuid} among {there:?}"))?;
        let device = device(table, i32::try_from(ordinal)?)?;
        let mut context = Opaque::default();
        table.primary_retain(&mut context, device)?;
        table.set_current(context)?;
        let [mut work, mut aside, mut captured] = [Opaque::default(); 3];
        let mut rdma = 0;
        table.stream_create(&mut work, STREAM_NON_BLOCKING)?;
        table.stream_create(&mut aside, STREAM_NON_BLOCKING)?;
        table.stream_create(&mut captured, STREAM_NON_BLOCKING)?;
        table.device_attribute(&mut rdma, RDMA_WITH_VMM, device)?;
        let kernels = Kernels::load(table)?;
        Ok(Self { table, device, context, uuid, kernels, work, aside, captured, rdma_capable: rdma == 1 })
    }

    /// Makes the context current on this thread too.
    pub(crate) fn enter(&self) -> Result<(), Failed> {
        self.table.set_current(self.context)
    }

    pub(crate) fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Returns free and total bytes of the device.
    pub(crate) fn memory(&self) -> Result<(u64, u64), Failed> {
        let (mut free, mut total) = (0, 0);
        self.table.memory_info(&mut free, &mut total)?;
        Ok((free as u64, total as u64))
    }

    /// Allocates plain memory of this process.
    pub(crate) fn alloc(&self, size: usize) -> Result<u64, Failed> {
        let mut address = 0;
        self.table.alloc(&mut address, size)?;
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), Failed> {
        self.table.free(address)
    }
}

fn device(table: &Table, ordinal: i32) -> Result<i32> {
    let mut device = 0;
    table.device(&mut device, ordinal)?;
    Ok(device)
}

fn uuid_of(table: &Table, device: i32) -> Result<String> {
    let mut bytes = [0; 16];
    table.device_uuid(&mut bytes, device)?;
    let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok(format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}
