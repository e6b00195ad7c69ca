//! Migrations: parts leave their device, come back to it, or move between the tiers below.
//!
//! A migration starts for a waiter, for pressure, for a limit or for an operator. [`Broker::start_move`] does
//! all of them:
//!
//! 1. It reserves the destination and orders an extent there, or takes the part's backing
//!    ([`Broker::begin_migration`]).
//! 2. It revokes the part from every session (`mapping/revocation.rs`) and waits for that.
//! 3. Once the part is unmapped and the extent exists, the driver copies ([`Broker::copy_if_ready`]). A clean
//!    part needs no copy.
//! 4. `moves/migration_end.rs` ends it.
//!
//! The source stays charged until the driver has it back. So while a part moves its tenant pays twice, once in
//! each tier.

use vramd_types::{CopyClass, ExtentId};

use crate::{
    broker::Broker,
    command::{Command, Notice, PartMove, PartRevocation},
    event::{PartRef, Tier},
    eviction::EvictionReason,
    follow_up::Fact,
    handler::extents::create_extent::ExtentOrder,
    ledger::Place,
    line::{Footprint, Waiter},
    moves::{Backing, Cause, Migration, MigrationEvent, MigrationState, MoveError, Stop},
    pool::ExtentError,
    tenancy::{Arrival, OpId},
};

impl Broker {
    /// Evicts a part for an operator. `None`: the operation is told when it is over.
    pub(crate) fn evict_for_operator(&mut self, op: OpId, part: PartRef, to_tier: Tier) -> Option<PartMove> {
        if self.is_held_on_device(part) {
            return Some(PartMove::Held);
        }
        if let Some(under_way) = self.moves.migrations.get(part) {
            if under_way.to_tier != to_tier || under_way.state == MigrationState::Stopping {
                return Some(PartMove::Wanted);
            }
            self.moves.migrations.join(part, [op]);
            return None;
        }
        // A dropped part lies nowhere.
        if self.tier_of(part) == Some(to_tier) || self.is_dropped(part) {
            return Some(PartMove::Moved);
        }
        match self.is_off_device(part) && self.is_wanted(part) {
            true => Some(PartMove::Wanted),
            false => self
                .move_as_ordered(op, part, to_tier)
                .unwrap_or_else(|error| Some(self.move_outcome(part, &Stop::Failed(error)))),
        }
    }

    /// Starts to move a part, which leaves once every session has unmapped it. `None`: it is moving.
    pub(crate) fn start_move(
        &mut self,
        part: PartRef,
        (to_tier, cause): (Tier, Cause),
        op: Option<OpId>,
        arrived: Arrival,
    ) -> Result<Option<PartMove>, MoveError> {
        self.begin_migration(part, (to_tier, cause), None, op)?;
        self.revoke_for_move(part, (to_tier, cause), op, arrived)
    }

    /// Has sessions unmap a part that moves. `None`: it is moving.
    fn revoke_for_move(
        &mut self,
        part: PartRef,
        (to_tier, cause): (Tier, Cause),
        op: Option<OpId>,
        arrived: Arrival,
    ) -> Result<Option<PartMove>, MoveError> {
        let for_arrival = (cause == Cause::Demand && to_tier != Tier::Device).then_some(arrived);
        self.moves.migrations.set_arrival(part, for_arrival);
        Ok(match self.revoke_part(None, part, false, arrived) {
            None => None,
            Some(PartRevocation::Revoked) => {
                self.resume_migration(part, &PartRevocation::Revoked);
                // A part that needs no copy has arrived already.
                (!self.moves.migrations.contains(part)).then_some(PartMove::Moved)
            }
            Some(other) => {
                op.into_iter().for_each(|op| self.forget_operation(part, op));
                self.stop_migration(part, Stop::InUse(other.clone()));
                Some(other.into())
            }
        })
    }

