//! The way of one part's content into what the part has below, while the part stays where it is, as a table.
//!
//! ```text
//!           the word is asked         nobody uses it             copied
//!  Making ────────────────────► Asking ─────────────► Copying ─────────► (there: a shadow, unless written since)
//!    │ │                         │  │                  │   │
//!    │ ╰── nobody can write it ──┼──┼─────────────────►│   │
//!    │ failed, stop       in use │  │ stop        stop │   │ failed
//!    │                           │  ▼                  ▼   │
//!    │                           │  Stopping ◄─────────╯   │
//!    │                           │     │ answered          │
//!    ╰───────────────────────────┴─────┴───────────────────┴──► (back: no shadow, and no older one either)
//! ```
//!
//! What the part had below before is no shadow from the first step on: once WRITTEN has been cleared nothing would tell
//! that it is old.

use std::collections::BTreeMap;

use vramd_types::ExtentId;

use super::MigrationStep;
use crate::{
    collections::Few,
    command::PartMove,
    event::{PartRef, Tier},
    migration::MigrationState,
    tenancy::OpId,
    time::Time,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteBackState {
    /// Memory is being made below.
    Creating,
    /// The word of who maps it is looked at: WRITTEN is cleared if nobody pins it.
    Checking,
    /// The driver copies. Neither end may be released.
    Copying,
    /// It was given up, and what was asked last has not been answered yet.
    Stopping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBackEvent {
    /// Somebody maps it who may write.
    Check,
    /// Nobody writes it now: whoever begins to says so by WRITTEN.
    Ready,
    Copied,
    /// It is in use; or memory could not be made, or not be copied to.
    Failed,
    Stop,
}

impl WriteBackState {
    pub const ALL: [Self; 4] = [Self::Creating, Self::Checking, Self::Copying, Self::Stopping];

    /// Where the event leads, or `None` if it must not happen here.
    pub(crate) const fn on(self, event: WriteBackEvent) -> Option<MigrationStep<Self>> {
        use WriteBackEvent as E;
        Some(match (self, event) {
            (Self::Creating, E::Check) => MigrationStep::To(Self::Checking),
            (Self::Creating | Self::Checking, E::Ready) => MigrationStep::To(Self::Copying),
            (Self::Copying, E::Copied) => MigrationStep::Done,
            (Self::Checking | Self::Copying | Self::Stopping, E::Stop) => MigrationStep::To(Self::Stopping),
            (Self::Creating | Self::Checking | Self::Copying, E::Failed)
            | (Self::Creating, E::Stop)
            | (Self::Stopping, E::Ready | E::Copied | E::Failed) => MigrationStep::Abandoned,
            _ => return None,
        })
    }

    /// Whether the event may happen here.
    #[cfg(feature = "observed")]
    pub const fn allows(self, event: WriteBackEvent) -> bool {
        self.on(event).is_some()
    }

    /// Whether the driver may be reading one end and writing the other.
    pub(crate) const fn is_copying(self) -> bool {
        matches!(self, Self::Copying | Self::Stopping)
    }

    /// As what it is shown among what moves.
    pub(crate) const fn as_migration_state(self) -> MigrationState {
        match self {
            Self::Creating | Self::Checking => MigrationState::Preparing,
            Self::Copying => MigrationState::Copying,
            Self::Stopping => MigrationState::Stopping,
        }
    }
}

impl WriteBackEvent {
    pub const ALL: [Self; 5] = [Self::Check, Self::Ready, Self::Copied, Self::Failed, Self::Stop];
}

#[derive(Debug)]
pub(crate) struct WriteBack {
    /// What the part has below.
    pub(crate) to: ExtentId,
    pub(crate) tier: Tier,
    pub(crate) since: Time,
    pub(crate) state: WriteBackState,
    /// Somebody has said that the part was written since the copy began, or will write it and say nothing.
    pub(crate) written: bool,
    /// Why it was given up, once it was.
    pub(crate) stopped: Option<PartMove>,
    /// Operations that wait for it to be over.
    pub(crate) ops: Few<OpId>,
}

pub(crate) type WriteBacks = BTreeMap<PartRef, WriteBack>;

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table: a change of it is a change of this.
    #[test]
    fn every_transition() {
        let mut legal = String::new();
        for state in WriteBackState::ALL {
            for event in WriteBackEvent::ALL {
                if let Some(step) = state.on(event) {
                    legal += &format!("{state:?} + {event:?} = {step:?}\n");
                }
            }
        }
        assert_eq!(
            legal,
            "Creating + Check = To(Checking)\n\
             Creating + Ready = To(Copying)\n\
             Creating + Failed = Abandoned\n\
             Creating + Stop = Abandoned\n\
             Checking + Ready = To(Copying)\n\
             Checking + Failed = Abandoned\n\
             Checking + Stop = To(Stopping)\n\
             Copying + Copied = Done\n\
             Copying + Failed = Abandoned\n\
             Copying + Stop = To(Stopping)\n\
             Stopping + Ready = Abandoned\n\
             Stopping + Copied = Abandoned\n\
             Stopping + Failed = Abandoned\n\
             Stopping + Stop = To(Stopping)\n"
        );
    }
}
