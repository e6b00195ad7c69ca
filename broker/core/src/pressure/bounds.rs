//! The bounds of the levels of pressure, and their validation. The configuration and changes of settings use
//! the same rules.

use std::{ops::RangeInclusive, time::Duration};

/// Where the levels begin, in percent of the capacity, and what happens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureBounds {
    pub elevated_percent: u32,
    pub high_percent: u32,
    pub critical_percent: u32,
    /// How far below its entry, in percent points, a level is left.
    pub fall_percent: u32,
    /// Evictions because of pressure stop at this fill, in percent.
    pub evict_to_percent: u32,
    /// How long a part must be unused to be cold. Only cold parts are evicted or written back because of
    /// pressure; zero turns both off.
    pub cold_after: Duration,
    /// How often a place that is full or filling is sampled.
    pub sample_interval: Duration,
}

impl Default for PressureBounds {
    fn default() -> Self {
        Self {
            elevated_percent: 80,
            high_percent: 90,
            critical_percent: 95,
            fall_percent: 3,
            evict_to_percent: 85,
            cold_after: Duration::from_secs(30),
            sample_interval: Duration::from_secs(1),
        }
    }
}

/// A mistake in bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBounds {
    /// The fields in question, first the one that should be changed first.
    pub fields: Vec<&'static str>,
    pub problem: String,
}

const ELEVATED: &str = "elevated_percent";
const HIGH: &str = "high_percent";
const CRITICAL: &str = "critical_percent";
const FALL: &str = "fall_percent";
const EVICT_TO: &str = "evict_to_percent";

impl PressureBounds {
    /// Returns the first mistake, if there is one.
    pub fn first_problem(&self) -> Option<InvalidBounds> {
        self.out_of_range().or_else(|| self.disordered())
    }

    fn out_of_range(&self) -> Option<InvalidBounds> {
        let percents = [
            (ELEVATED, self.elevated_percent),
            (HIGH, self.high_percent),
            (CRITICAL, self.critical_percent),
            (EVICT_TO, self.evict_to_percent),
        ];
        let (field, percent) = percents.into_iter().find(|(_, percent)| !(1..=100).contains(percent))?;
        Some(InvalidBounds {
            fields: vec![field],
            problem: format!("{percent} is not between 1 and 100 percent"),
        })
    }

    fn disordered(&self) -> Option<InvalidBounds> {
        let Self { elevated_percent, high_percent, critical_percent, fall_percent, evict_to_percent, .. } =
            *self;
        let wrong = |fields: &[&'static str], problem| InvalidBounds { fields: fields.to_vec(), problem };
        let descends = |low: u32, high: u32| {
            (low >= high).then(|| format!("the levels must ascend: {low} percent, then {high}"))
        };
        let nearest = (high_percent.saturating_sub(elevated_percent))
            .min(critical_percent.saturating_sub(high_percent))
            .min(elevated_percent);
        let falls_too_far = || {
            (fall_percent >= nearest).then(|| {
                format!("a level is left {fall_percent} percent below its bound, but the level before it begins only {nearest} below")
            })
        };
        let left_at = high_percent.saturating_sub(fall_percent);
        let ends_too_high = || {
            (evict_to_percent >= left_at).then(|| {
                format!("evictions stop at {evict_to_percent} percent, but the level that begins at {high_percent} is left only below {left_at}")
            })
        };
        descends(elevated_percent, high_percent)
            .map(|problem| wrong(&[HIGH, ELEVATED], problem))
            .or_else(|| descends(high_percent, critical_percent).map(|it| wrong(&[CRITICAL, HIGH], it)))
            .or_else(|| falls_too_far().map(|it| wrong(&[FALL, ELEVATED, HIGH, CRITICAL], it)))
            .or_else(|| ends_too_high().map(|it| wrong(&[EVICT_TO, HIGH, FALL], it)))
    }

    /// Returns the value of a percentage field.
    pub fn percent(&self, field: &str) -> Option<u32> {
        let mut bounds = *self;
        bounds.percent_mut(field).map(|percent| *percent)
    }

    /// Returns the valid values of a field while all others stay; `None` if another field is wrong.
    pub fn allowed(&self, field: &str) -> Option<RangeInclusive<u32>> {
        let fits = |percent: &u32| {
            let mut bounds = *self;
            let said = bounds.percent_mut(field).map(|it| *it = *percent);
            said.is_some() && bounds.first_problem().is_none()
        };
        let mut all = (0..=100).filter(fits);
        let first = all.next()?;
        Some(first..=all.next_back().unwrap_or(first))
    }

    fn percent_mut(&mut self, field: &str) -> Option<&mut u32> {
        match field {
            ELEVATED => Some(&mut self.elevated_percent),
            HIGH => Some(&mut self.high_percent),
            CRITICAL => Some(&mut self.critical_percent),
            FALL => Some(&mut self.fall_percent),
            EVICT_TO => Some(&mut self.evict_to_percent),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_values_are_exactly_the_valid_ones() {
        let usual = PressureBounds::default();
        for (field, expected) in
            [(ELEVATED, 4..=86), (HIGH, 89..=91), (CRITICAL, 94..=100), (FALL, 0..=4), (EVICT_TO, 1..=86)]
        {
            assert_eq!(usual.allowed(field), Some(expected), "{field}");
        }
        assert_eq!(usual.allowed("cold_after_ms"), None);
        let low = PressureBounds { high_percent: 70, ..usual };
        assert_eq!((low.allowed(EVICT_TO), low.percent(HIGH)), (None, Some(70)), "the steps do not ascend");
    }

    #[test]
    fn mistake_names_its_fields() {
        let usual = PressureBounds::default();
        let fields =
            |bounds: PressureBounds| bounds.first_problem().map(|wrong| wrong.fields).unwrap_or_default();
        assert_eq!(fields(usual), [""; 0]);
        assert_eq!(fields(PressureBounds { critical_percent: 101, ..usual }), [CRITICAL]);
        assert_eq!(fields(PressureBounds { elevated_percent: 90, ..usual }), [HIGH, ELEVATED]);
        assert_eq!(fields(PressureBounds { critical_percent: 90, ..usual }), [CRITICAL, HIGH]);
        assert_eq!(fields(PressureBounds { fall_percent: u32::MAX, ..usual })[0], FALL);
        assert_eq!(fields(PressureBounds { evict_to_percent: 87, ..usual }), [EVICT_TO, HIGH, FALL]);
    }
}
