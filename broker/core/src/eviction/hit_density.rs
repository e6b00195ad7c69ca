//! Hit density: a part's value is the number of uses that the policy expects of it, for each byte and time that the part
//! takes.
//!
//! The policy learns how long parts of each class go without a use before their next one. A class has the parts with
//! about the same mean interval between uses. The age of a part is the number of uses of the device's parts since its
//! own last use. For a class and an age the value is the best ratio, over all later ages,
//!
//! ```text
//!               uses expected until then
//!   ──────────────────────────────────────────────  × the cost of bringing a granule back
//!      time until the use, or until then without
//! ```
//!
//! So a part of a loop is worth more the closer its use comes, and a part that is used at random is worth less the
//! longer it was not used. The policy also counts uses of parts that have left, as long as it remembers them, and so
//! learns what it would have won by keeping them. That is where it differs from LHD, which sees only what it keeps.
//!
//! The value does not depend on the size: a larger part takes more bytes, and a use of it saves as many more.
//!
//! The mean interval is an arithmetic mean. For parts that are used at random it is the best estimate of their rate;
//! a mean of logarithms fetched 1 % more on the Zipf trace of `tests/policy-bench`.
//!
//! Ages and classes are coarse, so values are few. The policy computes them again every [`LEARN_EVERY`] uses, and merges
//! the order from the age bands of all classes. The price: learning takes some hundred microseconds each time, and the
//! search for the first victim looks at each class that has parts. In each it skips the bands outside the ages of the
//! class's parts.
//!
//! The constants were chosen with the traces of `tests/policy-bench`, and checked with other seeds.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, btree_set},
};

use vramd_types::{AllocationId, DeviceIndex};

use super::{Part, Policy, Removal, Source, ghosts::Ghosts, ranking::EachDevice};
use crate::{collections::PartMap, event::PartRef, time::Time};

/// Bands of age, two to each doubling.
const BANDS: usize = 48;
/// Classes by the mean interval between uses: unknown, or a band.
const REUSES: usize = BANDS + 1;
/// The number of intervals that make up the mean; older ones fade.
const MEAN_OF: u64 = 32;
/// The unit of the mean: one use has so many, so that a mean of small intervals is not rounded to a whole number.
const PER_USE: u64 = 16;
const SOURCES: usize = 3;
/// Microseconds to bring a granule back from each source. The fixed cost of a part is small, and is left out.
const COSTS: [u64; SOURCES] = [Source::Nothing.micros().0, Source::Host.micros().0, Source::Disk.micros().0];
/// The number of uses of a device's parts between two computations of the values.
const LEARN_EVERY: u64 = 512;
/// The share of earlier counts that stays with each computation. A count falls by half in 11 of them.
const KEPT: (u64, u64) = (15, 16);
/// A count of one, in fixed point: counts shrink by fractions.
const ONE: u64 = 1 << 16;
/// A class with fewer counts than this takes the values of all classes together.
const COUNTED_MIN: u64 = 16 * ONE;
/// The number of remembered parts that left, for each part that is there.
const GHOSTS_EACH: usize = 4;

#[derive(Debug, Default)]
pub(super) struct HitDensity {
    parts: PartMap<Interval>,
    devices: EachDevice<Device>,
}

/// The time since the last use of a part.
#[derive(Clone, Copy, Debug)]
struct Interval {
    /// The number of the use, among those of the device.
    since: u64,
    /// The mean of the intervals before, in units of [`PER_USE`].
    mean: u64,
    /// The number of intervals in the mean, at most [`MEAN_OF`].
    intervals: u64,
    source: Source,
}

impl Interval {
    fn class(self) -> usize {
        let source = match self.source {
            Source::Nothing => 0,
            Source::Host => 1,
            Source::Disk => 2,
        };
        self.reuse().saturating_mul(SOURCES).saturating_add(source)
    }

    fn reuse(self) -> usize {
        if self.intervals == 0 { 0 } else { band_of(self.mean / PER_USE).saturating_add(1) }
    }
}

#[derive(Debug)]
struct Device {
    uses: u64,
    /// The parts of each class that has some, by their last use.
    classes: BTreeMap<usize, BTreeSet<(u64, PartRef)>>,
    counts: Vec<Counts>,
    /// For each class of intervals, its bands in the order in which they leave.
    values: Vec<[Leaving; BANDS]>,
    ghosts: Ghosts<Interval>,
    parts: usize,
}

