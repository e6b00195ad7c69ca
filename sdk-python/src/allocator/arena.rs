//! One allocation of the daemon, from which a pool carves segments.

use std::{collections::BTreeMap, time::Duration};

use vramd_client::{Access, Addresses, Allocation, AllocationRequest, Bytes, Client, Error, Pinned, Tier};

/// Sizes and addresses of segments are multiples of this, as parts are. PyTorch asks for no other sizes.
pub(super) const GRANULE: u64 = 2 << 20;
/// The largest number of parts that one guard may pin.
pub(super) const PARTS_MAX: u32 = 1024;

#[derive(Debug)]
pub(super) struct Arena {
    pub(super) address: u64,
    pub(super) size: u64,
    /// The size of each segment in use, by its offset.
    segments: BTreeMap<u64, u64>,
    pub(super) memory: Memory,
}

#[derive(Debug)]
pub(super) enum Memory {
    /// Mapped and pinned to write. The guards end first.
    Awake(Vec<Pinned>, Allocation),
    /// Not pinned; the daemon has its bytes.
    Away(Allocation),
    /// Only its addresses are kept.
    Discarded(Box<Addresses>),
    /// It was lost in a change that failed: nothing is mapped there.
    Gone,
}

impl Arena {
    /// Allocates it, and pins it to write.
    pub(super) fn allocate(client: &Client, device: &str, size: u64, wait: Duration) -> Result<Self, Error> {
        let request = AllocationRequest::new(Bytes::new(size)).device(device).uninitialized().wait(wait);
        let mut allocation = client.allocate(request)?;
        let pins = pin(&allocation, wait)?;
        // From here on the guards alone keep it, so that it can leave when they end.
        allocation.unpin()?;
        let address = allocation.as_device_ptr();
        Ok(Self { address, size, segments: BTreeMap::new(), memory: Memory::Awake(pins, allocation) })
    }

    /// Takes the first free range that is large enough.
    pub(super) fn carve(&mut self, size: u64) -> Option<u64> {
        let mut free = 0;
        for (offset, taken) in &self.segments {
            if offset - free >= size {
                break;
            }
            free = offset + taken;
        }
        if self.size - free < size {
            return None;
        }
        self.segments.insert(free, size);
        Some(self.address + free)
    }

    /// Frees a segment by its address. Returns false if none in use begins there.
    pub(super) fn free(&mut self, address: u64) -> bool {
        self.segments.remove(&address.wrapping_sub(self.address)).is_some()
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.address..self.address + self.size).contains(&address)
    }

    pub(super) fn is_unused(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn used(&self) -> u64 {
        self.segments.values().sum()
    }

    /// The bytes that it has from the daemon, in any tier.
    pub(super) fn held(&self) -> u64 {
        match self.memory {
            Memory::Awake(..) | Memory::Away(_) => self.size,
            Memory::Discarded(_) | Memory::Gone => 0,
        }
    }

    /// Waits for the work of a stream, as `cudaFree` does: PyTorch frees a segment while its kernels may still run.
    pub(super) fn wait_for(&self, stream: u64) {
        if let Memory::Awake(pins, _) = &self.memory
            && let Some(pinned) = pins.first().filter(|pinned| pinned.is_device_memory())
        {
            // This fails in a lost context, which does nothing more, and in a capture, during which PyTorch frees nothing.
            let _ = pinned.wait_for(&[stream]);
        }
    }

    /// Ends its pins.
    pub(super) fn unpin(&mut self) {
        self.change(|memory| match memory {
            Memory::Awake(pins, allocation) => {
                drop(pins);
                (Memory::Away(allocation), Ok(()))
            }
            other => (other, Ok(())),
        })
        .unwrap_or_default();
    }

    /// Pins it again, and waits until it has arrived.
    pub(super) fn pin(&mut self, wait: Duration) -> Result<(), Error> {
        self.change(|memory| match memory {
            Memory::Away(allocation) => match pin(&allocation, wait) {
                Ok(pins) => (Memory::Awake(pins, allocation), Ok(())),
                Err(error) => (Memory::Away(allocation), Err(error)),
            },
            other => (other, Ok(())),
        })
    }

    /// Takes guards that were taken for it.
    pub(super) fn adopt(&mut self, pinned: Pinned) {
        self.change(|memory| match memory {
            Memory::Away(allocation) => (Memory::Awake(vec![pinned], allocation), Ok(())),
            other => (other, Ok(())),
        })
        .unwrap_or_default();
    }

    /// Has it leave its device now: to the host, or else to the disk.
    pub(super) fn evict(&self) -> Result<(), Error> {
        let Memory::Away(allocation) = &self.memory else { return Ok(()) };
        // The first refusal says more: most nodes have no disk tier.
        allocation.evict(Tier::Host).or_else(|error| allocation.evict(Tier::Disk).map_err(|_| error))
    }

    /// Gives up its bytes, and keeps its addresses.
    pub(super) fn discard(&mut self) -> Result<(), Error> {
        self.unpin();
        self.change(|memory| match memory {
            Memory::Away(allocation) => match allocation.free_keeping_addresses() {
                Ok(addresses) => (Memory::Discarded(Box::new(addresses)), Ok(())),
                Err(failed) => (Memory::Away(failed.handle), Err(failed.error)),
            },
            other => (other, Ok(())),
        })
    }

    pub(super) fn part_count(&self) -> u32 {
        match &self.memory {
            Memory::Awake(_, allocation) | Memory::Away(allocation) => part_count(allocation),
            Memory::Discarded(_) | Memory::Gone => 0,
        }
    }

    fn change(&mut self, to: impl FnOnce(Memory) -> (Memory, Result<(), Error>)) -> Result<(), Error> {
        let (memory, outcome) = to(std::mem::replace(&mut self.memory, Memory::Gone));
        self.memory = memory;
        outcome
    }
}

fn pin(allocation: &Allocation, wait: Duration) -> Result<Vec<Pinned>, Error> {
    let count = part_count(allocation);
    let firsts = (0..count).step_by(PARTS_MAX as usize);
    firsts
        .map(|first| {
            let parts = first..count.min(first.saturating_add(PARTS_MAX));
            allocation.pin_timeout(parts, Access::Write, wait)
        })
        .collect()
}

fn part_count(allocation: &Allocation) -> u32 {
    u32::try_from(allocation.info().parts.len()).unwrap_or(u32::MAX)
}
