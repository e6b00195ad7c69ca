//! The ids of operations.

use std::num::NonZeroU64;

/// The id of an operation. It is never zero, so an `Option` of it is one word: every allocation has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpId(NonZeroU64);

impl OpId {
    pub(crate) const MIN: Self = Self(NonZeroU64::MIN);
    pub(crate) const MAX: Self = Self(NonZeroU64::MAX);

    /// The id after that many others.
    pub(crate) const fn after(others: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(others))
    }
}
