//! What one tenant has in one place.

use vramd_types::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Set aside for the tenant, used or not.
    pub(crate) guarantee: Bytes,
    /// Never admitted above.
    pub(crate) limit: Bytes,
    /// Made, and lying there.
    pub(crate) settled: Bytes,
    /// Being made.
    pub(crate) reserved: Bytes,
    /// Let go, and held by some process all the same.
    pub(crate) unreturned: Bytes,
}

impl Account {
    pub(crate) fn charged(&self) -> Bytes {
        self.settled.saturating_add(self.reserved).saturating_add(self.unreturned)
    }

    pub(crate) fn checked_charged(&self) -> Option<Bytes> {
        Bytes::checked_sum([self.settled, self.reserved, self.unreturned])
    }

    /// The account without so many of the bytes that lie there.
    pub(crate) fn without(self, bytes: Bytes) -> Self {
        Self { settled: self.settled.saturating_sub(bytes), ..self }
    }

    /// The account with so many bytes more that are to be made there.
    pub(crate) fn with(self, bytes: Bytes) -> Self {
        Self { reserved: self.reserved.saturating_add(bytes), ..self }
    }

    /// What it takes out of the capacity. All held bytes are unmovable.
    pub(crate) fn commitment(&self) -> Bytes {
        self.guarantee.max(self.charged())
    }
}
