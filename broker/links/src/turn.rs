/// How a class stands at a link, for one lane: the lower, the sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// It has had nothing for so long that it has one chunk.
    Starved,
    /// It has had less than its share.
    Owed,
    InOrder,
    /// To another class that has had less than its share.
    Yielding,
    /// By what is under way there; or it does not wait.
    HeldBack,
}

impl Turn {
    /// At both of two links. Who is owed at one of them yields at none: else two could yield to each other.
    pub(crate) fn combine(self, other: Self) -> Self {
        match (self.min(other), self.max(other)) {
            (_, Self::HeldBack) => Self::HeldBack,
            (first, _) if first.goes_out_of_order() => first,
            (_, last_passed) => last_passed,
        }
    }

    /// Before those that go in order.
    pub(crate) fn goes_out_of_order(self) -> bool {
        self < Self::InOrder
    }

    pub(crate) fn may_begin(self) -> bool {
        self <= Self::InOrder
    }
}
