//! How fast copies go, where the script says so: each way of each device carries so much, and so do roads that several share.
//! A road is shared evenly by those that are at it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use crate::{cuda::current, script::script};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    In,
    Out,
}

/// One way of one device.
type Lane = (usize, Way);

struct Road {
    lanes: Vec<Lane>,
    bytes_per_second: f64,
}

struct Roads {
    roads: Vec<Road>,
    /// What is on its way in each lane, by number, and what is left of it.
    under_way: BTreeMap<Lane, VecDeque<(u64, f64)>>,
    /// Until when that is so.
    at: Instant,
    last: u64,
    /// The last copy of each stream, and what each event waits for.
    of_streams: HashMap<usize, u64>,
    of_events: HashMap<usize, u64>,
}

/// A copy of the stream's sets out.
pub(crate) fn cross(stream: usize, way: Way, length: usize) {
    let Some((mut roads, device)) = roads().zip(current()) else { return };
    let roads = &mut *roads;
    roads.go_on();
    roads.last += 1;
    roads.under_way.entry((device, way)).or_default().push_back((roads.last, length as f64));
    roads.of_streams.insert(stream, roads.last);
}

pub(crate) fn record(event: usize, stream: usize) {
    let Some(mut roads) = roads() else { return };
    if let Some(copy) = roads.of_streams.get(&stream).copied() {
        roads.of_events.insert(event, copy);
    }
}

/// Whether all that was before the event has arrived.
pub(crate) fn is_through(event: usize) -> bool {
    let Some(mut roads) = roads() else { return true };
    roads.go_on();
    let copy = roads.of_events.get(&event).copied();
    !roads.under_way.values().flatten().any(|(number, _)| Some(*number) == copy)
}

/// None where copies take no time.
fn roads() -> Option<MutexGuard<'static, Roads>> {
    static ROADS: OnceLock<Option<Mutex<Roads>>> = OnceLock::new();
    let roads = ROADS.get_or_init(|| Roads::read().map(Mutex::new)).as_ref()?;
    Some(roads.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Roads {
    fn read() -> Option<Self> {
        let carries: f64 = script().number("carries", 0.0);
        if carries <= 0.0 {
            return None;
        }
        let devices = 0..script().number("devices", 1);
        let own = devices.flat_map(|device| [(device, Way::In), (device, Way::Out)]);
        let own = own.map(|lane| Road::new(vec![lane], carries));
        let shared = (0..).map_while(|number: u32| Road::read(script().text(&format!("road.{number}"), "")));
        Some(Self {
            roads: own.chain(shared).collect(),
            under_way: BTreeMap::new(),
            at: Instant::now(),
            last: 0,
            of_streams: HashMap::new(),
            of_events: HashMap::new(),
        })
    }

    /// Until now: from each arrival to the next all goes evenly.
    fn go_on(&mut self) {
        let now = Instant::now();
        loop {
            self.under_way.retain(|_, copies| !copies.is_empty());
            let speeds: Vec<f64> = self.under_way.keys().map(|lane| self.speed(*lane)).collect();
            let left = self.under_way.values().filter_map(|copies| copies.front()).map(|(_, left)| left);
            let next = left.zip(&speeds).map(|(left, speed)| left / speed).min_by(f64::total_cmp);
            let passes = now.saturating_duration_since(self.at).as_secs_f64();
            let Some(next) = next.filter(|next| *next <= passes) else {
                self.pass(&speeds, passes);
                self.at = now;
                return;
            };
            self.pass(&speeds, next);
            self.at += Duration::from_secs_f64(next);
        }
    }

    fn speed(&self, lane: Lane) -> f64 {
        let roads = self.roads.iter().filter(|road| road.lanes.contains(&lane));
        let of_each = roads.map(|road| {
            let at_it = self.under_way.keys().filter(|lane| road.lanes.contains(lane)).count();
            road.bytes_per_second / at_it as f64
        });
        of_each.min_by(f64::total_cmp).unwrap_or(f64::MAX)
    }

    fn pass(&mut self, speeds: &[f64], seconds: f64) {
        for (copies, speed) in self.under_way.values_mut().zip(speeds) {
            if let Some((_, left)) = copies.front_mut() {
                *left -= speed * seconds;
            }
            // What is left of a byte is the error of the numbers.
            if copies.front().is_some_and(|(_, left)| *left < 1.0) {
                copies.pop_front();
            }
        }
    }
}

impl Road {
    fn new(lanes: Vec<Lane>, mib_per_second: f64) -> Self {
        Self { lanes, bytes_per_second: mib_per_second * f64::from(1 << 20) }
    }

    fn read(text: &str) -> Option<Self> {
        let (who, carries) = text.split_once('@')?;
        let (ways, devices) = who.split_once(' ')?;
        let ways: &[Way] = match ways {
            "in" => &[Way::In],
            "out" => &[Way::Out],
            _ => &[Way::In, Way::Out],
        };
        let devices = devices.split_whitespace().filter_map(|device| device.parse().ok());
        let lanes = devices.flat_map(|device: usize| ways.iter().map(move |way| (device, *way))).collect();
        Some(Self::new(lanes, carries.trim().parse().ok()?))
    }
}
