//! Frames that a client may send to `channel.sock`, as the daemon reads them.
//!
//! The daemon accepts what the schema allows, with 1 to 1,024 parts, each with a reference and a known
//! reason. Nothing is lost or reordered, and an accepted frame can be written and reads the same again. A
//! refusal names its reason in one short line, since it goes to the log and back to the client.

use broker_core::{ClientFrame, PartRange, PartRef, UnmappedPart};
use prost::Message as _;
use vramd::channel::frame_codec::{self, Received};
use vramd_proto::v1::{self, client_frame::Frame};
use vramd_types::AllocationId;

use crate::{Verdict, memory};

/// The widest message of two bytes is an empty `UnmappedPart`, of 56 bytes in memory, and a list of them is copied as
/// it grows.
const MEMORY_PER_BYTE: u64 = 128;
const PARTS_MAX: usize = 1024;
const SET_ALLOCATIONS_MAX: usize = 4096;
const MANAGED_ORDERS_MAX: usize = 512;
const DETAIL_BYTES_MAX: usize = 256;
const PROBLEM_BYTES_MAX: usize = 256;

pub(crate) fn check(packet: &[u8]) -> Verdict {
    let received = memory::bounded(packet, MEMORY_PER_BYTE, || frame_codec::decode(packet));
    let sent = v1::ClientFrame::decode(packet).ok().and_then(|frame| frame.frame);
    let allowed = sent.as_ref().is_some_and(is_allowed);
    assert_eq!(received.is_ok(), allowed, "{received:?} of {sent:?}");
    match &received {
        Ok(received) => {
            let written = written(received);
            same_parts(sent.as_ref().expect("it is allowed"), &written);
            let packet = v1::ClientFrame { frame: Some(written) }.encode_to_vec();
            let again = frame_codec::decode(&packet).expect("an accepted frame is accepted again");
            assert_eq!(format!("{again:?}"), format!("{received:?}"));
        }
        Err(problem) => {
            assert!(!problem.is_empty() && problem.len() <= PROBLEM_BYTES_MAX, "{problem}");
            assert!(!problem.contains(char::is_control), "{problem:?}");
        }
    }
    Verdict::of(&received)
}

fn is_allowed(frame: &Frame) -> bool {
    let count = |parts: usize| (1..=PARTS_MAX).contains(&parts);
    match frame {
        Frame::Hello(_) => true,
        Frame::WordsMapped(_) | Frame::PinEnded(_) => true,
        Frame::PrefetchCancelled(_) => true,
        Frame::Sequence(_) | Frame::SequenceStepBegun(_) | Frame::SequenceEnded(_) => true,
        Frame::WorkingSet(set) => set.allocation_ids.len() <= SET_ALLOCATIONS_MAX,
        Frame::WorkingSetEnded(_) | Frame::TurnAcquire(_) | Frame::TurnYielded(_) => true,
        Frame::ManagedOrdersDone(done) => done.failures.len() <= MANAGED_ORDERS_MAX,
        Frame::Pin(pin) => count(pin.parts.len()),
        Frame::Prefetch(asked) => count(asked.parts.len()) && asked.priority <= 255,
        Frame::Mapped(mapped) => count(mapped.parts.len()),
        Frame::Unmapped(unmapped) => {
            count(unmapped.parts.len())
                && unmapped.parts.iter().all(|part| part.part.is_some() && (1..=2).contains(&part.reason))
        }
    }
}

