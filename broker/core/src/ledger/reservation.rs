//! Reservations, charges and debts as values. Only the ledger creates them and takes them back, and they are
//! never copied.

use vramd_types::Bytes;

use super::Place;

use crate::tenancy::TenantId;

macro_rules! receipt {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "bytes of a dropped receipt stay charged for ever"]
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
    /// Bytes of memory that is being created. The ledger must settle or cancel it.
    Reservation
);
receipt!(
    /// Bytes of memory that exists. The ledger must discharge it when the memory is gone, or turn it into
    /// debts.
    Charge
);
receipt!(
    /// Bytes of memory that was released and has not come back. The ledger must be repaid.
    Debt
);