    /// Starts to evict a victim, and returns the extent that leaves its device.
    pub(crate) fn evict_victim(
        &mut self,
        part: PartRef,
        arrived: Arrival,
        (cause, reason): (Cause, EvictionReason),
    ) -> Option<ExtentId> {
        let allocation = self.allocations.get(part.allocation)?;
        let leaves = allocation.part(part.part)?.extent;
        let to_tier = self.tier_below(part)?;
        let begun = self.begin_migration(part, (to_tier, cause), Some(reason), None);
        let begun = begun.and_then(|()| self.revoke_for_move(part, (to_tier, cause), None, arrived));
        if let Err(error) = begun {
            self.usage.residents.mark_stuck(part);
            self.follow_ups.push(Fact::VictimRefused);
            let outcome = self.move_outcome(part, &Stop::Failed(error));
            let tiers = (Tier::Device, to_tier);
            self.notify_migration(part, tiers, (cause, self.shell.now), &outcome, (false, None, None));
            return None;
        }
        self.push_notice(Notice::VictimChosen { part, cause, reason });
        Some(leaves)
    }

    /// Fetches a part for an operator.
    pub(crate) fn fetch_for_operator(&mut self, op: OpId, part: PartRef) -> Option<PartMove> {
        if let Some(under_way) = self.moves.migrations.get(part) {
            if under_way.to_tier == Tier::Device {
                self.moves.migrations.join(part, [op]);
                return None;
            }
            // Its migration between tiers below ends first.
            if !self.is_leaving(part) {
                return Some(PartMove::Wanted);
            }
            self.stop_migration(part, Stop::Wanted);
            return Some(PartMove::Moved);
        }
        if self.tier_of(part) == Some(Tier::Device) {
            self.stop_write_back(part, Stop::Wanted);
            return Some(PartMove::Moved);
        }
        match self.move_as_ordered(op, part, Tier::Device) {
            Ok(outcome) => {
                // Sessions that waited for the part no longer wait for room.
                self.follow_ups.push(Fact::WaiterUnwanted(part));
                self.push_if_waiters(Fact::RoomTaken);
                outcome
            }
            Err(error) => Some(self.move_outcome(part, &Stop::Failed(error))),
        }
    }

    /// Moves a part for an operator or its owner, wherever it lies. `None`: it is moving.
    fn move_as_ordered(
        &mut self,
        op: OpId,
        part: PartRef,
        to_tier: Tier,
    ) -> Result<Option<PartMove>, MoveError> {
        // This comes before anything is created for it.
        if let Some(outcome) = self.why_not_revocable(part, false, self.pins.after_all())
            && outcome != PartRevocation::Revoked
        {
            return Ok(Some(outcome.into()));
        }
        let owner = self.requests.ops.get(op).is_some_and(|op| op.requester.tenant().is_some());
        let cause = if owner { Cause::Owner } else { Cause::Operator };
        self.start_move(part, (to_tier, cause), Some(op), self.pins.after_all())
    }

