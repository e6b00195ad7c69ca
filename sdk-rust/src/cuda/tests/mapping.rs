//! Parts of a GPU from packet to copy: which calls, in which order, and what is left.

use std::{os::fd::OwnedFd, sync::Arc, thread};

use vramd_proto::v1::{Access, Device, HandleType, Map, MapPart, PartRef, Revoke, RevokeReason, UnmapReason};
use vramd_types::{AllocationId, Reason};

use super::FakeDriver;
use crate::{
    channel::fake::{PART, arrived, memory, part, part_ref, soon},
    cuda::Gpus,
    mapping::{Label, Mode, Report, Table},
    pins::Words,
    session::pressure::Pressures,
};

const ID: AllocationId = AllocationId::from_raw(7);

fn table(fake: &FakeDriver) -> Table {
    let uuid = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0".to_owned();
    let other = "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1".to_owned();
    // The daemon's order is not the process's.
    let devices = [(3, uuid), (1, other)].map(|(index, uuid)| Device {
        uuid,
        index,
        name: String::new(),
        simulated: false,
    });
    let gpus = Gpus::new(&devices).with_driver(&fake.driver);
    Table::new(Mode::Map, gpus, Words::own().unwrap(), Pressures::default())
}

fn vmm(index: u32, count: u64, access: Access) -> MapPart {
    MapPart { handle_type: HandleType::VmmFd.into(), device: 3, ..part(7, index, count, access) }
}

fn fds(count: u8) -> Vec<OwnedFd> {
    (1..=count).map(|fill| memory("cuda-part", fill)).collect()
}

fn map(table: &Table, parts: Vec<MapPart>, fds: Vec<OwnedFd>) -> Report {
    table.map(Map { parts }, fds, false).unwrap()
}

fn revoke(table: &Table, parts: &[u32], reason: RevokeReason) -> Report {
    let parts: Vec<PartRef> = parts.iter().map(|index| part_ref(7, *index)).collect();
    table.revoke(&Revoke { parts, reason: reason.into() }).unwrap()
}

fn read(table: &Table, parts: usize, offset: usize) -> u8 {
    let mut byte = [0];
    table.copy_pinned(ID, parts, None, |window| window.read(offset, &mut byte)).unwrap();
    byte[0]
}

#[test]
fn packet_is_mapped_with_one_access_call_and_releases_imports() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    let answer = map(&table, (0..3).map(|index| vmm(index, 3, Access::ReadWrite)).collect(), fds(3));
    assert_eq!((answer.mapped.len(), answer.unmapped.len()), (3, 0));
    let one = ["cuMemImportFromShareableHandle", "cuMemMap 2"];
    let mut expected = vec!["cuDevicePrimaryCtxRetain 0", "cuMemAddressReserve 6"];
    expected.extend([one, one, one].concat());
    expected.push("cuMemSetAccess 6 device 0 flags 3");
    expected.extend(["cuMemRelease"; 3]);
    assert_eq!(fake.calls(), expected);
    assert_eq!(fake.current(), 0, "the thread's own context is current again");
    assert!(table.base(ID).unwrap().is_device);

    let part = usize::try_from(PART).unwrap();
    assert_eq!([read(&table, 3, 0), read(&table, 3, part), read(&table, 3, 3 * part - 1)], [1, 2, 3]);
    table.copy_pinned(ID, 3, Some(Access::ReadWrite), |window| window.write(part - 1, &[8, 9])).unwrap();
    assert_eq!([read(&table, 3, part - 1), read(&table, 3, part)], [8, 9]);
    let outside = table.copy_pinned(ID, 3, None, |window| window.read(3 * part, &mut [0])).unwrap_err();
    assert!(outside.to_string().contains("exceed the allocation of 6291456 bytes"), "{outside}");
}

