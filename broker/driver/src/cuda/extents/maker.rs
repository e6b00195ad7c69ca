//! Creates extents, with a thread for each device.
//!
//! A batch of a thousand extents is a thousand times `cuMemCreate` and one export, and nothing else. There is
//! no mapping and no access, unless memory must be zeroed because the driver is not known to do it. Another
//! thread frees extents that fail halfway: `cuMemFree` would wait for kernels and copies, and clients would
//! wait for it.

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender},
};

use vramd_types::{Bytes, ExtentId, GRANULARITY};

use crate::cuda::{
    api::{Block, CudaError, Stream},
    device::{
        Device,
        memory::{DeviceMemory, ExtentMemory},
    },
    extents::freer::{FreeOrder, Freeable},
    state::{Extent, State, send},
};
use crate::{Completion, DriverError, Export, ExtentKind, batch};

/// An extent to create.
#[derive(Debug)]
pub(crate) struct Make {
    pub(crate) extent: ExtentId,
    pub(crate) size: Bytes,
    pub(crate) kind: ExtentKind,
}

/// Creates extents on one device.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) device: Arc<Device>,
    pub(crate) fixed: bool,
    /// Set if extents must be zeroed.
    pub(crate) zeroing: Option<Stream>,
}

/// Why an extent was not created, and the memory that must be freed.
#[derive(Debug)]
struct MakeFailure {
    error: DriverError,
    piece: Option<Box<dyn Freeable>>,
}

impl From<CudaError> for MakeFailure {
    fn from(error: CudaError) -> Self {
        Self { error: error.into(), piece: None }
    }
}

impl Maker {
    /// Runs until all senders are gone.
    pub(crate) fn run(&self, state: &State, makes: &Receiver<Make>, frees: &Sender<FreeOrder>) {
        let make = |make: Make| {
            let result = self.make(state, &make, frees);
            Some(Completion::Created { extent: make.extent, result })
        };
        batch::run(makes, make, |completion| state.report(completion));
    }

    fn make(&self, state: &State, make: &Make, frees: &Sender<FreeOrder>) -> Result<Export, DriverError> {
        let Make { extent, size, kind } = *make;
        self.check(size, kind)?;
        if !state.claim(extent) {
            return Err(DriverError::Failed(format!("extent {extent} exists already")));
        }
        let made = match kind {
            ExtentKind::Movable => self.movable(size),
            ExtentKind::Fixed => self.fixed(size),
        };
        let made = made.and_then(|memory| self.zeroed(Arc::new(memory)));
        match made {
            Ok(memory) => {
                let handle = memory.export();
                state.extents().insert(extent, Extent::Live(ExtentMemory::Device(memory)));
                Ok(handle)
            }
            Err(MakeFailure { error, piece: None }) => {
                state.extents().remove(&extent);
                Err(error)
            }
            Err(MakeFailure { error, piece: Some(piece) }) => {
                // Before the report, and not only once the freer gets to it: a release of the extent then finds
                // nothing to await.
                state.extents().insert(extent, Extent::Unmade);
                send(frees, FreeOrder::Unmade { extent, size, device: Arc::clone(&self.device), piece });
                Err(error)
            }
        }
    }

    fn check(&self, size: Bytes, kind: ExtentKind) -> Result<(), DriverError> {
        if size.is_zero() || !size.is_multiple_of(GRANULARITY) {
            return Err(DriverError::Failed(format!("{} bytes are not a multiple of 2 MiB", size.get())));
        }
        if kind == ExtentKind::Fixed && !self.fixed {
            return Err(DriverError::Failed("the device does not support legacy handles".to_owned()));
        }
        // Drivers answer absurd sizes in different ways.
        if size > self.device.info().total { Err(DriverError::OutOfMemory) } else { Ok(()) }
    }

    fn movable(&self, size: Bytes) -> Result<DeviceMemory, MakeFailure> {
        let physical = {
            let mut accounts = self.device.accounts();
            let physical = self.device.physical(size)?;
            accounts.enter(size);
            physical
        };
        match physical.export() {
            Ok(fd) => Ok(DeviceMemory::movable(Arc::clone(&self.device), size, physical, fd)),
            Err(error) => Err(MakeFailure { error: error.into(), piece: Some(Box::new(physical)) }),
        }
    }

    fn fixed(&self, size: Bytes) -> Result<DeviceMemory, MakeFailure> {
        let block = {
            let mut accounts = self.device.accounts();
            let block = Block::allocate(self.device.context(), size)?;
            accounts.enter(size);
            block
        };
        match whole_block_handle(&block, size) {
            Ok(handle) => Ok(DeviceMemory::fixed(Arc::clone(&self.device), size, block, handle)),
            Err(error) => Err(MakeFailure { error, piece: Some(Box::new(block)) }),
        }
    }

    fn zeroed(&self, memory: Arc<DeviceMemory>) -> Result<Arc<DeviceMemory>, MakeFailure> {
        let Some(stream) = &self.zeroing else { return Ok(memory) };
        let size = memory.size();
        let filled = memory.address().and_then(|at| stream.fill(Arc::clone(&memory), at, 0, size)?.end());
        let Err(error) = filled else { return Ok(memory) };
        let error = error.into();
        match Arc::try_unwrap(memory) {
            Ok(memory) => Err(MakeFailure { error, piece: Some(Box::new(memory)) }),
            Err(leaked) => {
                // The end of the fill is unknown, so the transfer keeps the memory forever. It belongs to no
                // extent.
                drop(leaked);
                self.device.accounts().withdraw(size);
                Err(MakeFailure { error, piece: None })
            }
        }
    }
}

/// The legacy handle, if it covers the block and nothing else.
fn whole_block_handle(block: &Block, size: Bytes) -> Result<[u8; 64], DriverError> {
    let whole_block_handle = block.share(size)?;
    if whole_block_handle.whole {
        Ok(whole_block_handle.handle)
    } else {
        let problem =
            "cuMemAlloc cut the block from a larger one, and a legacy handle would share all of that"
                .to_owned();
        Err(DriverError::Failed(problem))
    }
}
