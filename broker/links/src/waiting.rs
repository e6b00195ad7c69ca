use vramd_types::CopyClass;

/// The classes that wait in a lane: something of them is left to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingClasses([bool; CopyClass::COUNT]);

impl WaitingClasses {
    pub fn contains(self, class: CopyClass) -> bool {
        self.0[class.index()]
    }

    #[must_use]
    fn with(mut self, class: CopyClass) -> Self {
        self.0[class.index()] = true;
        self
    }
}

impl FromIterator<CopyClass> for WaitingClasses {
    fn from_iter<I: IntoIterator<Item = CopyClass>>(classes: I) -> Self {
        classes.into_iter().fold(Self::default(), Self::with)
    }
}
