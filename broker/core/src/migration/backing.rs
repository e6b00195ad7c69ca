//! What is set aside for a part below its device, so that it can leave whatever else lies there.

use std::collections::BTreeMap;

use vramd_types::ExtentId;

use crate::{event::PartRef, ledger::Reservation};

/// What a part has below while it lies on its device. A part without one stays there.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Bytes, in which nothing has been made yet.
    Reserved(Reservation),
    /// Memory that it came from, or was about to go to. A clean one holds what the part holds: then it leaves without being
    /// copied.
    Kept { extent: ExtentId, clean: bool },
    /// Its content may be given up: it needs none.
    Needless,
}

pub(crate) type Backings = BTreeMap<PartRef, Backing>;