    /// Reserves room in the other tier, has an extent created there, and records the migration.
    fn begin_migration(
        &mut self,
        part: PartRef,
        (to_tier, cause): (Tier, Cause),
        reason: Option<EvictionReason>,
        op: Option<OpId>,
    ) -> Result<(), MoveError> {
        let allocation = self.allocations.get(part.allocation).ok_or(MoveError::Gone)?;
        let (tenant, device, kind) = (allocation.tenant, allocation.device, allocation.kind);
        let (size, discardable) = (allocation.size_of(part.part), allocation.discardable);
        let from = allocation.part(part.part).map(|entry| entry.extent).ok_or(MoveError::Gone)?;
        let from_tier = self.tier_of(part).ok_or(MoveError::Gone)?;
        let place = Place { device, tier: to_tier };
        let unwritten = self.is_unwritten(part);
        // A dropped or unwritten part is not copied, so its new extent must be zeroed.
        let zeroed = discardable || unwritten;
        planted!(self, RemadeUnzeroed => zeroed = unwritten);
        planted!(self, UnwrittenMovedUnzeroed => zeroed = discardable);
        planted!(self, InPlaceUnzeroed => zeroed = zeroed && to_tier == Tier::Device);
        let order = ExtentOrder { place, size, part, kind, zeroed };
        let (to, clean) = match (to_tier, self.take_backing_towards(part, from_tier, to_tier)) {
            (Tier::Device, backing) => {
                // A part that lies below its device has no backing.
                debug_assert!(backing.is_none(), "{part:?} is elsewhere and backed");
                // A cached extent of that size will do if the copy writes all of it.
                let cached = match unwritten {
                    true => None,
                    false => self.reuse_cached(tenant, device, size, part),
                };
                planted!(self, HandOverChargedTwice => self.charge_if(cached.is_some(), tenant, place, size));
                let to = match cached {
                    Some(extent) => self.track_detached(part, extent),
                    None => self.order_second_extent(tenant, None, order)?,
                };
                planted!(self, UnwrittenCopied => unwritten = false);
                (to, discardable || unwritten)
            }
            (_, Some(Backing::Needless)) => {
                let to = self.order_nothing(part, place, size)?;
                (self.track_detached(part, to), true)
            }
            (_, Some(Backing::Extent { extent, clean, .. })) => (extent, clean),
            (_, Some(Backing::File { extent })) => (extent, true),
            (_, Some(Backing::Reserved(reserved))) => {
                (self.order_second_extent(tenant, Some(reserved), order)?, false)
            }
            (_, None) => (self.order_second_extent(tenant, None, order)?, unwritten),
        };
        planted!(self, CopiedToFile => clean = clean && self.pool.get(to).is_some_and(|it| !it.in_file));
        if from_tier == Tier::Device {
            self.line.room.track(from, Footprint { tenant, device, size });
            self.usage.residents.exclude(part);
            self.stop_awaiting_backing(part, tenant, device);
        }
        // A waiter in the line has the part sooner through the operator.
        let awaited = cause == Cause::Demand || self.is_wanted(part);
        let migration = Migration {
            to,
            from_tier,
            to_tier,
            cause,
            reason,
            sum: self.usage.placements.take_decided(part, (to_tier, cause)),
            since: self.shell.now,
            copied_since: None,
            state: MigrationState::Preparing,
            is_made: self.is_live(to),
            clean,
            is_unmapped: false,
            awaited,
            for_arrival: None,
            vain_tries: self.line.vain_tries(Waiter::Part(part)),
            stopped: None,
            ops: op.into_iter().collect(),
        };
        planted!(self, CopiedWhileMappedInPlace => migration = migration.unmapped_in(Tier::Host));
        self.moves.migrations.begin(part, migration);
        self.absorb_write_back(part);
        if awaited {
            self.hasten_write_back(part);
        }
        self.copy_if_ready(part);
        Ok(())
    }

    /// Takes the backing that the part has in the tier that it leaves for. Backing in another tier stays with
    /// it until it has arrived.
    fn take_backing_towards(&mut self, part: PartRef, from_tier: Tier, to_tier: Tier) -> Option<Backing> {
        let lies_in = self.moves.backings.get(&part).and_then(Backing::tier);
        match from_tier == Tier::Device && lies_in.is_some_and(|tier| tier != to_tier) {
            true => None,
            false => self.moves.backings.remove(&part),
        }
    }

    /// Copies a migration as demand from now on: a client waits for the part, or for its room.
    pub(crate) fn hasten_migration(&mut self, part: PartRef) {
        planted!(self, FetchNotRaised => if self.is_fetched(part) { return });
        let Some(migration) = self.moves.migrations.await_end(part) else { return };
        let (to, state) = (migration.to, migration.state);
        planted!(self, ClassInverted => return);
        if state == MigrationState::Copying {
            self.push_command(Command::HastenCopy { to });
        }
        if self.moves.prefetches.fetches.is_waiting(part) {
            self.copy_if_ready(part);
        }
        self.hasten_write_back(part);
    }

    /// A revocation has ended: the migration that waited for it goes on, or stops.
    pub(crate) fn resume_migration(&mut self, part: PartRef, outcome: &PartRevocation) {
        if self.moves.migrations.get(part).is_none_or(|it| it.is_unmapped) {
            return;
        }
        if *outcome != PartRevocation::Revoked {
            return self.stop_migration(part, Stop::InUse(outcome.clone()));
        }
        self.moves.migrations.unmapped(part);
        self.copy_if_ready(part);
    }

    /// The destination of a migration was created, or failed. Returns whether the extent was one.
    fn on_destination_made(&mut self, part: PartRef, id: ExtentId, failure: Option<&ExtentError>) -> bool {
        if self.moves.migrations.get(part).is_none_or(|it| it.to != id) {
            return false;
        }
        match failure {
            None => {
                self.moves.migrations.made(part);
                self.copy_if_ready(part);
            }
            Some(error) => {
                let why = Stop::Failed(error.clone().into());
                self.advance_migration(part, MigrationEvent::Failed, Some(why));
            }
        }
        true
    }

