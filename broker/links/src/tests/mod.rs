mod lane;
mod shared;
mod wire;

use std::time::Duration;

use vramd_types::CopyClass::{Demand, Prefetch, WriteBack};
use vramd_types::{Bytes, CopyClass, Shares};

use crate::{Crossing, Links, STARVED_AFTER_CHUNKS, WaitingClasses};

const CHUNK: Bytes = Bytes::mib(8);

fn waiting(classes: &[CopyClass]) -> WaitingClasses {
    classes.iter().copied().collect()
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Equal lanes that share one link of that speed.
fn sharing(shares: Shares, lanes: usize, bytes_per_s: u64) -> Links {
    let crossing = |lane| Crossing { lane, bytes_per_s, lane_bytes_per_s: None };
    Links::new(shares, CHUNK, lanes, vec![(0..lanes).map(crossing).collect()])
}
