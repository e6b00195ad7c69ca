//! The table of follow-up work: for each [`Fact`], what follows; and the loop that does it.
//!
//! [`Broker::run_follow_ups`] takes the facts, adds the work that follows from them, and does the first piece of
//! work in the order of [`Work`]. It goes on until no fact and no work is left.
//!
//! # Why it ends
//!
//! Each piece of work uses something up that no follow-up work brings back within one event:
//!
//! - A check of a call answers it, refuses it, sends its part or has it fetched; each happens once to a part of a
//!   call, and only the admission of a turn starts a call. A stalled call is aborted once.
//! - A check of a revocation ends it, or tells mappers that were not told. A revocation starts with a move or an
//!   unmapping in place, and each of these starts one for a part.
//! - A scan takes waiters out of the line, or has victims and cached extents leave. A victim is leaving
//!   afterwards, or stuck until the next survey, so no later plan names it. A waiter that failed is deferred or
//!   suspended. A waiter begins to let others pass once nothing helps it, and ceases to only when another has started,
//!   left or been refused as a victim.
//! - Relief of pressure tries each part once between two samples. A late backing takes a part off the list of
//!   parts without any. A change of a quota goes on once, when its extents have left.
//! - A prefetch request that begins leaves its queue, and none enters one. Otherwise it has victims leave, as a scan
//!   does, or stops a move, and is tried again once something else has changed.
//! - A turn that waits is admitted or refused once, and makes one call. An owner is asked to yield once.
//! - A forecast is dropped once its parts have begun to come, and only a pin call makes one.
//! - The level of a place is a function of its balance.
//!
//! The price is the number of facts. Calls of other sessions on the same part, and answered calls, are not
//! checked.

use vramd_types::SessionId;

use crate::{
    broker::Broker,
    command::{RevokeReason, RevokedPart},
    event::PartRef,
    follow_up::{Fact, Work},
    limits::{MOMENT, PARTS_STARTED_PER_EVENT},
    line::Waiter,
    shell::Timer,
    tenancy::PinId,
};

