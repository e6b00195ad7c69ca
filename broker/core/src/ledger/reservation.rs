//! Bytes that somebody pays for, as values: made and taken back by the ledger alone, never copied.

use vramd_types::Bytes;

use super::Place;
use crate::tenancy::TenantId;

macro_rules! receipt {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "bytes that nobody answers for stay charged for ever"]
        #[derive(Debug)]
        pub(crate) struct $name {
            tenant: TenantId,
            place: Place,
            bytes: Bytes,
        }

        impl $name {
            pub(super) const fn new(tenant: TenantId, place: Place, bytes: Bytes) -> Self {
                Self { tenant, place, bytes }
            }

            pub(super) const fn redeem(self) -> (TenantId, Place, Bytes) {
                (self.tenant, self.place, self.bytes)
            }

            pub(crate) const fn tenant(&self) -> TenantId {
                self.tenant
            }

            pub(crate) const fn place(&self) -> Place {
                self.place
            }

            pub(crate) const fn bytes(&self) -> Bytes {
                self.bytes
            }
        }
    };
}

receipt!(
    /// Set aside for something that is being made: to be settled or cancelled.
    Reservation
);
receipt!(
    /// Paid for something that is there: to be discharged when it is gone, or owed.
    Charge
);
receipt!(
    /// Paid for something that was let go and has not come back: to be repaid.
    Debt
);
