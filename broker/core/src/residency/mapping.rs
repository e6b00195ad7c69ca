//! One session's hold on one part, as a table.
//!
//! The channel is ordered, so alternation is all the versioning there is: `Map` is sent only to a session that does
//! not map the part, `Revoke` only after it answered `Mapped`. A revocation that comes earlier waits for that answer.
//!
//! ```text
//!            Send             Mapped            Revoke
//!  Queued ────────► Offered ─────────► Mapped ─────────► Revoking
//!    │ Revoke          │ Revoke                              │
//!    ▼                 ▼              Mapped, then Revoke    │
//!  (none)        OfferedRevoked ─────────────────────────────┤
//!                                                            ▼
//!  an answer `Unmapped`, or the session's end, leads to (none) from everywhere but Queued
//! ```

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapState {
    /// To be sent when descriptors may be in flight. Not a mapper yet.
    Queued,
    /// Sent, and not answered.
    Offered,
    /// Sent, not answered, and to be revoked as soon as it is.
    OfferedRevoked,
    Mapped,
    /// Told to unmap.
    Revoking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapEvent {
    Send,
    Mapped,
    Revoke,
    Unmapped,
}

/// What follows from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapStep {
    To(MapState),
    /// On to [`MapState::Revoking`], and the session must be told.
    SendRevoke,
    /// The session does not map the part any more.
    Gone,
}

impl MapState {
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Offered, Self::OfferedRevoked, Self::Mapped, Self::Revoking];

    /// What the event leads to, or `None` if it does not fit: the session is quarantined for it.
    pub(crate) const fn on(self, event: MapEvent) -> Option<MapStep> {
        use MapEvent as E;
        Some(match (self, event) {
            (Self::Queued, E::Send) => MapStep::To(Self::Offered),
            (Self::Offered, E::Mapped) => MapStep::To(Self::Mapped),
            (Self::Offered | Self::OfferedRevoked, E::Revoke) => MapStep::To(Self::OfferedRevoked),
            (Self::OfferedRevoked, E::Mapped) | (Self::Mapped, E::Revoke) => MapStep::SendRevoke,
            (Self::Revoking, E::Revoke) => MapStep::To(Self::Revoking),
            (Self::Queued, E::Revoke)
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
    pub const fn in_flight(self) -> bool {
        matches!(self, Self::Offered | Self::OfferedRevoked)
    }
}

impl MapEvent {
    pub const ALL: [Self; 4] = [Self::Send, Self::Mapped, Self::Revoke, Self::Unmapped];
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
             OfferedRevoked + Mapped = SendRevoke\n\
             OfferedRevoked + Revoke = To(OfferedRevoked)\n\
             OfferedRevoked + Unmapped = Gone\n\
             Mapped + Revoke = SendRevoke\n\
             Mapped + Unmapped = Gone\n\
             Revoking + Revoke = To(Revoking)\n\
             Revoking + Unmapped = Gone\n"
        );
    }
}
