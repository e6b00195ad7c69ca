//! What each event does, one subject a file.

mod admin;
mod advise;
mod allocate;
mod attach;
mod backing;
mod batch;
mod choose;
mod client;
mod completion;
mod create;
mod demand;
mod discard;
mod ever;
mod fd_budget;
mod forget;
mod hold;
mod line;
mod load;
mod mapping;
mod migrate;
mod migrated;
mod notice;
mod parts;
mod pin;
#[cfg(test)]
mod pin_costs;
mod plan;
mod pressure;
mod query;
mod quota;
mod ran_out;
mod recycle;
mod release;
mod reply;
mod revocation;
mod room;
mod seal;
mod session;
mod settings;
mod settle;
mod stall;
mod step;
mod survey;
mod timer;
mod touch;
mod wait;
mod write_back;

pub(crate) use batch::{Asked, Batch};
pub(crate) use fd_budget::FdBudget;
pub(crate) use quota::{QuotaChange, QuotaQueue};
pub(crate) use room::AwaitedRoom;
pub(crate) use settle::Unsettled;
pub(crate) use survey::Surveys;
pub(crate) use timer::Timer;

use crate::{
    error::Refusal,
    tenancy::{OpKind, Outcome},
};

/// How far a request got at once.
pub(crate) enum Started {
    Done(Outcome),
    /// Waits, under the operation's id that it was given.
    Waiting(OpKind),
}

pub(crate) type Start = Result<Started, Refusal>;
