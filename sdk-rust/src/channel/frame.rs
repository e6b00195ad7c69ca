//! Decodes packets into frames of the daemon: the one place where the SDK checks what it reads.
//!
//! A frame that breaks the protocol's limits, or a part without its reference, ends the channel. The worker could
//! only guess which descriptor belongs to which part, and a wrong guess maps one allocation as another.

use std::collections::BTreeSet;

use prost::Message as _;
use vramd_proto::{
    channel::{FDS_PER_PACKET_MAX, MANAGED_ORDERS_MAX, PARTS_PER_FRAME_MAX},
    v1::{DaemonFrame, Pressure, Tier, daemon_frame::Frame},
};

/// Decodes one packet, or says why it is no frame.
pub fn decode(packet: &[u8]) -> Result<Frame, String> {
    let frame = DaemonFrame::decode(packet).map_err(|error| format!("the packet is not a frame: {error}"))?;
    let frame = frame.frame.ok_or("the frame is empty, or of a kind that this build does not know")?;
    match &frame {
        Frame::Map(map) => {
            bounded(map.parts.len(), FDS_PER_PACKET_MAX)?;
            if map.parts.iter().any(|part| part.part.is_none()) {
                return Err("a map frame has a part without its reference".to_owned());
            }
        }
        Frame::Revoke(revoke) => bounded(revoke.parts.len(), PARTS_PER_FRAME_MAX)?,
        // Programs multiply their batch sizes by the factor.
        Frame::Pressure(Pressure { batch_factor: factor, .. }) if !(factor.is_finite() && *factor > 0.0) => {
            return Err(format!("a pressure frame has the batch factor {factor:e}"));
        }
        // The orders of a batch hold the locks of their memory together.
        Frame::ManagedOrders(batch) => {
            bounded(batch.orders.len(), MANAGED_ORDERS_MAX)?;
            let named: BTreeSet<u64> = batch.orders.iter().map(|order| order.allocation_id).collect();
            if named.len() < batch.orders.len() {
                return Err("a frame of managed orders names an allocation twice".to_owned());
            }
            if batch.orders.iter().any(|order| !matches!(order.to(), Tier::Device | Tier::Host)) {
                return Err("a managed order is to no place that this build knows".to_owned());
            }
        }
        Frame::Pressure(_)
        | Frame::Welcome(_)
        | Frame::Refused(_)
        | Frame::Drain(_)
        | Frame::PinAnswer(_)
        | Frame::PrefetchProgress(_)
        | Frame::SequenceProgress(_)
        | Frame::WorkingSetAnswer(_)
        | Frame::TurnProgress(_) => {}
    }
    Ok(frame)
}

fn bounded(parts: usize, parts_max: usize) -> Result<(), String> {
    match parts {
        0 => Err("the frame names no part".to_owned()),
        parts if parts <= parts_max => Ok(()),
        parts => Err(format!("the frame names {parts} parts, and at most {parts_max} are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use vramd_proto::v1::{Drain, ManagedOrder, ManagedOrders, Map, MapPart, PartRef, Revoke};

    use super::*;

    fn packet(frame: Frame) -> Vec<u8> {
        DaemonFrame { frame: Some(frame) }.encode_to_vec()
    }

    fn map(parts: usize) -> Vec<u8> {
        let part = MapPart { part: Some(PartRef::default()), ..MapPart::default() };
        packet(Frame::Map(Map { parts: vec![part; parts] }))
    }

    fn revoke(parts: usize) -> Vec<u8> {
        packet(Frame::Revoke(Revoke { parts: vec![PartRef::default(); parts], reason: 0 }))
    }

    fn pressure(batch_factor: f64) -> Vec<u8> {
        packet(Frame::Pressure(Pressure { batch_factor, ..Pressure::default() }))
    }

    fn orders(ids: impl IntoIterator<Item = u64>, to: i32) -> Vec<u8> {
        let orders = ids.into_iter().map(|allocation_id| ManagedOrder { allocation_id, to });
        packet(Frame::ManagedOrders(ManagedOrders { batch_id: 1, orders: orders.collect() }))
    }

    #[test]
    fn managed_orders_name_each_allocation_once_and_a_place() {
        let host = Tier::Host.into();
        assert!(matches!(decode(&orders(0..512, host)), Ok(Frame::ManagedOrders(_))));
        assert!(decode(&orders(0..513, host)).is_err());
        assert!(decode(&orders([], host)).is_err());
        assert!(decode(&orders([7, 8, 7], host)).unwrap_err().contains("twice"));
        for to in [Tier::Unspecified.into(), Tier::Disk.into(), 99] {
            assert!(decode(&orders([7], to)).unwrap_err().contains("no place"), "{to}");
        }
    }

    #[test]
    fn the_largest_frames_are_read() {
        assert!(matches!(decode(&map(128)), Ok(Frame::Map(map)) if map.parts.len() == 128));
        assert!(matches!(decode(&revoke(1024)), Ok(Frame::Revoke(revoke)) if revoke.parts.len() == 1024));
        let drain = Frame::Drain(Drain { draining: true });
        assert_eq!(decode(&packet(drain.clone())), Ok(drain));
        assert!(matches!(decode(&pressure(0.8)), Ok(Frame::Pressure(_))));
    }

    #[test]
    fn invalid_frames_are_refused_with_their_problem() {
        let nameless = packet(Frame::Map(Map { parts: vec![MapPart::default()] }));
        for (packet, problem) in [
            (&b""[..], "frame is empty"),
            (b"\xff\xff\xff", "not a frame"),
            (&map(0), "names no part"),
            (&map(129), "129 parts"),
            (&revoke(0), "names no part"),
            (&revoke(1025), "1025 parts"),
            (&nameless, "without its reference"),
            (&pressure(f64::NAN), "factor NaN"),
            (&pressure(f64::INFINITY), "factor inf"),
            (&pressure(-0.8), "factor -8e-1"),
            (&pressure(0.0), "factor 0"),
            (&pressure(f64::MIN), "factor -1.79"),
        ] {
            let error = decode(packet).expect_err(problem);
            assert!(error.len() < 100, "{error}");
            assert!(error.contains(problem), "{error} / {problem}");
        }
    }
}
