/// The standing of a class at a link, for one lane: the lower, the sooner it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// The class has waited so long without a chunk that it gets one.
    Starved,
    /// The class has had less than its share.
    Owed,
    InOrder,
    /// The class yields to another class that has had less than its share.
    Yielding,
    /// Chunks in flight hold the class back, or it does not wait.
    HeldBack,
}

impl Turn {
    /// The standing over two links. A class that is owed at one link yields at none; else two classes could
    /// yield to each other.
    pub(crate) fn combine(self, other: Self) -> Self {
        match (self.min(other), self.max(other)) {
            (_, Self::HeldBack) => Self::HeldBack,
            (first, _) if first.goes_out_of_order() => first,
            (_, last_passed) => last_passed,
        }
    }

    /// Whether the class goes before those that go in order.
    pub(crate) fn goes_out_of_order(self) -> bool {
        self < Self::InOrder
    }

    pub(crate) fn may_begin(self) -> bool {
        self <= Self::InOrder
    }
}
