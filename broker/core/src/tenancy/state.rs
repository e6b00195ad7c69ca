//! The states of a session, as a table.
//!
//! ```text
//!          ChannelEnded, Overdue                ProcessEnded, UnmappedAll
//!  Live ─────────────────────────► Silent ─────────────────────────────────► Gone
//!   ▲ ◄──────── Answered ─────────────┘                                       ▲
//!   └──────────────────── ProcessEnded, UnmappedAll ──────────────────────────┘
//! ```

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionState {
    Live,
    /// It does not answer. Its mappings stand and stay charged.
    Silent,
    /// It maps nothing.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The channel has ended, closed by the client, or by the broker for a quarantine.
    ChannelEnded,
    /// It did not answer in time, and may still answer.
    Overdue,
    /// It has answered everything, late.
    Answered,
    ProcessEnded,
    /// It reported that it unmapped everything, by its answers or through a new channel of the same process.
    UnmappedAll,
}

impl SessionState {
    pub const ALL: [Self; 3] = [Self::Live, Self::Silent, Self::Gone];

    /// Returns the next state, or `None` if the event is illegal in this state. A silent session may be
    /// reported as ended twice.
    pub const fn on(self, event: SessionEvent) -> Option<Self> {
        use SessionEvent as E;
        Some(match (self, event) {
            (Self::Live | Self::Silent, E::ChannelEnded | E::Overdue) => Self::Silent,
            (Self::Silent, E::Answered) => Self::Live,
            (Self::Live | Self::Silent, E::ProcessEnded | E::UnmappedAll) => Self::Gone,
            (Self::Live, E::Answered) | (Self::Gone, _) => return None,
        })
    }
}

impl SessionEvent {
    pub const ALL: [Self; 5] =
        [Self::ChannelEnded, Self::Overdue, Self::Answered, Self::ProcessEnded, Self::UnmappedAll];
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Live => "live",
            Self::Silent => "silent",
            Self::Gone => "gone",
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
            legal_transitions(&SessionState::ALL, &SessionEvent::ALL, SessionState::on),
            "Live + ChannelEnded = Silent\n\
             Live + Overdue = Silent\n\
             Live + ProcessEnded = Gone\n\
             Live + UnmappedAll = Gone\n\
             Silent + ChannelEnded = Silent\n\
             Silent + Overdue = Silent\n\
             Silent + Answered = Live\n\
             Silent + ProcessEnded = Gone\n\
             Silent + UnmappedAll = Gone\n"
        );
    }
}
