//! Makes extents, a thread for each device.
//!
//! A batch of a thousand is a thousand times `cuMemCreate` and one export, and nothing else: no mapping, no look at
//! anything, unless memory must be zeroed because the driver is not known to.

use std::sync::{Arc, mpsc::Receiver};

use vramd_types::{Bytes, ExtentId, GRANULARITY};

use super::{
    api::{Block, Stream},
    device::Device,
    memory::Memory,
    state::{Extent, State},
};
use crate::{Completion, DriverError, ExtentKind, Handle};

/// An extent to make.
#[derive(Debug)]
pub(super) struct Make {
    pub(super) extent: ExtentId,
    pub(super) size: Bytes,
    pub(super) kind: ExtentKind,
}

/// How extents are made on one device.
#[derive(Debug)]
pub(super) struct Maker {
    pub(super) device: Arc<Device>,
    pub(super) fixed: bool,
    /// Where extents are zeroed, if they must be.
    pub(super) zeroing: Option<Stream>,
}

impl Maker {
    /// Until nobody can send any more.
    pub(super) fn run(&self, state: &State, makes: &Receiver<Make>) {
        for make in makes {
            let result = self.make(state, &make);
            state.tell(Completion::Created { extent: make.extent, result });
        }
    }

    fn make(&self, state: &State, make: &Make) -> Result<Handle, DriverError> {
        let Make { extent, size, kind } = *make;
        self.check(size, kind)?;
        let claimed = {
            let mut extents = state.extents();
            let free = !extents.contains_key(&extent);
            if free {
                extents.insert(extent, Extent::Making);
            }
            free
        };
        if !claimed {
            return Err(DriverError::Failed(format!("{extent} exists")));
        }
        let made = match kind {
            ExtentKind::Movable => self.movable(size),
            ExtentKind::Fixed => self.fixed(size),
        };
        let made = made.and_then(|memory| self.zeroed(Arc::new(memory)));
        let mut extents = state.extents();
        match made {
            Ok(memory) => {
                let handle = memory.handle();
                extents.insert(extent, Extent::Live(memory));
                Ok(handle)
            }
            Err(error) => {
                extents.remove(&extent);
                Err(error)
            }
        }
    }

    fn check(&self, size: Bytes, kind: ExtentKind) -> Result<(), DriverError> {
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return Err(DriverError::Failed(format!("{} bytes are no multiple of 2 MiB", size.get())));
        }
        if kind == ExtentKind::Fixed && !self.fixed {
            return Err(DriverError::Failed("this device has no legacy handles".to_owned()));
        }
        // What the driver says to absurd sizes differs from one to the next.
        if size > self.device.info().total { Err(DriverError::OutOfMemory) } else { Ok(()) }
    }

    fn movable(&self, size: Bytes) -> Result<Memory, DriverError> {
        let physical = {
            let mut accounts = self.device.accounts();
            let physical = self.device.physical(size)?;
            accounts.enter(size);
            physical
        };
        match physical.export() {
            Ok(fd) => Ok(Memory::movable(Arc::clone(&self.device), size, physical, fd)),
            Err(error) => {
                drop(physical);
                self.device.accounts().withdraw(size);
                Err(error.into())
            }
        }
    }

    fn fixed(&self, size: Bytes) -> Result<Memory, DriverError> {
        let block = {
            let mut accounts = self.device.accounts();
            let block = Block::allocate(self.device.context(), size)?;
            accounts.enter(size);
            block
        };
        let made = Memory::fixed(Arc::clone(&self.device), size, block);
        if made.is_err() {
            self.device.accounts().withdraw(size);
        }
        made
    }

    fn zeroed(&self, memory: Arc<Memory>) -> Result<Arc<Memory>, DriverError> {
        let Some(stream) = &self.zeroing else { return Ok(memory) };
        let size = memory.size();
        let filled = memory.address().and_then(|at| stream.fill(Arc::clone(&memory), at, 0, size)?.end());
        if let Err(error) = filled {
            drop(memory);
            self.device.accounts().withdraw(size);
            return Err(error.into());
        }
        Ok(memory)
    }
}
