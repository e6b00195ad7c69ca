//! The clock of the benchmark and its counts.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use broker_core::{Broker, Command, Event, Time};
use rustix::time::{ClockId, clock_gettime};

use crate::{counted::regions, kind::Kind};

/// How events are handed to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// All ready events, then all commands, as the reactor does: for events per second.
    Bursts,
    /// One event, then its commands, with two readings of the clock: for the cost of each kind.
    Single,
    /// As in bursts, without any reading of the clock: for counts of instructions.
    Untimed,
}

#[derive(Debug)]
pub struct Meter {
    pub pace: Pace,
    /// Whether events and queries run in counted regions.
    pub counting: bool,
    /// Time inside `handle`, `poll_command` and the getters: processor time of this thread, then wall time.
    pub core: Duration,
    pub core_wall: Duration,
    /// Calls of `handle`.
    pub events: u64,
    /// Calls of getters. Their time counts as time of the core, but not as events.
    pub queries: u64,
    /// Nanoseconds of each event or query, by kind.
    pub samples: Vec<Vec<u32>>,
}

/// The most events that are handed over before commands are fetched.
const BURST: usize = 64;

impl Meter {
    pub fn new(pace: Pace) -> Self {
        let samples = Kind::ALL.iter().map(|_| Vec::new()).collect();
        Self {
            pace,
            counting: false,
            core: Duration::ZERO,
            core_wall: Duration::ZERO,
            events: 0,
            queries: 0,
            samples,
        }
    }

    pub const fn burst(&self) -> usize {
        match self.pace {
            Pace::Bursts | Pace::Untimed => BURST,
            Pace::Single => 1,
        }
    }

    /// Hands the events to the core and fetches the commands that they caused. Nothing else is between the
    /// two readings of the clock.
    pub fn handle(
        &mut self,
        broker: &mut Broker,
        now: Time,
        events: Vec<Event>,
        commands: &mut Vec<Command>,
    ) {
        let kind = events.first().map_or(Kind::Other, Kind::of);
        self.events += u64::try_from(events.len()).expect("few");
        let start = Started::now(self.pace);
        self.work(kind, || {
            for event in events {
                broker.handle(now, event);
            }
            while let Some(command) = broker.poll_command() {
                commands.push(command);
            }
        });
        let took = start.elapsed();
        self.record(kind, took);
    }

    /// Calls a getter. Its answer is dropped after the clock was read.
    pub fn query<T>(&mut self, kind: Kind, ask: impl FnOnce() -> T) {
        let start = Started::now(self.pace);
        let answer = self.work(kind, || black_box(ask()));
        let took = start.elapsed();
        drop(answer);
        self.queries += 1;
        self.record(kind, took);
    }

    /// Runs work of the core, in a counted region if the meter counts.
    fn work<R>(&self, kind: Kind, work: impl FnOnce() -> R) -> R {
        match (self.counting, self.pace) {
            (false, _) => work(),
            (true, Pace::Single) => kind.count(work),
            (true, Pace::Bursts | Pace::Untimed) => regions::whole(work),
        }
    }

    fn record(&mut self, kind: Kind, (wall, processor): (Duration, Duration)) {
        self.core += processor;
        self.core_wall += wall;
        let of_kind = Kind::ALL.iter().position(|known| *known == kind);
        if self.pace == Pace::Single
            && let Some(samples) = of_kind.and_then(|at| self.samples.get_mut(at))
        {
            samples.push(u32::try_from(wall.as_nanos()).unwrap_or(u32::MAX));
        }
    }
}

/// A moment by both clocks. Processor time is read around bursts only: reading it costs as much as an event.
struct Started {
    wall: Option<Instant>,
    processor: Option<Duration>,
}

impl Started {
    fn now(pace: Pace) -> Self {
        let processor = (pace == Pace::Bursts).then(processor_time);
        Self { wall: (pace != Pace::Untimed).then(Instant::now), processor }
    }

    fn elapsed(&self) -> (Duration, Duration) {
        let wall = self.wall.map_or(Duration::ZERO, |start| start.elapsed());
        (wall, self.processor.map_or(wall, |start| processor_time().saturating_sub(start)))
    }
}

/// Processor time of this thread. Wall time would include other users of the machine.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let whole = u64::try_from(time.tv_sec).expect("time does not go back");
    Duration::from_secs(whole) + Duration::from_nanos(u64::try_from(time.tv_nsec).expect("below a second"))
}
