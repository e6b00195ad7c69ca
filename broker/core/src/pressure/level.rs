//! The levels of pressure. A level is left well below its entry, so that a fill near the bound is not
//! reported at each change.

use std::fmt;

use vramd_types::Bytes;

use super::PressureBounds;

/// How full a device or a tier below it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    #[default]
    Normal,
    /// Cold parts are written back ahead of need.
    Elevated,
    /// Cold parts are evicted.
    High,
    /// Cold parts are evicted at once, without waiting for the next sample.
    Critical,
}

impl Pressure {
    pub const ALL: [Self; 4] = [Self::Normal, Self::Elevated, Self::High, Self::Critical];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Elevated => "elevated",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// Returns the level that follows this one at a fill.
    pub(crate) fn next(self, charged: Bytes, capacity: Bytes, bounds: &PressureBounds) -> Self {
        let is_at = |percent: u32| reaches(charged, capacity, percent);
        let stands = |step: &Self| match step.begins(bounds) {
            None => true,
            Some(begins) if *step > self => is_at(begins),
            Some(begins) => is_at(begins.saturating_sub(bounds.fall_percent)),
        };
        Self::ALL.into_iter().rev().find(stands).unwrap_or_default()
    }

    const fn begins(self, bounds: &PressureBounds) -> Option<u32> {
        match self {
            Self::Normal => None,
            Self::Elevated => Some(bounds.elevated_percent),
            Self::High => Some(bounds.high_percent),
            Self::Critical => Some(bounds.critical_percent),
        }
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the charge reaches a percentage of the capacity. A place without capacity is full as soon as
/// anything is charged there.
pub(super) fn reaches(charged: Bytes, capacity: Bytes, percent: u32) -> bool {
    let hundred = |bytes: Bytes, times: u32| u128::from(bytes.get()).saturating_mul(u128::from(times));
    !charged.is_zero() && hundred(charged, 100) >= hundred(capacity, percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From each level, at each of these percentages.
    #[test]
    fn level_is_entered_at_its_bound_and_left_below_it() {
        let bounds = PressureBounds::default();
        let next = |from: Pressure, percent| from.next(Bytes::new(percent), Bytes::new(100), &bounds);
        for (percent, expected) in [
            (0, "normal normal normal normal"),
            (76, "normal normal normal normal"),
            (77, "normal elevated elevated elevated"),
            (80, "elevated elevated elevated elevated"),
            (86, "elevated elevated elevated elevated"),
            (87, "elevated elevated high high"),
            (90, "high high high high"),
            (91, "high high high high"),
            (92, "high high high critical"),
            (95, "critical critical critical critical"),
            (120, "critical critical critical critical"),
        ] {
            let all: Vec<_> = Pressure::ALL.iter().map(|from| next(*from, percent).name()).collect();
            assert_eq!(all.join(" "), expected, "{percent}");
        }
    }

    #[test]
    fn place_without_capacity_is_full_at_the_first_charge() {
        let next =
            |charged| Pressure::Normal.next(Bytes::new(charged), Bytes::ZERO, &PressureBounds::default());
        assert_eq!((next(0), next(1)), (Pressure::Normal, Pressure::Critical));
    }
}
