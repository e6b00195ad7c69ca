//! Forces illegal transitions. The core never tries most of them, so a test that wants to see them refused
//! must first put a row into the state where they begin. For the simulator, behind the feature `observed`.

use smallvec::SmallVec;
use vramd_types::PartIndex;

use crate::{
    broker::Broker,
    command::{Command, Notice},
    event::{PartRef, Tier},
    invariants,
    moves::{Cause, Migration, WriteBack},
    observed::Transition,
    residency::{MapEvent, Mapping},
};

/// The outcome of a forced transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forced {
    /// The state did not change.
    pub state_unchanged: bool,
    /// The core reported the illegal transition: by `INV-STATE-1`, or, where a client asks for it, by the
    /// error that quarantines the client.
    pub reported: bool,
}

impl Broker {
    /// Puts the first allocation, the first session, or its mapping of the first part of that allocation,
    /// into the state where the transition begins, and takes the transition through the ordinary function.
    /// Returns `None` if there is no such row. Afterwards the broker is good only for another forced
    /// transition.
    pub fn force(&mut self, step: Transition) -> Option<Forced> {
        let id = self.allocations.iter_after(None).next()?.0;
        let session = self.sessions.iter().next()?.0;
        while self.poll_command().is_some() {}
        let mut refused = false;
        let stayed = match step {
            Transition::Allocation { from, event, .. } => {
                self.allocations.get_mut(id)?.state = from;
                self.advance_allocation(id, event);
                self.allocations.get(id)?.state == from
            }
            Transition::Session { from, event, .. } => {
                self.sessions.get_mut(session)?.state = from;
                self.advance_session(session, event, None);
                self.sessions.get(session)?.state == from
            }
            Transition::Migration { from, event, .. } => {
                let part = PartRef { allocation: id, part: PartIndex(0) };
                let to = self.allocations.get(id)?.part(part.part)?.extent;
                let migration = Migration {
                    to,
                    from_tier: Tier::Device,
                    to_tier: Tier::Host,
                    cause: Cause::Operator,
                    reason: None,
                    sum: None,
                    since: self.shell.now,
                    copied_since: None,
                    state: from,
                    is_made: true,
                    clean: false,
                    is_unmapped: true,
                    awaited: false,
                    for_arrival: None,
                    vain_tries: 0,
                    stopped: None,
                    ops: SmallVec::new(),
                };
                self.moves.migrations.begin(part, migration);
                self.advance_migration(part, event, None);
                self.moves.migrations.end(part)?.state == from
            }
            Transition::WriteBack { from, event, .. } => {
                let part = PartRef { allocation: id, part: PartIndex(0) };
                let to = self.allocations.get(id)?.part(part.part)?.extent;
                let (since, written, stopped) = (self.shell.now, false, None);
                let (tier, ops) = (Tier::Host, SmallVec::new());
                let write_back = WriteBack { to, tier, since, state: from, written, stopped, ops };
                self.moves.write_backs.begin(part, write_back);
                self.advance_write_back(part, event, None);
                self.moves.write_backs.end(part)?.state == from
            }
            Transition::Mapping { from, event, .. } => {
                let part = PartRef { allocation: id, part: PartIndex(0) };
                let slot = self.allocations.get(id)?.part(part.part)?.mapping(session)?.slot();
                self.allocations.get_mut(id)?.set_mapping(part.part, Mapping::new(session, slot, from));
                match event {
                    MapEvent::Send => {
                        let tenant = self.sessions.get(session)?.tenant;
                        self.offer_part(session, tenant, part);
                    }
                    _ => refused = self.advance_mapping(session, part, event).is_err(),
                }
                self.allocations.get(id)?.part(part.part)?.map_state(session) == Some(from)
            }
        };
        let mut reported = refused;
        while let Some(command) = self.poll_command() {
            reported |= matches!(
                command,
                Command::Notice(Notice::InvariantBroken { invariant: invariants::TRANSITIONS, .. })
            );
        }
        Some(Forced { state_unchanged: stayed, reported })
    }
}
