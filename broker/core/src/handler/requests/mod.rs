//! Requests of clients and operators.
//!
//! A request is authenticated, checked for repetition and handed to its subject. It ends as an
//! [`Outcome`](crate::tenancy::Outcome) or a refusal.
//!
//! - `client`: requests of client processes: authentication, repetition, dispatch
//! - `operator`: requests of operators, and their dispatch
//! - `part_orders`: operators' orders for the parts of one allocation
//! - `operator_holds`: parts that operators hold on their device
//! - `advice`: what owners say about the use of an allocation
//! - `quota`: changes of quotas
//! - `standing`: changes of the class and the weight of tenants
//! - `settings`: changes of settings

mod advice;
mod client;
mod operator;
mod operator_holds;
pub(super) mod part_orders;
pub(super) mod quota;
mod settings;
mod standing;

use std::collections::BTreeMap;

use crate::ops::OpTable;
use crate::tenancy::RequestLog;

/// Requests under way, and those that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) ops: OpTable,
    /// Requests of operators, by uid.
    pub(crate) operators: BTreeMap<u32, RequestLog>,
    pub(crate) quotas: quota::QuotaQueue,
}
