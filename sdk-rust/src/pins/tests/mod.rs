//! Tests of pins: a whole session against a fake daemon, frame by frame.

mod calls;
mod guards;
mod handle_pins;
mod session;
mod sets;
mod slots;

use std::time::Instant;

use vramd_proto::v1::{
    self, Access as MapAccess, Mapped, PartRef, PinAnswer, PinEnded, RevokeReason, UnmappedPart,
    client_frame::Frame as Sent, daemon_frame::Frame,
};
use vramd_types::{AllocationId, Bytes, Reason};
use vramd_words::{Access, Fence, State};

use crate::{
    channel::fake::{PART, PATIENCE, Pinning, arrived, ended_by_an_operator, memory, part, part_ref, soon},
    cuda::Gpus,
    error::{Error, Sentence},
    handles::{
        allocation::{Allocation, Sealed},
        handle::Handle,
        info::{AllocationInfo, AllocationState, PartInfo, Tier},
    },
    mapping::{Caller, PinStart, PinTarget, Until},
    pins::{Pinnable, pin_set},
    session::{
        ReleaseKind,
        call_style::{CallStyle, run_ready},
    },
};

pub(super) const ID: u64 = 7;
pub(super) const OTHER: u64 = 8;

pub(super) fn start() -> Pinning {
    Pinning::start(Gpus::new(&[]), PATIENCE)
}

pub(super) fn info(id: u64, parts: u32) -> AllocationInfo {
    let part = |index| PartInfo {
        index,
        offset: Bytes::new(u64::from(index) * PART),
        size: Bytes::new(PART),
        tier: Tier::Device,
        mappers: Vec::new(),
    };
    let wire =
        v1::Allocation { allocation_id: id, size_bytes: u64::from(parts) * PART, ..Default::default() };
    AllocationInfo { state: AllocationState::Open, parts: (0..parts).map(part).collect(), ..wire.into() }
}

/// Allocates; the parts have arrived, each filled with `fill`.
pub(super) fn allocate(daemon: &Pinning, id: u64, parts: u32, fill: u8) -> Allocation {
    let expected = daemon.session.table().expect_arrivals().unwrap();
    send_parts(daemon, id, 0..parts, parts, fill);
    let report = Sent::Mapped(Mapped { parts: (0..parts).map(|index| part_ref(id, index)).collect() });
    assert_eq!(daemon.next(), Some(report));
    let mut handle = Handle::claim(&daemon.session, info(id, parts), ReleaseKind::Free).unwrap();
    run_ready(handle.wait_arrived(CallStyle::Blocking, Instant::now() + PATIENCE)).unwrap();
    drop(expected);
    Allocation::new(handle)
}

/// Makes an unpinned handle: no part is sent before it is pinned.
pub(super) fn unpinned(daemon: &Pinning, id: u64, parts: u32) -> Allocation {
    let mut handle = Handle::claim(&daemon.session, info(id, parts), ReleaseKind::Free).unwrap();
    handle.begin_unpinned();
    Allocation::new(handle)
}

pub(super) fn send_parts(daemon: &Pinning, id: u64, which: std::ops::Range<u32>, of: u32, fill: u8) {
    let fds: Vec<_> = which.clone().map(|_| memory("pinned", fill)).collect();
    let parts = which.map(|index| part(id, index, of.into(), MapAccess::ReadWrite)).collect();
    daemon.map(parts, &fds);
}

pub(super) fn unmapped(part: PartRef, written: bool) -> Option<Sent> {
    let reason = v1::UnmapReason::Done.into();
    let part = UnmappedPart { part: Some(part), reason, written, ..Default::default() };
    Some(Sent::Unmapped(v1::Unmapped { parts: vec![part] }))
}

pub(super) fn mapped(part: PartRef) -> Option<Sent> {
    Some(Sent::Mapped(Mapped { parts: vec![part] }))
}

pub(super) fn ended(call_id: u64) -> Option<Sent> {
    Some(Sent::PinEnded(PinEnded { call_id }))
}

pub(super) fn pin_call(call_id: u64, parts: &[PartRef], write: bool) -> Option<Sent> {
    Some(Sent::Pin(v1::Pin { call_id, parts: parts.to_vec(), write, trace: None, wait_ms: None }))
}

pub(super) fn state(daemon: &Pinning, part: PartRef) -> State {
    daemon.word(part).state().unwrap()
}

/// Allocates, gives up the handle pin, and evicts.
pub(super) fn evicted(daemon: &Pinning, id: u64) -> Allocation {
    let mut allocation = allocate(daemon, id, 1, 1);
    allocation.unpin().unwrap();
    evict(daemon, part_ref(id, 0));
    allocation
}

pub(super) fn evict(daemon: &Pinning, part: PartRef) {
    daemon.revoke(part, RevokeReason::Evicted);
    assert_eq!(daemon.next(), unmapped(part, true));
}
