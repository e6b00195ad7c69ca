//! The frame codec: converts between the frames of the core and the packets of the protocol. No other file knows both.

mod managed;
mod turns;

use std::time::Duration;

use broker_core::{
    self as core, DaemonFrame, MapPart, PartRange, PartRef, PrefetchSpec, PrefetchState, PressureNote,
    RevokeReason, SequenceSpec, SequenceState, SequenceWindow, UnmappedPart,
};
use broker_driver::Export;
use prost::Message;
use vramd_proto::{channel as protocol, v1};
use vramd_types::{AllocationId, ExtentId, PartIndex, printable_within};

use super::OutFrame;
use crate::events;

/// Maximum bytes of `UnmappedPart.detail` that the daemon keeps.
const DETAIL_BYTES_MAX: usize = 256;

/// The facts beyond the frame that encoding needs.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// All of the daemon's devices, by index.
    pub devices: &'a [v1::Device],
    /// The features that both sides of the channel speak; see [`super::Channels::features`].
    pub features: u64,
    /// The word table of a new session with pins.
    pub word_table: Option<&'a Export>,
    pub export: &'a dyn Fn(ExtentId) -> Option<Export>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("devices", &self.devices).finish_non_exhaustive()
    }
}

/// A frame names an extent of which the shell has no export. This is a bug: the core maps only extents that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("extent {0} has no export")]
pub struct UnknownExtent(pub ExtentId);

/// Encodes a frame as a packet. The exports are in the order of the parts; `MapPart.device` is the `Device.index` of
/// `Welcome.devices`.
pub fn encode(frame: &DaemonFrame, context: Context<'_>) -> Result<OutFrame, UnknownExtent> {
    use v1::daemon_frame::Frame;
    let mut exports = Vec::new();
    let mut note_of = None;
    let frame = match frame {
        DaemonFrame::Welcome { session, tenant, devices, slots } => {
            exports.extend(context.word_table.cloned());
            Frame::Welcome(v1::Welcome {
                session_id: session.shown(),
                protocol_major: protocol::PROTOCOL_MAJOR,
                protocol_minor: protocol::PROTOCOL_MINOR,
                features: context.features,
                daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
                tenant: tenant.clone(),
                devices: devices
                    .iter()
                    .filter_map(|index| context.devices.get(usize::from(index.0)).cloned())
                    .collect(),
                slot_count: *slots,
            })
        }
        DaemonFrame::Refused(refusal) => Frame::Refused(super::refusal_frames::of_core(refusal)),
        DaemonFrame::Map(parts) => {
            let mut packed = Vec::with_capacity(parts.len());
            for part in parts {
                let export = (context.export)(part.extent).ok_or(UnknownExtent(part.extent))?;
                packed.push(map_part(part, &export));
                exports.push(export);
            }
            Frame::Map(v1::Map { parts: packed })
        }
        DaemonFrame::Revoke { parts, reason } => Frame::Revoke(v1::Revoke {
            parts: parts.iter().map(|revoked| part_ref(&revoked.part)).collect(),
            reason: revoke_reason(*reason).into(),
        }),
        DaemonFrame::Lost(part) => {
            Frame::Revoke(v1::Revoke { parts: vec![part_ref(part)], reason: v1::RevokeReason::Lost.into() })
        }
        DaemonFrame::PinAnswer { call, refusal } => Frame::PinAnswer(v1::PinAnswer {
            call_id: *call,
            refused: refusal.as_ref().map(super::refusal_frames::of_core),
        }),
        DaemonFrame::Prefetch { number, state } => Frame::PrefetchProgress(v1::PrefetchProgress {
            prefetch_id: *number,
            step: Some(prefetch_step(state)),
        }),
        DaemonFrame::Sequence { number, state } => Frame::SequenceProgress(v1::SequenceProgress {
            sequence_id: *number,
            step: Some(sequence_step(state)),
        }),
        DaemonFrame::WorkingSet { number, refusal } => turns::answer(*number, refusal.as_ref()),
        DaemonFrame::Turn { turn, state } => turns::progress(*turn, state),
        DaemonFrame::ManagedOrders { number, orders } => managed::orders(*number, orders),
        DaemonFrame::Drain { draining } => Frame::Drain(v1::Drain { draining: *draining }),
        DaemonFrame::Pressure(note) => {
            note_of = Some((note.device, note.tier));
            Frame::Pressure(pressure(note))
        }
    };
    let bytes = v1::DaemonFrame { frame: Some(frame) }.encode_to_vec();
    debug_assert!(bytes.len() <= protocol::FRAME_BYTES_MAX, "a frame of {} bytes", bytes.len());
    Ok(OutFrame { bytes, exports, note_of })
}

