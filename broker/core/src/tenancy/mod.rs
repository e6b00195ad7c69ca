//! Who asks: tenants, their sessions, and what is remembered of their requests.

mod by_tenant;
mod map_queue;
mod op;
mod releases;
mod requests;
mod session;
mod state;
mod tenant;

pub(crate) use by_tenant::ByTenant;
pub(crate) use map_queue::MapQueue;
pub(crate) use op::{Op, OpId, OpKind, OpTable, Requester};
pub(crate) use releases::{ItemResult, Releases, Watched};
pub(crate) use requests::{Method, Outcome, Recall, RequestLog};
pub(crate) use session::{Session, SessionTable, SilentReason};
pub use state::{SessionEvent, SessionState};
pub(crate) use tenant::{TenantId, Tenants};