impl Broker {
    /// The table: adds the work that follows from a fact.
    fn follow(&mut self, fact: Fact) {
        match fact {
            // The call may have the part already, or needs it sent or fetched.
            Fact::CallBegan(call, part) => self.follow_ups.add(Work::CheckCall((part, call))),
            // Every call that misses the part, of whichever session.
            Fact::PartAvailable(part) => {
                for call in self.pins.missing(part) {
                    self.follow_ups.add(Work::CheckCall(call));
                }
            }
            // The move of the part goes on, and sessions that attached it.
            Fact::RevocationEnded => self.follow_ups.add(Work::AfterRevocations),
            // Waiters of the part go on, and its memory is released or kept.
            Fact::MoveEnded => {
                self.follow_ups.add(Work::AfterMoves);
                self.begin_prefetches_if_queued();
            }
            Fact::FreedPartStill(allocation) => self.follow_ups.add(Work::ReleaseFreed(allocation)),
            Fact::StallCheckDue(call) => self.follow_ups.add(Work::CheckStall(call)),
            // A mapping is what the session's calls wait for, what a revocation waits to end, and why a part is
            // wanted.
            Fact::MappingChanged(session, part) => {
                for call in self.pins.waiting_of(part, session) {
                    self.follow_ups.add(Work::CheckCall(call));
                }
                if self.mapping.revocations.contains_key(&part) {
                    self.follow_ups.add(Work::CheckRevocation(part));
                }
                if self.line.contains(Waiter::Part(part)) {
                    self.follow_ups.add(Work::CheckWaiter(part));
                }
                if self.moves.prefetches.is_named(part) || self.moves.sequences.is_named(part) {
                    self.follow_ups.add(Work::CheckPrefetches(part));
                }
            }
            // In few frames, once all that leaves is known.
            Fact::MappingEvicted(session, revoked) => self.follow_ups.add_revoke(session, revoked),
            Fact::PartsQueued(session) => self.follow_ups.add(Work::SendParts(session)),
            Fact::RevocationEased(part) => self.follow_ups.add(Work::CheckRevocation(part)),
            Fact::InPlaceUnpinned(part) => self.follow_ups.add(Work::UnmapInPlace(part)),

            // The level of a place follows its balance.
            Fact::BalanceChanged(place) => self.follow_ups.add(Work::UpdatePressure(place)),
            Fact::PressureDue(place) => self.follow_ups.add(Work::RelievePressure(place)),
            // Parts that could not leave for lack of backing get it.
            Fact::RoomBelow(device) => self.follow_ups.add(Work::ReserveLateBackings(device)),
            // The first waiter may start. A waiter that nothing would have helped may be helped now.
            Fact::RoomFreed => {
                if self.can_front_scan_start() {
                    self.follow_ups.add(Work::FrontScan);
                }
                self.scan_if_short();
                self.begin_prefetches_if_queued();
            }
            Fact::VictimsChanged => {
                self.scan_if_short();
                self.schedule_prefetch_retry();
            }
            // More parts can leave, or less room may be used: only waiters and limits need a scan then.
            Fact::BackingGained | Fact::QuotaStaged => {
                if self.is_room_wanted() {
                    self.follow_ups.add(Work::FullScan);
                }
            }
            // A waiter that the driver failed waits for exactly this.
            Fact::LeavingResolved => {
                if self.line.has_out_of_memory() {
                    self.follow_ups.add(Work::FullScan);
                }
            }
            // The ledger is short until a survey shows why, and the waiter is back in the line.
            Fact::DriverRanOut(device) => {
                self.follow_ups.add(Work::CoverShortfall(device));
                self.follow_ups.add(Work::FullScan);
            }

            // The last scan counted on what is different now.
            Fact::ExtentCached
            | Fact::CreationFailed
            | Fact::ExtentUnreturned
            | Fact::RoomTaken
            | Fact::CallsEnded
            | Fact::AllocationAdvanced
            | Fact::ExtentReturned
            | Fact::LeavingStopped
            | Fact::VictimRefused
            | Fact::ScannedWaiterChanged
            | Fact::BatchRefused
            | Fact::WaitCancelled
            | Fact::CachedTaken
            | Fact::EvictedInDoubt
            | Fact::RetryAllowed
            | Fact::WaiterLetsPass
            | Fact::DrainChanged => self.follow_ups.add(Work::FullScan),
            Fact::BatchEntered => {
                self.advance_turns_if_unwatched();
                self.follow_ups.add(Work::FullScan);
            }
            // More or fewer working sets may fit together than before.
            Fact::Surveyed | Fact::QuotaChanged | Fact::SettingsChanged => {
                self.advance_turns_if_any();
                self.follow_ups.add(Work::FullScan);
            }
            // It needs no room to be made, unless it is within a guarantee: a front scan finds that out.
            Fact::WaiterEntered => {
                self.advance_turns_if_unwatched();
                self.follow_ups.add(Work::FrontScan);
            }
            Fact::WaiterUnwanted(part) => {
                if self.line.contains(Waiter::Part(part)) {
                    self.follow_ups.add(Work::CheckWaiter(part));
                }
            }
            // The order of what begins is decided once, when all that is queued is known. Requests that found no room
            // need no other try.
            Fact::PrefetchQueued => self.follow_ups.add(Work::BeginPrefetches),
            // The owners of a device and those that wait for it decide together.
            Fact::TurnsDue => self.follow_ups.add(Work::AdvanceTurns),
            // Requests of clients go first.
            Fact::ForecastMade | Fact::NextTurnWaits => self.follow_ups.add(Work::Speculate),
            Fact::PrefetchAdvanced(id) => self.follow_ups.add(Work::CompletePrefetch(id)),
            Fact::PrefetchedPartFreed(part) => self.follow_ups.add(Work::CheckPrefetches(part)),
            // Its room, its turn or what it kept on the device may serve another. Requests of a class that was paused may
            // begin.
            Fact::PrefetchEnded | Fact::PrefetchRetryDue | Fact::PressureFell => {
                self.begin_prefetches_if_queued();
            }
            // Another tenant may go first, with its requests and its turns.
            Fact::StandingChanged => {
                self.advance_turns_if_any();
                self.begin_prefetches_if_queued();
            }
            Fact::QuotaReady(op) => self.follow_ups.add(Work::ResumeQuota(op)),
        }
    }

    /// A waiter that nothing would have helped may be helped by another victim; so may a tenant above its limit, and
    /// a waiter that counts on a session in doubt.
    fn scan_if_short(&mut self) {
        if self.line.scan_found_shortage() || self.line.is_any_over_limit() || self.is_room_in_doubt() {
            self.follow_ups.add(Work::FullScan);
        }
    }

    fn advance_turns_if_any(&mut self) {
        if !self.sessions.turns.is_empty() {
            self.follow_ups.add(Work::AdvanceTurns);
        }
    }

    /// The line may need an owner to yield, a quantum from now at the earliest.
    fn advance_turns_if_unwatched(&mut self) {
        let soon = self.shell.now.after(self.config.limits.turns.quantum);
        if self.sessions.turns.alarm.is_none_or(|alarm| alarm > soon) {
            self.advance_turns_if_any();
        }
    }

