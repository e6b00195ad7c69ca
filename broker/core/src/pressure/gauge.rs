//! The gauge of one place: its level, the batch factor and the forecast that clients are sent.

use std::time::Duration;

use vramd_types::Bytes;

use super::{Pressure, PressureBounds, level::reaches};

use crate::time::Time;

/// How many tenths of a mean come from its old value; the rest comes from the new sample.
const KEPT_TENTHS: i64 = 7;

/// Below this fill a program may use larger batches.
const ROOMY_PERCENT: u32 = 60;
/// From this fill on it should use smaller ones.
const TIGHT_PERCENT: u32 = 80;

/// In thousandths. A smaller change of the factor is not reported.
const FACTOR_STEP: i64 = 50;

/// A forecast beyond this is not reported.
const FORESEEN: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct Gauge {
    pub(crate) pressure: Pressure,
    /// The time of the last sample, and the bytes that were left then.
    last_sample: (Time, Bytes),
    /// In thousandths.
    factor: i64,
    /// By how many bytes a second the bytes left shrink, through charges or other programs.
    growth: i64,
    reported: Outlook,
}

/// The state of a place as clients are sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outlook {
    pub(crate) pressure: Pressure,
    /// In thousandths.
    pub(crate) batch_factor: u32,
    pub(crate) full_in: Option<Duration>,
}

/// The fill of a place: charge and capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) charged: Bytes,
    pub(crate) capacity: Bytes,
}

impl Fill {
    pub(crate) fn left(self) -> Bytes {
        self.capacity.saturating_sub(self.charged)
    }
}

impl Outlook {
    /// For a place without charges.
    pub(crate) const CALM: Self = Self { pressure: Pressure::Normal, batch_factor: 1000, full_in: None };
}

impl Gauge {
    /// For a place without charges.
    pub(crate) const fn new(now: Time, capacity: Bytes) -> Self {
        Self {
            pressure: Pressure::Normal,
            last_sample: (now, capacity),
            factor: 1000,
            growth: 0,
            reported: Outlook::CALM,
        }
    }

    /// Updates the level, and returns the old one if it changed.
    pub(crate) fn update_level(&mut self, fill: Fill, bounds: &PressureBounds) -> Option<Pressure> {
        let was = self.pressure;
        self.pressure = was.next(fill.charged, fill.capacity, bounds);
        (self.pressure != was).then_some(was)
    }

    /// Resumes sampling after a rest in which nothing has changed.
    pub(crate) const fn resume(&mut self, now: Time) {
        self.last_sample.0 = now;
    }

    /// Accounts for a change of the capacity, so that it does not count as growth.
    pub(crate) fn resize(&mut self, was_left: Bytes, is_left: Bytes) {
        let seen = &mut self.last_sample.1;
        *seen = seen
            .saturating_add(is_left.saturating_sub(was_left))
            .saturating_sub(was_left.saturating_sub(is_left));
    }

    /// Takes a sample. Returns whether the means would move with another one.
    pub(crate) fn sample(&mut self, now: Time, fill: Fill) -> bool {
        let (when, left) = std::mem::replace(&mut self.last_sample, (now, fill.left()));
        let micros = i128::try_from(now.since(when).as_micros()).unwrap_or(i128::MAX).max(1);
        let more = i128::from(left.get()).saturating_sub(i128::from(fill.left().get()));
        let growth = i64::try_from(more.saturating_mul(1_000_000) / micros).unwrap_or(i64::MAX);
        let (factor, old) = (target(fill), (self.factor, self.growth));
        (self.factor, self.growth) = (mean(self.factor, factor), mean(self.growth, growth));
        (self.factor, self.growth) != old
    }

    /// Returns the outlook to report, if it differs enough from the last report.
    pub(crate) fn take_update(&mut self, fill: Fill) -> Option<Outlook> {
        let outlook = self.outlook(fill);
        let reported = self.reported;
        let factor = i64::from(outlook.batch_factor).abs_diff(i64::from(reported.batch_factor));
        let is_news = outlook.pressure != reported.pressure
            || factor >= FACTOR_STEP.unsigned_abs()
            || outlook.full_in.is_some() != reported.full_in.is_some()
            || outlook.full_in.zip(reported.full_in).is_some_and(differ_by_factor_two);
        is_news.then(|| {
            self.reported = outlook;
            outlook
        })
    }

    /// Returns the outlook that was reported last.
    pub(crate) const fn reported(&self) -> Outlook {
        self.reported
    }

    fn outlook(&self, fill: Fill) -> Outlook {
        let left = fill.left().get();
        let second = u64::try_from(self.growth).ok().filter(|growth| *growth > 0);
        let millis = second.map(|second| u128::from(left).saturating_mul(1000) / u128::from(second));
        let full_in = millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)));
        Outlook {
            pressure: self.pressure,
            batch_factor: u32::try_from(self.factor).unwrap_or_default(),
            full_in: full_in.filter(|it| *it <= FORESEEN),
        }
    }
}

/// Whether one is at least twice the other.
fn differ_by_factor_two((one, other): (Duration, Duration)) -> bool {
    one != other && (one.saturating_mul(2) <= other || other.saturating_mul(2) <= one)
}

/// The factor for a fill.
fn target(Fill { charged, capacity }: Fill) -> i64 {
    // A closed tier has room for nothing, however little lies there.
    if capacity.is_zero() {
        return 800;
    }
    match (reaches(charged, capacity, ROOMY_PERCENT), reaches(charged, capacity, TIGHT_PERCENT)) {
        (false, _) => 1200,
        (true, false) => 1000,
        (true, true) => 800,
    }
}

