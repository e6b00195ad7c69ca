//! What keeps memory mapped while somebody outside looks at it: a buffer, a capsule, a tensor, a pin.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use vramd_client::{Access, Error, Pinned};

use crate::shared::{Facts, Handle, Shared};

/// Parts that one guard may pin.
const PARTS_MAX: u32 = 1024;

/// For what memory is pinned, and for how long a pin waits at most: as any call of the client, unless told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) access: Access,
    pub(crate) wait: Option<Duration>,
}

/// As long as it lives, the memory is neither sealed nor freed, and stays where it is; who wants it back waits. Dropping it
/// needs no GIL, waits for nothing, and may happen on any thread.
#[derive(Debug)]
pub(crate) struct View {
    // Unpinned before it is said that nobody looks.
    pins: Vec<Pinned>,
    counted: Counted,
}

/// One of those that look.
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

    /// How often the content of any part was given up.
    pub(crate) fn drop_count(&self) -> u64 {
        self.pins.iter().map(Pinned::drop_count).sum()
    }

    /// Those that are pinned, in one piece.
    pub(crate) fn parts(&self) -> Range<u32> {
        let (first, last) = (self.pins.first().map(Pinned::parts), self.pins.last().map(Pinned::parts));
        first.map_or(0, |parts| parts.start)..last.map_or(0, |parts| parts.end)
    }

    /// Where they begin.
    pub(crate) fn address(&self) -> u64 {
        self.pins.first().map_or(0, Pinned::as_device_ptr)
    }

    /// How many bytes they are, of those that were asked for.
    pub(crate) fn len(&self) -> u64 {
        self.pins.iter().map(Pinned::len_bytes).sum()
    }

    /// Unpins once the CUDA streams have done what was launched on them so far; what comes back with the error pins yet.
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

/// Pins these parts, or all, and waits until they are here.
///
/// More than one call may name are pinned by several, which is a nested pin: each waits while those before it are kept. The
/// protocol has no larger set, and an array wants all of its memory at once. So one that waits in its own way is aborted, all
/// that it had is given back with it, and who asked may try again. However many calls there are, they end by one time.
pub(crate) fn pin(handle: &Handle, parts: Option<Range<u32>>, how: How) -> Result<Vec<Pinned>, Error> {
    let begun = Instant::now();
    let left = || how.wait.map(|wait| wait.saturating_sub(begun.elapsed()));
    let all = 0..handle.part_count();
    let parts = parts.unwrap_or_else(|| all.clone());
    if parts.is_empty() || parts.end > all.end {
        // Refused, and nothing is waited for first.
        return Ok(vec![handle.pin_parts(parts, how.access, left())?]);
    }
    let each = parts.clone().step_by(PARTS_MAX as usize);
    each.map(|first| {
        let few = first..parts.end.min(first.saturating_add(PARTS_MAX));
        handle.pin_parts(few, how.access, left())
    })
    .collect()
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.unview();
    }
}
