//! A tenant's balance in one place.

use vramd_types::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Kept free for the tenant, used or not.
    pub(crate) guarantee: Bytes,
    /// The tenant is never admitted above it.
    pub(crate) limit: Bytes,
    /// Charged for memory that exists.
    pub(crate) settled: Bytes,
    /// Reserved for memory that is being created.
    pub(crate) reserved: Bytes,
    /// Released memory that a process still has open.
    pub(crate) unreturned: Bytes,
}

impl Account {
    pub(crate) fn charged(&self) -> Bytes {
        self.settled.saturating_add(self.reserved).saturating_add(self.unreturned)
    }

    pub(crate) fn checked_charged(&self) -> Option<Bytes> {
        Bytes::checked_sum([self.settled, self.reserved, self.unreturned])
    }

    /// The account without these settled bytes.
    pub(crate) fn without(self, bytes: Bytes) -> Self {
        Self { settled: self.settled.saturating_sub(bytes), ..self }
    }

    /// The account with these further reserved bytes.
    pub(crate) fn with(self, bytes: Bytes) -> Self {
        Self { reserved: self.reserved.saturating_add(bytes), ..self }
    }

    /// The bytes of the capacity that the account commits.
    pub(crate) fn commitment(&self) -> Bytes {
        self.guarantee.max(self.charged())
    }
}