impl Default for Device {
    fn default() -> Self {
        let mut device = Self {
            uses: 0,
            classes: BTreeMap::new(),
            counts: vec![Counts::default(); REUSES],
            values: Vec::new(),
            ghosts: Ghosts::default(),
            parts: 0,
        };
        device.learn();
        device
    }
}

/// How intervals of a class ended, by the band of their age then.
#[derive(Clone, Debug)]
struct Counts {
    used: [u64; BANDS],
    unused: [u64; BANDS],
}

impl Default for Counts {
    fn default() -> Self {
        Self { used: [0; BANDS], unused: [0; BANDS] }
    }
}

/// The parts of a class in a band of age.
#[derive(Clone, Copy, Debug, Default)]
struct Leaving {
    density: u64,
    band: usize,
    /// Values rise with the age there.
    newest_first: bool,
}

/// Returns the bands of a class in the order in which they leave.
fn leaving(densities: [u64; BANDS]) -> [Leaving; BANDS] {
    let mut bands: [Leaving; BANDS] = std::array::from_fn(|band| {
        let at = |band: usize| densities.get(band).copied().unwrap_or(0);
        Leaving { density: at(band), band, newest_first: at(band.saturating_add(1)) > at(band) }
    });
    bands.sort_by_key(|it| (it.density, Reverse(it.band)));
    bands
}

/// The bands of the youngest and the oldest part of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ages {
    youngest: usize,
    oldest: usize,
}

/// The turn of a band of a class to leave. The smallest one comes first: the least valuable, among equals the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    value: u64,
    band: Reverse<usize>,
    class: usize,
    /// The place of the band in the values of the class.
    at: usize,
    ages: Ages,
    newest_first: bool,
}

/// The parts of a class in a band, in the order in which they leave.
struct InBand<'a> {
    parts: Option<btree_set::Range<'a, (u64, PartRef)>>,
    newest_first: bool,
}

impl Iterator for InBand<'_> {
    type Item = PartRef;

    fn next(&mut self) -> Option<PartRef> {
        let parts = self.parts.as_mut()?;
        let next = if self.newest_first { parts.next_back() } else { parts.next() };
        next.map(|(_, part)| *part)
    }
}

/// The root of two with 63 bits behind the point, rounded up.
const ROOT: u64 = 0xB504_F333_F9DE_6485;

/// Returns the band of an age.
fn band_of(age: u64) -> usize {
    let Some(doublings) = age.checked_ilog2() else { return 0 };
    // Between 1 and 2, with 63 bits behind the point.
    let rest = age << age.leading_zeros();
    let band = doublings.saturating_mul(2).saturating_add(u32::from(rest >= ROOT));
    usize::try_from(band).unwrap_or(BANDS).min(BANDS.saturating_sub(1))
}

/// The smallest age of a band: a power of two, or that times about the root of two. No smaller age has this band.
fn start_of(band: usize) -> u64 {
    let doublings = u32::try_from(band / 2).unwrap_or(u32::MAX);
    let whole = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    if band.is_multiple_of(2) {
        return whole;
    }
    let start = u128::from(whole).saturating_mul(u128::from(ROOT)).saturating_add((1 << 63) - 1) >> 63;
    u64::try_from(start).unwrap_or(u64::MAX)
}

impl Counts {
    fn total(&self) -> u64 {
        self.used.iter().chain(&self.unused).copied().fold(0, u64::saturating_add)
    }

    fn add(&mut self, other: &Self) {
        for (own, more) in [(&mut self.used, &other.used), (&mut self.unused, &other.unused)] {
            own.iter_mut().zip(more).for_each(|(own, more)| *own = own.saturating_add(*more));
        }
    }

    fn fade(&mut self) {
        let counts = self.used.iter_mut().chain(&mut self.unused);
        counts.for_each(|count| *count = count.saturating_mul(KEPT.0) / KEPT.1);
    }

