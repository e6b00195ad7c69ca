//! Requested changes of quotas, and of the classes and weights of tenants, and of whether their advice counts.

use vramd_types::Quantity;

use crate::{
    event::Tier,
    ledger::QuotaDevice,
    tenancy::{AdvicePermission, TenantClass, TenantId, TenantWeight},
};

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

/// A requested change of a tenant's class, of its weight, and of whether its advice counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StandingChange {
    pub(crate) tenant: TenantId,
    pub(crate) edit: StandingEdit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StandingEdit {
    /// Values that are left out stay as they are.
    Set { class: Option<TenantClass>, weight: Option<TenantWeight>, advice: Option<AdvicePermission> },
    /// The configuration applies again.
    Reset,
}
