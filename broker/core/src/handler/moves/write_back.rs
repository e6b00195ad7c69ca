//! Write-back: a dirty part is copied to its backing while it stays on its device, mapped. Afterwards it can
//! leave without a copy. [`crate::moves::WriteBackState`] has its states.
//!
//! The copy is clean only while no session writes the part. A session that may write says so by WRITTEN in its
//! pin word. The daemon clears that bit in one step with the check for pins, before the copy begins; the bit
//! comes with the answer when the part is unmapped.

use vramd_types::{CopyClass, ExtentId, SessionId};

use crate::{
    broker::Broker,
    command::{Command, Notice, PartMove, PartRevocation},
    event::{ChannelId, PartRef, Slot, Tier},
    follow_up::Fact,
    handler::extents::create_extent::ExtentOrder,
    invariants,
    line::Footprint,
    moves::{
        Backing, Cause, MigrationState, MigrationStep, MoveError, Stop, WriteBack, WriteBackEvent,
        WriteBackState,
    },
    observed::Transition,
    pool::ExtentError,
    residency::{AllocationState, MapState},
    tenancy::OpId,
};

/// The pin word that has WRITTEN for a part.
type Word = (ChannelId, SessionId, Slot);

impl Broker {
    /// Starts to write one part back. `None`: the operation, if any, is told when it is over.
    pub(crate) fn write_back_part(&mut self, op: Option<OpId>, part: PartRef) -> Option<PartMove> {
        // A migration brings its content below as well, whichever way it ends.
        if let Some(migration) = self.moves.migrations.get(part) {
            if migration.state == MigrationState::Stopping {
                return Some(PartMove::Wanted);
            }
            self.moves.migrations.join(part, op);
            return None;
        }
        if let Some(under_way) = self.moves.write_backs.get(part) {
            if under_way.state == WriteBackState::Stopping {
                return Some(PartMove::Wanted);
            }
            self.moves.write_backs.join(part, op);
            return None;
        }
        if self.tier_of(part) != Some(Tier::Device) {
            return Some(PartMove::Moved);
        }
        let word = match self.word_to_clear(part) {
            Ok(word) => word,
            Err(outcome) => return Some(outcome.into()),
        };
        if word.is_none() && self.moves.backings.get(&part).is_some_and(Backing::is_clean) {
            return Some(PartMove::Moved);
        }
        let to = match self.ensure_memory_below(part) {
            Ok(to) => to,
            Err(error) => return Some(self.move_outcome(part, &Stop::Failed(error))),
        };
        let write_back = WriteBack {
            to,
            tier: self.tier_below(part).unwrap_or(Tier::Host),
            since: self.shell.now,
            state: WriteBackState::Creating,
            written: false,
            stopped: None,
            ops: op.into_iter().collect(),
        };
        self.moves.write_backs.begin(part, write_back);
        if self.is_live(to) {
            self.ask_or_copy(part, word);
        }
        None
    }

    /// The pin word of the session that may write the part, if any. `Err`: the part is in use, or its writer
    /// has no pin word.
    fn word_to_clear(&self, part: PartRef) -> Result<Option<Word>, PartRevocation> {
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        // A sealed part is never written, so its mappers do not matter.
        if state == Some(AllocationState::Sealed) {
            return Ok(None);
        }
        match self.why_not_revocable(part, false, self.pins.after_all()) {
            Some(PartRevocation::Revoked) => return Ok(None),
            Some(outcome) => return Err(outcome),
            // Its pin word no longer says RESIDENT.
            None if self.mapping.revocations.contains_key(&part) => {
                return Err(PartRevocation::Pinned { by: self.mappers(part, |_| true) });
            }
            None => {}
        }
        let Some(mapping) = self.mappings(part).iter().find(|mapping| mapping.state == MapState::Mapped)
        else {
            return Ok(None);
        };
        let word = || Some((self.sessions.get(mapping.session)?.channel, mapping.session, mapping.slot()?));
        word().map(Some).ok_or_else(|| PartRevocation::Standing { by: vec![mapping.session] })
    }

