//! After a move: sessions and waiters of the part go on.
//!
//! A migration that ends only leaves a report ([`crate::moves::MoveReport`]), from whatever cause. This file does
//! the work that follows from it:
//!
//! - An allocation that is being freed releases the part; one that is being sealed is hashed.
//! - A part that is on its device goes to all sessions that wait for it.
//! - A part that could not be fetched is refused, or goes back into the line.

use crate::{
    broker::Broker,
    event::PartRef,
    moves::{MoveEnd, MoveReport},
    pool::ExtentState,
    residency::AllocationState,
};

impl Broker {
    /// Does what follows from all moves that have ended.
    pub(crate) fn after_moves(&mut self) {
        while let Some(report) = self.moves.next_report() {
            self.after_move(report);
        }
    }

    fn after_move(&mut self, report: MoveReport) {
        self.record_placement(&report);
        self.record_speculated_move(&report);
        self.record_prefetched_move(&report);
        let MoveReport { part, end, stays, .. } = report;
        if let MoveEnd::NotFetched(error) | MoveEnd::Lost(error) = &end {
            let why = self.move_refusal(part, error);
            self.refuse_calls_missing(part, &why);
        }
        if matches!(end, MoveEnd::Lost(_)) {
            self.report_content_lost(part);
        }
        self.continue_after_move(part, &end);
        // A waiter for the room may have the part leave again. A part that was freed meanwhile leaves all the
        // same.
        let leaves = |id: &_| {
            self.pool.get(*id).is_some_and(|extent| matches!(extent.state, ExtentState::Releasing(_)))
        };
        if let Some(stays) = stays.filter(|id| !leaves(id)) {
            self.on_leaving_resolved(stays);
        }
    }

    /// A failed fetch is tried again when a client asks again or after a survey; after a driver without memory,
    /// once something has left.
    fn continue_after_move(&mut self, part: PartRef, end: &MoveEnd) {
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let (device, state) = (allocation.device, allocation.state);
        self.note_in_place(part);
        match state {
            AllocationState::Freeing => return self.release_freed(part.allocation),
            AllocationState::Unmapping => self.digest_if_unmapped(part.allocation),
            _ => {}
        }
        if !self.is_off_device(part) {
            return self.serve_part_waiters(part);
        }
        if !self.is_wanted(part) {
            return;
        }
        match end {
            MoveEnd::OutOfMemory { vain_tries } => self.requeue_part(part, device, *vain_tries),
            MoveEnd::NotFetched(_) | MoveEnd::NotLeft | MoveEnd::Lost(_) => {
                self.enter_line(part);
                self.line.defer(part);
            }
            MoveEnd::Arrived | MoveEnd::Stayed => self.request_fetch(part),
        }
    }
}
