//! Each backing is its part's own, and every extent that is said to leave a device does leave it.

use super::{BACKINGS, Violation, expect, scope::Scope};
use crate::{
    broker::Broker,
    event::{Kind, PartRef, Tier},
    moves::{Backing, Migration},
    pool::{Extent, ExtentState},
    residency::{Allocation, AllocationState},
    shell::Timer,
};
use vramd_types::AllocationId;

pub(super) fn check(broker: &Broker, scope: &Scope, found: &mut Vec<Violation>) {
    for (part, backing) in
        broker.moves.backings.iter().filter(|(part, _)| scope.has_allocation(part.allocation))
    {
        let on_device = broker.tier_of(part).is_none_or(|tier| tier == Tier::Device);
        // A backing in another tier than the destination stays the part's own until the move is done.
        let beside = |it: &Migration| {
            it.from_tier == Tier::Device && backing.tier().is_some_and(|tier| tier != it.to_tier)
        };
        let there = on_device && broker.moves.migrations.get(part).is_none_or(beside);
        // A new allocation lies nowhere until the driver has created its memory.
        expect(found, BACKINGS, there, || format!("{part:?} is backed and not on its device"));
        let piece = broker.footprint_of(part);
        let is_own = match backing {
            Backing::Reserved(it) => {
                piece.is_some_and(|piece| (it.tenant(), it.bytes()) == (piece.tenant, piece.size))
            }
            Backing::Needless => broker.is_discardable(part),
            Backing::File { extent } => broker
                .pool
                .extent_of_part(part, *extent)
                .is_some_and(|extent| extent.in_file && matches!(extent.state, ExtentState::Live(_))),
            Backing::Extent { extent, tier, .. } => {
                let extent = broker.pool.extent_of_part(part, *extent);
                let is = |it: &Extent| {
                    it.place.tier == *tier
                        && *tier != Tier::Device
                        && matches!(it.state, ExtentState::Creating(_) | ExtentState::Live(_))
                };
                extent.is_some_and(is)
            }
        };
        expect(found, BACKINGS, is_own, || {
            format!("{part:?} has a backing that is not its own: {backing:?}")
        });
    }
    for (id, allocation) in scope.allocations(broker) {
        check_missing(broker, id, allocation, found);
    }
    if !matches!(scope, Scope::All) {
        return;
    }
    for (part, account) in broker.moves.backings.missing().iter() {
        let is_there = broker.footprint_of(part).is_some_and(|piece| (piece.tenant, piece.device) == account);
        expect(found, BACKINGS, is_there, || {
            format!("{part:?} is recorded as missing a backing, and does not exist")
        });
    }
    for device in broker.device_indices() {
        let oldest = broker.moves.backings.missing().oldest_of_each(device).min();
        let is_next = broker.shell.timers.iter().any(|(_, timer)| *timer == Timer::Backing(device));
        let waits = oldest.is_none_or(|(_, tenant, size)| {
            let mut below = broker.ledger.below(device);
            is_next || below.all(|place| broker.ledger.admit(tenant, place, size).is_err())
        });
        expect(found, BACKINGS, waits, || format!("{oldest:?} has no backing although bytes are available"));
    }
    for (id, piece) in broker.line.room.iter() {
        let leaves = broker.pool.get(id).is_some_and(|extent| {
            let moves = extent.part.is_some_and(|part| broker.moves.migrations.contains(part));
            extent.size == piece.size && (moves || matches!(extent.state, ExtentState::Releasing(_)))
        });
        expect(found, BACKINGS, leaves, || format!("a waiter counts on {id}, which does not leave"));
    }
    for device in broker.device_indices() {
        for part in broker.usage.residents.order(device) {
            let there = broker.moves.backings.contains(&part) || broker.moves.migrations.contains(part);
            expect(found, BACKINGS, there, || {
                format!("{part:?} is a candidate for eviction without a backing")
            });
        }
    }
}

/// Exactly the parts that lack only a backing to be evictable are recorded as missing one.
fn check_missing(broker: &Broker, id: AllocationId, allocation: &Allocation, found: &mut Vec<Violation>) {
    let account = (allocation.tenant, allocation.device);
    let movable = allocation.kind == Kind::Movable && !allocation.discardable;
    let has_tiers = broker.ledger.below(allocation.device).next().is_some();
    let may_miss = movable && has_tiers && allocation.state != AllocationState::Freeing;
    for part in allocation.indices().map(|part| PartRef { allocation: id, part }) {
        let has_none = !broker.moves.backings.contains(&part) && !broker.moves.migrations.contains(part);
        let on_device = broker.tier_of(part) == Some(Tier::Device);
        let should = may_miss && has_none && on_device;
        // A part whose memory could not be created lies nowhere, and its allocation is being freed.
        let is = broker.moves.backings.missing().contains(&part, account);
        let fits = is == should || (is && may_miss && has_none && broker.tier_of(part).is_none());
        expect(found, BACKINGS, fits, || {
            format!("{part:?} is recorded as missing a backing: {is}, should be {should}")
        });
    }
}
