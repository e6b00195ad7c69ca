//! Memory of a program that pins what it uses: the SDK answers the daemon, whatever the test does meanwhile.

use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client};
use vramd_proto::v1::{MoveCause, PartRef, Tier, move_event::Change};
use vramd_tests::{Daemon, MIB_2, content, wait::until};

use crate::moves::{
    assert_nothing_left, disk::tier::until_charged, operators::list::listed, pins::fetch::connect,
    vramctl_json,
};

/// Allocates parts of 2 MiB and writes them. Waits until the daemon knows that all are mapped, since a mapping in
/// flight counts as used.
pub(crate) fn allocate_unpinned(daemon: &Daemon, client: &Client, count: u64) -> Allocation {
    let request = AllocationRequest::new(Bytes::new(count * MIB_2)).part_size(Bytes::new(MIB_2));
    let mut memory = client.allocate(request).unwrap();
    let bytes = content(count * MIB_2, memory.id().get());
    memory.as_mut_slice().unwrap().copy_from_slice(&bytes);
    memory.unpin().unwrap();
    daemon.settled_state();
    memory
}

/// Compares every byte, one part at a time: the device may not have room for all parts at once.
#[track_caller]
pub(crate) fn is_intact(memory: &Allocation, count: u32) {
    let written = content(u64::from(count) * MIB_2, memory.id().get());
    let each = written.len() / usize::try_from(count).unwrap();
    for (part, should) in (0..count).zip(written.chunks(each)) {
        let pinned = memory.pin_parts(part..part + 1, Access::Read).unwrap();
        assert!(pinned.as_slice().unwrap() == should, "part {part} of {} has other bytes", memory.id());
    }
}

/// The tier of each part.
#[track_caller]
pub(crate) fn lies(daemon: &Daemon, memory: &Allocation) -> Vec<String> {
    tiers_of(daemon, &memory.id().to_string())
}

/// The same for an allocation by its id.
#[track_caller]
pub(crate) fn tiers_of(daemon: &Daemon, id: &str) -> Vec<String> {
    let shown = vramctl_json(daemon, &["alloc", "show", id]);
    let parts = shown["allocation"]["parts"].as_array().expect("its parts").clone();
    parts.iter().map(|part| part["tier"].as_str().expect("a tier").to_owned()).collect()
}

/// Evicts the allocation, once the daemon knows that its pins have ended, which arrives on another socket.
#[track_caller]
pub(crate) fn send(daemon: &Daemon, memory: &Allocation, to: &str) {
    send_by_id(daemon, &memory.id().to_string(), to);
}

/// The same for an allocation by its id.
#[track_caller]
pub(crate) fn send_by_id(daemon: &Daemon, id: &str, to: &str) {
    until("it goes there", || {
        let told = vramctl_json(daemon, &["alloc", "evict", id, "--to", to]);
        let parts = told["parts"].as_array().expect("its parts");
        parts.iter().all(|part| part["outcome"] == "moved")
    });
}

/// A part that lies below its device, alone on the node.
pub(crate) fn away(daemon: &Daemon, client: &Client, tier: &str) -> Allocation {
    let wanted = allocate_unpinned(daemon, client, 1);
    send(daemon, &wanted, tier);
    until_charged(daemon, if tier == "host" { [0, 2, 0] } else { [0, 0, 2] });
    wanted
}

/// A program pins a part that lies below its device, which another program's parts fill. Neither loses a byte, and
/// nothing is left at the end.
#[track_caller]
pub(crate) fn assert_fetched_to_full_device(
    daemon: &Daemon,
    tier: &str,
    count: u32,
    then: impl FnOnce(&Allocation),
) {
    let (wants, has) = (connect(daemon), connect(daemon));
    let wanted = away(daemon, &wants, tier);
    let there = allocate_unpinned(daemon, &has, count.into());
    is_intact(&wanted, 1);
    then(&there);
    is_intact(&there, count);
    is_intact(&wanted, 1);
    drop((wanted, there));
    wants.flush().unwrap();
    has.flush().unwrap();
    assert_nothing_left(daemon);
}

/// Victims that could not leave for that tier.
#[track_caller]
pub(crate) fn stayed(daemon: &Daemon, tier: Tier, why: &str) -> Vec<PartRef> {
    let ended = listed(daemon).ended.into_iter();
    let failed = ended.filter(|it| (it.tier(), it.outcome()) == (tier, Change::Failed));
    let failed =
        failed.inspect(|it| assert!(it.cause() == MoveCause::Demand && it.detail.contains(why), "{it:?}"));
    failed.filter_map(|it| it.part).collect()
}

/// Of two parts, the victim that could not leave and the one that left.
#[track_caller]
pub(crate) fn other_one_left(daemon: &Daemon, there: &Allocation, stayed: &[PartRef], tier: &str) {
    let [lacking] = stayed else { panic!("one could not leave: {:?}", listed(daemon)) };
    let stays = if lacking.part_index == 0 { ["device", tier] } else { [tier, "device"] };
    assert_eq!(lies(daemon, there), stays, "the other one left");
}