    /// Returns the expected uses for each time at the start of each band, in 2^32ths.
    fn densities(&self) -> [u64; BANDS] {
        let mut densities = [0; BANDS];
        let sums = self
            .used
            .iter()
            .zip(&self.unused)
            .map(|(used, unused)| u128::from(*used).saturating_add(u128::from(*unused)));
        let sums: Vec<u128> = sums.collect();
        for (from, density) in densities.iter_mut().enumerate() {
            let begin = u128::from(start_of(from));
            let mut left = sums.iter().skip(from).copied().fold(0, u128::saturating_add);
            if left == 0 {
                break;
            }
            let (mut used, mut ended): (u128, u128) = (0, 0);
            let later = self.used.iter().zip(&sums).enumerate().skip(from);
            for (band, (uses, ends)) in later {
                let end = u128::from(start_of(band.saturating_add(1)));
                let middle = u128::from(start_of(band)).saturating_add(end) / 2;
                used = used.saturating_add(u128::from(*uses));
                ended = ended.saturating_add(ends.saturating_mul(middle.saturating_sub(begin).max(1)));
                left = left.saturating_sub(*ends);
                let time = ended.saturating_add(left.saturating_mul(end.saturating_sub(begin)));
                let until_then = used.saturating_mul(u128::from(ONE) << 16).checked_div(time).unwrap_or(0);
                *density = (*density).max(u64::try_from(until_then).unwrap_or(u64::MAX));
                if left == 0 {
                    break;
                }
            }
        }
        densities
    }
}

impl Device {
    /// Computes all values from the counts.
    fn learn(&mut self) {
        let mut all = Counts::default();
        self.counts.iter().for_each(|counts| all.add(counts));
        let by_age = || std::array::from_fn(|band| (ONE << 16) / start_of(band));
        let of_all = leaving(if all.total() < COUNTED_MIN { by_age() } else { all.densities() });
        let values = self
            .counts
            .iter()
            .map(|counts| if counts.total() < COUNTED_MIN { of_all } else { leaving(counts.densities()) });
        self.values = values.collect();
    }

    /// Returns the first turn of each class.
    fn first_turns(&self) -> impl Iterator<Item = Turn> {
        let band = |(since, _): &(u64, PartRef)| band_of(self.uses.saturating_sub(*since));
        self.classes.iter().filter_map(move |(class, parts)| {
            self.turn(*class, 0, Ages { youngest: band(parts.last()?), oldest: band(parts.first()?) })
        })
    }

    /// Returns the first turn of a class among its bands from `at` on. It skips bands outside the ages of its parts.
    fn turn(&self, class: usize, at: usize, ages: Ages) -> Option<Turn> {
        let bands = self.values.get(class / SOURCES)?.iter().enumerate().skip(at);
        let mut with_parts = bands.filter(|(_, it)| ages.youngest <= it.band && it.band <= ages.oldest);
        let (at, Leaving { density, band, newest_first }) = with_parts.next().map(|(at, it)| (at, *it))?;
        let value = density.saturating_mul(COSTS.get(class % SOURCES).copied().unwrap_or_default());
        Some(Turn { value, band: Reverse(band), class, at, ages, newest_first })
    }