#[test]
fn sealed_memory_returns_read_only_at_its_address() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    let parts = |access| (0..2).map(|index| vmm(index, 2, access)).collect();
    map(&table, parts(Access::ReadWrite), fds(2));
    let base = table.base(ID);
    fake.calls();

    let answer = revoke(&table, &[0, 1], RevokeReason::Sealing);
    assert_eq!(answer.unmapped.len(), 2);
    assert_eq!(fake.calls(), ["cuMemUnmap 4"], "neighbours by one call");
    let gone = table.copy_pinned(ID, 2, None, |_| Ok(())).unwrap_err();
    assert_eq!(gone.reason(), Some(Reason::MapFailed), "{gone}");

    map(&table, parts(Access::ReadOnly), fds(2));
    assert_eq!(table.base(ID), base);
    assert_eq!(fake.calls().iter().rev().nth(2).unwrap(), "cuMemSetAccess 4 device 0 flags 1");
    assert_eq!(read(&table, 2, 0), 1);
    assert!(table.copy_pinned(ID, 2, Some(Access::ReadWrite), |_| Ok(())).is_err(), "it is not writable");
    fake.calls();

    table.unmap(ID, true).unwrap();
    table.unmap_all();
    let expected = [
        "cuMemUnmap 4",
        "cuMemAddressFree 4",
        "cuEventDestroy",
        "cuStreamDestroy",
        "cuDevicePrimaryCtxRelease 0",
    ];
    assert_eq!(fake.calls(), expected);
}

#[test]
fn each_run_of_neighbours_is_granted_and_unmapped_alone() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    // Two allocations, and a gap in the first.
    let mut parts: Vec<_> = [3, 0, 1].map(|index| vmm(index, 4, Access::ReadWrite)).into();
    let mut other = vmm(0, 1, Access::ReadOnly);
    other.part = Some(part_ref(8, 0));
    other.device = 1;
    parts.push(other);
    let answer = map(&table, parts, fds(4));
    assert_eq!(answer.mapped.len(), 4);
    let opened: Vec<_> = fake.calls().into_iter().filter(|call| call.contains("Access ")).collect();
    let expected = [
        "cuMemSetAccess 4 device 0 flags 3",
        "cuMemSetAccess 2 device 0 flags 3",
        "cuMemSetAccess 2 device 1 flags 1",
    ];
    assert_eq!(opened, expected);
    assert_eq!(revoke(&table, &[3, 1, 0], RevokeReason::Evicted).unmapped.len(), 3);
    assert_eq!(fake.calls(), ["cuMemUnmap 4", "cuMemUnmap 2"]);
}

#[test]
fn part_without_access_is_unmapped_and_reported() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    table.claim(ID, Label::default()).unwrap();
    fake.fail("cuMemSetAccess", 2);
    let answer = map(&table, (0..2).map(|index| vmm(index, 2, Access::ReadWrite)).collect(), fds(2));
    assert_eq!((answer.mapped.len(), answer.unmapped.len()), (0, 2));
    assert!(answer.unmapped.iter().all(|part| part.reason() == UnmapReason::MapFailed));
    assert_eq!(answer.unmapped[0].detail, "cuMemSetAccess: CUDA_ERROR_OUT_OF_MEMORY (2)");
    let undone = ["cuMemSetAccess 4 device 0 flags 3", "cuMemUnmap 2", "cuMemUnmap 2"];
    assert_eq!(fake.calls()[6..], [&undone[..], &["cuMemRelease"; 2]].concat());
    let error = table.wait(arrived(ID, 2, Access::ReadWrite), soon()).unwrap_err();
    assert_eq!(error.facts()["problem"], "cuMemSetAccess: CUDA_ERROR_OUT_OF_MEMORY (2)");
    assert_eq!(table.mapped_count(ID, None), 0);
}

#[test]
fn failed_map_leaves_no_import() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    fake.fail("cuMemMap", 1);
    let answer = map(&table, vec![vmm(0, 1, Access::ReadWrite)], fds(1));
    assert_eq!(answer.unmapped[0].detail, "cuMemMap: CUDA_ERROR_INVALID_VALUE (1)");
    assert_eq!(fake.calls()[2..], ["cuMemImportFromShareableHandle", "cuMemMap 2", "cuMemRelease"]);

    let mut outside = vmm(1, 1, Access::ReadWrite);
    outside.offset_bytes = PART;
    let mut absent = vmm(0, 1, Access::ReadWrite);
    absent.part = Some(part_ref(9, 0));
    absent.device = 2;
    let answer = map(&table, vec![outside, absent], fds(2));
    assert_eq!(answer.unmapped[0].detail, "2097152 bytes at offset 2097152 exceed the span of 2097152 bytes");
    assert_eq!(answer.unmapped[1].detail, "device 2 of the daemon is not visible to this session");
    assert_eq!(fake.calls(), [""; 0], "the driver was not asked");
}

