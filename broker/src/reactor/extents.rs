//! Keeps the exports of all extents that exist. The core knows extents only by id.

use std::collections::HashMap;

use broker_driver::Export;
use vramd_types::ExtentId;

#[derive(Debug, Default)]
pub(super) struct Extents {
    exports: HashMap<ExtentId, Export>,
}

impl Extents {
    pub(super) fn insert(&mut self, extent: ExtentId, export: Export) {
        self.exports.insert(extent, export);
    }

    pub(super) fn get(&self, extent: ExtentId) -> Option<&Export> {
        self.exports.get(&extent)
    }

    /// Drops the export: the driver must be the last in the daemon to have the memory open.
    pub(super) fn remove(&mut self, extent: ExtentId) {
        self.exports.remove(&extent);
    }
}
