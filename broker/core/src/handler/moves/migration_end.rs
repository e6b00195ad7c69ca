//! The end of a migration.
//!
//! An arrived part lies in its new extent; its old extent is released, kept as backing, or handed to the next
//! waiter of the same tenant and size. A part that did not move stays where it was. The daemon then tells the
//! operations, records a failure, and leaves a report. `allocation/after_move.rs` goes on from there:
//!
//! - Another part has left its device: its memory is released (`allocation/release.rs`), and the line is
//!   scanned again.
//! - A fetched part has arrived: sessions that wait for it are sent it (`line/wanted.rs`, `mapping/frames.rs`).
//! - The driver had no memory for it: the part re-enters the line.

use vramd_types::ExtentId;

use crate::{
    broker::Broker,
    command::{Notice, PartMove, PartRevocation},
    event::{PartRef, Tier},
    follow_up::Fact,
    invariants,
    moves::{Cause, Migration, MigrationEvent, MigrationStep, MoveEnd, MoveError, MoveReport, Stop},
    observed::Transition,
    placement::PlacementSum,
    tenancy::{Arrival, OpId},
    time::Time,
};

impl Broker {
    pub(crate) fn on_copied(&mut self, to: ExtentId, result: Result<(), String>) {
        let part = self.pool.get(to).and_then(|extent| extent.part);
        if let Some(part) = part.filter(|part| self.is_written_back_to(*part, to)) {
            return self.on_written_back(part, result);
        }
        let is_copied = |part: &PartRef| {
            self.moves.migrations.get(*part).is_some_and(|it| it.to == to && it.state.is_copying())
        };
        let Some(part) = part.filter(is_copied) else {
            return self.report_violation(
                invariants::MIGRATIONS,
                format!("{to} was copied to, and nothing moves there"),
            );
        };
        planted!(self, FailedCopyAccepted => result = Ok(()));
        match result {
            Ok(()) => self.advance_migration(part, MigrationEvent::Copied, None),
            Err(problem) => {
                self.advance_migration(
                    part,
                    MigrationEvent::Failed,
                    Some(Stop::Failed(MoveError::CopyFailed { problem })),
                );
            }
        }
    }

    /// The bytes of a part on disk differ from those written. It stays there, and calls for it are refused as
    /// lost.
    pub(crate) fn on_damaged(&mut self, to: ExtentId, problem: String) {
        let part = self.pool.get(to).and_then(|extent| extent.part);
        let is_copied = |part: &PartRef| {
            self.moves.migrations.get(*part).is_some_and(|it| it.to == to && it.state.is_copying())
        };
        let Some(part) = part.filter(is_copied) else {
            return self.on_copied(to, Err(problem));
        };
        planted!(self, DamageIgnored => return self.advance_migration(part, MigrationEvent::Copied, None));
        let why = Stop::Failed(MoveError::ContentLost { problem });
        self.advance_migration(part, MigrationEvent::Failed, Some(why));
    }

    /// Moves a migration along its table. `why` is the outcome if it fails; the first one counts.
    pub(crate) fn advance_migration(&mut self, part: PartRef, event: MigrationEvent, why: Option<Stop>) {
        let Some((from, step)) = self.moves.migrations.step(part, event, why) else { return };
        self.shell.transitions.note(Transition::Migration { from, event, legal: step.is_some() });
        match step {
            Some(MigrationStep::To(_)) => {}
            Some(MigrationStep::Done) => self.end_migration(part, true),
            Some(MigrationStep::Abandoned) => self.end_migration(part, false),
            None => self
                .report_violation(invariants::TRANSITIONS, format!("{part:?}: {event:?} in state {from:?}")),
        }
    }