#[test]
fn fixed_memory_is_opened_where_the_driver_chooses_and_closed() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    let mut handle = vec![0; 64];
    (handle[0], handle[63]) = (0xab, 0xcd);
    let fixed = MapPart {
        handle_type: HandleType::CudaIpc.into(),
        cuda_ipc_handle: handle,
        ..vmm(0, 1, Access::ReadWrite)
    };
    let mut short = fixed.clone();
    short.part = Some(part_ref(8, 0));
    short.cuda_ipc_handle.pop();
    let answer = map(&table, vec![fixed, short], vec![]);
    assert_eq!(answer.mapped, [part_ref(7, 0)]);
    assert_eq!(answer.unmapped[0].detail, "a legacy handle has 63 bytes, not 64");
    assert_eq!(fake.calls(), ["cuDevicePrimaryCtxRetain 0", "cuIpcOpenMemHandle ab..cd flags 1"]);
    let base = table.base(ID).unwrap();
    assert_eq!((base.address, base.is_device), (0x7000_0000_0000, true));

    revoke(&table, &[0], RevokeReason::Freed);
    assert_eq!(fake.calls(), ["cuIpcCloseMemHandle 700000000000"]);
    assert_eq!(table.base(ID), None);
}

#[test]
fn copies_use_one_non_blocking_stream() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    map(&table, vec![vmm(0, 1, Access::ReadWrite)], fds(1));
    fake.calls();
    read(&table, 1, 0);
    let copy = ["cuMemcpyDtoHAsync 1", "cuEventRecord", "cuEventQuery"];
    assert_eq!(
        fake.calls(),
        [&["cuStreamCreate flags 1", "cuEventCreate flags 2"], copy.as_slice()].concat()
    );
    read(&table, 1, 1);
    assert_eq!(fake.calls(), copy);
    fake.fail("cuMemcpyDtoHAsync", 700);
    let error = table.copy_pinned(ID, 1, None, |window| window.read(0, &mut [0])).unwrap_err();
    assert_eq!(error.facts()["problem"], "cuMemcpyDtoHAsync_v2: an error without a name (700)");
    assert_eq!(fake.current(), 0);
}

#[test]
fn revoke_waits_for_the_running_copy_and_allows_no_other() {
    let fake = FakeDriver::load();
    let table = Arc::new(table(&fake));
    map(&table, vec![vmm(0, 1, Access::ReadWrite)], fds(1));
    let mut revoker = None;
    let copied = table.copy_pinned(ID, 1, None, |window| {
        let other = Arc::clone(&table);
        let revoking = thread::spawn(move || revoke(&other, &[0], RevokeReason::Freed));
        // The revocation does not wait for it: its last user releases it.
        while table.copy_pinned(ID, 1, None, |_| Ok(())).is_ok() {
            thread::yield_now();
        }
        // The revoke has begun, and the memory is still here.
        let mut byte = [0];
        window.read(0, &mut byte)?;
        assert_eq!((byte, table.mapped_count(ID, None)), ([1], 1));
        revoker = Some(revoking);
        Ok(())
    });
    copied.unwrap();
    assert_eq!(revoker.unwrap().join().unwrap(), Report::default(), "nothing is unmapped yet");
    let left = table.unmap_unpinned().unwrap().unmapped;
    assert_eq!((left.len(), left[0].written, table.mapped_count(ID, None)), (1, false, 0));
}

#[test]
fn device_is_prepared_once_before_its_first_packet() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    assert!(table.has_unknown_devices());
    let packet = Map { parts: vec![vmm(0, 1, Access::ReadWrite)] };
    table.prepare(&packet);
    assert_eq!(fake.calls(), ["cuDevicePrimaryCtxRetain 0"]);
    let mut simulated = part(8, 0, 1, Access::ReadWrite);
    simulated.device = 1;
    table.prepare(&Map { parts: vec![simulated] });
    assert!(!table.has_unknown_devices());
    map(&table, packet.parts, fds(1));
    assert_eq!(fake.calls()[0], "cuMemAddressReserve 2", "the context was there");
}

#[test]
fn failed_context_is_tried_once_per_packet() {
    let fake = FakeDriver::load();
    let table = table(&fake);
    fake.fail("cuDevicePrimaryCtxRetain", 2);
    let packet = Map { parts: (0..3).map(|index| vmm(index, 3, Access::ReadWrite)).collect() };
    table.prepare(&packet);
    let answer = map(&table, packet.parts, fds(3));
    assert_eq!(answer.unmapped.len(), 3);
    assert!(answer.unmapped[2].detail.ends_with("CUDA_ERROR_OUT_OF_MEMORY (2)"), "{answer:?}");
    assert_eq!(fake.calls(), ["cuDevicePrimaryCtxRetain 0"]);
}
