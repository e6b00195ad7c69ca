//! The states of a write-back, as a table: the copy of a part to its backing while the part stays mapped on
//! its device.
//!
//! ```text
//!           word is to be checked    no session pins it         copied
//!  Creating ─────────────────► Checking ────────────► Copying ─────────► (done: clean, unless written since)
//!    │ │                         │  │                  │   │
//!    │ ╰── no session writes it ─┼──┼─────────────────►│   │
//!    │ failed, stop       in use │  │ stop        stop │   │ failed
//!    │                           │  ▼                  ▼   │
//!    │                           │  Stopping ◄─────────╯   │
//!    │                           │     │ answered          │
//!    ╰───────────────────────────┴─────┴───────────────────┴──► (abandoned: the backing is dirty)
//! ```
//!
//! From the first step on, the old backing counts as dirty: once WRITTEN is cleared, nothing would show that
//! it is stale.

use smallvec::SmallVec;
use vramd_types::ExtentId;

use super::{MigrationStep, under_way::UnderWay};
use crate::{
    event::{PartRef, Tier},
    moves::{MigrationState, Stop},
    tenancy::OpId,
    time::Time,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteBackState {
    /// The driver creates the destination.
    Creating,
    /// The daemon checks the mapper's word, and clears WRITTEN if the mapper does not pin the part.
    Checking,
    /// The driver copies. Neither end may be released.
    Copying,
    /// The write-back was stopped, and the last request to the shell or driver is not answered yet.
    Stopping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBackEvent {
    /// A session that may write maps the part.
    Check,
    /// No session writes the part now, and a session that begins to sets WRITTEN.
    Ready,
    Copied,
    /// The part is in use, or memory could not be created, or the copy failed.
    Failed,
    Stop,
}

impl WriteBackState {
    pub const ALL: [Self; 4] = [Self::Creating, Self::Checking, Self::Copying, Self::Stopping];

    /// Returns the next step, or `None` if the event is illegal in this state.
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

    /// Whether the event is legal in this state.
    #[cfg(feature = "observed")]
    pub const fn allows(self, event: WriteBackEvent) -> bool {
        self.on(event).is_some()
    }

    /// Whether the driver may be reading one end and writing the other.
    pub(crate) const fn is_copying(self) -> bool {
        matches!(self, Self::Copying | Self::Stopping)
    }

    /// The migration state as which operators see it.
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
    /// The extent of the backing.
    pub(crate) to: ExtentId,
    pub(crate) tier: Tier,
    pub(crate) since: Time,
    pub(crate) state: WriteBackState,
    /// A session wrote the part since the copy began, or may write it without setting WRITTEN.
    pub(crate) written: bool,
    /// Why the write-back was stopped, if it was.
    pub(crate) stopped: Option<Stop>,
    /// Operations that wait for its end.
    pub(crate) ops: SmallVec<[OpId; 2]>,
}

/// The write-backs under way. Each changes only by the operations here.
pub(crate) type WriteBacks = UnderWay<WriteBack>;

impl UnderWay<WriteBack> {
    /// Has an operation wait for the end of the write-back.
    pub(crate) fn join(&mut self, part: PartRef, op: Option<OpId>) {
        if let Some(write_back) = self.get_mut(part) {
            write_back.ops.extend(op);
        }
    }

    /// Takes the operations that wait for a write-back whose copy has not begun.
    pub(crate) fn take_ops_before_copy(&mut self, part: PartRef) -> Option<SmallVec<[OpId; 2]>> {
        let write_back = self.get_mut(part).filter(|it| !it.state.is_copying())?;
        Some(std::mem::take(&mut write_back.ops))
    }

    /// The copy begins, with every write that was reported until now. Returns its destination.
    pub(crate) fn begin_copy(&mut self, part: PartRef) -> Option<ExtentId> {
        let write_back = self.get_mut(part)?;
        write_back.written = false;
        Some(write_back.to)
    }

    /// Records that a session has written the part, or may have.
    pub(crate) fn mark_written(&mut self, part: PartRef) {
        if let Some(write_back) = self.get_mut(part) {
            write_back.written = true;
        }
    }

    /// Moves a write-back along its table. Returns its state before, and the step unless that is illegal. `why` is
    /// the outcome if it fails; the first one counts.
    pub(crate) fn step(
        &mut self,
        part: PartRef,
        event: WriteBackEvent,
        why: Option<Stop>,
    ) -> Option<(WriteBackState, Option<MigrationStep<WriteBackState>>)> {
        let write_back = self.get_mut(part)?;
        let (from, step) = (write_back.state, write_back.state.on(event));
        write_back.stopped = write_back.stopped.take().or(why);
        if let Some(MigrationStep::To(state)) = step {
            write_back.state = state;
        }
        Some((from, step))
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
            legal_transitions(&WriteBackState::ALL, &WriteBackEvent::ALL, WriteBackState::on),
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
