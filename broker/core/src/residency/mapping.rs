//! The states of one session's mapping of one part, as a table.
//!
//! The channel is ordered, so alternation replaces version numbers: the daemon sends `Map` only to a session
//! that does not map the part, and `Revoke` only after the session answered `Mapped`. An earlier revocation
//! waits for that answer.
//!
//! ```text
//!            Send             Mapped            Revoke
//!  Queued ────────► Offered ─────────► Mapped ─────────► Revoking
//!   │ ▲ Revoke         │ Revoke         │ Evict             ▲ ▲
//!   │ │                ▼                ▼      Revoke       │ │
//!   ▼ │          OfferedRevoked     Evicting ───────────────╯ │
//! (none)               │ Mapped       │ Unmapped             │
//!   ▲ │ Pin            ╰──────────────┼─────────────────────╯
//!   │ ╰──────────────── Away ◄────────╯
//!   ╰─── Revoke ─────────╯
//!
//!  an answer `Unmapped`, or the session's end, leads to (none) from Offered, OfferedRevoked, Mapped and Revoking;
//!  `Failed`, which says that what was sent could not be mapped, from Offered to Away and from OfferedRevoked to (none)
//! ```
//!
//! An evicted part stays the session's: it keeps its slot in the word table, and a pin maps it again. An
//! `Away` session is not a mapper. The same holds for a part that the client could not map: a process that
//! was short of descriptors for a moment loses only that moment.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapState {
    /// Waits to be sent, for lack of descriptor budget. Not a mapper yet.
    Queued,
    /// Sent, and not answered.
    Offered,
    /// Sent and not answered; the daemon revokes it after the answer.
    OfferedRevoked,
    Mapped,
    /// Told to unmap for good.
    Revoking,
    /// Told to unmap; a pin maps the part again.
    Evicting,
    /// Not mapped, but still the session's.
    Away,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapEvent {
    Send,
    Mapped,
    Revoke,
    Unmapped,
    /// The client could not map the part.
    Failed,
    Evict,
    Pin,
}

/// The result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapStep {
    To(MapState),
    /// Go to [`MapState::Revoking`] and send the session a revoke.
    SendRevoke,
    /// Go to [`MapState::Evicting`] and send the session a revoke.
    SendEvict,
    /// The part is no longer the session's.
    Gone,
}

impl MapState {
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Offered,
        Self::OfferedRevoked,
        Self::Mapped,
        Self::Revoking,
        Self::Evicting,
        Self::Away,
    ];

    /// Returns the next step, or `None` if the event does not fit; the session is then quarantined.
    pub(crate) const fn on(self, event: MapEvent) -> Option<MapStep> {
        use MapEvent as E;
        Some(match (self, event) {
            (Self::Queued, E::Send) => MapStep::To(Self::Offered),
            (Self::Offered, E::Mapped) => MapStep::To(Self::Mapped),
            (Self::Offered | Self::OfferedRevoked, E::Revoke) => MapStep::To(Self::OfferedRevoked),
            (Self::OfferedRevoked, E::Mapped) | (Self::Mapped | Self::Evicting, E::Revoke) => {
                MapStep::SendRevoke
            }
            (Self::Revoking, E::Revoke) => MapStep::To(Self::Revoking),
            (Self::Mapped, E::Evict) => MapStep::SendEvict,
            (Self::Evicting, E::Unmapped) | (Self::Offered, E::Failed) => MapStep::To(Self::Away),
            (Self::Away, E::Pin) => MapStep::To(Self::Queued),
            (Self::Queued | Self::Away, E::Revoke)
            | (Self::OfferedRevoked, E::Failed)
            | (Self::Offered | Self::OfferedRevoked | Self::Mapped | Self::Revoking, E::Unmapped) => {
                MapStep::Gone
            }
            _ => return None,
        })
    }

    /// Whether the event fits in this state.
    pub const fn allows(self, event: MapEvent) -> bool {
        self.on(event).is_some()
    }

    /// Whether the descriptor was sent and is not answered.
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Offered | Self::OfferedRevoked)
    }

    /// Whether the session maps the part, or may map it by now.
    pub const fn is_mapper(self) -> bool {
        !matches!(self, Self::Queued | Self::Away)
    }

    /// Whether the part will soon no longer be the session's.
    pub(crate) const fn is_leaving(self) -> bool {
        matches!(self, Self::OfferedRevoked | Self::Revoking)
    }
}

impl MapStep {
    /// The next state, or `None` if the part is no longer the session's.
    pub(crate) const fn target(self) -> Option<MapState> {
        match self {
            Self::To(state) => Some(state),
            Self::SendRevoke => Some(MapState::Revoking),
            Self::SendEvict => Some(MapState::Evicting),
            Self::Gone => None,
        }
    }
}

impl MapEvent {
    pub const ALL: [Self; 7] =
        [Self::Send, Self::Mapped, Self::Revoke, Self::Unmapped, Self::Failed, Self::Evict, Self::Pin];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transitions::legal_transitions;

    /// The whole table: a change of the table must change this test.
    #[test]
    fn transition_table_matches() {
        assert_eq!(
            legal_transitions(&MapState::ALL, &MapEvent::ALL, MapState::on),
            "Queued + Send = To(Offered)\n\
             Queued + Revoke = Gone\n\
             Offered + Mapped = To(Mapped)\n\
             Offered + Revoke = To(OfferedRevoked)\n\
             Offered + Unmapped = Gone\n\
             Offered + Failed = To(Away)\n\
             OfferedRevoked + Mapped = SendRevoke\n\
             OfferedRevoked + Revoke = To(OfferedRevoked)\n\
             OfferedRevoked + Unmapped = Gone\n\
             OfferedRevoked + Failed = Gone\n\
             Mapped + Revoke = SendRevoke\n\
             Mapped + Unmapped = Gone\n\
             Mapped + Evict = SendEvict\n\
             Revoking + Revoke = To(Revoking)\n\
             Revoking + Unmapped = Gone\n\
             Evicting + Revoke = SendRevoke\n\
             Evicting + Unmapped = To(Away)\n\
             Away + Revoke = Gone\n\
             Away + Pin = To(Queued)\n"
        );
    }
}