/// The frame that a client would have sent to mean this.
fn written(received: &Received) -> Frame {
    match received {
        Received::Hello(hello) => Frame::Hello(hello.clone()),
        Received::Frame { frame: ClientFrame::WordsMapped, .. } => Frame::WordsMapped(v1::WordsMapped {}),
        Received::Frame { frame: ClientFrame::Pin { call, parts, write, wait }, trace } => {
            Frame::Pin(v1::Pin {
                call_id: *call,
                parts: parts.iter().map(reference).collect(),
                write: *write,
                trace: trace.clone(),
                wait_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap()),
            })
        }
        Received::Frame { frame: ClientFrame::Prefetch { number, spec }, trace } => {
            Frame::Prefetch(v1::Prefetch {
                prefetch_id: *number,
                parts: spec.parts.iter().map(reference).collect(),
                partial: !spec.whole,
                within_ms: spec.within.map(|within| u64::try_from(within.as_millis()).unwrap()),
                priority: spec.priority.into(),
                trace: trace.clone(),
            })
        }
        Received::Frame { frame: ClientFrame::PrefetchCancelled { number }, .. } => {
            Frame::PrefetchCancelled(v1::PrefetchCancelled { prefetch_id: *number })
        }
        Received::Frame { frame: ClientFrame::Sequence { number, spec }, .. } => {
            let steps =
                spec.steps.iter().map(|step| v1::SequenceStep { ranges: step.iter().map(range).collect() });
            Frame::Sequence(v1::Sequence {
                sequence_id: *number,
                steps: steps.collect(),
                passes: spec.passes,
            })
        }
        Received::Frame { frame: ClientFrame::SequenceStepBegun { number, step }, .. } => {
            Frame::SequenceStepBegun(v1::SequenceStepBegun { sequence_id: *number, step: *step })
        }
        Received::Frame { frame: ClientFrame::SequenceEnded { number }, .. } => {
            Frame::SequenceEnded(v1::SequenceEnded { sequence_id: *number })
        }
        Received::Frame { frame: ClientFrame::WorkingSet { number, spec }, .. } => {
            Frame::WorkingSet(v1::WorkingSet {
                set_id: *number,
                name: spec.name.clone(),
                allocation_ids: spec.allocations.iter().map(|id| id.get()).collect(),
            })
        }
        Received::Frame { frame: ClientFrame::WorkingSetEnded { number }, .. } => {
            Frame::WorkingSetEnded(v1::WorkingSetEnded { set_id: *number })
        }
        Received::Frame { frame: ClientFrame::TurnRequested { turn, set, wait }, .. } => {
            Frame::TurnAcquire(v1::TurnAcquire {
                turn_id: *turn,
                set_id: *set,
                wait_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap()),
            })
        }
        Received::Frame { frame: ClientFrame::TurnYielded { turn }, .. } => {
            Frame::TurnYielded(v1::TurnYielded { turn_id: *turn })
        }
        Received::Frame { frame: ClientFrame::ManagedOrdersDone { number, failed }, .. } => {
            let failure = |(id, problem): &(AllocationId, String)| v1::ManagedOrderFailure {
                allocation_id: id.shown(),
                problem: problem.clone(),
            };
            Frame::ManagedOrdersDone(v1::ManagedOrdersDone {
                batch_id: *number,
                failures: failed.iter().map(failure).collect(),
            })
        }
        Received::Frame { frame: ClientFrame::PinEnded { call }, .. } => {
            Frame::PinEnded(v1::PinEnded { call_id: *call })
        }
        Received::Frame { frame: ClientFrame::Mapped(parts), .. } => {
            Frame::Mapped(v1::Mapped { parts: parts.iter().map(reference).collect() })
        }
        Received::Frame { frame: ClientFrame::Unmapped(parts), .. } => {
            Frame::Unmapped(v1::Unmapped { parts: parts.iter().map(unmapped).collect() })
        }
    }
}

fn range(range: &PartRange) -> v1::PartRange {
    v1::PartRange {
        allocation_id: range.allocation.get(),
        first_part: range.first.0,
        part_count: range.count,
    }
}

fn reference(part: &PartRef) -> v1::PartRef {
    v1::PartRef { allocation_id: part.allocation.get(), part_index: part.part.0 }
}

fn unmapped(part: &UnmappedPart) -> v1::UnmappedPart {
    let reason =
        if part.failure.is_some() { v1::UnmapReason::MapFailed } else { v1::UnmapReason::Done }.into();
    let detail = part.failure.clone().unwrap_or_default();
    assert!(detail.len() <= DETAIL_BYTES_MAX, "{} bytes of detail", detail.len());
    assert!(!detail.contains(char::is_control), "{detail:?}");
    v1::UnmappedPart { part: Some(reference(&part.part)), reason, detail, written: part.written }
}

/// Compares all but the details, which are cleaned for display.
fn same_parts(sent: &Frame, written: &Frame) {
    match (sent, written) {
        (Frame::Unmapped(sent), Frame::Unmapped(written)) => {
            let all = |frame: &v1::Unmapped| -> Vec<_> {
                frame.parts.iter().map(|part| (part.part, part.reason)).collect()
            };
            assert_eq!(all(sent), all(written));
        }
        (Frame::ManagedOrdersDone(sent), Frame::ManagedOrdersDone(written)) => {
            let all = |done: &v1::ManagedOrdersDone| -> Vec<_> {
                done.failures.iter().map(|failure| failure.allocation_id).collect()
            };
            assert_eq!((sent.batch_id, all(sent)), (written.batch_id, all(written)));
        }
        (sent, written) => assert_eq!(sent, written),
    }
}
