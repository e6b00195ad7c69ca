//! The speed of copies, if the script sets one: of each direction of each device, and of links that several
//! share. The copies on a link share it evenly.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    cuda::current,
    script::{is_triggered, script},
};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    ToDevice,
    FromDevice,
}

/// One direction of one device.
type Lane = (usize, Direction);

struct Link {
    lanes: Vec<Lane>,
    bytes_per_second: f64,
}

struct Links {
    links: Vec<Link>,
    /// The copies in flight in each lane, by number, with the bytes that are left of each.
    in_flight: BTreeMap<Lane, VecDeque<(u64, f64)>>,
    /// The time of that state.
    at: Instant,
    last: u64,
    /// The last copy of each stream, and the copy that each event waits for.
    of_streams: HashMap<usize, u64>,
    of_events: HashMap<usize, u64>,
}

/// Starts a copy on the stream.
pub(crate) fn cross(stream: usize, direction: Direction, length: usize) {
    let Some((mut links, device)) = links().zip(current()) else { return };
    let links = &mut *links;
    links.advance();
    links.last += 1;
    links.in_flight.entry((device, direction)).or_default().push_back((links.last, length as f64));
    links.of_streams.insert(stream, links.last);
}

pub(crate) fn record(event: usize, stream: usize) {
    let Some(mut links) = links() else { return };
    if let Some(copy) = links.of_streams.get(&stream).copied() {
        links.of_events.insert(event, copy);
    }
}

/// Whether all copies of the stream have arrived.
pub(crate) fn is_ready(stream: usize) -> bool {
    let Some(mut links) = links() else { return true };
    links.advance();
    let copy = links.of_streams.get(&stream).copied();
    !links.in_flight.values().flatten().any(|(number, _)| Some(*number) == copy)
}

/// Whether all copies before the event have arrived.
pub(crate) fn has_passed(event: usize) -> bool {
    let Some(mut links) = links() else { return true };
    links.advance();
    let copy = links.of_events.get(&event).copied();
    !links.in_flight.values().flatten().any(|(number, _)| Some(*number) == copy)
}

/// None if copies take no time.
fn links() -> Option<MutexGuard<'static, Links>> {
    static ROADS: OnceLock<Option<Mutex<Links>>> = OnceLock::new();
    let links = ROADS.get_or_init(|| Links::read().map(Mutex::new)).as_ref()?;
    Some(links.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Links {
    fn read() -> Option<Self> {
        let carries: f64 = script().number("carries", 0.0);
        if carries <= 0.0 {
            return None;
        }
        let devices = 0..script().number("devices", 1);
        let own = devices.flat_map(|device| [(device, Direction::ToDevice), (device, Direction::FromDevice)]);
        let own = own.map(|lane| Link::new(vec![lane], carries));
        let shared = (0..).map_while(|number: u32| Link::read(script().text(&format!("link.{number}"), "")));
        Some(Self {
            links: own.chain(shared).collect(),
            in_flight: BTreeMap::new(),
            at: Instant::now(),
            last: 0,
            of_streams: HashMap::new(),
            of_events: HashMap::new(),
        })
    }

    /// Advances to now: from one arrival to the next all speeds are constant.
    fn advance(&mut self) {
        let now = Instant::now();
        if script().is_set("held") && is_triggered() {
            self.at = now;
            return;
        }
        loop {
            self.in_flight.retain(|_, copies| !copies.is_empty());
            let speeds: Vec<f64> = self.in_flight.keys().map(|lane| self.speed(*lane)).collect();
            let left = self.in_flight.values().filter_map(|copies| copies.front()).map(|(_, left)| left);
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
        let links = self.links.iter().filter(|link| link.lanes.contains(&lane));
        let of_each = links.map(|link| {
            let sharing = self.in_flight.keys().filter(|lane| link.lanes.contains(lane)).count();
            link.bytes_per_second / sharing as f64
        });
        of_each.min_by(f64::total_cmp).unwrap_or(f64::MAX)
    }

    fn pass(&mut self, speeds: &[f64], seconds: f64) {
        for (copies, speed) in self.in_flight.values_mut().zip(speeds) {
            if let Some((_, left)) = copies.front_mut() {
                *left -= speed * seconds;
            }
            // Less than a byte is a rounding error.
            if copies.front().is_some_and(|(_, left)| *left < 1.0) {
                copies.pop_front();
            }
        }
    }
}

impl Link {
    fn new(lanes: Vec<Lane>, mib_per_second: f64) -> Self {
        Self { lanes, bytes_per_second: mib_per_second * f64::from(1 << 20) }
    }

    fn read(text: &str) -> Option<Self> {
        let (lanes, carries) = text.split_once('@')?;
        let (directions, devices) = lanes.split_once(' ')?;
        let directions: &[Direction] = match directions {
            "in" => &[Direction::ToDevice],
            "out" => &[Direction::FromDevice],
            _ => &[Direction::ToDevice, Direction::FromDevice],
        };
        let devices = devices.split_whitespace().filter_map(|device| device.parse().ok());
        let lanes = devices
            .flat_map(|device: usize| directions.iter().map(move |direction| (device, *direction)))
            .collect();
        Some(Self::new(lanes, carries.trim().parse().ok()?))
    }
}