    fn begin_prefetches_if_queued(&mut self) {
        if !self.moves.prefetches.queues.is_empty() {
            planted!(self, PrefetchTriedOnce => if self.has_one_prefetching_tenant() { return });
            self.moves.prefetches.retry_all();
            self.follow_ups.add(Work::BeginPrefetches);
        }
    }

    /// Does all follow-up work of an event.
    pub(crate) fn run_follow_ups(&mut self) {
        self.follow_ups.begin_event();
        loop {
            while let Some(fact) = self.ledger.take_fact() {
                self.follow(fact);
            }
            while let Some(fact) = self.follow_ups.take_fact() {
                self.follow(fact);
            }
            match self.follow_ups.take_first() {
                Some(work) => self.do_work(work),
                None => return,
            }
        }
    }

    fn do_work(&mut self, work: Work) {
        match work {
            Work::AfterRevocations => self.after_revocations(),
            Work::AfterMoves => self.after_moves(),
            Work::ReleaseFreed(allocation) => self.release_freed(allocation),
            Work::CheckCall((part, call)) => self.check_call(call, part),
            Work::AdvanceTurns => self.advance_turns(),
            Work::CheckRevocation(part) => self.check_revocation(part),
            Work::ResumeQuota(op) => self.resume_quota(op),
            Work::CheckWaiter(part) => self.check_waiter(part),
            Work::CoverShortfall(device) => self.cover_shortfall(device),
            Work::ReserveLateBackings(device) => {
                if self.moves.backings.missing().is_any_on(device) {
                    self.reserve_late_backings(device);
                }
            }
            Work::FullScan => {
                self.follow_ups.remove(&Work::FrontScan);
                self.scan_line();
                self.begin_prefetches_if_queued();
            }
            Work::FrontScan => {
                self.scan_front();
                self.begin_prefetches_if_queued();
            }
            Work::CheckPrefetches(part) => {
                self.check_sequences_of(part);
                self.check_prefetches_of(part);
            }
            Work::CompletePrefetch(id) => self.complete_prefetch(id),
            Work::BeginPrefetches => self.begin_prefetches(),
            Work::Speculate => {
                self.speculate();
                self.bring_next_sets();
            }
            Work::UpdatePressure(place) => self.update_pressure(place),
            Work::RelievePressure(place) => self.relieve_pressure(place),
            Work::UnmapInPlace(part) => self.unmap_in_place_or_postpone(part),
            Work::SendRevoke(session, _, first) => self.send_evictions(session, first),
            Work::SendParts(session) => self.send_parts(session),
            Work::CheckStall(call) => self.check_stalls(call),
        }
    }

    /// Tells the session of all its evicted parts.
    fn send_evictions(&mut self, session: SessionId, first: RevokedPart) {
        let mut parts = vec![first];
        let of_session = |work: &Work| match work {
            Work::SendRevoke(to, _, revoked) if *to == session => Some(*revoked),
            _ => None,
        };
        while let Some(revoked) = self.follow_ups.take_first_if(of_session) {
            parts.push(revoked);
        }
        self.send_revoke(session, parts, RevokeReason::Evicted);
    }

    /// Sends this session and all others with queued parts their next packets. They share the budget of
    /// descriptors, so no other work comes between them.
    fn send_parts(&mut self, first: SessionId) {
        let mut next = Some(first);
        while let Some(session) = next {
            self.pump(session);
            next = self.follow_ups.take_first_if(|work| match work {
                Work::SendParts(session) => Some(*session),
                _ => None,
            });
        }
    }

    /// Checks all calls that are due together: the youngest is aborted first.
    fn check_stalls(&mut self, first: PinId) {
        let mut calls = vec![first];
        while let Some(call) = self.follow_ups.take_first_if(|work| match work {
            Work::CheckStall(call) => Some(*call),
            _ => None,
        }) {
            calls.push(call);
        }
        self.abort_stalled(calls);
    }

    /// Unmaps a part in place, unless this event asked enough words: the rest follows a moment later, so that
    /// nothing else waits for them.
    fn unmap_in_place_or_postpone(&mut self, part: PartRef) {
        if self.follow_ups.words_asked < PARTS_STARTED_PER_EVENT {
            return self.unmap_in_place(part);
        }
        self.follow_ups.postpone(Work::UnmapInPlace(part));
        self.arm(self.shell.now.after(MOMENT), Timer::InPlaceUnmaps);
    }
}
