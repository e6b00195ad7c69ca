//! The life of a session, as a table.
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
    /// Its mappings stand and stay charged.
    Silent,
    /// It maps nothing.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// Whoever closed it: the client, or the broker that quarantined it.
    ChannelEnded,
    /// It has not answered in time, and may yet.
    Overdue,
    /// Everything that was asked of it has been answered, after its time.
    Answered,
    ProcessEnded,
    /// It said so, by answering or through a new channel of the same process.
    UnmappedAll,
}

impl SessionState {
    pub const ALL: [Self; 3] = [Self::Live, Self::Silent, Self::Gone];

    /// Where the event leads, or `None` if it must not happen here. An end may be heard of twice while silent.
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

    /// The whole table: a change of it is a change of this.
    #[test]
    fn every_transition() {
        let mut legal = String::new();
        for state in SessionState::ALL {
            for event in SessionEvent::ALL {
                if let Some(next) = state.on(event) {
                    legal += &format!("{state:?} + {event:?} = {next:?}\n");
                }
            }
        }
        assert_eq!(
            legal,
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
