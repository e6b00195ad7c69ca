//! What parts have below their devices is their own, and what is said to leave a device does.

use super::{BACKED, Violation, expect, scope::Scope};
use crate::{
    broker::Broker,
    event::Tier,
    migration::Backing,
    pool::{Extent, ExtentState},
};

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (part, backing) in broker.backings.iter().filter(|(part, _)| scope.has_allocation(part.allocation)) {
        let on_device = broker.tier_of(*part).is_none_or(|tier| tier == Tier::Device);
        let there = on_device && !broker.migrations.contains_key(part);
        // Until the driver has made its memory a new allocation is nowhere.
        expect(found, BACKED, there, || format!("{part:?} is backed and not on its device"));
        let piece = broker.piece_of(*part);
        let is_own = match backing {
            Backing::Reserved(it) => {
                piece.is_some_and(|piece| (it.tenant(), it.bytes()) == (piece.tenant, piece.size))
            }
            Backing::Needless => broker.is_discardable(*part),
            Backing::Kept { extent, .. } => {
                let extent = broker.pool.behind(*part, *extent);
                let is = |it: &Extent| {
                    it.place.tier != Tier::Device
                        && matches!(it.state, ExtentState::Creating(_) | ExtentState::Live(_))
                };
                extent.is_some_and(is)
            }
        };
        expect(found, BACKED, is_own, || format!("{part:?} is backed by what is not its own: {backing:?}"));
    }
    if !matches!(scope, Scope::All) {
        return;
    }
    for (id, piece) in broker.awaited_room.iter() {
        let leaves = broker.pool.get(id).is_some_and(|extent| {
            let moves = extent.part.is_some_and(|part| broker.migrations.contains_key(&part));
            extent.size == piece.size && (moves || matches!(extent.state, ExtentState::Releasing(_)))
        });
        expect(found, BACKED, leaves, || format!("{id} is awaited back and does not leave"));
    }
    for device in broker.device_indices() {
        for part in broker.residents.order(device) {
            let there = broker.backings.contains(&part) || broker.migrations.contains_key(&part);
            expect(found, BACKED, there, || format!("{part:?} could leave, and has nothing below"));
        }
    }
}
