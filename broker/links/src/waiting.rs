use std::ops::BitOr;

use vramd_types::CopyClass;

/// The classes of which something waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting([bool; CopyClass::COUNT]);

impl Waiting {
    pub fn has(self, class: CopyClass) -> bool {
        self.0[class.index()]
    }

    #[must_use]
    pub fn with(mut self, class: CopyClass) -> Self {
        self.0[class.index()] = true;
        self
    }
}

impl FromIterator<CopyClass> for Waiting {
    fn from_iter<I: IntoIterator<Item = CopyClass>>(classes: I) -> Self {
        classes.into_iter().fold(Self::default(), Self::with)
    }
}

/// Of two lanes.
impl BitOr for Waiting {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        CopyClass::ALL.into_iter().filter(|class| self.has(*class) || other.has(*class)).collect()
    }
}
