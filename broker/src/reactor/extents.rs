//! The handles of all extents that exist. The core knows extents by id alone.

use std::collections::HashMap;

use broker_driver::Export;
use vramd_types::ExtentId;

#[derive(Debug, Default)]
pub(super) struct Extents {
    handles: HashMap<ExtentId, Export>,
}

impl Extents {
    pub(super) fn insert(&mut self, extent: ExtentId, handle: Export) {
        self.handles.insert(extent, handle);
    }

    pub(super) fn get(&self, extent: ExtentId) -> Option<&Export> {
        self.handles.get(&extent)
    }

    /// Drops the handle: the driver must be the last in the daemon that holds what it releases.
    pub(super) fn remove(&mut self, extent: ExtentId) {
        self.handles.remove(&extent);
    }
}
