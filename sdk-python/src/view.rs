//! What keeps memory mapped while somebody outside looks at it: a buffer, a capsule, a tensor, a pin.

use std::sync::Arc;

use vramd_client::{Access, Error, Pinned};

use crate::shared::{Facts, Handle, Shared};

/// Parts that one guard may pin.
const PARTS_MAX: usize = 1024;

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
    pub(crate) fn losses(&self) -> u64 {
        self.pins.iter().map(Pinned::losses).sum()
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

/// Pins all parts, and waits until they are here.
pub(crate) fn pin(handle: &Handle, access: Access) -> Result<Vec<Pinned>, Error> {
    let parts = handle.info().parts.len();
    let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    (0..parts)
        .step_by(PARTS_MAX)
        .map(|first| handle.pin_parts(number(first)..number(parts.min(first + PARTS_MAX)), access))
        .collect()
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.unview();
    }
}
