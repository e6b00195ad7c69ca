//! The shares of a link among the classes of copies.

use std::fmt;

/// The class of a copy, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyClass {
    /// A client waits for the copy, or for the room that it leaves.
    Demand,
    /// The copy fetches, and no client waits for it.
    Prefetch,
    /// The copy evicts or writes back, and no client waits for it.
    WriteBack,
}

impl CopyClass {
    pub const COUNT: usize = 3;
    pub const ALL: [Self; Self::COUNT] = [Self::Demand, Self::Prefetch, Self::WriteBack];

    pub fn name(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::Prefetch => "prefetch",
            Self::WriteBack => "write_back",
        }
    }

    /// The class's index in [`ALL`](Self::ALL).
    pub fn index(self) -> usize {
        match self {
            Self::Demand => 0,
            Self::Prefetch => 1,
            Self::WriteBack => 2,
        }
    }
}

/// The share of a link that each class gets at least while it has work, in percent. Unused share is lent to the other
/// classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    percent: [u8; CopyClass::COUNT],
}

impl Shares {
    /// Fails if the sum is above 100.
    pub fn new(demand: u32, prefetch: u32, write_back: u32) -> Result<Self, TooManyShares> {
        let percent = [demand, prefetch, write_back];
        match percent.into_iter().fold(0, u32::saturating_add) {
            // Each share fits if their sum does.
            0..=100 => Ok(Self { percent: percent.map(|it| u8::try_from(it).unwrap_or(u8::MAX)) }),
            sum => Err(TooManyShares { sum }),
        }
    }

    pub fn percent(&self, class: CopyClass) -> u32 {
        u32::from(self.percent[class.index()])
    }
}

impl Default for Shares {
    fn default() -> Self {
        Self { percent: [30, 50, 20] }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyShares {
    pub sum: u32,
}

impl fmt::Display for TooManyShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the shares add up to {} percent of a link, which has 100", self.sum)
    }
}

impl std::error::Error for TooManyShares {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_no_more_than_the_link() {
        assert_eq!(Shares::new(30, 50, 20), Ok(Shares::default()));
        assert_eq!(Shares::new(0, 0, 0).map(|it| it.percent(CopyClass::Demand)), Ok(0));
        assert_eq!(Shares::new(30, 50, 21), Err(TooManyShares { sum: 101 }));
        assert_eq!(Shares::new(u32::MAX, 255, 255), Err(TooManyShares { sum: u32::MAX }));
    }

    #[test]
    fn a_class_is_at_its_place() {
        assert_eq!(CopyClass::ALL.map(CopyClass::index), [0, 1, 2]);
    }
}
