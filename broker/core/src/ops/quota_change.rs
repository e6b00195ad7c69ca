//! A requested change of a quota.

use vramd_types::Quantity;

use crate::{event::Tier, ledger::QuotaDevice, tenancy::TenantId};

/// A requested change. The daemon computes its result when its turn comes.
#[derive(Clone, Debug)]
pub(crate) struct QuotaChange {
    pub(crate) tenant: TenantId,
    pub(crate) device: QuotaDevice,
    pub(crate) tier: Tier,
    pub(crate) edit: QuotaEdit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum QuotaEdit {
    /// Values that are left out stay as they are.
    Set {
        guarantee: Option<Quantity>,
        limit: Option<Quantity>,
    },
    Delete,
}