    /// Returns the parts whose turn it is, first the best victim.
    fn parts_of(&self, Turn { band: Reverse(band), class, newest_first, .. }: Turn) -> InBand<'_> {
        // Age 0 is in the first band, and the last one has no end.
        let newest = if band == 0 { 0 } else { start_of(band) };
        let oldest = match band.saturating_add(1) {
            BANDS => u64::MAX,
            next => start_of(next).saturating_sub(1),
        };
        let first = (self.uses.saturating_sub(oldest), PartRef::FIRST);
        let end = (self.uses.saturating_sub(newest).saturating_add(1), PartRef::FIRST);
        InBand { parts: self.classes.get(&class).map(|parts| parts.range(first..end)), newest_first }
    }

    /// Counts an interval that ends now.
    fn count(&mut self, interval: Interval, is_used: bool) {
        let band = band_of(self.uses.saturating_sub(interval.since));
        if let Some(counts) = self.counts.get_mut(interval.reuse()) {
            let counts = if is_used { &mut counts.used } else { &mut counts.unused };
            if let Some(count) = counts.get_mut(band) {
                *count = count.saturating_add(ONE);
            }
        }
    }

    /// Counts a use of any part. Every [`LEARN_EVERY`] uses it learns, and lets the counts fade.
    fn advance(&mut self) {
        self.uses = self.uses.saturating_add(1);
        if self.uses.is_multiple_of(LEARN_EVERY) {
            self.learn();
            self.counts.iter_mut().for_each(Counts::fade);
        }
    }

    fn list(&mut self, part: PartRef, interval: Interval) {
        self.classes.entry(interval.class()).or_default().insert((interval.since, part));
    }

    fn unlist(&mut self, part: PartRef, interval: Interval) {
        let class = interval.class();
        if let Some(parts) = self.classes.get_mut(&class) {
            parts.remove(&(interval.since, part));
            if parts.is_empty() {
                self.classes.remove(&class);
            }
        }
    }

    /// Returns the interval that begins with a use now, after another one.
    fn interval_after(&self, before: Interval) -> Interval {
        let last = self.uses.saturating_sub(before.since).saturating_mul(PER_USE);
        let known = before.intervals.min(MEAN_OF.saturating_sub(1));
        let intervals = known.saturating_add(1);
        let mean = before.mean.saturating_mul(known).saturating_add(last) / intervals;
        Interval { since: self.uses, mean, intervals, ..before }
    }

    fn expire_ghosts(&mut self) {
        while let Some(interval) = self.ghosts.expire(self.parts.max(1).saturating_mul(GHOSTS_EACH)) {
            self.count(interval, false);
        }
    }
}

impl Policy for HitDensity {
    fn insert(&mut self, Part { device, part, weight, .. }: Part) {
        let Some(device) = self.devices.entry(device) else { return };
        device.advance();
        device.parts = device.parts.saturating_add(1);
        let source = weight.source();
        let interval = match device.ghosts.remove(part) {
            Some(before) => {
                device.count(before, true);
                Interval { source, ..device.interval_after(before) }
            }
            None => Interval { since: device.uses, mean: 0, intervals: 0, source },
        };
        device.list(part, interval);
        self.parts.insert(part, interval);
    }

    fn record_use(&mut self, Part { device, part, .. }: Part, _: Time, again: bool) {
        let (Some(interval), Some(device)) = (self.parts.get_mut(part), self.devices.entry(device)) else {
            return;
        };
        // The use that a part arrived for ends no interval. But if the harvest reports it later, the age begins then:
        // otherwise a part that was created long before its first use would leave before unused ones.
        if !again && interval.since == device.uses {
            return;
        }
        device.advance();
        device.unlist(part, *interval);
        if again {
            device.count(*interval, true);
            *interval = device.interval_after(*interval);
        } else {
            interval.since = device.uses;
        }
        device.list(part, *interval);
    }

    fn remove(&mut self, Part { device, part, .. }: Part, why: Removal) {
        let (Some(interval), Some(device)) = (self.parts.remove(part), self.devices.entry(device)) else {
            return;
        };
        device.parts = device.parts.saturating_sub(1);
        device.unlist(part, interval);
        match why {
            Removal::Leaves => device.ghosts.insert(part, interval),
            Removal::Ends => device.count(interval, false),
        }
        device.expire_ghosts();
    }

    fn forget(&mut self, allocation: AllocationId) {
        for device in self.devices.iter_mut() {
            for interval in device.ghosts.forget(allocation) {
                device.count(interval, false);
            }
        }
    }

    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_> {
        let Some(device) = self.devices.get(device) else { return Box::new(std::iter::empty()) };
        // The next turn of each class but the one whose turn it was last.
        let mut turns = BinaryHeap::with_capacity(device.classes.len());
        turns.extend(device.first_turns().map(Reverse));
        let mut last: Option<Turn> = None;
        let in_turn = std::iter::from_fn(move || {
            let after = |it: Turn| device.turn(it.class, it.at.saturating_add(1), it.ages);
            turns.extend(last.take().and_then(after).map(Reverse));
            let Reverse(turn) = turns.pop()?;
            last = Some(turn);
            Some(device.parts_of(turn))
        });
        Box::new(in_turn.flatten())
    }

