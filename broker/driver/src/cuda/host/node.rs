//! The memory of one host node: used by extents, free for later ones, and its limit.

use vramd_types::{Bytes, HostNode};

use crate::cuda::host::memory::{HostMemory, Pinner};
use crate::{
    DriverError, FreePinnedFacts, HostLimit, PinPace,
    free_pinned::{FreeMemory, FreePinned, Step},
};

#[derive(Debug)]
pub(crate) struct NodeMemory {
    node: HostNode,
    /// The limit for used and free memory together.
    size: Bytes,
    used: Bytes,
    free: FreePinned<HostMemory>,
    pins_ahead: bool,
}

impl NodeMemory {
    /// Without a limit, and without pinning ahead.
    pub(crate) fn new(node: HostNode) -> Self {
        Self { node, size: Bytes::MAX, used: Bytes::ZERO, free: FreePinned::default(), pins_ahead: false }
    }

    pub(crate) fn set_target(
        &mut self,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
        pace: PinPace,
    ) -> Result<(), DriverError> {
        if self.pins_ahead {
            return Err(DriverError::Failed(format!(
                "memory of host node {} is already pinned ahead",
                self.node
            )));
        }
        (self.size, self.free, self.pins_ahead) = (size, FreePinned::new(piece, pieces_max, pace), true);
        Ok(())
    }

    /// The bytes left to pin ahead.
    pub(crate) fn to_pin(&self) -> Bytes {
        if self.pins_ahead { self.size.saturating_sub(self.pinned()) } else { Bytes::ZERO }
    }

    fn pinned(&self) -> Bytes {
        self.used.saturating_add(self.free.bytes())
    }

    /// Takes free memory of that size, or pins new memory and unpins free memory in its way.
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

    /// Takes back the memory of an extent, which no other code in this process has.
    pub(crate) fn put_back(&mut self, memory: HostMemory) {
        let size = memory.size();
        self.used = self.used.saturating_sub(size);
        if memory.is_sole() {
            // Memory that cannot stay pinned is dropped here.
            let _ = self.free.add(size, FreeMemory { memory, is_zero: false });
        }
    }

    /// Does one step of pinning ahead: pins a piece, or unpins what stands in its way. Returns whether there
    /// was a step.
    pub(crate) fn pin_step(&mut self, pinner: &Pinner) -> Result<bool, DriverError> {
        match self.free.step(self.room_ahead()) {
            None => Ok(false),
            Some(Step::Unpin(memory)) => {
                drop(memory);
                Ok(true)
            }
            Some(Step::Pin(size)) => {
                let free_memory = pinner.pin(self.node, size).inspect_err(|_| self.free.pin_failed())?;
                Ok(self.free.add(size, free_memory).is_ok())
            }
        }
    }

    /// The free memory, if it is pinned ahead.
    pub(crate) fn free_pinned(&self) -> Option<FreePinnedFacts> {
        self.pins_ahead.then(|| self.free.facts(self.node))
    }

    pub(crate) fn has_missing(&self) -> bool {
        self.free.next_missing(self.room_ahead()).is_some()
    }

    /// Returns the free bytes once, when nothing is left to pin ahead.
    pub(crate) fn take_filled(&mut self) -> Option<Bytes> {
        let room = self.room_ahead();
        self.free.take_filled(room).then(|| self.free.bytes())
    }

    /// Stops pinning ahead. Returns the free bytes, unless they were returned before.
    pub(crate) fn stop_pinning_ahead(&mut self) -> Option<Bytes> {
        self.free.stop();
        self.take_filled()
    }

    fn pin(&mut self, pinner: &Pinner, size: Bytes) -> Result<FreeMemory<HostMemory>, DriverError> {
        let mut keep = self.room().saturating_sub(size);
        loop {
            drop(self.free.shrink_to(keep));
            match pinner.pin(self.node, size) {
                // The machine has less than configured: the extent gets the place of free memory.
                Err(DriverError::OutOfHostMemory(_)) if !self.free.bytes().is_zero() => {
                    keep = self.free.bytes().saturating_sub(size);
                }
                pinned => return pinned,
            }
        }
    }

    /// The part of the limit that extents leave.
    fn room(&self) -> Bytes {
        self.size.saturating_sub(self.used)
    }

    /// The part of that room that is pinned ahead.
    fn room_ahead(&self) -> Bytes {
        self.free.room_ahead(self.room(), self.used)
    }
}
