//! Operations: requests under way, which wait for the driver, a client or the disk.

mod op;
mod per_part;
mod quota_change;

pub(crate) use op::{MoveGoal, Op, OpKind, OpTable, Requester};
pub(crate) use per_part::PerPart;
pub(crate) use quota_change::{QuotaChange, QuotaEdit, StandingChange, StandingEdit};