    /// The memory of its backing, ordered where only bytes are reserved. From now on the backing is not clean.
    fn ensure_memory_below(&mut self, part: PartRef) -> Result<ExtentId, MoveError> {
        if let Some(Backing::Extent { extent, .. }) = self.moves.backings.get(&part) {
            let extent = *extent;
            planted!(self, FailedWriteBackTakenForClean => return Ok(extent));
            self.moves.backings.set_clean(&part, false);
            return Ok(extent);
        }
        let kind = self.allocations.get(part.allocation).ok_or(MoveError::Gone)?.kind;
        let footprint = self.footprint_of(part).ok_or(MoveError::Gone)?;
        let reserved = match self.moves.backings.remove(&part) {
            Some(Backing::Reserved(reserved)) => Some(reserved),
            _ => None,
        };
        let Footprint { tenant, device, size } = footprint;
        let place = match &reserved {
            Some(reserved) => Some(reserved.place()),
            None => self.ledger.place_below(tenant, device, size),
        };
        let place = place.ok_or(MoveError::NoTierBelow)?;
        let order = ExtentOrder { place, size, part, kind, zeroed: false };
        let extent = self.order_second_extent(tenant, reserved, order)?;
        let kept = Backing::Extent { extent, tier: place.tier, clean: false };
        self.moves.backings.insert(part, (tenant, device), size, kept);
        // Without backing it could not leave before. The copy is no use of the part.
        if !self.usage.residents.contains(part) {
            self.mark_evictable(part);
        }
        self.follow_ups.push(Fact::BackingGained);
        Ok(extent)
    }

    /// The backing of a part was created, or failed.
    pub(crate) fn on_backing_made(&mut self, part: PartRef, id: ExtentId, failure: Option<&ExtentError>) {
        let is_awaited = |it: &WriteBack| it.to == id && it.state == WriteBackState::Creating;
        if !self.moves.write_backs.get(part).is_some_and(is_awaited) {
            return;
        }
        let why = match failure {
            Some(error) => Stop::Failed(error.clone().into()),
            None => match self.word_to_clear(part) {
                Ok(word) => return self.ask_or_copy(part, word),
                Err(outcome) => Stop::InUse(outcome),
            },
        };
        self.advance_write_back(part, WriteBackEvent::Failed, Some(why));
    }

    fn ask_or_copy(&mut self, part: PartRef, word: Option<Word>) {
        match word {
            Some((channel, session, slot)) => {
                self.advance_write_back(part, WriteBackEvent::Check, None);
                self.push_command(Command::ClearWritten { part, channel, session, slot });
            }
            None => self.advance_write_back(part, WriteBackEvent::Ready, None),
        }
    }

    pub(crate) fn on_written_cleared(&mut self, part: PartRef, cleared: bool) {
        let state = self.moves.write_backs.get(part).map(|under_way| under_way.state);
        if !matches!(state, Some(WriteBackState::Checking | WriteBackState::Stopping)) {
            return self
                .report_violation(invariants::MAPPERS, format!("the word of {part:?} was cleared unasked"));
        }
        let by = self.mappers(part, |_| true);
        // A part without mappers has no writer.
        match cleared || by.is_empty() {
            true => self.advance_write_back(part, WriteBackEvent::Ready, None),
            false => {
                let why = Stop::InUse(PartRevocation::Pinned { by });
                self.advance_write_back(part, WriteBackEvent::Failed, Some(why));
            }
        }
    }

    /// Starts the copy. It includes every write that was reported until now.
    fn copy_back(&mut self, part: PartRef) {
        let Some(to) = self.moves.write_backs.begin_copy(part) else { return };
        planted!(self, WrittenBackToAnother => to = self.backing_of_another(part).unwrap_or(to));
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let Some(from) = allocation.part(part.part).map(|entry| entry.extent) else { return };
        let bytes = allocation.size_of(part.part);
        self.pool.mark_written(to);
        self.push_command(Command::Copy {
            from,
            to,
            bytes,
            compare_first: false,
            class: CopyClass::WriteBack,
        });
    }

    /// The copy to the backing has ended.
    pub(crate) fn on_written_back(&mut self, part: PartRef, result: Result<(), String>) {
        match result {
            Ok(()) => self.advance_write_back(part, WriteBackEvent::Copied, None),
            Err(problem) => {
                let why = Stop::Failed(MoveError::CopyFailed { problem });
                self.advance_write_back(part, WriteBackEvent::Failed, Some(why));
            }
        }
    }

