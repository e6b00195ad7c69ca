//! The states of an allocation, as a table.
//!
//! ```text
//!             Created          SealAsked            Unmapped             Digested
//!  Creating ──────────► Open ────────────► Unmapping ─────────► Digesting ─────────► Sealed
//!     │                  │ ◄───────────────────┼──── SealFailed ────┘                  │
//!     └──────────────────┴───────── Freed ─────┴──────────────────────────────────────► Freeing
//! ```

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllocationState {
    /// The driver is creating its extents.
    Creating,
    /// Its owner's session may write.
    Open,
    /// It is being sealed: its owner's session is unmapping.
    Unmapping,
    /// It is being sealed: the driver is hashing.
    Digesting,
    /// It is never written again.
    Sealed,
    /// It is freed: no session can attach it. It stays charged until it is unmapped everywhere and released.
    Freeing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationEvent {
    Created,
    SealAsked,
    Unmapped,
    Digested,
    SealFailed,
    Freed,
}

impl AllocationState {
    pub const ALL: [Self; 6] =
        [Self::Creating, Self::Open, Self::Unmapping, Self::Digesting, Self::Sealed, Self::Freeing];

    /// Returns the next state, or `None` if the event is illegal in this state.
    pub const fn on(self, event: AllocationEvent) -> Option<Self> {
        use AllocationEvent as E;
        Some(match (self, event) {
            (Self::Creating, E::Created) => Self::Open,
            (Self::Open, E::SealAsked) => Self::Unmapping,
            (Self::Unmapping, E::Unmapped) => Self::Digesting,
            (Self::Digesting, E::Digested) => Self::Sealed,
            (Self::Digesting, E::SealFailed) => Self::Open,
            (Self::Creating | Self::Open | Self::Unmapping | Self::Digesting | Self::Sealed, E::Freed) => {
                Self::Freeing
            }
            _ => return None,
        })
    }

    /// Whether its owner's session will be sent all its parts later, so that it needs slots then.
    pub(crate) const fn promises_slots(self) -> bool {
        matches!(self, Self::Creating | Self::Unmapping | Self::Digesting)
    }
}

impl AllocationEvent {
    pub const ALL: [Self; 6] =
        [Self::Created, Self::SealAsked, Self::Unmapped, Self::Digested, Self::SealFailed, Self::Freed];
}

impl fmt::Display for AllocationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Creating => "creating",
            Self::Open => "open",
            Self::Unmapping | Self::Digesting => "sealing",
            Self::Sealed => "sealed",
            Self::Freeing => "freeing",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transitions::legal_transitions;

    /// The whole table: a change of the table must change this test.
    #[test]
    fn transition_table_matches() {
        assert_eq!(
            legal_transitions(&AllocationState::ALL, &AllocationEvent::ALL, AllocationState::on),
            "Creating + Created = Open\n\
             Creating + Freed = Freeing\n\
             Open + SealAsked = Unmapping\n\
             Open + Freed = Freeing\n\
             Unmapping + Unmapped = Digesting\n\
             Unmapping + Freed = Freeing\n\
             Digesting + Digested = Sealed\n\
             Digesting + SealFailed = Open\n\
             Digesting + Freed = Freeing\n\
             Sealed + Freed = Freeing\n"
        );
    }
}
