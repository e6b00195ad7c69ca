//! Events per second, over a number of live allocations.

use std::time::Duration;

use crate::{
    meter::{Pace, processor_time},
    mix::Mix,
};

/// One stretch of the workload.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub events: u64,
    pub queries: u64,
    /// Time inside the core: processor time of the thread, and wall time.
    pub core: Duration,
    pub core_wall: Duration,
    /// Processor time of everything: the core, the stand-ins of the shell, and the dropping of commands.
    pub all: Duration,
}

impl Slice {
    pub fn events_per_second(&self) -> f64 {
        per_second(self.events, self.core)
    }

    pub fn events_per_second_on_the_wall(&self) -> f64 {
        per_second(self.events, self.core_wall)
    }

    pub fn events_per_second_of_all(&self) -> f64 {
        per_second(self.events, self.all)
    }
}

pub fn measure(live: usize, slices: usize, events: u64) -> Vec<Slice> {
    let mut mix = Mix::new(Pace::Bursts, live);
    slice(&mut mix, events);
    (0..slices).map(|_| slice(&mut mix, events)).collect()
}

fn slice(mix: &mut Mix, events: u64) -> Slice {
    let meter = &mix.shell.meter;
    let (events_before, queries_before) = (meter.events, meter.queries);
    let (core_before, wall_before) = (meter.core, meter.core_wall);
    let start = processor_time();
    while mix.shell.meter.events < events_before + events {
        mix.round();
    }
    let meter = &mix.shell.meter;
    Slice {
        events: meter.events - events_before,
        queries: meter.queries - queries_before,
        core: meter.core.saturating_sub(core_before),
        core_wall: meter.core_wall.saturating_sub(wall_before),
        all: processor_time().saturating_sub(start),
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate, not a count")]
fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
