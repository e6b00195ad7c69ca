use vramd_types::CopyClass;

/// The classes of which something waits in a lane.
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
