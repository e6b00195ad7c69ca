//! The migrations under way. Each changes only by the operations here.

use smallvec::SmallVec;
use vramd_types::ExtentId;

use super::{Cause, MigrationEvent, MigrationState, MigrationStep, Stop, under_way::UnderWay};
use crate::{
    event::{PartRef, Tier},
    eviction::EvictionReason,
    placement::PlacementSum,
    tenancy::{Arrival, OpId},
    time::Time,
};

#[derive(Debug)]
pub(crate) struct Migration {
    /// The destination. The source is the part's own extent until the migration is done.
    pub(crate) to: ExtentId,
    /// The tier that the part leaves.
    pub(crate) from_tier: Tier,
    pub(crate) to_tier: Tier,
    pub(crate) cause: Cause,
    /// Why it was chosen to leave its device, if it was.
    pub(crate) reason: Option<EvictionReason>,
    /// The sum by which it moves to its device, if there was one.
    pub(crate) sum: Option<PlacementSum>,
    pub(crate) since: Time,
    /// Since when it is copied, if it is.
    pub(crate) copied_since: Option<Time>,
    pub(crate) state: MigrationState,
    /// The destination has been created.
    pub(crate) is_made: bool,
    /// The destination has the part's bytes, so no copy is needed, or only a comparison where that is
    /// configured.
    pub(crate) clean: bool,
    /// No session maps the part, and none will until the migration ends.
    pub(crate) is_unmapped: bool,
    /// A client waits for the part, or a waiter for its room.
    pub(crate) awaited: bool,
    /// The arrival of the waiter that needs the part's room.
    pub(crate) for_arrival: Option<Arrival>,
    /// How often the fetch was retried for lack of driver memory without a release in between.
    pub(crate) vain_tries: u32,
    /// Why the migration was stopped, if it was.
    pub(crate) stopped: Option<Stop>,
    /// Operations that wait for its end.
    pub(crate) ops: SmallVec<[OpId; 2]>,
}

pub(crate) type Migrations = UnderWay<Migration>;

impl UnderWay<Migration> {
    /// Has operations wait for the end of the migration.
    pub(crate) fn join(&mut self, part: PartRef, ops: impl IntoIterator<Item = OpId>) {
        if let Some(migration) = self.get_mut(part) {
            migration.ops.extend(ops);
        }
    }

    /// An operation no longer waits for the end of the migration.
    pub(crate) fn leave(&mut self, part: PartRef, op: OpId) {
        if let Some(migration) = self.get_mut(part) {
            migration.ops.retain(|other| *other != op);
        }
    }

    /// Records the arrival of the waiter that needs the part's room.
    pub(crate) fn set_arrival(&mut self, part: PartRef, arrived: Option<Arrival>) {
        if let Some(migration) = self.get_mut(part) {
            migration.for_arrival = arrived;
        }
    }

    /// Records that a client waits for the part, or a waiter for its room. Returns the migration if none did
    /// before.
    pub(crate) fn await_end(&mut self, part: PartRef) -> Option<&Migration> {
        let migration = self.get_mut(part).filter(|it| !it.awaited)?;
        migration.awaited = true;
        Some(migration)
    }

    /// Records that the destination exists.
    pub(crate) fn made(&mut self, part: PartRef) {
        if let Some(migration) = self.get_mut(part) {
            migration.is_made = true;
        }
    }

    /// Records that the copy begins now.
    pub(crate) fn begin_copy(&mut self, part: PartRef, now: Time) {
        if let Some(migration) = self.get_mut(part) {
            migration.copied_since = Some(now);
        }
    }

    /// Records that no session maps the part any longer.
    pub(crate) fn unmapped(&mut self, part: PartRef) {
        if let Some(migration) = self.get_mut(part) {
            migration.is_unmapped = true;
        }
    }

    /// Records whether the destination has the part's bytes.
    pub(crate) fn set_clean(&mut self, part: PartRef, clean: bool) {
        if let Some(migration) = self.get_mut(part) {
            migration.clean = clean;
        }
    }

    /// Moves a migration along its table. Returns its state before, and the step unless that is illegal. `why` is
    /// the outcome if it fails; the first one counts.
    pub(crate) fn step(
        &mut self,
        part: PartRef,
        event: MigrationEvent,
        why: Option<Stop>,
    ) -> Option<(MigrationState, Option<MigrationStep>)> {
        let migration = self.get_mut(part)?;
        let (from, step) = (migration.state, migration.state.on(event));
        migration.stopped = migration.stopped.take().or(why);
        if let Some(MigrationStep::To(state)) = step {
            migration.state = state;
        }
        Some((from, step))
    }
}
