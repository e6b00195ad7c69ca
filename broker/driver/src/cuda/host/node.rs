//! What there is of one node of the host: what extents have, what is kept for those to come, and how much may be.

use vramd_types::{Bytes, HostNode};

use crate::cuda::host::memory::{HostMemory, Pinner};
use crate::{
    DriverError, HostLimit, KeptFacts,
    pool::{Kept, Pool, Step},
};

#[derive(Debug)]
pub(crate) struct Node {
    node: HostNode,
    /// Used and kept together.
    size: Bytes,
    used: Bytes,
    pool: Pool<HostMemory>,
    is_keeping: bool,
}

impl Node {
    /// Without a bound, and nothing is kept.
    pub(crate) fn new(node: HostNode) -> Self {
        Self { node, size: Bytes::MAX, used: Bytes::ZERO, pool: Pool::default(), is_keeping: false }
    }

    pub(crate) fn keep(&mut self, size: Bytes, piece: Bytes, pieces_max: usize) -> Result<(), DriverError> {
        if self.is_keeping {
            return Err(DriverError::Failed(format!("memory of node {} is kept already", self.node)));
        }
        (self.size, self.pool, self.is_keeping) = (size, Pool::new(piece, pieces_max), true);
        Ok(())
    }

    /// What is to be pinned yet of what is to be kept.
    pub(crate) fn to_pin(&self) -> Bytes {
        if self.is_keeping { self.size.saturating_sub(self.pinned()) } else { Bytes::ZERO }
    }

    fn pinned(&self) -> Bytes {
        self.used.saturating_add(self.pool.bytes())
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
        let kept = self.pool.take(size, zeroed);
        let Kept { memory, is_zero } = kept.map_or_else(|| self.pin(pinner, size), Ok)?;
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
            let _ = self.pool.keep(size, Kept { memory, is_zero: false });
        }
    }

    /// Whether a piece was missing, and is there now, or what stood in its way has gone. If it can't be had, no other
    /// will be tried.
    pub(crate) fn fill(&mut self, pinner: &Pinner) -> Result<bool, DriverError> {
        match self.pool.step(self.room()) {
            None => Ok(false),
            Some(Step::GiveUp(memory)) => {
                drop(memory);
                Ok(true)
            }
            Some(Step::Pin(size)) => {
                let kept = pinner.pin(self.node, size).inspect_err(|_| self.pool.stop())?;
                Ok(self.pool.keep(size, kept).is_ok())
            }
        }
    }

    /// Of a node whose memory is kept.
    pub(crate) fn kept(&self) -> Option<KeptFacts> {
        self.is_keeping.then(|| self.pool.facts(self.node))
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.pool.missing(self.room()).is_some()
    }

    /// How much is kept, once, when nothing is missing any more.
    pub(crate) fn is_filled(&mut self) -> Option<Bytes> {
        let room = self.room();
        self.pool.is_filled(room).then(|| self.pool.bytes())
    }

    /// Nothing more is pinned ahead of need. How much is kept, if that has not been said.
    pub(crate) fn give_up_filling(&mut self) -> Option<Bytes> {
        self.pool.stop();
        self.is_filled()
    }

    fn pin(&mut self, pinner: &Pinner, size: Bytes) -> Result<Kept<HostMemory>, DriverError> {
        let mut keep = self.room().saturating_sub(size);
        loop {
            drop(self.pool.give_up(keep));
            match pinner.pin(self.node, size) {
                // The machine has less than was configured: what is kept comes before who needs some.
                Err(DriverError::OutOfHostMemory(_)) if !self.pool.bytes().is_zero() => {
                    keep = self.pool.bytes().saturating_sub(size);
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
