//! The SDK reads what the daemon writes: the same parts in the same order, in a packet that fits, with the
//! exports of the parts that have one. A frame that names an extent without an export is refused, and the
//! refusal names that extent.

use arbitrary::{Arbitrary as _, Result, Unstructured};
use broker_core::{DaemonFrame, MapPart, PartRef, Refusal, RevokeReason, RevokedPart, Slot};
use broker_driver::Export;
use vramd::channel::frame_codec::{self, Context};
use vramd_client::decode_daemon_frame;
use vramd_proto::{
    channel::FRAME_BYTES_MAX,
    v1::{self, Access, HandleType, daemon_frame::Frame},
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, SessionId};

use crate::Verdict;

const DEVICES: u16 = 4;
/// As in `limits.rs` of the core.
const MAP_PARTS_MAX: usize = 128;
const REVOKE_PARTS_MAX: usize = 1024;
const REASONS: [(RevokeReason, v1::RevokeReason); 5] = [
    (RevokeReason::Freed, v1::RevokeReason::Freed),
    (RevokeReason::Detached, v1::RevokeReason::Detached),
    (RevokeReason::Sealing, v1::RevokeReason::Sealing),
    (RevokeReason::SessionEnded, v1::RevokeReason::SessionEnded),
    (RevokeReason::Evicted, v1::RevokeReason::Evicted),
];

pub(crate) fn check(input: &[u8]) -> Verdict {
    // Where the input ends, the rest is zeros: every input is a frame.
    let Ok((meant, features)) = draw(&mut Unstructured::new(input)) else { return Verdict::Refused };
    let devices: Vec<_> = (0..DEVICES).map(device).collect();
    // A kind without a descriptor, so that none is opened for each input.
    let table = Export::CudaIpc([1; 64]);
    let context = Context { devices: &devices, features, word_table: Some(&table), export: &export };
    let lost = match &meant {
        DaemonFrame::Map(parts) => {
            parts.iter().map(|part| part.extent).find(|extent| export(*extent).is_none())
        }
        _ => None,
    };
    let written = frame_codec::encode(&meant, context);
    assert_eq!(written.as_ref().err().map(|error| error.0), lost);
    if let Ok(written) = &written {
        assert!(written.bytes.len() <= FRAME_BYTES_MAX, "a frame of {} bytes", written.bytes.len());
        let read = decode_daemon_frame(&written.bytes).expect("the SDK accepts a frame of the daemon");
        same(&meant, &read, &written.exports, features);
    }
    Verdict::of(&written)
}

fn same(meant: &DaemonFrame, read: &Frame, exports: &[Export], features: u64) {
    match (meant, read) {
        (DaemonFrame::Welcome { session, tenant, devices, slots }, Frame::Welcome(welcome)) => {
            assert_eq!((welcome.slot_count, exports.len()), (*slots, 1));
            assert_eq!((welcome.session_id, &welcome.tenant), (session.get(), tenant));
            assert_eq!(welcome.features, features);
            let meant: Vec<_> = devices.iter().map(|index| device(index.0)).collect();
            assert_eq!(welcome.devices, meant);
        }
        (DaemonFrame::Map(meant), Frame::Map(map)) => {
            assert_eq!((map.parts.len(), exports.len()), (meant.len(), meant.len()));
            for ((meant, part), export) in meant.iter().zip(&map.parts).zip(exports) {
                same_part(meant, part, export);
            }
        }
        (DaemonFrame::Revoke { parts, reason }, Frame::Revoke(revoke)) => {
            assert_eq!(
                revoke.parts,
                parts.iter().map(|revoked| reference(&revoked.part)).collect::<Vec<_>>()
            );
            assert!(REASONS.contains(&(*reason, revoke.reason())));
        }
        (DaemonFrame::Lost(part), Frame::Revoke(revoke)) => {
            assert_eq!(
                (&revoke.parts[..], revoke.reason()),
                (&[reference(part)][..], v1::RevokeReason::Lost)
            );
        }
        (DaemonFrame::PinAnswer { call, refusal }, Frame::PinAnswer(answer)) => {
            let reason = refusal.as_ref().map(|refusal| refusal.reason().name());
            let read = answer.refused.as_ref().map(|refused| refused.reason.as_str());
            assert_eq!((answer.call_id, read), (*call, reason));
        }
        (DaemonFrame::Drain { draining }, Frame::Drain(drain)) => assert_eq!(drain.draining, *draining),
        (meant, read) => panic!("{meant:?} was read as {read:?}"),
    }
}

