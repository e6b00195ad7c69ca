//! No copy writes to a file, and a part in a file is charged to no tenant.

use super::{FILES, Violation, expect, scope::Scope};
use crate::{
    broker::Broker,
    event::Tier,
    pool::{Extent, ExtentState},
};
use vramd_types::Bytes;

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (id, extent) in scope.extents(broker).filter(|(_, extent)| extent.in_file) {
        expect(found, FILES, cost_of(extent) == Some(Bytes::ZERO), || {
            format!("{id} is a piece of a file, and is {:?}", extent.state)
        });
        let is_sound = extent.place.tier == Tier::Disk && !extent.unwritten && extent.sent_to.is_empty();
        expect(found, FILES, is_sound, || {
            format!("{id} is a piece of a file, and is used as ordinary memory")
        });
        let Some(part) = extent.part else { continue };
        let loaded = broker.allocations.get(part.allocation).is_none_or(|it| it.file.is_some());
        expect(found, FILES, loaded, || format!("{id} is a piece of a file, and {part:?} was not loaded"));
        let moves_there =
            broker.moves.migrations.get(part).is_some_and(|it| it.to == id && it.state.is_copying());
        let written = moves_there || broker.is_written_back_to(part, id);
        expect(found, FILES, !written, || format!("{id} is a piece of a file, and is copied to"));
    }
}

/// The charge of a piece of a file, or `None` if it is in a state that such a piece cannot have.
const fn cost_of(extent: &Extent) -> Option<Bytes> {
    match &extent.state {
        ExtentState::Creating(reservation) => Some(reservation.bytes()),
        ExtentState::Live(charge) | ExtentState::Releasing(charge) => Some(charge.bytes()),
        ExtentState::Cached(_) | ExtentState::Unreturned(_) | ExtentState::Dropped => None,
    }
}