    fn remembered(&self) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(self.devices.iter().flat_map(|device| device.ghosts.iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        eviction::{EvictionPolicy, tests::*},
        tenancy::TenantClass,
    };

    #[test]
    fn bands_follow_each_other_without_gaps() {
        for band in 1..BANDS {
            assert!(start_of(band) >= start_of(band - 1), "{band}");
        }
        for age in 1..100_000 {
            let band = band_of(age);
            assert!(start_of(band) <= age && age < start_of(band + 1), "{age} in {band}");
        }
    }

    /// Sorts all parts by the values of their bands.
    fn sorted(policy: &HitDensity, on: DeviceIndex) -> Vec<PartRef> {
        let device = policy.devices.get(on).unwrap();
        let mut parts: Vec<_> = policy.parts.iter().map(|(part, interval)| (part, *interval)).collect();
        parts.sort_by_key(|(part, interval)| {
            let band = band_of(device.uses - interval.since);
            let leaving = device.values[interval.reuse()].iter().find(|it| it.band == band).unwrap();
            let value = leaving.density * COSTS[interval.class() % SOURCES];
            let younger = if leaving.newest_first { device.uses - interval.since } else { interval.since };
            (value, Reverse(band), interval.class(), younger, *part)
        });
        parts.into_iter().map(|(part, _)| part).collect()
    }

    #[test]
    fn order_is_that_of_the_sorted_parts() {
        let on = DeviceIndex(0);
        let (mut policy, mut dice) = (HitDensity::default(), Dice(7));
        for step in 0..20_000_u64 {
            let number = dice.roll(if step % 3 == 0 { 400 } else { 40 });
            let part = PartRef {
                allocation: AllocationId::from_raw(7),
                part: vramd_types::PartIndex(u32::try_from(number).unwrap()),
            };
            let source = [Source::Nothing, Source::Host, Source::Disk][number % 3];
            let weight = crate::eviction::Weight::new(vramd_types::Bytes::mib(2), source);
            let now = Time::from_micros(step);
            let known = Part { device: on, part, used: now, weight, class: TenantClass::default() };
            match (policy.parts.get(part).is_some(), dice.roll(4)) {
                (false, _) => policy.insert(known),
                (true, 0) => policy.remove(known, Removal::Leaves),
                (true, 1) if step % 10 == 0 => policy.remove(known, Removal::Ends),
                (true, _) => policy.record_use(known, now, true),
            }
            if step % 20 == 0 {
                assert_eq!(policy.order(on).collect::<Vec<_>>(), sorted(&policy, on), "step {step}");
            }
        }
        let device = policy.devices.get(on).unwrap();
        assert!(device.values.iter().flatten().any(|it| it.newest_first), "it has learnt");
        assert!(device.classes.len() > 10);
    }

    #[test]
    fn hit_density_is_lru_until_it_has_learnt() {
        let mut residents = TestDevice::new(EvictionPolicy::HitDensity);
        residents.arrive_at(0, &[0, 1, 2, 3]);
        residents.use_each(&[0, 1, 2, 3, 1]);
        assert_eq!(residents.order(), [0, 2, 3, 1]);
    }

    #[test]
    fn first_use_long_after_the_arrival_makes_a_part_younger() {
        let mut residents = TestDevice::new(EvictionPolicy::HitDensity);
        residents.arrive_at(0, &[0, 1, 2]);
        residents.use_each(&[0]);
        assert_eq!(residents.order(), [1, 2, 0]);
    }

    #[test]
    fn hit_density_learns_to_keep_the_oldest_part_of_a_loop() {
        let mut residents = TestDevice::new(EvictionPolicy::HitDensity);
        let (mut misses, mut now) = (0, 0);
        for step in 0..6000_u32 {
            now += 10;
            let part = step % 60;
            if residents.is_there(part) {
                residents.use_each(&[part]);
                residents.use_each(&[part]);
                continue;
            }
            misses += u32::from(step >= 3000);
            if residents.order().len() == 30 {
                let victim = residents.order()[0];
                residents.leave(victim);
            }
            residents.arrive_at(now, &[part]);
            residents.use_each(&[part]);
        }
        // LRU misses all 3000, the bound is 3000 * 30 / 59.
        assert!(misses < 1900, "{misses}");
    }

    #[test]
    fn ghosts_are_bounded_and_end_with_their_allocation() {
        ghosts_are_bounded_by_residents(EvictionPolicy::HitDensity, GHOSTS_EACH);
    }
}
