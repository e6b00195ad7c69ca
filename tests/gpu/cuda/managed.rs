//! Managed memory, which the driver moves by page faults or on request.

use anyhow::Result;

use super::{
    Gpu,
    table::{Failed, Table},
};

/// The attach flag for every stream.
const ATTACH_GLOBAL: u32 = 1;
const HOST: i32 = -1;

/// A block of managed memory. Freed when dropped.
#[derive(Debug)]
pub(crate) struct Managed {
    table: &'static Table,
    address: u64,
    size: usize,
}

impl Gpu {
    pub(crate) fn managed(&self, size: usize) -> Result<Managed> {
        let mut address = 0;
        self.table.alloc_managed(&mut address, size, ATTACH_GLOBAL)?;
        Ok(Managed { table: self.table, address, size })
    }

    /// Moves all of it to the device in one call, and waits.
    pub(crate) fn prefetch_in(&self, memory: &Managed) -> Result<(), Failed> {
        self.prefetch(memory, self.device)
    }

    /// Moves all of it to the host in one call, and waits.
    pub(crate) fn prefetch_out(&self, memory: &Managed) -> Result<(), Failed> {
        self.prefetch(memory, HOST)
    }

    fn prefetch(&self, memory: &Managed, device: i32) -> Result<(), Failed> {
        self.table.prefetch(memory.address, memory.size, device, self.work)?;
        self.table.stream_synchronize(self.work)
    }
}

impl Managed {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.size as u64
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // This fails only in a dead context.
        let _ = self.table.free(self.address);
    }
}
