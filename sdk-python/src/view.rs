//! Views: they keep memory mapped while a buffer, a capsule, a tensor or a pin uses it.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use pyo3::Python;
use vramd_client::{Access, Error, Pinned};

use crate::{
    error::Fault,
    shared::{Facts, Handle, Shared, number},
};

/// The largest number of parts that one guard may pin.
const PARTS_MAX: u32 = 1024;

/// The access and the longest wait of a pin; without a wait it is as long as any call of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinRequest {
    pub(crate) access: Access,
    pub(crate) wait: Option<Duration>,
}

/// While it lives, the memory is neither sealed nor freed, and stays where it is; an eviction waits. Dropping it
/// needs no GIL, waits for nothing, and may happen on any thread.
#[derive(Debug)]
pub(crate) struct View {
    // Unpinned before the view is uncounted.
    pins: Vec<Pinned>,
    counted: Counted,
}

/// Counts one view.
#[derive(Debug)]
struct Counted(Arc<Shared>);

impl View {
    /// For [`Shared::view`] alone, which has counted it.
    pub(crate) fn new(shared: Arc<Shared>, pins: Vec<Pinned>) -> Self {
        Self { pins, counted: Counted(shared) }
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.counted.0.facts
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.counted.0
    }

    pub(crate) fn access(&self) -> Access {
        self.pins.first().map_or(Access::Read, Pinned::access)
    }

    /// The drop count of the parts.
    pub(crate) fn drop_count(&self) -> u64 {
        self.pins.iter().map(Pinned::drop_count).sum()
    }

    /// The pinned parts, as one range.
    pub(crate) fn parts(&self) -> Range<u32> {
        let (first, last) = (self.pins.first().map(Pinned::parts), self.pins.last().map(Pinned::parts));
        first.map_or(0, |parts| parts.start)..last.map_or(0, |parts| parts.end)
    }

    /// The address where they begin.
    pub(crate) fn address(&self) -> Result<usize, Fault> {
        number(self.pins.first().map_or(0, Pinned::as_device_ptr))
    }

    /// Their bytes, of the requested ones.
    pub(crate) fn len(&self) -> Result<usize, Fault> {
        number(self.pins.iter().map(Pinned::len_bytes).sum())
    }

    /// The offset in the allocation where they begin.
    pub(crate) fn start(&self) -> usize {
        self.facts().start_of(self.parts().start)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.access() == Access::Write
    }

    /// Another view of the same parts, with the same access.
    pub(crate) fn again(&self, py: Python<'_>) -> Result<Self, Fault> {
        let request = PinRequest { access: self.access(), wait: None };
        self.shared().pin_view(py, Some(self.parts()), request)
    }

    /// Unpins once the CUDA streams have done the work launched on them so far; the view that returns with an error
    /// still pins.
    pub(crate) fn unpin_after(mut self, streams: &[u64]) -> Result<(), Box<(Self, Error)>> {
        while let Some(pinned) = self.pins.pop() {
            if let Err(failed) = pinned.unpin_after(streams) {
                self.pins.push(*failed.pinned);
                return Err(Box::new((self, failed.error)));
            }
        }
        Ok(())
    }
}

/// Pins these parts, or all, and waits until they have arrived.
///
/// More parts than one call may name are pinned by several calls, which nest: each waits while the earlier ones are
/// kept. The protocol has no larger set, and an array needs all of its memory at once. A call that waits because of
/// the others' pins is aborted, all pins are released, and the caller may try again. All calls share one deadline.
pub(crate) fn pin(
    handle: &Handle,
    parts: Option<Range<u32>>,
    request: PinRequest,
) -> Result<Vec<Pinned>, Error> {
    let begun = Instant::now();
    let left = || request.wait.map(|wait| wait.saturating_sub(begun.elapsed()));
    let all = 0..handle.part_count();
    let parts = parts.unwrap_or_else(|| all.clone());
    if parts.is_empty() || parts.end > all.end {
        // Refused before any wait.
        return Ok(vec![handle.pin_parts(parts, request.access, left())?]);
    }
    let each = parts.clone().step_by(PARTS_MAX as usize);
    each.map(|first| {
        let few = first..parts.end.min(first.saturating_add(PARTS_MAX));
        handle.pin_parts(few, request.access, left())
    })
    .collect()
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.uncount_view();
    }
}
