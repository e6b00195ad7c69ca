//! One session's hold on one part, as a table.
//!
//! The channel is ordered, so alternation is all the versioning there is: `Map` is sent only to a session that does
//! not map the part, `Revoke` only after it answered `Mapped`. A revocation that comes earlier waits for that answer.
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
//! What is evicted stays the session's: it has a place in its word table, and a pin brings it back. It is mapped no
//! more, though: who is `Away` is no mapper. What could not be mapped is no different: a process that was short of
//! descriptors for a moment has lost nothing but that moment.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapState {
    /// To be sent when descriptors may be in flight. Not a mapper yet.
    Queued,
    /// Sent, and not answered.
    Offered,
    /// Sent, not answered, and to be revoked as soon as it is.
    OfferedRevoked,
    Mapped,
    /// Told to unmap, for good.
    Revoking,
    /// Told to unmap, until a pin brings it back.
    Evicting,
    /// Not mapped, and the session's still.
    Away,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapEvent {
    Send,
    Mapped,
    Revoke,
    Unmapped,
    /// It could not be mapped.
    Failed,
    Evict,
    Pin,
}

/// What follows from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapStep {
    To(MapState),
    /// On to [`MapState::Revoking`], and the session must be told.
    SendRevoke,
    /// On to [`MapState::Evicting`], and the session must be told.
    SendEvict,
    /// The part is the session's no more.
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

    /// What the event leads to, or `None` if it does not fit: the session is quarantined for it.
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

    /// Whether the event fits.
    pub const fn allows(self, event: MapEvent) -> bool {
        self.on(event).is_some()
    }

    /// Whether its descriptor is on the way.
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Offered | Self::OfferedRevoked)
    }

    /// Whether the session maps the part, or may by now.
    pub const fn is_mapper(self) -> bool {
        !matches!(self, Self::Queued | Self::Away)
    }

    /// Whether the part will soon be the session's no more.
    pub(crate) const fn is_leaving(self) -> bool {
        matches!(self, Self::OfferedRevoked | Self::Revoking)
    }
}

impl MapStep {
    /// Where it leads, or `None` if the part is the session's no more.
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

    /// The whole table: a change of it is a change of this.
    #[test]
    fn every_transition() {
        let mut legal = String::new();
        for state in MapState::ALL {
            for event in MapEvent::ALL {
                if let Some(step) = state.on(event) {
                    legal += &format!("{state:?} + {event:?} = {step:?}\n");
                }
            }
        }
        assert_eq!(
            legal,
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
