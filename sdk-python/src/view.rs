//! What keeps memory mapped while somebody outside looks at it: a buffer, a capsule, a tensor.

use std::sync::Arc;

use crate::shared::{Facts, Shared};

/// As long as it lives, the memory is neither sealed nor freed, and stays where it is. Dropping it needs no GIL, waits for
/// nothing, and may happen on any thread.
#[derive(Debug)]
pub(crate) struct View {
    shared: Arc<Shared>,
}

impl View {
    /// For [`Shared::view`] alone, which has counted it.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.shared.unview();
    }
}
