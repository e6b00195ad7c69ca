//! The scan: one walk along the line that starts what fits, and plans evictions for what does not.
//!
//! This file carries out the decisions of the walk: it starts waiters, and has plans executed.
//!
//! - `walk`: the decisions, on a read-only view
//! - `fairness`: the waiters that a waiter keeps waiting when it stays
//! - `incremental`: how far a scan goes, and when a shorter one will do
//! - `batches`: batches start, or are refused
//! - `out_of_memory`: waiters for which the driver had no memory
//!
//! [`Broker::scan_line`] is a full scan. It walks in order of arrival:
//!
//! - A waiter that finds room starts: a part is fetched (`moves/migrate.rs`), a batch is created
//!   (`allocation/allocate.rs`). It leaves the line.
//! - A waiter without room stays, and its device counts as full: later waiters pass only within their tenant's
//!   guarantee.
//! - A waiter at its tenant's limit stays, and keeps only its own tenant's waiters waiting.
//!
//! For the first [`LOOKAHEAD`] waiters of each device the scan then plans what has to leave (`line/victims.rs`)
//! and has that done (`line/make_room.rs`). A waiter that no eviction helps is *hopeless*: a batch without time
//! left is refused. One that may wait lets others pass in turns (`line/turns.rs`), so that what it cannot have does
//! not lie idle.
//!
//! The scan records how far it came. Until something within that range changes, returned memory needs only a
//! front scan ([`Broker::scan_front`]), which walks as far as there is room. Once half of those waiters have
//! left the line, the next scan is full.
//!
//! The price of a full scan is the number of waiters up to [`LOOKAHEAD`] on each device, not the length of the
//! line.
//!
//! [`LOOKAHEAD`]: crate::line::LOOKAHEAD

mod batches;
mod fairness;
mod incremental;
mod out_of_memory;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    broker::Broker,
    command::WaitEnd,
    event::{PartRef, Tier},
    follow_up::Fact,
    line::{LastScan, LineEntry, Position, RoomPlan, Unmet, Waiter},
    moves::{Cause, MoveError},
    pool::ExtentError,
    shell::Timer,
};
use fairness::BlockedBy;
use incremental::{RESCAN_AFTER, ScanScope};
use walk::{Decisions, Scan};

impl Broker {
    /// Runs a full scan: starts what fits, and makes room for the next waiters.
    pub(crate) fn scan_line(&mut self) {
        if self.line.is_empty() {
            self.line.record_scan(LastScan::default());
        } else {
            self.scan_waiters();
        }
        self.judge_suspended_waiters();
        self.trim_all_to_limits();
    }

    fn scan_waiters(&mut self) {
        let Decisions { found, plans, hopeless, unplanned } = self.run_scan(ScanScope::Full).finish(self);
        self.line.record_scan(found);
        self.record_hopeless(&hopeless, unplanned);
        for plan in plans {
            let evicts = !plan.victims.is_empty();
            self.execute(plan, Cause::Demand);
            self.after_moves();
            // A part that begins to leave for one waiter is in less doubt than room that an earlier waiter counts on.
            // So that one takes it, and the other needs more. Each repetition evicts a further part.
            if evicts && self.is_room_in_doubt() {
                self.follow_ups.push(Fact::EvictedInDoubt);
            }
        }
        for waiter in hopeless.into_keys() {
            if let Waiter::Batch(op) = waiter {
                self.expire_batch(op);
            }
        }
    }

    /// Records the waiters that nothing helps for their own needs. Once one of them begins to let others
    /// pass, the line is scanned anew.
    fn record_hopeless(&mut self, hopeless: &BTreeMap<Waiter, Unmet>, unplanned: BTreeSet<Waiter>) {
        if hopeless.is_empty() && unplanned.is_empty() && !self.line.has_hopeless() {
            return;
        }
        let mut all = unplanned;
        all.extend(hopeless.iter().filter(|(_, unmet)| unmet.is_own()).map(|(waiter, _)| *waiter));
        let new: Vec<Waiter> =
            all.iter().filter(|waiter| !self.line.is_hopeless(**waiter)).copied().collect();
        self.line.record_hopeless(all);
        if new.into_iter().any(|waiter| self.lets_pass(waiter)) {
            self.follow_ups.push(Fact::WaiterLetsPass);
        }
        if let Some(at) = self.line.next_pass(self.shell.now, self.config.limits.hold_after) {
            self.arm(at, Timer::Pass);
        }
    }

    /// Drops hopeless waiters that a plan helps by now, so that no waiter passes them. Once in an event: a scan may
    /// find that such a waiter is hopeless after all, and is repeated for those behind it.
    fn drop_helped(&mut self) {
        let Some(last) = self.line.last_hopeless().filter(|_| !self.follow_ups.are_helped_dropped) else {
            return;
        };
        self.follow_ups.are_helped_dropped = true;
        let until = self.line.iter().take_while(|(position, _)| *position <= last);
        let Decisions { hopeless, unplanned, .. } = self.plan_for(until);
        self.line.retain_hopeless(|waiter| {
            unplanned.contains(waiter) || hopeless.get(waiter).is_some_and(Unmet::is_own)
        });
    }