fn prefetch_step(state: &PrefetchState) -> v1::prefetch_progress::Step {
    use v1::prefetch_progress::Step;
    match state {
        PrefetchState::Deferred(why) => Step::Deferred(events::deferral(*why).into()),
        PrefetchState::Accepted { expected } => {
            let expected_ms = expected.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
            Step::Accepted(v1::PrefetchAccepted { expected_ms })
        }
        PrefetchState::Ready { left_out, is_late } => {
            Step::Ready(v1::PrefetchReady { parts_left_out: *left_out, late: *is_late })
        }
        PrefetchState::Dropped { cause, by_own_tenant } => Step::Dropped(v1::PrefetchDropped {
            cause: events::move_cause(*cause).into(),
            by_own_tenant: *by_own_tenant,
        }),
        PrefetchState::Cancelled { by_operator } => {
            Step::Cancelled(v1::PrefetchCancelledBy { by_operator: *by_operator })
        }
        PrefetchState::Refused(refusal) => Step::Refused(super::refusal_frames::of_core(refusal)),
    }
}

fn sequence_step(state: &SequenceState) -> v1::sequence_progress::Step {
    use v1::sequence_progress::Step;
    match state {
        SequenceState::Window(SequenceWindow { steps, bytes, shortened, kept }) => {
            let (steps, shortened) = (*steps, *shortened);
            Step::Window(v1::SequenceWindow { steps, bytes: bytes.get(), shortened, kept_bytes: kept.get() })
        }
        SequenceState::Refused(refusal) => Step::Refused(super::refusal_frames::of_core(refusal)),
        SequenceState::Ended { by_operator } => {
            Step::Ended(v1::SequenceEndedBy { by_operator: *by_operator })
        }
    }
}

fn pressure(note: &PressureNote) -> v1::Pressure {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    v1::Pressure {
        device: note.device.0.into(),
        tier: events::tier(note.tier).into(),
        level: events::level(note.pressure).into(),
        batch_factor: f64::from(note.batch_factor) / 1000.0,
        full_in_ms: note.full_in.map(millis),
    }
}

pub(crate) fn revoke_reason(reason: RevokeReason) -> v1::RevokeReason {
    match reason {
        RevokeReason::Freed => v1::RevokeReason::Freed,
        RevokeReason::Detached => v1::RevokeReason::Detached,
        RevokeReason::Sealing => v1::RevokeReason::Sealing,
        RevokeReason::SessionEnded => v1::RevokeReason::SessionEnded,
        RevokeReason::Evicted => v1::RevokeReason::Evicted,
    }
}

fn part_ref(part: &PartRef) -> v1::PartRef {
    v1::PartRef { allocation_id: part.allocation.shown(), part_index: part.part.0 }
}

fn map_part(part: &MapPart, export: &Export) -> v1::MapPart {
    v1::MapPart {
        part: Some(part_ref(&part.part)),
        offset_bytes: part.offset.get(),
        size_bytes: part.size.get(),
        span_bytes: part.span.get(),
        access: if part.writable { v1::Access::ReadWrite } else { v1::Access::ReadOnly }.into(),
        handle_type: match export {
            Export::Memfd(_) => v1::HandleType::Memfd,
            Export::VmmFd(_) => v1::HandleType::VmmFd,
            Export::CudaIpc(_) => v1::HandleType::CudaIpc,
        }
        .into(),
        device: u32::from(part.device.0),
        cuda_ipc_handle: match export {
            Export::CudaIpc(handle) => handle.to_vec(),
            Export::Memfd(_) | Export::VmmFd(_) => Vec::new(),
        },
        slot: part.slot.map_or(0, |slot| slot.0),
        losses: part.drop_count,
    }
}

/// A decoded packet of a client.
#[derive(Debug)]
pub enum Received {
    Hello(v1::Hello),
    Frame {
        frame: core::ClientFrame,
        /// The trace of a pin call or a prefetch request, which the core does not need.
        trace: Option<v1::TraceContext>,
    },
}

impl Received {
    fn plain(frame: core::ClientFrame) -> Self {
        Self::Frame { frame, trace: None }
    }
}

