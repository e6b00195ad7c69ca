//! Frames from a daemon, as the SDK reads them: a daemon of this version, of another, or a program that only
//! claims to be one.
//!
//! The SDK accepts what the schema allows, within the protocol's limits and with each part's reference. It
//! equals what was sent, and can be written and read again. A refusal names its reason in one short line.

use std::collections::BTreeSet;

use prost::Message as _;
use vramd_client::decode_daemon_frame;
use vramd_proto::v1::{DaemonFrame, Tier, daemon_frame::Frame};

use crate::{Verdict, memory};

/// The widest message of two bytes is an empty `MapPart`, of 96 bytes in memory, and a list of them is copied as it
/// grows.
const MEMORY_PER_BYTE: u64 = 192;
const MAP_PARTS_MAX: usize = 128;
const REVOKE_PARTS_MAX: usize = 1024;
const MANAGED_ORDERS_MAX: usize = 512;
const PROBLEM_BYTES_MAX: usize = 256;

pub(crate) fn check(packet: &[u8]) -> Verdict {
    let received = memory::bounded(packet, MEMORY_PER_BYTE, || decode_daemon_frame(packet));
    let sent = DaemonFrame::decode(packet).ok().and_then(|frame| frame.frame);
    match &received {
        Ok(frame) => {
            assert_eq!(Some(frame), sent.as_ref());
            assert!(is_allowed(frame), "{frame:?}");
            let packet = DaemonFrame { frame: Some(frame.clone()) }.encode_to_vec();
            assert_eq!(decode_daemon_frame(&packet).as_ref(), Ok(frame));
        }
        Err(problem) => {
            assert!(!sent.as_ref().is_some_and(is_allowed), "{problem}, of {sent:?}");
            assert!(!problem.is_empty() && problem.len() <= PROBLEM_BYTES_MAX, "{problem}");
            assert!(!problem.contains(char::is_control), "{problem:?}");
        }
    }
    Verdict::of(&received)
}

fn is_allowed(frame: &Frame) -> bool {
    match frame {
        Frame::Welcome(_) | Frame::Refused(_) | Frame::Drain(_) | Frame::PinAnswer(_) => true,
        Frame::PrefetchProgress(_) | Frame::SequenceProgress(_) => true,
        Frame::WorkingSetAnswer(_) | Frame::TurnProgress(_) => true,
        Frame::ManagedOrders(batch) => {
            let named: BTreeSet<u64> = batch.orders.iter().map(|order| order.allocation_id).collect();
            (1..=MANAGED_ORDERS_MAX).contains(&batch.orders.len())
                && named.len() == batch.orders.len()
                && batch.orders.iter().all(|order| matches!(order.to(), Tier::Device | Tier::Host))
        }
        Frame::Pressure(pressure) => pressure.batch_factor.is_finite() && pressure.batch_factor > 0.0,
        Frame::Revoke(revoke) => (1..=REVOKE_PARTS_MAX).contains(&revoke.parts.len()),
        Frame::Map(map) => {
            (1..=MAP_PARTS_MAX).contains(&map.parts.len()) && map.parts.iter().all(|part| part.part.is_some())
        }
    }
}
