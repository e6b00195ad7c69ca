//! Who has memory move: `MoveParts` as an operator calls it, timed from the command to its answer.
//!
//! That a pin has ended, or that a part is mapped, comes to the daemon by another socket than commands. So each waits until
//! nothing is on its way, and what was in the way of something all the same is tried again from the start.

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

/// For how long something may be in the way.
const PATIENCE: Duration = Duration::from_secs(10);
/// A disk may take its time.
const ANSWER_MAX: Duration = Duration::from_secs(300);

pub(crate) struct Operator {
    admin: AdminClient,
    /// Of another connection, so that two commands go at once.
    other: AdminClient,
    /// Who only looks, while two commands go.
    looker: AdminClient,
    /// Where parts go that leave a device.
    below: Tier,
    /// What the host must have room for before anything moves.
    room: u64,
    again: AtomicU64,
}

/// When an eviction was how far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eviction {
    /// Nobody maps any of it.
    pub(crate) unmapped: Duration,
    pub(crate) answered: Duration,
    /// The device has all of it back, and the books say so.
    pub(crate) settled: Duration,
}

impl Operator {
    pub(crate) fn new(daemon: &Daemon, below: Tier, room: usize) -> Result<Self> {
        let admin = || AdminClient::new(&daemon.sockets()).map(|admin| admin.request_timeout(ANSWER_MAX));
        let again = AtomicU64::new(0);
        Ok(Self { admin: admin()?, other: admin()?, looker: admin()?, below, room: room as u64, again })
    }

    /// How many moves something was in the way of.
    pub(crate) fn tried_again(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }

    /// These parts of an allocation, or all if there are none.
    pub(crate) fn move_parts(&self, memory: u64, parts: &[u32], tier: Tier) -> Result<Duration> {
        let mut last = Vec::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.settle()?;
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

    /// All of one leaves the device while all of the other comes.
    pub(crate) fn exchange(&self, out: u64, back: u64) -> Result<Duration> {
        let mut last = (Vec::new(), Vec::new());
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.settle()?;
            let begun = Instant::now();
            let (left, came) = thread::scope(|scope| {
                let came = scope.spawn(|| order(&self.other, back, &[], Tier::Device));
                let left = order(&self.admin, out, &[], self.below);
                (left, came.join().expect("a command does not panic"))
            });
            let took = begun.elapsed();
            last = (left?, came?);
            if all_moved(&last.0) && all_moved(&last.1) {
                return Ok(took);
            }
            self.undo(out, &[], self.below)?;
            self.undo(back, &[], Tier::Device)?;
        }
        bail!("they did not change places: {last:?}")
    }

    /// All of one leaves the device while all of the other comes, and once both are being copied that is done. `None` where
    /// one of them was at its end before that was, or something was in the way of one: then nothing is known of it.
    pub(crate) fn while_both_move<T>(
        &self,
        out: u64,
        back: u64,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        self.settle()?;
        let (left, came, done) = thread::scope(|scope| {
            let came = scope.spawn(|| order(&self.other, back, &[], Tier::Device));
            let left = scope.spawn(|| order(&self.admin, out, &[], self.below));
            let done = self.between_copies(out, back, || left.is_finished() || came.is_finished(), act);
            let join = "a command does not panic";
            (left.join().expect(join), came.join().expect(join), done)
        });
        let done = done?;
        if all_moved(&left?) && all_moved(&came?) {
            return Ok(done);
        }
        self.again.fetch_add(1, Ordering::Relaxed);
        self.move_all(out, self.below)?;
        self.move_all(back, Tier::Device)?;
        Ok(None)
    }

    /// What it gives, if both were being copied before and after.
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
        let moving = self.looker.moves("")?.moving;
        let is_copied = |memory: u64, tier: Tier| {
            let of =
                |it: &&Move| it.part.is_some_and(|part| part.allocation_id == memory) && it.tier() == tier;
            moving.iter().filter(of).any(|it| it.state() == MoveState::Copying)
        };
        Ok(is_copied(out, self.below) && is_copied(back, Tier::Device))
    }

    /// All of it leaves, while somebody waits for its room: what was in the way is tried again at once.
    pub(crate) fn have_left(&self, memory: u64) -> Result<Duration> {
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

    /// All of it leaves, and is watched by operators who look all the time. Nobody else holds anything.
    pub(crate) fn evict_watched(&self, memory: u64) -> Result<Eviction> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.settle()?;
            let over = AtomicBool::new(false);
            let begun = Instant::now();
            let (left, answered, unmapped) = thread::scope(|scope| {
                let watcher = scope.spawn(|| self.until_unmapped(memory, begun, &over));
                let left = order(&self.admin, memory, &[], Tier::Host);
                let answered = begun.elapsed();
                over.store(true, Ordering::Release);
                (left, answered, watcher.join().expect("a look does not panic"))
            });
            let unmapped = unmapped?;
            if all_moved(&left?) {
                return Ok(Eviction { unmapped, answered, settled: self.until_settled(begun)? });
            }
            self.undo(memory, &[], Tier::Host)?;
        }
        bail!("it did not leave")
    }

    /// Whoever has heard the answer knows that nobody maps it any more.
    fn until_unmapped(&self, memory: u64, begun: Instant, over: &AtomicBool) -> Result<Duration> {
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

    fn until_settled(&self, begun: Instant) -> Result<Duration> {
        self.until_held(0)?;
        Ok(begun.elapsed())
    }

    /// Until so much is charged on the devices and no more: all that left them they have back.
    pub(crate) fn until_held(&self, bytes: usize) -> Result<()> {
        let begun = Instant::now();
        while self.held()? > bytes as u64 {
            ensure!(begun.elapsed() < PATIENCE, "the device does not have it back");
        }
        Ok(())
    }

    /// What is charged on the devices.
    pub(crate) fn held(&self) -> Result<u64> {
        Ok(self.admin.devices()?.iter().map(|device| device.held_bytes).sum())
    }

    /// What the host has room for.
    pub(crate) fn host_left(&self) -> Result<u64> {
        Ok(self.admin.devices()?.iter().map(host_left).sum())
    }

    /// Until nobody maps any of it, wherever it lies.
    pub(crate) fn unmap(&self, memory: u64) -> Result<()> {
        let mut last = Vec::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.settle()?;
            let target = Some(revoke_mappings_request::Target::AllocationId(memory));
            last = self.admin.revoke_mappings(RevokeMappingsRequest { target, ..Default::default() })?.parts;
            if !last.is_empty() && last.iter().all(|part| part.outcome() == RevocationOutcome::Revoked) {
                return Ok(());
            }
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        bail!("it is still mapped: {last:?}")
    }

    /// Waits until the daemon has heard of all that it was told, and the host has room for what may leave: what came from
    /// there is charged there until the driver has it back. What has left a device may not be back yet: [`Self::until_held`].
    pub(crate) fn settle(&self) -> Result<()> {
        soon("nothing is on its way", || {
            let heard = self.admin.node().is_ok_and(|node| node.fds_in_flight == 0);
            heard && self.admin.devices().is_ok_and(|devices| devices.iter().all(|device| self.fits(device)))
        })
    }

    /// Looks at the host alone.
    fn fits(&self, device: &DeviceStatus) -> bool {
        host_left(device) >= self.room
    }

    /// What has moved goes back to where it was.
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
