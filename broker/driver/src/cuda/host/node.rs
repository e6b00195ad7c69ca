//! What there is of one node of the host: what extents have, what is kept for those to come, and how much may be.

use vramd_types::{Bytes, HostNode};

use crate::cuda::host::memory::{HostMemory, Pinner};
use crate::{
    DriverError, FreePinnedFacts, HostLimit,
    free_pinned::{FreeMemory, FreePinned, Step},
};

#[derive(Debug)]
pub(crate) struct NodeMemory {
    node: HostNode,
    /// Used and kept together.
    size: Bytes,
    used: Bytes,
    free: FreePinned<HostMemory>,
    pins_ahead: bool,
}

impl NodeMemory {
    /// Without a bound, and nothing is kept.
    pub(crate) fn new(node: HostNode) -> Self {
        Self { node, size: Bytes::MAX, used: Bytes::ZERO, free: FreePinned::default(), pins_ahead: false }
    }

    pub(crate) fn set_target(
        &mut self,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
    ) -> Result<(), DriverError> {
        if self.pins_ahead {
            return Err(DriverError::Failed(format!("memory of node {} is kept already", self.node)));
        }
        (self.size, self.free, self.pins_ahead) = (size, FreePinned::new(piece, pieces_max), true);
        Ok(())
    }

    /// What is to be pinned yet of what is to be kept.
    pub(crate) fn to_pin(&self) -> Bytes {
        if self.pins_ahead { self.size.saturating_sub(self.pinned()) } else { Bytes::ZERO }
    }

    fn pinned(&self) -> Bytes {
        self.used.saturating_add(self.free.bytes())
    }

    /// Kept memory of that size, else new, for which kept memory goes that is in its way.
    pub(crate) fn take(
        &mut self,
        pinner: &Pinner,
        size: Bytes,
        zeroed: bool,
    ) -> Result<HostMemory, DriverError> {
        if size > self.room() {
            return Err(DriverError::OutOfHostMemory(HostLimit::Capacity(self.size)));
        }
        let free_memory = self.free.take(size, zeroed);
        let FreeMemory { memory, is_zero } = free_memory.map_or_else(|| self.pin(pinner, size), Ok)?;
        if zeroed && !is_zero {
            memory.zero();
        }
        self.used = self.used.saturating_add(size);
        Ok(memory)
    }

    /// What an extent had, and nobody else in this process has.
    pub(crate) fn put_back(&mut self, memory: HostMemory) {
        let size = memory.size();
        self.used = self.used.saturating_sub(size);
        if memory.is_sole() {
            // What can't be kept is given up here.
            let _ = self.free.add(size, FreeMemory { memory, is_zero: false });
        }
    }

    /// Whether a piece was missing, and is there now, or what stood in its way has gone. If it can't be had, no other
    /// will be tried.
    pub(crate) fn pin_step(&mut self, pinner: &Pinner) -> Result<bool, DriverError> {
        match self.free.step(self.room()) {
            None => Ok(false),
            Some(Step::Unpin(memory)) => {
                drop(memory);
                Ok(true)
            }
            Some(Step::Pin(size)) => {
                let free_memory = pinner.pin(self.node, size).inspect_err(|_| self.free.stop())?;
                Ok(self.free.add(size, free_memory).is_ok())
            }
        }
    }

    /// Of a node whose memory is kept.
    pub(crate) fn free_pinned(&self) -> Option<FreePinnedFacts> {
        self.pins_ahead.then(|| self.free.facts(self.node))
    }

    pub(crate) fn has_missing(&self) -> bool {
        self.free.next_missing(self.room()).is_some()
    }

    /// How much is kept, once, when nothing is missing any more.
    pub(crate) fn take_filled(&mut self) -> Option<Bytes> {
        let room = self.room();
        self.free.take_filled(room).then(|| self.free.bytes())
    }

    /// Nothing more is pinned ahead of need. How much is kept, if that has not been said.
    pub(crate) fn stop_pinning_ahead(&mut self) -> Option<Bytes> {
        self.free.stop();
        self.take_filled()
    }

    fn pin(&mut self, pinner: &Pinner, size: Bytes) -> Result<FreeMemory<HostMemory>, DriverError> {
        let mut keep = self.room().saturating_sub(size);
        loop {
            drop(self.free.shrink_to(keep));
            match pinner.pin(self.node, size) {
                // The machine has less than was configured: what is kept comes before who needs some.
                Err(DriverError::OutOfHostMemory(_)) if !self.free.bytes().is_zero() => {
                    keep = self.free.bytes().saturating_sub(size);
                }
                pinned => return pinned,
            }
        }
    }

    /// What extents leave.
    fn room(&self) -> Bytes {
        self.size.saturating_sub(self.used)
    }
}
