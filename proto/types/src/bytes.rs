//! Numbers of bytes that no code can mistake for other numbers, and whose overflow is never silent.

use std::fmt;

/// The granularity of physical device memory: every extent is a multiple of 2 MiB.
pub const GRANULARITY: Bytes = Bytes::new(2 << 20);

/// A number of bytes. Arithmetic is checked; there is no `From<u64>`, so that a count never becomes a size
/// by accident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(u64::MAX);

    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn mib(mebibytes: u32) -> Self {
        Self((mebibytes as u64) << 20)
    }

    pub const fn gib(gibibytes: u32) -> Self {
        Self((gibibytes as u64) << 30)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Rounds up to a multiple of `unit`. `None` if there is none below 2^64, or `unit` is zero.
    #[must_use]
    pub const fn checked_round_up(self, unit: Self) -> Option<Self> {
        match self.0.checked_next_multiple_of(unit.0) {
            Some(rounded) => Some(Self(rounded)),
            None => None,
        }
    }

    pub const fn is_multiple_of(self, unit: Self) -> bool {
        self.0.is_multiple_of(unit.0)
    }

    /// Returns `percent` hundredths, rounded down.
    #[must_use]
    pub const fn percent(self, percent: u8) -> Self {
        // A u64 times a u8 fits in a u128. A share above u64::MAX is cut to u64::MAX.
        let share = self.0 as u128 * percent as u128 / 100;
        if share > u64::MAX as u128 { Self::MAX } else { Self::new_truncated(share) }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the caller has compared with u64::MAX")]
    const fn new_truncated(bytes: u128) -> Self {
        Self(bytes as u64)
    }

    /// Returns the sum, or `None` on overflow.
    #[must_use]
    pub fn checked_sum(items: impl IntoIterator<Item = Self>) -> Option<Self> {
        items.into_iter().try_fold(Self::ZERO, Self::checked_add)
    }
}

/// Formats for people: binary units, exact if possible (`24 GiB`), else with two decimals (`86.74 MiB`).
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 6] =
            [(60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in UNITS {
            let whole = self.0 >> shift;
            if whole > 0 {
                let rest = self.0 - (whole << shift);
                // Hundredths are rounded down: a full device never reads as more than its size.
                let hundredths = (u128::from(rest) * 100) >> shift;
                return if rest == 0 {
                    f.pad(&format!("{whole} {unit}"))
                } else {
                    f.pad(&format!("{whole}.{hundredths:02} {unit}"))
                };
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_people_write() {
        assert_eq!(Bytes::gib(24).to_string(), "24 GiB");
        assert_eq!(Bytes::new(90_955_192).to_string(), "86.74 MiB");
        assert_eq!(Bytes::new(1023).to_string(), "1023 B");
        assert_eq!(Bytes::ZERO.to_string(), "0 B");
        assert_eq!(Bytes::MAX.to_string(), "15.99 EiB");
        assert_eq!(format!("{:>8}", Bytes::mib(2)), "   2 MiB");
    }

    #[test]
    fn rounds_and_refuses_to_overflow() {
        assert_eq!(Bytes::new(1).checked_round_up(GRANULARITY), Some(GRANULARITY));
        assert_eq!(Bytes::MAX.checked_round_up(GRANULARITY), None);
        assert_eq!(Bytes::MAX.checked_add(Bytes::new(1)), None);
        assert_eq!(Bytes::checked_sum([Bytes::MAX, Bytes::new(1)]), None);
        assert_eq!(Bytes::MAX.percent(100), Bytes::MAX);
        assert_eq!(Bytes::MAX.percent(255), Bytes::MAX);
        assert_eq!(Bytes::new(1000).percent(90), Bytes::new(900));
    }
}
