//! The pure core of vramd: who holds what, who may, and what happens next.
//!
//! [`Broker`] is a state machine. It has four kinds of methods:
//! - [`Broker::handle`] takes an [`Event`] and the time, and changes state;
//! - [`Broker::poll_command`] gives out the [`Command`]s that this caused, to be executed in order;
//! - [`Broker::next_deadline`] says by when it wants to be called again though nothing happens;
//! - getters show state, and change nothing.
//!
//! There is no clock, randomness, thread, lock or IO in here: a run is a function of configuration and events.
//!
//! ```text
//!   event ──► handler ──► tenancy     who asks, and what is remembered of its requests
//!                    ├──► ledger      may it be charged? reserve, settle, discharge
//!                    ├──► residency   allocations, their parts, and who maps them
//!                    ├──► migration   parts on their way between tiers, and those that wait for room
//!                    └──► pool        the physical extents behind the parts
//!                          └──► commands ──► shell ──► completions come back as events
//! ```

#![forbid(unsafe_code)]

#[macro_use]
mod planted;

mod broker;
mod collections;
mod command;
mod config;
mod error;
mod event;
mod eviction;
#[cfg(feature = "observed")]
mod forced;
mod handler;
pub mod invariants;
mod ledger;
pub mod limits;
mod migration;
mod observed;
mod pool;
mod pressure;
mod residency;
mod settings;
mod tenancy;
mod time;
mod view;

pub use broker::Broker;
pub use command::{
    Caller, Command, DaemonFrame, DigestSpan, MapPart, Notice, PartMove, PartRevocation, Released, Reply,
    RevokeReason, RevokedPart, WaitEnd, WaiterKind,
};
pub use config::{Config, DeviceConfig};
pub use error::Refusal;
pub use event::{
    Advice, AllocationSpec, CallId, ChannelId, ClientFrame, ClientRequest, Completion, CreateError,
    DeviceSelector, DigestError, Event, FileId, FileSpan, Hello, Kind, Lifetime, OperatorRequest, PartRef,
    PartUse, Peer, RequestKey, Slot, Target, Tier, UnmappedPart, WordsOutcome,
};
pub use eviction::EvictionPolicy;
#[cfg(feature = "observed")]
pub use forced::Forced;
pub use limits::Limits;
pub use migration::{Cause, MigrationEvent, MigrationState, WriteBackEvent, WriteBackState};
pub use observed::Transition;
#[cfg(feature = "planted")]
pub use planted::Bug;
pub use pressure::{InvalidBounds, Pressure, PressureBounds, PressureNote};
pub use residency::{AllocationEvent, AllocationState, MapEvent, MapState};
pub use settings::{PressureChange, Settings, SettingsChange, ShareChange, TierChange, TierSettings};
pub use tenancy::{SessionEvent, SessionState};
pub use time::Time;
pub use view::{
    AllocationView, Backing, Counts, DeviceView, MapperView, MoveView, NodeView, PartView, QuotaInForce,
    QuotaView, SessionView, StoredQuota, StoredQuotas, StoredRequest, TierView, WaitView, WaiterView,
};
