//! The pure core of vramd: a state machine that decides which tenant is charged for memory, which session
//! may map it, and which parts move.
//!
//! [`Broker`] has four kinds of methods:
//! - [`Broker::handle`] takes an [`Event`] and the time, and changes state.
//! - [`Broker::poll_command`] returns the [`Command`]s that follow, in the order in which the shell executes
//!   them.
//! - [`Broker::next_deadline`] returns when to call [`Broker::handle`] with [`Event::Tick`] if nothing else
//!   happens.
//! - Getters return views and change nothing.
//!
//! The core has no clock, randomness, thread, lock or IO: a run is a function of configuration and events.
//! The price: it holds all state in memory, and the shell serializes every call.
//!
//! ```text
//!   event ──► handler ──► tenancy     tenants, sessions, pin calls and requests
//!                    ├──► ledger      admission: reserve, settle, discharge
//!                    ├──► residency   allocations, their parts and mappings
//!                    ├──► moves       moves between tiers, and backing
//!                    ├──► line        the waiters for room on devices
//!                    └──► pool        the extents of physical memory behind the parts
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
mod follow_up;
#[cfg(feature = "observed")]
mod forced;
mod handler;
pub mod invariants;
mod ledger;
pub mod limits;
mod line;
mod moves;
mod observed;
mod ops;
mod placement;
mod pool;
mod prefetch;
mod pressure;
mod residency;
mod sequence;
mod settings;
mod shell;
mod tenancy;
mod time;
#[cfg(test)]
mod transitions;
mod turns;
mod view;

pub use broker::Broker;
pub use command::{
    Caller, Command, DaemonFrame, DigestSpan, ManagedOrder, MapPart, Notice, PartMove, PartRevocation,
    PrefetchEnd, PrefetchLoss, Released, Reply, RevokeReason, RevokedPart, WaitEnd, WaiterKind,
};
pub use config::{Config, DeviceConfig};
pub use error::{FullBecause, Refusal};
pub use event::{
    Advice, Adviser, AllocationSpec, CallId, ChannelId, ClientFrame, ClientRequest, Completion, CreateError,
    DeviceSelector, DigestError, Event, FileId, FileSpan, Hello, Kind, Lifetime, MemoryClass,
    OperatorRequest, PartRef, PartSpan, PartUse, Pattern, Peer, Preset, ProcessStays, RequestKey, Retention,
    Slot, Target, Tier, UnmappedPart, WordsOutcome,
};
pub use eviction::{
    EvictionPolicy, EvictionReason, PartAdvice, PartNeed, Residents, Source, UnknownPolicy, Weight,
};
#[cfg(feature = "observed")]
pub use forced::Forced;
pub use limits::{Limits, TurnLimits};
pub use moves::{Cause, MigrationEvent, MigrationState, WriteBackEvent, WriteBackState};
pub use observed::Transition;
pub use placement::{PlacedBy, Placement, PlacementSum};
#[cfg(feature = "planted")]
pub use planted::Bug;
pub use prefetch::{
    Deferral, PrefetchPhase, PrefetchSpec, PrefetchState, PrefetchView, Speculation, SpeculationEnd,
};
pub use pressure::{InvalidBounds, Pressure, PressureBounds, PressureNote};
pub use residency::{AllocationEvent, AllocationState, MapEvent, MapState};
pub use sequence::{PartRange, SequencePlace, SequenceSpec, SequenceState, SequenceView, SequenceWindow};
pub use settings::{PressureChange, Settings, SettingsChange, ShareChange, TierChange, TierSettings};
pub use tenancy::{
    AdvicePermission, SessionEvent, SessionState, Standing, TenantClass, TenantWeight, UnknownClass,
    UnknownPermission,
};
pub use time::Time;
pub use turns::{TurnEnd, TurnPhase, TurnState, WorkingSetSpec, WorkingSetView};
pub use view::{
    AdviceView, AllocationView, Backing, Counts, DeviceView, ManagedBytes, ManagedView, MapperView, MoveView,
    NodeView, OwnQuotaView, PartView, QuotaInForce, QuotaView, SessionView, StandingSource, StoredChange,
    StoredQuota, StoredQuotas, StoredRequest, StoredTenant, TenantView, TierView, WaitCause, WaitReason,
    WaitView, WaiterView,
};
