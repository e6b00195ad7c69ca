//! Slots of the word table, and parts that change theirs.

use std::sync::atomic::Ordering;

use super::*;

#[test]
fn slot_of_two_parts_ends_the_session() {
    let daemon = start();
    let _allocation = allocate(&daemon, ID, 1, 5);
    let mut elsewhere = part(OTHER, 0, 1, MapAccess::ReadWrite);
    elsewhere.slot = 1 << 20;
    let fd = memory("pinned", 1);
    daemon.send_map(elsewhere.clone(), &fd);
    let Some(Sent::Unmapped(failed)) = daemon.next() else { panic!("it can't be mapped") };
    assert_eq!(failed.parts[0].detail, "slot 1048576 is outside the word table of 2048 slots");
    // The first part of allocation 7 has that slot.
    elsewhere.slot = 7 * 8;
    daemon.send_map(elsewhere, &fd);
    assert_eq!(daemon.next(), None, "the client hangs up");
}

#[test]
fn anchor_learns_that_a_slot_is_another_parts() {
    let daemon = start();
    let parts = [part_ref(ID, 0), part_ref(ID, 1)];
    let mut allocation = allocate(&daemon, ID, 2, 1);
    allocation.unpin().unwrap();
    parts.iter().for_each(|part| evict(&daemon, *part));
    let at = |id, index, of: u64, slot| v1::MapPart { slot, ..part(id, index, of, MapAccess::ReadWrite) };
    let arrive = |part: v1::MapPart| {
        let target = part.part.unwrap();
        daemon.send_map(part, &memory("pinned", 1));
        assert_eq!(daemon.next(), mapped(target));
    };
    arrive(at(ID, 0, 2, 100));
    arrive(at(ID, 1, 2, 101));
    let lost = daemon.session.table().slots_lost(AllocationId::from_raw(ID));
    assert!(!lost.load(Ordering::Acquire), "the slots are as an anchor learns them now");
    let revoke = |slot| {
        assert!(matches!(daemon.words.slot(slot).unwrap().revoke_to_fence(), Ok(Fence::Revoked { .. })));
    };
    revoke(100);
    daemon.tell_revoke(parts[0], RevokeReason::Evicted);
    assert_eq!(daemon.next(), unmapped(parts[0], false));
    arrive(at(OTHER, 0, 1, 100));
    assert!(lost.load(Ordering::Acquire), "the slot of its first part is another part's");
    revoke(100);
    daemon.tell_revoke(part_ref(OTHER, 0), RevokeReason::Evicted);
    assert_eq!(daemon.next(), unmapped(part_ref(OTHER, 0), false));
    // Back to where it was: a slot that was another's meanwhile counts as a new one.
    arrive(at(ID, 0, 2, 100));
    let lost = daemon.session.table().slots_lost(AllocationId::from_raw(ID));
    assert!(!lost.load(Ordering::Acquire));
}

#[test]
fn handle_after_failed_free_cannot_pin_the_slots_next_part() {
    let daemon = start();
    let target = part_ref(ID, 0);
    let allocation = allocate(&daemon, ID, 1, 5);
    // The fake daemon answers no calls.
    let failed = allocation.free().unwrap_err();
    assert_eq!(daemon.next(), unmapped(target, true));
    let other = v1::MapPart { slot: 7 * 8, ..part(OTHER, 0, 1, MapAccess::ReadWrite) };
    daemon.send_map(other, &memory("pinned", 9));
    assert_eq!(daemon.next(), mapped(part_ref(OTHER, 0)));
    let error = failed.handle.pin_ref(0..1, Access::Read).unwrap_err();
    assert_eq!(error, Error::NotMapped { allocation: "a-7".to_owned() });
    assert_eq!(daemon.words.slot(7 * 8).unwrap().state(), Ok(State::Resident { pins: 0 }));
    // The allocation is released all the same once the handle is dropped.
    drop(failed);
    assert!(daemon.session.releases().flush(Instant::now() + PATIENCE).unwrap());
}
