//! The cost of one event, by kind, against the number of live allocations.

use crate::{
    kind::Kind,
    meter::{Meter, Pace},
    mix::Mix,
};

#[derive(Debug)]
pub struct Point {
    pub live: usize,
    pub kinds: Vec<Cost>,
}

/// Nanoseconds of one kind of event, each including two readings of the clock.
#[derive(Clone, Debug)]
pub struct Cost {
    pub kind: Kind,
    pub samples: usize,
    pub median: u32,
    pub p99: u32,
    pub mean: u32,
}

impl Point {
    pub fn cost(&self, kind: Kind) -> Option<&Cost> {
        self.kinds.iter().find(|cost| cost.kind == kind)
    }
}

/// Runs the mix over `live` allocations: a quarter of `rounds` to warm up, then the rounds that count.
pub fn measure(live: usize, rounds: u32) -> Point {
    let mut mix = Mix::new(Pace::Single, live);
    for _ in 0..rounds / 4 {
        mix.round();
    }
    mix.shell.meter = Meter::new(Pace::Single);
    for _ in 0..rounds {
        mix.round();
    }
    let samples = std::mem::take(&mut mix.shell.meter.samples);
    let costs = Kind::ALL.iter().copied().zip(samples).filter(|(_, samples)| !samples.is_empty());
    Point { live, kinds: costs.map(|(kind, samples)| cost(kind, samples)).collect() }
}

fn cost(kind: Kind, mut samples: Vec<u32>) -> Cost {
    samples.sort_unstable();
    let at = |percent: usize| samples[(samples.len() - 1) * percent / 100];
    let sum: u64 = samples.iter().copied().map(u64::from).sum();
    let count = u64::try_from(samples.len()).expect("64 bits");
    let mean = u32::try_from(sum / count).expect("a mean is not above all");
    Cost { kind, samples: samples.len(), median: at(50), p99: at(99), mean }
}
