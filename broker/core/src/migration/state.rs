//! The way of one part to another tier, as a table.
//!
//! ```text
//!      ╭──────────── nobody maps the part, destination holds it already ───────╮
//!      │         destination made,                                             │
//!      │         nobody maps the part           copied                         ▼
//!  Preparing ──────────────────────► Copying ─────────► (there: the source is released)
//!      │ stop                         │    │ failed
//!      │                         stop │    │
//!      │                              ▼    │
//!      │                          Stopping │
//!      │                              │    │
//!      ╰──────────────────────────────┴────┴──► (back: the destination is released)
//! ```
//!
//! The source stays as it is until the last byte has arrived, so whatever goes wrong loses nothing.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MigrationState {
    /// The destination is being made, and whoever maps the part unmaps it.
    Preparing,
    /// The driver copies. Neither end may be released.
    Copying,
    /// It was given up, and the driver has not said yet that it copies no more.
    Stopping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationEvent {
    /// The destination is there, and nobody maps the part.
    Ready,
    /// Nobody maps the part, and the destination holds already what it holds.
    Clean,
    Copied,
    Failed,
    Stop,
}

/// Where an event leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationStep<State = MigrationState> {
    To(State),
    /// The part is at its destination.
    Done,
    /// The part is where it was.
    Abandoned,
}

impl MigrationState {
    pub const ALL: [Self; 3] = [Self::Preparing, Self::Copying, Self::Stopping];

    /// Where the event leads, or `None` if it must not happen here.
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

    /// Whether the event may happen here.
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

    /// The whole table: a change of it is a change of this.
    #[test]
    fn every_transition() {
        let mut legal = String::new();
        for state in MigrationState::ALL {
            for event in MigrationEvent::ALL {
                if let Some(step) = state.on(event) {
                    legal += &format!("{state:?} + {event:?} = {step:?}\n");
                }
            }
        }
        assert_eq!(
            legal,
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