/// Decodes one packet. The error says why it is not a frame.
pub fn decode(packet: &[u8]) -> Result<Received, String> {
    use v1::client_frame::Frame;
    let frame =
        v1::ClientFrame::decode(packet).map_err(|error| format!("the packet is not a frame: {error}"))?;
    match frame.frame {
        None => Err("the frame is empty, or of a kind that this daemon does not know".to_owned()),
        Some(Frame::Hello(hello)) => Ok(Received::Hello(hello)),
        Some(Frame::Mapped(mapped)) => {
            bounded(mapped.parts.len())?;
            let parts = mapped.parts.iter().map(core_part).collect();
            Ok(Received::plain(core::ClientFrame::Mapped(parts)))
        }
        Some(Frame::WordsMapped(_)) => Ok(Received::plain(core::ClientFrame::WordsMapped)),
        Some(Frame::Pin(pin)) => {
            bounded(pin.parts.len())?;
            let parts = pin.parts.iter().map(core_part).collect();
            let frame = core::ClientFrame::Pin {
                call: pin.call_id,
                parts,
                write: pin.write,
                wait: pin.wait_ms.map(Duration::from_millis),
            };
            Ok(Received::Frame { frame, trace: pin.trace })
        }
        Some(Frame::Prefetch(asked)) => {
            bounded(asked.parts.len())?;
            let priority = u8::try_from(asked.priority)
                .map_err(|_| format!("the priority {} is above 255", asked.priority))?;
            let spec = PrefetchSpec {
                parts: asked.parts.iter().map(core_part).collect(),
                whole: !asked.partial,
                within: asked.within_ms.map(Duration::from_millis),
                priority,
            };
            let frame = core::ClientFrame::Prefetch { number: asked.prefetch_id, spec };
            Ok(Received::Frame { frame, trace: asked.trace })
        }
        Some(Frame::PrefetchCancelled(cancelled)) => {
            Ok(Received::plain(core::ClientFrame::PrefetchCancelled { number: cancelled.prefetch_id }))
        }
        Some(Frame::Sequence(declared)) => {
            let number = declared.sequence_id;
            Ok(Received::plain(core::ClientFrame::Sequence { number, spec: sequence(&declared) }))
        }
        Some(Frame::SequenceStepBegun(begun)) => Ok(Received::plain(core::ClientFrame::SequenceStepBegun {
            number: begun.sequence_id,
            step: begun.step,
        })),
        Some(Frame::SequenceEnded(ended)) => {
            Ok(Received::plain(core::ClientFrame::SequenceEnded { number: ended.sequence_id }))
        }
        Some(Frame::WorkingSet(named)) => turns::working_set(named).map(Received::plain),
        Some(Frame::WorkingSetEnded(ended)) => Ok(Received::plain(turns::set_ended(&ended))),
        Some(Frame::TurnAcquire(wanted)) => Ok(Received::plain(turns::requested(&wanted))),
        Some(Frame::TurnYielded(yielded)) => Ok(Received::plain(turns::yielded(&yielded))),
        Some(Frame::ManagedOrdersDone(done)) => managed::done(done).map(Received::plain),
        Some(Frame::PinEnded(ended)) => {
            Ok(Received::plain(core::ClientFrame::PinEnded { call: ended.call_id }))
        }
        Some(Frame::Unmapped(unmapped)) => {
            bounded(unmapped.parts.len())?;
            let parts = unmapped.parts.into_iter().map(unmapped_part).collect::<Result<_, _>>()?;
            Ok(Received::plain(core::ClientFrame::Unmapped(parts)))
        }
    }
}

fn bounded(parts: usize) -> Result<(), String> {
    match parts {
        0 => Err("the frame names no part".to_owned()),
        1..=protocol::PARTS_PER_FRAME_MAX => Ok(()),
        _ => Err(format!(
            "the frame names {parts} parts, at most {} are allowed",
            protocol::PARTS_PER_FRAME_MAX
        )),
    }
}

/// The core bounds it.
fn sequence(declared: &v1::Sequence) -> SequenceSpec {
    let range = |range: &v1::PartRange| PartRange {
        allocation: AllocationId::from_shown(range.allocation_id),
        first: PartIndex(range.first_part),
        count: range.part_count,
    };
    let steps = declared.steps.iter().map(|step| step.ranges.iter().map(range).collect());
    SequenceSpec { steps: steps.collect(), passes: declared.passes }
}

fn core_part(part: &v1::PartRef) -> PartRef {
    PartRef { allocation: AllocationId::from_shown(part.allocation_id), part: PartIndex(part.part_index) }
}