/// Rounds towards zero, so that the mean comes to rest.
const fn mean(old: i64, new: i64) -> i64 {
    let kept = old.saturating_mul(KEPT_TENTHS);
    kept.saturating_add(new.saturating_mul(10i64.saturating_sub(KEPT_TENTHS))) / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(charged: u64) -> Fill {
        Fill { charged: Bytes::new(charged), capacity: Bytes::new(1000) }
    }

    fn second(count: u64) -> Time {
        Time::from_micros(count.saturating_mul(1_000_000))
    }

    #[test]
    fn gauge_foresees_a_steady_fill_and_no_standstill() {
        let mut gauge = Gauge::new(Time::START, Bytes::new(1000));
        for now in 1..=20 {
            gauge.sample(second(now), fill(now * 10));
        }
        // 10 bytes a second, but for rounding: 800 are left.
        let full_in = gauge.outlook(fill(200)).full_in.map(|it| it.as_secs());
        assert!(full_in.is_some_and(|seconds| (80..=120).contains(&seconds)), "{full_in:?}");
        let mut last = 21;
        while gauge.sample(second(last), fill(200)) {
            last += 1;
        }
        assert!(last < 60, "{last}");
        assert_eq!(gauge.outlook(fill(200)).full_in, None);
    }

    #[test]
    fn batch_factor_settles_near_its_target() {
        for (charged, expected) in
            [(0, 1197..=1200), (599, 1197..=1200), (700, 1000..=1000), (800, 800..=800)]
        {
            let mut gauge = Gauge::new(Time::START, Bytes::new(1000));
            let moves = (1..100).take_while(|now| gauge.sample(second(*now), fill(charged))).count();
            assert!(moves < 50, "{moves}");
            let factor = gauge.outlook(fill(charged)).batch_factor;
            assert!(expected.contains(&factor), "{charged}: {factor}");
        }
    }

    #[test]
    fn closed_place_lowers_the_batch_factor() {
        let closed = Fill { charged: Bytes::ZERO, capacity: Bytes::ZERO };
        let mut gauge = Gauge::new(Time::START, Bytes::ZERO);
        for now in 1..100 {
            gauge.sample(second(now), closed);
        }
        assert_eq!(gauge.outlook(closed).batch_factor, 800);
    }

    #[test]
    fn gauge_reports_only_changes() {
        let bounds = PressureBounds::default();
        let mut gauge = Gauge::new(Time::START, Bytes::new(1000));
        assert_eq!(gauge.take_update(fill(0)), None);
        assert_eq!(gauge.update_level(fill(850), &bounds), Some(Pressure::Normal));
        let told = gauge.take_update(fill(850)).map(|it| it.pressure);
        assert_eq!((told, gauge.take_update(fill(850))), (Some(Pressure::Elevated), None));
        assert_eq!(gauge.update_level(fill(860), &bounds), None);
        // The factor, once it has changed.
        let mut told = Vec::new();
        for now in 1..40 {
            gauge.sample(second(1_000_000 + now), fill(860));
            told.extend(gauge.take_update(fill(860)).map(|it| it.batch_factor));
        }
        assert_eq!(told, [940, 868, 815]);
    }

    #[test]
    fn gauge_foresees_memory_that_other_programs_take() {
        let mut gauge = Gauge::new(Time::START, Bytes::new(1000));
        for now in 1..=20 {
            gauge
                .sample(second(now), Fill { charged: Bytes::new(100), capacity: Bytes::new(900 - now * 10) });
        }
        let fill = Fill { charged: Bytes::new(100), capacity: Bytes::new(700) };
        let full_in = gauge.outlook(fill).full_in.map(|it| it.as_secs());
        assert!(full_in.is_some_and(|seconds| (55..=75).contains(&seconds)), "{full_in:?}");
    }

    #[test]
    fn forecast_is_reported_when_it_halves_or_doubles() {
        let mut gauge = Gauge::new(Time::START, Bytes::new(10_000));
        let (mut told, mut charged) = (Vec::new(), 0);
        for now in 1..=60 {
            charged += if now <= 20 { 100 } else { 30 };
            let fill = Fill { charged: Bytes::new(charged), capacity: Bytes::new(10_000) };
            gauge.sample(second(now), fill);
            told.extend(gauge.take_update(fill).and_then(|it| it.full_in).map(|it| (now, it.as_secs())));
        }
        // After 20 seconds 8000 are left, for 80 seconds; in the end 6800, for more than 200.
        let (first, last) = (told.iter().rfind(|(now, _)| *now <= 20), told.last());
        assert!(first.is_some_and(|(_, left)| *left < 170), "{told:?}");
        assert!(last.is_some_and(|(now, left)| *now > 20 && *left > 160), "{told:?}");
    }

    #[test]
    fn full_place_is_reported_once() {
        let mut gauge = Gauge::new(Time::START, Bytes::new(1000));
        gauge.sample(second(1), fill(1000));
        assert_eq!(gauge.take_update(fill(1000)).and_then(|it| it.full_in), Some(Duration::ZERO));
        assert_eq!(gauge.take_update(fill(1000)), None);
    }

    #[test]
    fn rest_does_not_count_in_the_fill_rate() {
        let mut gauge = Gauge::new(Time::START, Bytes::new(1000));
        gauge.resume(second(3600));
        gauge.sample(second(3601), fill(200));
        // 200 in a second, of which three tenths count.
        assert_eq!(gauge.outlook(fill(200)).full_in.map(|it| it.as_secs()), Some(13));
    }
}
