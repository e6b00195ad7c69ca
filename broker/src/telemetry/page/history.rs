//! The places over time: two rings of samples, for the last minutes and, more coarsely, for the last hours.
//!
//! A sample names at most eight tenants in each place and sums up the others, so that the memory is bounded: a device
//! with three tiers takes at most 512 KiB, however many tenants there are.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use broker_core::{Pressure, Tier, Time};
use vramd_types::{Bytes, DeviceIndex};

use super::places::{Places, places_of};

/// Maximum tenants of a place that a sample and a chart name.
pub(super) const NAMED_MAX: usize = 8;

/// The time that a chart covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    Minutes,
    Hours,
}

impl Window {
    pub(super) const ALL: [Self; 2] = [Self::Minutes, Self::Hours];

    /// The time between two samples.
    pub(super) const fn interval(self) -> Duration {
        match self {
            Self::Minutes => Duration::from_secs(2),
            Self::Hours => Duration::from_secs(60),
        }
    }

    pub(super) const fn span(self) -> Duration {
        match self {
            Self::Minutes => Duration::from_secs(10 * 60),
            Self::Hours => Duration::from_secs(6 * 60 * 60),
        }
    }

    /// The number of samples that cover the span; one more reaches back to its begin.
    const fn samples_max(self) -> usize {
        match self {
            Self::Minutes => 301,
            Self::Hours => 361,
        }
    }
}

/// The charges in all places at one time.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) at: Time,
    places: Box<[PlaceSample]>,
}

impl Sample {
    pub(super) fn place(&self, device: DeviceIndex, tier: Tier) -> Option<&PlaceSample> {
        self.places.iter().find(|place| (place.device, place.tier) == (device, tier))
    }

    /// Returns the tiers of one device.
    pub(super) fn of_device(&self, device: DeviceIndex) -> impl Iterator<Item = &PlaceSample> {
        self.places.iter().filter(move |place| place.device == device)
    }
}

#[derive(Debug)]
pub(super) struct PlaceSample {
    device: DeviceIndex,
    tier: Tier,
    pub(super) capacity: Bytes,
    /// Of all tenants.
    pub(super) charged: Bytes,
    pub(super) pressure: Pressure,
    /// The tenants with the largest charges, the largest first.
    pub(super) tenants: Box<[(Arc<str>, Bytes)]>,
}

impl PlaceSample {
    /// Returns the charge of a tenant; zero if it is not among the largest.
    pub(super) fn charge_of(&self, tenant: &Arc<str>) -> Bytes {
        let found = self.tenants.iter().find(|(name, _)| Arc::ptr_eq(name, tenant));
        found.map_or(Bytes::ZERO, |(_, charge)| *charge)
    }
}

#[derive(Debug, Default)]
pub(super) struct History {
    minutes: VecDeque<Arc<Sample>>,
    hours: VecDeque<Arc<Sample>>,
    /// The names in all samples, each of them once: equal names are the same pointer.
    names: BTreeSet<Arc<str>>,
}

impl History {
    /// Adds a sample, and removes those that are too old.
    pub(super) fn record(&mut self, at: Time, places: &Places) {
        let sample = Arc::new(self.sample(at, places));
        let last = self.hours.back().map(|last| at.since(last.at));
        // The timer may be a little early.
        if last.is_none_or(|last| last + Window::Minutes.interval() / 2 >= Window::Hours.interval()) {
            push(&mut self.hours, Arc::clone(&sample), Window::Hours);
            self.names.retain(|name| Arc::strong_count(name) > 1);
        }
        push(&mut self.minutes, sample, Window::Minutes);
    }

    /// Returns the samples of a window, the oldest first.
    pub(super) fn samples(&self, window: Window) -> &VecDeque<Arc<Sample>> {
        match window {
            Window::Minutes => &self.minutes,
            Window::Hours => &self.hours,
        }
    }

    fn sample(&mut self, at: Time, places: &Places) -> Sample {
        let charged = places.quotas.iter().filter_map(|row| {
            let charged = row.in_force?.charged;
            (!charged.is_zero()).then_some((row, charged))
        });
        let charged: Vec<_> = charged.collect();
        let mut samples = Vec::new();
        for device in &places.devices {
            for place in places_of(device) {
                let here =
                    charged.iter().filter(|(row, _)| row.tier == place.tier && row.device == device.uuid);
                let mut here: Vec<_> = here.map(|(row, charged)| (&row.tenant, *charged)).collect();
                here.sort_unstable_by(|(a, charge_a), (b, charge_b)| charge_b.cmp(charge_a).then(a.cmp(b)));
                here.truncate(NAMED_MAX);
                samples.push(PlaceSample {
                    device: device.index,
                    tier: place.tier,
                    capacity: place.capacity,
                    charged: place.charged,
                    pressure: place.pressure,
                    tenants: here.into_iter().map(|(name, charge)| (self.name(name), charge)).collect(),
                });
            }
        }
        Sample { at, places: samples.into() }
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }
}

fn push(samples: &mut VecDeque<Arc<Sample>>, sample: Arc<Sample>, window: Window) {
    if samples.len() >= window.samples_max() {
        samples.pop_front();
    }
    samples.push_back(sample);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::page::tests::{charged, places};

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_rings_keep_ten_minutes_and_six_hours() {
        let mut history = History::default();
        let places = places(&[charged("a", 0, Tier::Device, 4)]);
        for step in 0..30_000 {
            history.record(at(2 * step), &places);
        }
        for window in Window::ALL {
            let samples = history.samples(window);
            let (first, last) = (samples.front().unwrap().at, samples.back().unwrap().at);
            assert_eq!(last.since(first), window.span(), "{window:?}");
            assert_eq!(samples.len(), window.samples_max());
        }
    }

    #[test]
    fn a_sample_names_the_largest_tenants_and_sums_up_all() {
        let mut history = History::default();
        let rows: Vec<_> =
            (1..=20).map(|mib| charged(&format!("t-{mib:02}"), 0, Tier::Device, mib)).collect();
        history.record(at(0), &places(&rows));
        let sample = history.samples(Window::Minutes)[0].place(DeviceIndex(0), Tier::Device).unwrap();
        let names: Vec<_> = sample.tenants.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["t-20", "t-19", "t-18", "t-17", "t-16", "t-15", "t-14", "t-13"]);
        assert_eq!(sample.charged, Bytes::mib((1..=20).sum()));
    }

    #[test]
    fn names_of_tenants_that_left_are_forgotten() {
        let mut history = History::default();
        for step in 0..1_000 {
            let name = format!("tenant-{step}");
            history.record(at(60 * step), &places(&[charged(&name, 0, Tier::Host, 2)]));
        }
        assert!(history.names.len() <= Window::Hours.samples_max() + 1, "{}", history.names.len());
    }

    #[test]
    fn a_device_with_three_tiers_takes_at_most_512_kib() {
        let place = size_of::<PlaceSample>() + NAMED_MAX * size_of::<(Arc<str>, Bytes)>();
        let sample = size_of::<Sample>() + 2 * size_of::<usize>() + 3 * place;
        let samples: usize = Window::ALL.into_iter().map(Window::samples_max).sum();
        let rings = 2 * 512 * size_of::<Arc<Sample>>();
        let all = samples * sample + rings;
        assert!(all <= 512 << 10, "{all}");
    }
}
