//! Moves: migrations of parts between tiers, write-backs, and backings. See [`MigrationState`] for the life of a
//! migration.
//!
//! This is the state of the component; `handler/moves` has its steps. A move begins with a part, a destination and a
//! cause. It goes on when the destination is created, when no session maps the part, and when the copy has ended. Its
//! end is a [`MoveReport`]. Rows change only by the operations of their tables.

mod attach_waiters;
mod backing;
mod detached;
mod links;
mod migrations;
mod missing_backings;
mod outcome;
mod state;
mod under_way;
mod write_back;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vramd_types::AllocationId;

pub(crate) use attach_waiters::AttachWaiters;
pub(crate) use backing::{Backing, BackingAccount, BackingSum, Backings};
pub(crate) use detached::DetachedExtents;
pub(crate) use links::{LinkCopy, LinkLoad, Links};
pub(crate) use migrations::{Migration, Migrations};
pub(crate) use missing_backings::MissingBackings;
pub(crate) use outcome::{MoveEnd, MoveError, MoveReport, Stop};
pub(crate) use state::MigrationStep;
pub use state::{MigrationEvent, MigrationState};
pub(crate) use write_back::{WriteBack, WriteBacks};
pub use write_back::{WriteBackEvent, WriteBackState};

use crate::{event::PartRef, prefetch::Prefetches, sequence::Sequences};

/// The cause of a migration or write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A client wants the part on its device, or a waiter needs the room that it takes there.
    Demand,
    /// The part is written back ahead of need, and stays where it is.
    WriteBack,
    /// The tenant's charge on the device exceeds its limit.
    Rebalance,
    /// The part's tier is full and the part is cold.
    Pressure,
    /// An operator asked for it.
    Operator,
    /// The owner has its memory leave the device.
    Owner,
    /// A client asked for the part ahead of its use, or for one that needs its room.
    Prefetch,
    /// A session will probably pin the part soon, by the order of its pins so far.
    Speculation,
}

impl Cause {
    pub const ALL: [Self; 8] = [
        Self::Demand,
        Self::WriteBack,
        Self::Rebalance,
        Self::Pressure,
        Self::Operator,
        Self::Owner,
        Self::Prefetch,
        Self::Speculation,
    ];

    /// The name in metrics and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::WriteBack => "write_back",
            Self::Rebalance => "rebalance",
            Self::Pressure => "pressure",
            Self::Operator => "operator",
            Self::Owner => "owner",
            Self::Prefetch => "prefetch",
            Self::Speculation => "speculation",
        }
    }
}

/// Everything about parts that move, may move, or have bytes below their device.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) migrations: Migrations,
    pub(crate) write_backs: WriteBacks,
    /// The backing of each part that lies on its device.
    pub(crate) backings: Backings,
    pub(crate) detached: DetachedExtents,
    pub(crate) links: Links,
    pub(crate) attach_waiters: AttachWaiters,
    /// Parts that clients asked for ahead of their use.
    pub(crate) prefetches: Prefetches,
    /// The order in which clients will use parts.
    pub(crate) sequences: Sequences,
    ended: VecDeque<MoveReport>,
    drop_counts: BTreeMap<PartRef, u64>,
    operator_holds: BTreeSet<PartRef>,
}

impl Moves {
    /// Reports the end of a migration, for `handler/allocation/after_move.rs`.
    pub(crate) fn report(&mut self, end: MoveReport) {
        self.ended.push_back(end);
    }

    pub(crate) fn next_report(&mut self) -> Option<MoveReport> {
        self.ended.pop_front()
    }

    /// A session has written the part, or may have: no copy of it is clean any longer.
    pub(crate) fn mark_dirty(&mut self, part: PartRef) {
        self.backings.set_clean(&part, false);
        self.write_backs.mark_written(part);
        self.migrations.set_clean(part, false);
    }

    /// Counts a drop of a discardable part.
    pub(crate) fn count_drop(&mut self, part: PartRef) {
        let count = self.drop_counts.entry(part).or_default();
        *count = count.saturating_add(1);
    }

    /// How often the part was dropped.
    pub(crate) fn drop_count_of(&self, part: PartRef) -> u64 {
        self.drop_counts.get(&part).copied().unwrap_or_default()
    }

    /// Has an operator hold a part on its device, or let it go. Returns whether that is a change.
    pub(crate) fn hold(&mut self, part: PartRef, held: bool) -> bool {
        match held {
            true => self.operator_holds.insert(part),
            false => self.operator_holds.remove(&part),
        }
    }

    /// Whether the part is under an operator hold.
    pub(crate) fn is_held(&self, part: PartRef) -> bool {
        self.operator_holds.contains(&part)
    }

    /// Forgets the holds and the drops of a freed allocation.
    pub(crate) fn forget(&mut self, allocation: AllocationId) {
        let parts = || PartRef::all_of(allocation);
        let dropped: Vec<_> = self.drop_counts.range(parts()).map(|(part, _)| *part).collect();
        dropped.iter().for_each(|part| _ = self.drop_counts.remove(part));
        let held: Vec<_> = self.operator_holds.range(parts()).copied().collect();
        held.iter().for_each(|part| _ = self.operator_holds.remove(part));
    }
}