fn same_part(meant: &MapPart, part: &v1::MapPart, export: &Export) {
    let access = if meant.writable { Access::ReadWrite } else { Access::ReadOnly };
    assert_eq!(part.part, Some(reference(&meant.part)));
    assert_eq!((part.offset_bytes, part.size_bytes), (meant.offset.get(), meant.size.get()));
    assert_eq!((part.span_bytes, part.device), (meant.span.get(), u32::from(meant.device.0)));
    assert_eq!(part.losses, meant.drop_count);
    assert_eq!(part.slot, meant.slot.map_or(0, |slot| slot.0));
    assert_eq!((part.access(), part.handle_type()), (access, HandleType::CudaIpc));
    let Export::CudaIpc(bytes) = export else { panic!("{export:?}") };
    assert_eq!(part.cuda_ipc_handle, bytes);
    assert_eq!(*bytes, legacy(meant.extent), "another extent's export");
}

fn draw(input: &mut Unstructured<'_>) -> Result<(DaemonFrame, u64)> {
    let features = u64::arbitrary(input)?;
    let frame = match input.int_in_range(0..=5)? {
        0 => DaemonFrame::Map(list(input, MAP_PARTS_MAX, map_part)?),
        1 => {
            let reason = input.choose(&REASONS)?.0;
            DaemonFrame::Revoke { parts: list(input, REVOKE_PARTS_MAX, revoked_part)?, reason }
        }
        2 => DaemonFrame::Welcome {
            session: SessionId::from_raw(u64::arbitrary(input)?),
            tenant: list(input, vramd_types::name::NAME_BYTES_MAX, |input| input.int_in_range(b'a'..=b'z'))?
                .into_iter()
                .map(char::from)
                .collect(),
            devices: list(input, usize::from(DEVICES), device_index)?,
            slots: u32::arbitrary(input)?,
        },
        3 => DaemonFrame::PinAnswer {
            call: u64::arbitrary(input)?,
            refusal: bool::arbitrary(input)?.then_some(Refusal::SessionMissing),
        },
        4 => DaemonFrame::Lost(part(input)?),
        _ => DaemonFrame::Drain { draining: bool::arbitrary(input)? },
    };
    Ok((frame, features))
}

/// A list of 1 to `count_max` items.
fn list<T>(
    input: &mut Unstructured<'_>,
    count_max: usize,
    one: fn(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = input.int_in_range(1..=count_max)?;
    (0..count).map(|_| one(input)).collect()
}

fn map_part(input: &mut Unstructured<'_>) -> Result<MapPart> {
    Ok(MapPart {
        part: part(input)?,
        extent: ExtentId::from_raw(u64::arbitrary(input)?),
        device: device_index(input)?,
        offset: Bytes::new(u64::arbitrary(input)?),
        size: Bytes::new(u64::arbitrary(input)?),
        span: Bytes::new(u64::arbitrary(input)?),
        writable: bool::arbitrary(input)?,
        slot: Option::<u32>::arbitrary(input)?.map(Slot),
        drop_count: u64::arbitrary(input)?,
    })
}

fn revoked_part(input: &mut Unstructured<'_>) -> Result<RevokedPart> {
    Ok(RevokedPart { part: part(input)?, slot: Option::<u32>::arbitrary(input)?.map(Slot) })
}

fn part(input: &mut Unstructured<'_>) -> Result<PartRef> {
    let allocation = AllocationId::from_raw(u64::arbitrary(input)?);
    Ok(PartRef { allocation, part: PartIndex(u32::arbitrary(input)?) })
}

fn device_index(input: &mut Unstructured<'_>) -> Result<DeviceIndex> {
    input.int_in_range(0..=DEVICES - 1).map(DeviceIndex)
}

fn device(index: u16) -> v1::Device {
    v1::Device {
        uuid: format!("GPU-{index}"),
        index: u32::from(index),
        name: "sim".to_owned(),
        simulated: true,
    }
}

fn reference(part: &PartRef) -> v1::PartRef {
    v1::PartRef { allocation_id: part.allocation.get(), part_index: part.part.0 }
}

/// Every extent has its own export, except those with an id that seven divides, other than 0.
fn export(extent: ExtentId) -> Option<Export> {
    let lost = extent.get() > 0 && extent.get().is_multiple_of(7);
    (!lost).then(|| Export::CudaIpc(legacy(extent)))
}

fn legacy(extent: ExtentId) -> [u8; 64] {
    let mut bytes = [7; 64];
    bytes[..8].copy_from_slice(&extent.get().to_le_bytes());
    bytes
}
