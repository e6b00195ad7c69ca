//! The states of a migration, as a table.
//!
//! ```text
//!      ╭──────────── no session maps the part, destination is clean ───────────╮
//!      │         destination created,                                          │
//!      │         no session maps the part       copied                         ▼
//!  Preparing ──────────────────────► Copying ─────────► (done: the source is released)
//!      │ stop                         │    │ failed
//!      │                         stop │    │
//!      │                              ▼    │
//!      │                          Stopping │
//!      │                              │    │
//!      ╰──────────────────────────────┴────┴──► (abandoned: the destination is released)
//! ```
//!
//! The source is unchanged until the last byte has arrived, so no failure loses content.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MigrationState {
    /// The driver creates the destination, and sessions unmap the part.
    Preparing,
    /// The driver copies. Neither end may be released.
    Copying,
    /// The migration was stopped, and the driver has not reported the end of the copy yet.
    Stopping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationEvent {
    /// The destination exists and no session maps the part.
    Ready,
    /// No session maps the part, and the destination already has its bytes.
    Clean,
    Copied,
    Failed,
    Stop,
}

/// The result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationStep<State = MigrationState> {
    To(State),
    /// The part is at its destination.
    Done,
    /// The part stays where it was.
    Abandoned,
}

impl MigrationState {
    pub const ALL: [Self; 3] = [Self::Preparing, Self::Copying, Self::Stopping];

    /// Returns the next step, or `None` if the event is illegal in this state.
    pub(crate) const fn on(self, event: MigrationEvent) -> Option<MigrationStep> {
        use MigrationEvent as E;
        Some(match (self, event) {
            (Self::Preparing, E::Ready) => MigrationStep::To(Self::Copying),
            (Self::Preparing, E::Clean) | (Self::Copying, E::Copied) => MigrationStep::Done,
            (Self::Copying | Self::Stopping, E::Stop) => MigrationStep::To(Self::Stopping),
            (Self::Preparing, E::Stop | E::Failed)
            | (Self::Copying, E::Failed)
            | (Self::Stopping, E::Copied | E::Failed) => MigrationStep::Abandoned,
            _ => return None,
        })
    }

    /// Whether the event is legal in this state.
    #[cfg(feature = "observed")]
    pub const fn allows(self, event: MigrationEvent) -> bool {
        self.on(event).is_some()
    }

    /// Whether the driver may be reading one end and writing the other.
    pub(crate) const fn is_copying(self) -> bool {
        matches!(self, Self::Copying | Self::Stopping)
    }
}

impl MigrationEvent {
    pub const ALL: [Self; 5] = [Self::Ready, Self::Clean, Self::Copied, Self::Failed, Self::Stop];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transitions::legal_transitions;

    /// The whole table: a change of the table must change this test.
    #[test]
    fn transition_table_matches() {
        assert_eq!(
            legal_transitions(&MigrationState::ALL, &MigrationEvent::ALL, MigrationState::on),
            "Preparing + Ready = To(Copying)\n\
             Preparing + Clean = Done\n\
             Preparing + Failed = Abandoned\n\
             Preparing + Stop = Abandoned\n\
             Copying + Copied = Done\n\
             Copying + Failed = Abandoned\n\
             Copying + Stop = To(Stopping)\n\
             Stopping + Copied = Abandoned\n\
             Stopping + Failed = Abandoned\n\
             Stopping + Stop = To(Stopping)\n"
        );
    }
}