    /// Merges a write-back into a migration of the part to the same memory. A copy that runs is what the
    /// migration waits for; else the migration copies. Operations of the one wait for the other.
    pub(crate) fn absorb_write_back(&mut self, part: PartRef) {
        let Some(ops) = self.moves.write_backs.take_ops_before_copy(part) else { return };
        self.moves.migrations.join(part, ops);
        self.stop_write_back(part, Stop::Wanted);
    }

    /// Copies a write-back as demand, since a waiter needs the part to leave.
    pub(crate) fn hasten_write_back(&mut self, part: PartRef) {
        planted!(self, ClassInverted => return);
        planted!(self, WriteBackNotRaised => return);
        let copied = self.moves.write_backs.get(part).filter(|it| it.state == WriteBackState::Copying);
        if let Some(to) = copied.map(|it| it.to) {
            self.push_command(Command::HastenCopy { to });
        }
    }

    pub(crate) fn stop_write_back(&mut self, part: PartRef, why: Stop) {
        let Some(under_way) = self.moves.write_backs.get(part) else { return };
        let (state, to) = (under_way.state, under_way.to);
        if state == WriteBackState::Copying {
            self.push_command(Command::CancelCopy { to });
        }
        self.advance_write_back(part, WriteBackEvent::Stop, Some(why));
    }

    /// Moves a write-back along its table. `why` is the outcome if it fails; the first one counts.
    pub(crate) fn advance_write_back(&mut self, part: PartRef, event: WriteBackEvent, why: Option<Stop>) {
        let Some((from, step)) = self.moves.write_backs.step(part, event, why) else { return };
        self.shell.transitions.note(Transition::WriteBack { from, event, legal: step.is_some() });
        match step {
            Some(MigrationStep::To(WriteBackState::Copying)) => self.copy_back(part),
            Some(MigrationStep::To(_)) => {}
            Some(MigrationStep::Done) => self.end_write_back(part, true),
            Some(MigrationStep::Abandoned) => self.end_write_back(part, false),
            None => self
                .report_violation(invariants::TRANSITIONS, format!("{part:?}: {event:?} in state {from:?}")),
        }
    }

    fn end_write_back(&mut self, part: PartRef, copied: bool) {
        let Some(over) = self.moves.write_backs.end(part) else { return };
        let clean = copied && !over.written;
        planted!(self, WrittenSinceIgnored => clean = copied);
        if self.moves.migrations.get(part).is_some_and(|migration| migration.to == over.to) {
            // The migration leaves with the result.
            self.moves.migrations.set_clean(part, clean);
        } else if !self.is_backing_of(part, over.to) {
            // The part was freed meanwhile.
            self.release_extent(over.to);
        } else {
            planted!(self, FailedWriteBackTakenForClean => clean = clean || self.is_clean_below(part));
            self.moves.backings.set_clean(&part, clean);
        }
        let stop = (!copied).then(|| over.stopped.clone().unwrap_or(Stop::Wanted));
        let outcome = stop.as_ref().map_or(PartMove::Moved, |stop| self.move_outcome(part, stop));
        self.notify_write_back(part, &over, &outcome, clean);
        // An order of an operator ends without follow-up.
        if over.ops.is_empty() {
            self.note_written_ahead(part, matches!(stop, Some(Stop::Failed(_))));
        }
        for op in over.ops.iter().copied() {
            self.part_moved(op, part, outcome.clone());
            self.finish_parts(op);
        }
        let state = self.allocations.get(part.allocation).map(|allocation| allocation.state);
        match state {
            Some(AllocationState::Freeing) => self.follow_ups.push(Fact::FreedPartStill(part.allocation)),
            _ => self.copy_if_ready(part),
        }
    }

    fn notify_write_back(&mut self, part: PartRef, over: &WriteBack, outcome: &PartMove, clean: bool) {
        let (tier, began) = (over.tier, over.since);
        if !matches!(outcome, PartMove::Moved) {
            let tiers = (Tier::Device, tier);
            return self.notify_migration(
                part,
                tiers,
                (Cause::WriteBack, began),
                outcome,
                (false, None, None),
            );
        }
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let (device, bytes) = (allocation.device, allocation.size_of(part.part));
        let tenant = self.tenants.shared(allocation.tenant);
        self.push_notice(Notice::WrittenBack { part, tenant, device, tier, bytes, began, clean });
    }
}
