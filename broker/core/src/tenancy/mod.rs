//! Who asks: tenants, their sessions, and what is remembered of their requests.

mod op;
mod requests;
mod session;
mod state;
mod tenant;

pub(crate) use op::{Op, OpId, OpKind, OpTable, Requester, Watched};
pub(crate) use requests::{Method, Outcome, Recall, RequestLog};
pub(crate) use session::{Session, SessionTable, SilentReason};
pub use state::{SessionEvent, SessionState};
pub(crate) use tenant::{TenantId, Tenants};