    pub(crate) fn copy_if_ready(&mut self, part: PartRef) {
        // A write-back is still writing the destination.
        if self.moves.write_backs.contains(part) {
            return;
        }
        let ready = |it: &&Migration| it.is_made && it.is_unmapped;
        planted!(self, CopiedWhileMapped => ready = |it: &&Migration| it.is_made);
        let Some(migration) = self.moves.migrations.get(part).filter(ready) else { return };
        let (to, clean, is_new) =
            (migration.to, migration.clean, migration.state == MigrationState::Preparing);
        let class = match (migration.awaited, migration.to_tier) {
            (true, _) => CopyClass::Demand,
            (false, Tier::Device) => CopyClass::Prefetch,
            (false, Tier::Host | Tier::Disk) => CopyClass::WriteBack,
        };
        planted!(self, EveryCopyUrgent => class = CopyClass::Demand);
        planted!(self, ClassInverted => class = if migration.awaited { CopyClass::WriteBack } else { class });
        let Some(allocation) = self.allocations.get(part.allocation) else { return };
        let Some(from) = allocation.part(part.part).map(|entry| entry.extent) else { return };
        // A discardable part has no backing to compare: it is dropped, or created anew. A file is not compared
        // either where the copy would go into it.
        let in_file = self.pool.get(to).is_some_and(|extent| extent.in_file);
        let may_compare = !allocation.discardable && !in_file && migration.from_tier == Tier::Device;
        let compare_first = clean && self.config.check_clean_backings && may_compare;
        if clean && !compare_first && is_new {
            return self.advance_migration(part, MigrationEvent::Clean, None);
        }
        let bytes = allocation.size_of(part.part);
        let (max, now) = (self.config.limits.prefetch_bytes_copied_max, self.shell.now);
        match class {
            CopyClass::Prefetch if !self.moves.prefetches.take_turn(part, max, now) => return,
            CopyClass::Prefetch | CopyClass::WriteBack => {}
            CopyClass::Demand => self.moves.prefetches.fetches.pass_turn(part, now),
        }
        planted!(self, CopyTruncated => bytes = bytes.saturating_sub(vramd_types::GRANULARITY));
        self.moves.migrations.begin_copy(part, now);
        self.advance_migration(part, MigrationEvent::Ready, None);
        if !compare_first {
            self.pool.mark_written(to);
        }
        self.push_command(Command::Copy { from, to, bytes, compare_first, class });
        planted!(self, SourceReleasedEarly => self.release_extent(from));
        planted!(self, HandedOverUnread => _ = self.is_extent_wanted(part) && self.hand_over(part, from));
    }

    /// Stops a migration: the part stays where it is.
    pub(crate) fn stop_migration(&mut self, part: PartRef, why: Stop) {
        let Some(migration) = self.moves.migrations.get(part) else { return };
        let (state, to) = (migration.state, migration.to);
        if state == MigrationState::Copying {
            self.push_command(Command::CancelCopy { to });
        }
        self.advance_migration(part, MigrationEvent::Stop, Some(why));
    }

    /// An extent that no part lies in was created, or failed: passes it to its migration or backing, or
    /// releases it.
    pub(crate) fn on_detached_made(&mut self, part: PartRef, id: ExtentId, failure: Option<&ExtentError>) {
        if self.on_destination_made(part, id, failure) {
            return;
        }
        match failure {
            None if self.is_backing_of(part, id) => {}
            None => self.release_extent(id),
            Some(_) => self.on_backing_failed(part, id),
        }
        self.on_backing_made(part, id, failure);
    }
}

impl From<PartRevocation> for PartMove {
    fn from(outcome: PartRevocation) -> Self {
        match outcome {
            PartRevocation::Revoked => Self::Moved,
            PartRevocation::Pinned { by } => Self::Pinned { by },
            PartRevocation::Silent { by } => Self::Silent { by },
            PartRevocation::Standing { by } => Self::Standing { by },
        }
    }
}
