//! The operator: `MoveParts` calls, timed from the command to its answer.
//!
//! The daemon learns of ended pins and new mappings by another socket than commands. So each command waits until nothing is on its way, and
//! a move with an obstacle is repeated from the start.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use vramd_client::admin::AdminClient;
use vramd_proto::v1::{
    DeviceStatus, MappingState, Move, MoveOutcome, MovePartsRequest, MoveState, PartMove, RevocationOutcome,
    RevokeMappingsRequest, ShowAllocationRequest, Tier, move_parts_request, revoke_mappings_request,
    show_allocation_request,
};
use vramd_tests::{Daemon, wait::soon};

/// How long an obstacle may last.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a move on disk may take.
const ANSWER_MAX: Duration = Duration::from_secs(300);

pub(crate) struct Operator {
    admin: AdminClient,
    /// A second connection, so that two commands run at once.
    other: AdminClient,
    /// A third connection, for reading while two commands run.
    looker: AdminClient,
    /// The tier to which parts leave.
    below: Tier,
    /// The room that the host must have before a move.
    room: u64,
    again: AtomicU64,
}

/// The progress of an eviction over time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eviction {
    /// When no session mapped any of it.
    pub(crate) unmapped: Duration,
    pub(crate) answered: Duration,
    /// When the device had all of it back by the ledger.
    pub(crate) settled: Duration,
}

impl Operator {
    pub(crate) fn new(daemon: &Daemon, below: Tier, room: usize) -> Result<Self> {
        let admin = || AdminClient::new(&daemon.sockets()).map(|admin| admin.request_timeout(ANSWER_MAX));
        let again = AtomicU64::new(0);
        Ok(Self { admin: admin()?, other: admin()?, looker: admin()?, below, room: room as u64, again })
    }

    /// The number of moves with an obstacle.
    pub(crate) fn tried_again(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }

