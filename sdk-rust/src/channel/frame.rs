//! Decodes packets into frames of the daemon: the one place where the SDK checks what it reads.
//!
//! A frame that breaks the protocol's limits, or a part without its reference, ends the channel. The worker could
//! only guess which descriptor belongs to which part, and a wrong guess maps one allocation as another.

use prost::Message as _;
use vramd_proto::{
    channel::{FDS_PER_PACKET_MAX, PARTS_PER_FRAME_MAX},
    v1::{DaemonFrame, Pressure, daemon_frame::Frame},
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
    use vramd_proto::v1::{Drain, Map, MapPart, PartRef, Revoke};

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
