//! Tenants, their sessions, their pin calls and their requests.

mod by_tenant;
mod map_queue;
mod op_id;
mod pins;
mod releases;
mod requests;
mod session;
mod slots;
mod standing;
mod state;
mod tenant;
mod trust;
mod words;

pub(crate) use by_tenant::ByTenant;
pub(crate) use map_queue::MapQueue;
pub(crate) use op_id::OpId;
pub(crate) use pins::{Arrival, OWN_CALLS, PinCall, PinId, PinTable, PinnedPart};
pub(crate) use releases::{ItemResult, ReleaseItem, Releases};
pub(crate) use requests::{Method, Outcome, Recall, RequestLog};
pub(crate) use session::{Session, SessionTable, SilentReason};
pub(crate) use slots::Slots;
pub use standing::{AdvicePermission, Standing, TenantClass, TenantWeight, UnknownClass, UnknownPermission};
pub use state::{SessionEvent, SessionState};
pub(crate) use tenant::{TenantId, Tenants};
pub(crate) use trust::{Doubt, Trust};
pub(crate) use words::Words;