    fn end_migration(&mut self, part: PartRef, arrived: bool) {
        let Some(migration) = self.moves.migrations.end(part) else { return };
        let Migration {
            to,
            from_tier,
            to_tier,
            cause,
            reason,
            sum,
            awaited,
            since,
            copied_since,
            state,
            clean,
            for_arrival,
            vain_tries,
            stopped,
            ops,
            ..
        } = migration;
        let left = match arrived {
            true => self.switch_extent(part, to),
            false => to,
        };
        match (from_tier, to_tier, arrived) {
            (_, Tier::Device, true) => {
                self.retain_backing(part, left, true);
                self.follow_ups.push(Fact::VictimsChanged);
            }
            (Tier::Device, _, true) => {
                if self.is_dropped(part) {
                    self.moves.count_drop(part);
                }
                self.release_backing(part);
                self.leave_device(part, left);
            }
            (Tier::Device, _, false) => {
                let clean = clean && !state.is_copying();
                planted!(self, FailedCopyTakenForClean => clean = clean || state.is_copying());
                self.keep_on_device(part, left, clean);
            }
            // An extent that is still being created is released afterwards.
            (Tier::Host | Tier::Disk, _, _) => self.release_extent(left),
        }
        self.track_on_host(part);
        let stop = (!arrived).then(|| stopped.unwrap_or(Stop::Wanted));
        let outcome = stop.as_ref().map_or(PartMove::Moved, |stop| self.move_outcome(part, stop));
        self.notify_migration(
            part,
            (from_tier, to_tier),
            (cause, since),
            &outcome,
            (state.is_copying(), for_arrival, sum),
        );
        for op in ops.iter().copied() {
            self.part_moved(op, part, outcome.clone());
            self.finish_parts(op);
        }
        let error = match stop {
            Some(Stop::InUse(PartRevocation::Pinned { by })) => {
                self.record_pinned(part, &by);
                None
            }
            Some(Stop::Failed(error)) => {
                match from_tier {
                    Tier::Host => self.usage.idle_on_host.mark_stuck(part),
                    Tier::Device | Tier::Disk => self.usage.residents.mark_stuck(part),
                }
                Some(error)
            }
            _ => None,
        };
        let end = match error {
            None if arrived => MoveEnd::Arrived,
            None => MoveEnd::Stayed,
            Some(error @ MoveError::ContentLost { .. }) => MoveEnd::Lost(error),
            Some(_) if to_tier != Tier::Device => MoveEnd::NotLeft,
            Some(error) if error.is_out_of_memory() => MoveEnd::OutOfMemory { vain_tries },
            Some(error) => MoveEnd::NotFetched(error),
        };
        let entry = self.allocations.get(part.allocation).and_then(|it| it.part(part.part));
        let stays = entry.map(|entry| entry.extent).filter(|_| !arrived && from_tier == Tier::Device);
        let left_for = for_arrival.and_then(|arrived| self.line.tenant_arrived_at(arrived));
        self.moves.report(MoveReport {
            part,
            end,
            stays,
            cause,
            copied_since,
            left_for,
            from: from_tier,
            reason,
            sum,
            awaited,
        });
        self.follow_ups.push(Fact::MoveEnded);
    }

    /// Keeps a part on its device after all. The extent created below becomes its backing, unless it has one.
    fn keep_on_device(&mut self, part: PartRef, made: ExtentId, clean: bool) {
        match self.moves.backings.contains(&part) {
            true => {
                self.release_extent(made);
                self.mark_evictable(part);
            }
            false => self.retain_backing(part, made, clean),
        }
        self.follow_ups.push(Fact::LeavingStopped);
    }

    /// Releases the extent that a part has left, or hands it to the next waiter of its tenant and size, which is copied
    /// into it at once. Where no client waits, it is cached for a request of its tenant.
    fn leave_device(&mut self, part: PartRef, extent: ExtentId) {
        self.usage.residents.remove(part);
        self.end_unneeded(part);
        planted!(self, SourceKept => if !self.is_extent_wanted(part) { return });
        let is_wanted = self.is_extent_wanted(part) || self.is_extent_requested(part);
        match is_wanted && self.hand_over(part, extent) {
            true => self.on_leaving_resolved(extent),
            false => self.release_extent(extent),
        }
    }

    /// Puts the part into its new extent. Returns the old one.
    fn switch_extent(&mut self, part: PartRef, to: ExtentId) -> ExtentId {
        let Some(allocation) = self.allocations.get_mut(part.allocation) else { return to };
        let Some(from) = allocation.set_extent(part.part, to) else { return to };
        self.moves.detached.swap(part, from, to);
        from
    }

    pub(crate) fn notify_migration(
        &mut self,
        part: PartRef,
        (from, tier): (Tier, Tier),
        (cause, began): (Cause, Time),
        outcome: &PartMove,
        (copied, for_arrival, sum): (bool, Option<Arrival>, Option<PlacementSum>),
    ) {
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let (device, bytes) = (allocation.device, allocation.size_of(part.part));
        let dropped = allocation.discardable && self.is_dropped(part);
        let tenant = self.tenants.shared(allocation.tenant);
        let for_parts =
            || for_arrival.into_iter().flat_map(|arrived| self.line.parts_arrived_at(arrived)).collect();
        let problem = match outcome {
            PartMove::Moved if dropped => {
                let for_parts = for_parts();
                return self.push_notice(Notice::Dropped {
                    part,
                    tenant,
                    device,
                    tier,
                    bytes,
                    cause,
                    began,
                    for_parts,
                });
            }
            PartMove::Moved => {
                let for_parts = for_parts();
                return self.push_notice(Notice::Moved {
                    part,
                    tenant,
                    device,
                    from,
                    tier,
                    bytes,
                    cause,
                    began,
                    copied,
                    sum,
                    for_parts,
                });
            }
            PartMove::Failed { problem } => problem.clone(),
            PartMove::Refused { refusal } => refusal.to_string(),
            PartMove::Pinned { .. }
            | PartMove::Silent { .. }
            | PartMove::Standing { .. }
            | PartMove::Wanted
            | PartMove::Held
            | PartMove::Freed => {
                return self.push_notice(Notice::MoveStopped {
                    part,
                    tenant,
                    device,
                    from,
                    tier,
                    bytes,
                    cause,
                    began,
                });
            }
        };
        self.push_notice(Notice::MoveFailed {
            part,
            tenant,
            device,
            from,
            tier,
            bytes,
            cause,
            began,
            problem,
        });
    }

    pub(crate) fn forget_operation(&mut self, part: PartRef, op: OpId) {
        self.moves.migrations.leave(part, op);
    }
}