    /// Moves these parts of an allocation, or all if none is named.
    pub(crate) fn move_parts(&self, memory: u64, parts: &[u32], tier: Tier) -> Result<Duration> {
        let mut last = Vec::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.wait_until_idle()?;
            let begun = Instant::now();
            last = order(&self.admin, memory, parts, tier)?;
            let took = begun.elapsed();
            if all_moved(&last) {
                return Ok(took);
            }
            self.undo(memory, parts, tier)?;
        }
        bail!("it did not move to {tier:?}: {last:?}")
    }

    pub(crate) fn move_all(&self, memory: u64, tier: Tier) -> Result<Duration> {
        self.move_parts(memory, &[], tier)
    }

    /// Evicts all of one allocation while it fetches all of the other.
    pub(crate) fn exchange(&self, out: u64, back: u64) -> Result<Duration> {
        let mut last = (Vec::new(), Vec::new());
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.wait_until_idle()?;
            let begun = Instant::now();
            let (left, arrived) = thread::scope(|scope| {
                let arrived = scope.spawn(|| order(&self.other, back, &[], Tier::Device));
                let left = order(&self.admin, out, &[], self.below);
                (left, arrived.join().expect("a command does not panic"))
            });
            let took = begun.elapsed();
            last = (left?, arrived?);
            if all_moved(&last.0) && all_moved(&last.1) {
                return Ok(took);
            }
            self.undo(out, &[], self.below)?;
            self.undo(back, &[], Tier::Device)?;
        }
        bail!("they did not change places: {last:?}")
    }

    /// Evicts all of one allocation while it fetches all of the other, and runs the action once both are being copied. Returns `None` if
    /// one of them ended before the action, or met an obstacle: then the result means nothing.
    pub(crate) fn while_both_move<T>(
        &self,
        out: u64,
        back: u64,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        self.wait_until_idle()?;
        let (left, arrived, done) = thread::scope(|scope| {
            let arrived = scope.spawn(|| order(&self.other, back, &[], Tier::Device));
            let left = scope.spawn(|| order(&self.admin, out, &[], self.below));
            let done = self.between_copies(out, back, || left.is_finished() || arrived.is_finished(), act);
            let join = "a command does not panic";
            (left.join().expect(join), arrived.join().expect(join), done)
        });
        let done = done?;
        if all_moved(&left?) && all_moved(&arrived?) {
            return Ok(done);
        }
        self.again.fetch_add(1, Ordering::Relaxed);
        self.move_all(out, self.below)?;
        self.move_all(back, Tier::Device)?;
        Ok(None)
    }

    /// Runs the action. Returns its result if both were being copied before and after.
    fn between_copies<T>(
        &self,
        out: u64,
        back: u64,
        is_over: impl Fn() -> bool,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        while !self.are_both_copied(out, back)? {
            if is_over() {
                return Ok(None);
            }
        }
        let done = act()?;
        Ok(self.are_both_copied(out, back)?.then_some(done))
    }

    fn are_both_copied(&self, out: u64, back: u64) -> Result<bool> {
        let moving = self.looker.moves(None)?.moving;
        let is_copied = |memory: u64, tier: Tier| {
            let of =
                |it: &&Move| it.part.is_some_and(|part| part.allocation_id == memory) && it.tier() == tier;
            moving.iter().filter(of).any(|it| it.state() == MoveState::Copying)
        };
        Ok(is_copied(out, self.below) && is_copied(back, Tier::Device))
    }

    /// Evicts all of it while a waiter needs its room. A move with an obstacle is repeated at once.
    pub(crate) fn move_out_for_waiter(&self, memory: u64) -> Result<Duration> {
        let (begun, mut last) = (Instant::now(), Vec::new());
        while begun.elapsed() < PATIENCE {
            last = order(&self.admin, memory, &[], Tier::Host)?;
            if all_moved(&last) {
                return Ok(begun.elapsed());
            }
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        bail!("it did not leave: {last:?}")
    }

    /// Evicts all of it while operators read its state continuously. No other client has memory.
    pub(crate) fn evict_watched(&self, memory: u64) -> Result<Eviction> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.wait_until_idle()?;
            let over = AtomicBool::new(false);
            let begun = Instant::now();
            let (left, answered, unmapped) = thread::scope(|scope| {
                let watcher = scope.spawn(|| self.wait_until_unmapped(memory, begun, &over));
                let left = order(&self.admin, memory, &[], Tier::Host);
                let answered = begun.elapsed();
                over.store(true, Ordering::Release);
                (left, answered, watcher.join().expect("a look does not panic"))
            });
            let unmapped = unmapped?;
            if all_moved(&left?) {
                return Ok(Eviction { unmapped, answered, settled: self.wait_until_returned(begun)? });
            }
            self.undo(memory, &[], Tier::Host)?;
        }
        bail!("it did not leave")
    }

    /// After the answer no session maps the memory.
    fn wait_until_unmapped(&self, memory: u64, begun: Instant, over: &AtomicBool) -> Result<Duration> {
        while !over.load(Ordering::Acquire) {
            let target = Some(show_allocation_request::Target::AllocationId(memory));
            let shown = self.other.show_allocation(ShowAllocationRequest { target })?;
            let mut mappers = shown.parts.iter().flat_map(|part| &part.mappers);
            if mappers.all(|mapper| mapper.state() == MappingState::Away) {
                break;
            }
        }
        Ok(begun.elapsed())
    }

    fn wait_until_returned(&self, begun: Instant) -> Result<Duration> {
        self.wait_until_charged(0)?;
        Ok(begun.elapsed())
    }

    /// Waits until no more than `bytes` is charged on the devices: everything that left has been returned.
    pub(crate) fn wait_until_charged(&self, bytes: usize) -> Result<()> {
        let begun = Instant::now();
        while self.charged()? > bytes as u64 {
            ensure!(begun.elapsed() < PATIENCE, "the device does not have it back");
        }
        Ok(())
    }

    /// Returns the charge on the devices.
    pub(crate) fn charged(&self) -> Result<u64> {
        Ok(self.admin.devices()?.iter().map(|device| device.held_bytes).sum())
    }

    /// Returns the room in the host.
    pub(crate) fn host_left(&self) -> Result<u64> {
        Ok(self.admin.devices()?.iter().map(host_left).sum())
    }

    /// Revokes until no session maps any of it, in any tier.
    pub(crate) fn unmap(&self, memory: u64) -> Result<()> {
        let mut last = Vec::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.wait_until_idle()?;
            let target = Some(revoke_mappings_request::Target::AllocationId(memory));
            last = self.admin.revoke_mappings(RevokeMappingsRequest { target, ..Default::default() })?.parts;
            if !last.is_empty() && last.iter().all(|part| part.outcome() == RevocationOutcome::Revoked) {
                return Ok(());
            }
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        bail!("it is still mapped: {last:?}")
    }

    /// Waits until the daemon has read everything that was sent, and the host has room for memory that may leave. Fetched memory is charged
    /// in the host until the driver has it back. Memory that left a device may not be returned yet: [`Self::wait_until_charged`].
    pub(crate) fn wait_until_idle(&self) -> Result<()> {
        soon("nothing is on its way", || {
            let heard = self.admin.node().is_ok_and(|node| node.fds_in_flight == 0);
            heard && self.admin.devices().is_ok_and(|devices| devices.iter().all(|device| self.fits(device)))
        })
    }

    /// Reads the host tier only.
    fn fits(&self, device: &DeviceStatus) -> bool {
        host_left(device) >= self.room
    }

    /// Moves parts back to where they were.
    fn undo(&self, memory: u64, parts: &[u32], tier: Tier) -> Result<()> {
        self.again.fetch_add(1, Ordering::Relaxed);
        let before = if tier == Tier::Device { self.below } else { Tier::Device };
        order(&self.admin, memory, parts, before).map(drop)
    }
}

fn host_left(device: &DeviceStatus) -> u64 {
    device.host_capacity_bytes.saturating_sub(device.host_held_bytes)
}

fn order(admin: &AdminClient, memory: u64, parts: &[u32], tier: Tier) -> Result<Vec<PartMove>> {
    let target = Some(move_parts_request::Target::AllocationId(memory));
    let request =
        MovePartsRequest { target, part_indexes: parts.to_vec(), tier: tier.into(), ..Default::default() };
    Ok(admin.move_parts(request)?.parts)
}

fn all_moved(parts: &[PartMove]) -> bool {
    !parts.is_empty() && parts.iter().all(|part| part.outcome() == MoveOutcome::Moved)
}