    /// Runs a front scan after the room that the last scan made has been returned. Runs a full scan once many
    /// waiters have left.
    pub(crate) fn scan_front(&mut self) {
        let shortage = !self.line.is_empty() && self.run_scan(ScanScope::Front).found.shortage;
        if shortage || self.have_many_left() {
            self.scan_line();
        }
    }

    /// Whether a front scan has anything to do.
    pub(crate) fn can_front_scan_start(&self) -> bool {
        !self.line.is_empty() || self.have_many_left()
    }

    fn have_many_left(&self) -> bool {
        planted!(self, CutScanNotRepeated => return false);
        self.line.was_scan_cut() && self.line.left_since_scan() >= RESCAN_AFTER
    }

    /// Walks the line and starts what fits.
    fn run_scan(&mut self, scope: ScanScope) -> Scan {
        self.drop_helped();
        let mut scan = Scan::new(scope);
        while let Some(candidate) = scan.next_to_begin(self) {
            let begun = self.start_waiter(candidate.waiter);
            // All devices together have too many extents: nothing further can start.
            if begun == Err(Some(BlockedBy::Extents)) {
                scan.found.shortage = true;
                break;
            }
            if scan.record(self, &candidate, begun) {
                self.follow_ups.push(Fact::CachedTaken);
            }
        }
        scan
    }

    /// Whether a scan would find what the last one found: everything that has to leave for its waiters is
    /// leaving, or not even that would be enough. The invariants check this. A scan that left out waiters is
    /// repeated once half of the others have left.
    pub(crate) fn is_scan_current(&self) -> bool {
        if self.line.was_scan_cut() {
            return self.line.left_since_scan() < RESCAN_AFTER;
        }
        let scanned = self.line.iter().filter(|(_, entry)| self.line.was_scanned(entry.waiter));
        let Decisions { plans, hopeless, .. } = self.plan_for(scanned);
        let is_done = |plan: &RoomPlan| plan.given_up.is_empty() && plan.victims.is_empty();
        self.line.scan_found_shortage() || (hopeless.is_empty() && plans.iter().all(is_done))
    }

    /// Plans as if these waiters, in their order, were all that stay in the line.
    fn plan_for<'a>(&'a self, waiters: impl Iterator<Item = (Position, &'a LineEntry)>) -> Decisions {
        let mut scan = Scan::new(ScanScope::Full);
        for (position, entry) in waiters {
            scan.record_waiter(entry.waiter, &self.needs(entry.waiter, position.arrived), None);
        }
        scan.finish(self)
    }

    /// Takes a part out of the line once no session waits for it.
    pub(crate) fn check_waiter(&mut self, part: PartRef) {
        let waiter = Waiter::Part(part);
        if self.line.contains(waiter) && !self.still_waits(waiter) {
            self.note_line_changed(waiter);
            // A part that is still wanted is moving or there: other steps saw to that.
            let end = if self.is_wanted(part) { WaitEnd::Served } else { WaitEnd::Left };
            self.leave_line(waiter, end);
        }
    }

    /// Whether the waiter still has a reason to wait.
    pub(crate) fn still_waits(&self, waiter: Waiter) -> bool {
        match waiter {
            Waiter::Part(part) => {
                self.is_wanted(part) && !self.moves.migrations.contains(part) && self.is_off_device(part)
            }
            Waiter::Batch(_) => true,
        }
    }

    /// Starts a waiter. `Err` says what blocks it.
    fn start_waiter(&mut self, waiter: Waiter) -> Result<(), Option<BlockedBy>> {
        planted!(self, SplitBatchStays => if self.is_split(waiter) { return Err(None) });
        let part = match waiter {
            // The waiters behind it need not wait for that.
            Waiter::Batch(_) if self.line.waits_only_for_survey(waiter) => return Err(None),
            Waiter::Batch(op) => {
                return self.try_batch(op).map_err(|shortage| Some(BlockedBy::of(&shortage)));
            }
            Waiter::Part(part) if self.line.is_deferred(part) => return Ok(()),
            Waiter::Part(part) => part,
        };
        // A cached extent needs nothing from the driver.
        if self.line.is_suspended(waiter) && !self.has_cached_for(part) {
            return Err(Some(BlockedBy::Room));
        }
        self.check_part_room(part).map_err(|shortage| Some(BlockedBy::of(&shortage)))?;
        let begun = self.start_move(part, (Tier::Device, Cause::Demand), None, self.pins.after_all());
        // A part that needs no copy has arrived already.
        self.after_moves();
        match begun {
            Ok(_) => {
                self.note_retry(waiter);
                self.leave_line(waiter, WaitEnd::Served);
                Ok(())
            }
            Err(MoveError::Extent(ExtentError::Shortage { shortage, .. })) => {
                Err(Some(BlockedBy::of(&shortage)))
            }
            // All devices together have too many extents.
            Err(_) => {
                let ages = self.check_extent_count(&BTreeSet::new(), 1).err().unwrap_or_default();
                self.release_cached(ages);
                Err(Some(BlockedBy::Extents))
            }
        }
    }
}