fn unmapped_part(unmapped: v1::UnmappedPart) -> Result<UnmappedPart, String> {
    let part = unmapped.part.ok_or("an unmapped part has no reference")?;
    let failure = match v1::UnmapReason::try_from(unmapped.reason) {
        Ok(v1::UnmapReason::Done) => None,
        Ok(v1::UnmapReason::MapFailed) => Some(printable_within(&unmapped.detail, DETAIL_BYTES_MAX)),
        Ok(v1::UnmapReason::Unspecified) | Err(_) => {
            return Err(format!("an unmapped part has the unknown reason {}", unmapped.reason));
        }
    };
    Ok(UnmappedPart { part: core_part(&part), failure, written: unmapped.written })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use broker_core::{ClientFrame, Refusal, RevokedPart, Slot};
    use vramd_types::{Bytes, DeviceIndex, SessionId};

    use super::*;

    fn client(frame: v1::client_frame::Frame) -> Vec<u8> {
        v1::ClientFrame { frame: Some(frame) }.encode_to_vec()
    }

    fn reference(part_index: u32) -> v1::PartRef {
        v1::PartRef { allocation_id: 7, part_index }
    }

    fn daemon(frame: &OutFrame) -> v1::daemon_frame::Frame {
        v1::DaemonFrame::decode(&frame.bytes[..]).unwrap().frame.unwrap()
    }

    #[test]
    fn client_frames_are_read() {
        let mapped =
            client(v1::client_frame::Frame::Mapped(v1::Mapped { parts: vec![reference(0), reference(1)] }));
        let Ok(Received::Frame { frame: ClientFrame::Mapped(parts), .. }) = decode(&mapped) else { panic!() };
        assert_eq!(parts[1], PartRef { allocation: AllocationId::from_shown(7), part: PartIndex(1) });

        let failed = v1::UnmappedPart {
            part: Some(reference(3)),
            reason: v1::UnmapReason::MapFailed.into(),
            detail: "ä".repeat(200),
            ..v1::UnmappedPart::default()
        };
        let unmapped = client(v1::client_frame::Frame::Unmapped(v1::Unmapped { parts: vec![failed] }));
        let Ok(Received::Frame { frame: ClientFrame::Unmapped(parts), .. }) = decode(&unmapped) else {
            panic!()
        };
        assert_eq!(parts[0].failure.as_deref(), Some(&*"ä".repeat(128)));
    }

    #[test]
    fn frames_about_pins_are_read() {
        let sent = v1::TraceContext { traceparent: "of the caller".to_owned(), tracestate: String::new() };
        let pin = v1::Pin {
            call_id: 9,
            parts: vec![reference(4)],
            write: true,
            trace: Some(sent.clone()),
            wait_ms: Some(7),
        };
        let Ok(Received::Frame { frame: ClientFrame::Pin { call: 9, parts, write: true, wait }, trace }) =
            decode(&client(v1::client_frame::Frame::Pin(pin)))
        else {
            panic!()
        };
        assert_eq!((trace, wait), (Some(sent), Some(Duration::from_millis(7))));
        assert_eq!(parts, [PartRef { allocation: AllocationId::from_shown(7), part: PartIndex(4) }]);
        let ended = client(v1::client_frame::Frame::PinEnded(v1::PinEnded { call_id: 9 }));
        let ended = decode(&ended);
        assert!(matches!(ended, Ok(Received::Frame { frame: ClientFrame::PinEnded { call: 9 }, .. })));
        for parts in [0, 1025] {
            let pin = v1::Pin { parts: vec![reference(0); parts], ..v1::Pin::default() };
            assert!(decode(&client(v1::client_frame::Frame::Pin(pin))).is_err(), "{parts}");
        }
    }

    #[test]
    fn malformed_frames_name_their_problem() {
        let no_parts = client(v1::client_frame::Frame::Mapped(v1::Mapped { parts: vec![] }));
        let many = client(v1::client_frame::Frame::Mapped(v1::Mapped { parts: vec![reference(0); 1025] }));
        let unmapped = |part, reason| {
            let parts = vec![v1::UnmappedPart { part, reason, ..v1::UnmappedPart::default() }];
            client(v1::client_frame::Frame::Unmapped(v1::Unmapped { parts }))
        };
        for (packet, problem) in [
            (&b""[..], "frame is empty"),
            (b"\xff\xff\xff", "not a frame"),
            (&no_parts, "names no part"),
            (&many, "1025 parts"),
            (&unmapped(None, 1), "has no reference"),
            (&unmapped(Some(reference(0)), 0), "unknown reason 0"),
            (&unmapped(Some(reference(0)), 9), "unknown reason 9"),
        ] {
            let error = decode(packet).expect_err(problem);
            assert!(error.contains(problem), "{error} / {problem}");
        }
        for cut in 1..many.len().min(64) {
            let _ = decode(&many[..cut]);
        }
    }

    #[test]
    fn a_map_carries_its_handles_in_order() {
        let memfd = rustix::fs::memfd_create("frame-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let export = Export::Memfd(Arc::new(memfd.into()));
        let known = |extent: ExtentId| (extent.get() < 10).then(|| export.clone());
        let context = Context { devices: &[], features: 0, word_table: None, export: &known };
        let part = |extent| MapPart {
            part: PartRef { allocation: AllocationId::from_shown(7), part: PartIndex(0) },
            extent: ExtentId::from_raw(extent),
            device: DeviceIndex(2),
            offset: Bytes::ZERO,
            size: Bytes::mib(2),
            span: Bytes::mib(4),
            writable: false,
            slot: Some(Slot(7)),
            drop_count: 3,
        };
        let frame = encode(&DaemonFrame::Map(vec![part(1), part(2)]), context).unwrap();
        assert_eq!(frame.exports.len(), 2);
        let v1::daemon_frame::Frame::Map(map) = daemon(&frame) else { panic!() };
        assert_eq!(map.parts[0].access(), v1::Access::ReadOnly);
        assert_eq!(map.parts[0].handle_type(), v1::HandleType::Memfd);
        assert_eq!(map.parts[0].losses, 3);
        assert_eq!((map.parts[0].device, map.parts[0].span_bytes, map.parts[0].slot), (2, 4 << 20, 7));

        let lost = encode(&DaemonFrame::Map(vec![part(11)]), context);
        assert_eq!(lost.err(), Some(UnknownExtent(ExtentId::from_raw(11))));
    }

    #[test]
    fn a_pressure_note_names_its_device_and_tier() {
        let none = |_| None;
        let context = Context { devices: &[], features: 0, word_table: None, export: &none };
        let note = PressureNote {
            device: DeviceIndex(2),
            tier: broker_core::Tier::Host,
            pressure: broker_core::Pressure::High,
            batch_factor: 868,
            full_in: Some(Duration::from_micros(12_345_678)),
        };
        let frame = encode(&DaemonFrame::Pressure(note), context).unwrap();
        assert_eq!(frame.note_of, Some((DeviceIndex(2), broker_core::Tier::Host)));
        let v1::daemon_frame::Frame::Pressure(told) = daemon(&frame) else { panic!() };
        assert_eq!((told.device, told.tier(), told.level()), (2, v1::Tier::Host, v1::PressureLevel::High));
        assert_eq!((told.batch_factor, told.full_in_ms), (0.868, Some(12_345)));
        let drain = encode(&DaemonFrame::Drain { draining: true }, context).unwrap();
        assert_eq!(drain.note_of, None);
    }

    #[test]
    fn the_largest_frames_fit_in_a_packet() {
        let part = PartRef { allocation: AllocationId::from_shown(u64::MAX), part: PartIndex(u32::MAX) };
        let none = |_| None;
        let context = Context { devices: &[], features: 0, word_table: None, export: &none };
        let revoke = DaemonFrame::Revoke {
            parts: vec![RevokedPart { part, slot: None }; broker_core::limits::PARTS_PER_FRAME_MAX],
            reason: RevokeReason::Freed,
        };
        assert!(encode(&revoke, context).unwrap().bytes.len() <= protocol::FRAME_BYTES_MAX);
    }

    #[test]
    fn a_refusal_and_a_welcome_say_what_the_core_said() {
        let none = |_| None;
        let device = v1::Device { uuid: "GPU-1".into(), index: 1, name: "sim".into(), simulated: true };
        let devices = [v1::Device::default(), device.clone()];
        let memfd = rustix::fs::memfd_create("frame-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let table = Export::Memfd(Arc::new(memfd.into()));
        let context = Context { devices: &devices, features: 2, word_table: Some(&table), export: &none };
        let welcome = DaemonFrame::Welcome {
            session: SessionId::from_shown(5),
            tenant: "team-a".into(),
            devices: vec![DeviceIndex(1)],
            slots: 64,
        };
        let packet = encode(&welcome, context).unwrap();
        assert_eq!(packet.exports.len(), 1, "the word table");
        let v1::daemon_frame::Frame::Welcome(welcome) = daemon(&packet) else { panic!() };
        assert_eq!(welcome.slot_count, 64);
        assert_eq!((welcome.session_id, welcome.features, welcome.devices), (5, 2, vec![device]));

        let refused = DaemonFrame::Refused(Refusal::SessionsTooMany { tenant: "team-a".into(), limit: 3 });
        let v1::daemon_frame::Frame::Refused(refused) = daemon(&encode(&refused, context).unwrap()) else {
            panic!()
        };
        assert_eq!((refused.code, refused.reason.as_str()), (8, "SESSIONS_TOO_MANY"));
        assert_eq!(refused.metadata["limit_count"], "3");
    }
}
