//! A simulated driver: driven by messages, in virtual time, with a capacity, and with the truth about which
//! process holds which memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use broker_core::{
    Completion, CreateError, DigestError, DigestSpan, Event, FileId, StoredQuotas, Tier, Time,
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId};

use super::{
    World,
    content::{Content, Contents},
    copy::Copying,
    files::Storage,
    lanes::{LaneId, Lanes},
    queue::Action,
};
use crate::{coverage::DiskStep, dice::Dice, scenario::Fault};

/// How long a driver may put off a release.
const PUT_OFF_MICROS: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) enum Job {
    Create(Make),
    /// Opens a piece of a file.
    Open {
        extent: ExtentId,
        file: FileId,
        offset: Bytes,
        size: Bytes,
    },
    Copy {
        to: ExtentId,
    },
    /// The chunk that is under way in this lane.
    Chunk {
        lane_id: LaneId,
    },
    /// The lane was held back and asks again.
    AskAgain {
        lane_id: LaneId,
    },
    /// Reports a copy: all its chunks are done, or no more of them begin.
    ReportCopy {
        to: ExtentId,
    },
    Release {
        extent: ExtentId,
    },
    /// Releases an extent that was put off, if it still is.
    LateRelease {
        extent: ExtentId,
    },
    Digest {
        allocation: AllocationId,
        spans: Vec<DigestSpan>,
    },
    Survey {
        device: DeviceIndex,
        clients: usize,
    },
}

/// Memory to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Make {
    pub(super) extent: ExtentId,
    pub(super) device: DeviceIndex,
    pub(super) tier: Tier,
    pub(super) size: Bytes,
    pub(super) zeroed: bool,
}

/// One piece of physical memory. It exists for as long as a process holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) device: DeviceIndex,
    pub(super) tier: Tier,
    pub(super) size: Bytes,
    pub(super) content: Content,
    /// Held by the daemon.
    pub(super) daemon_holds: bool,
    /// Made before the daemon's last restart: no ledger knows it.
    pub(super) orphan: bool,
    pub(super) storage: Storage,
}

#[derive(Debug)]
pub(super) struct SimDriver {
    pub(super) dice: Dice,
    pub(super) pieces: BTreeMap<ExtentId, Piece>,
    /// Copies by target extent.
    pub(super) copies: BTreeMap<ExtentId, Copying>,
    /// The lanes that copies go by, in some worlds.
    pub(super) lanes: Option<Lanes>,
    pub(super) contents: Contents,
    /// Released, reported as not returned, and not reported as returned since.
    pub(super) awaited: BTreeSet<ExtentId>,
    /// Releases that are put off until a device needs the memory or a time has passed.
    pub(super) put_off: BTreeSet<ExtentId>,
    /// Extents in host memory that a client has mapped.
    pub(super) in_place: BTreeSet<ExtentId>,
    /// Memory of other programs, by device.
    pub(super) other_programs: Vec<Bytes>,
    /// Host memory of other programs near each device.
    pub(super) other_programs_in_host: Vec<Bytes>,
    /// Devices whose disk other programs have filled.
    pub(super) filled: BTreeSet<usize>,
    /// Extents on disk that are damaged for good.
    pub(super) damaged: BTreeSet<ExtentId>,
}

impl World {
    pub(super) fn submit(&mut self, job: Job) {
        let micros = match job {
            Job::Create(_) | Job::Open { .. } => self.driver.dice.between(10, 300),
            Job::Copy { .. } => self.driver.dice.between(50, 3_000),
            Job::ReportCopy { .. } | Job::Chunk { .. } | Job::AskAgain { .. } => {
                self.driver.dice.between(1, 75)
            }
            Job::Release { .. } => self.driver.dice.between(10, 200),
            Job::LateRelease { .. } => PUT_OFF_MICROS,
            Job::Digest { .. } => self.driver.dice.between(100, 2_000),
            Job::Survey { .. } => self.driver.dice.between(50, 800),
        };
        let slower = match job {
            Job::Copy { to } => self.slower_by_disk(to),
            _ => 0,
        };
        let delay = Duration::from_micros(self.delay_by_fault(micros) + slower);
        self.queue.schedule(self.now.after(delay), self.life, Action::Done(job));
    }

    /// How much longer a copy to or from a disk takes.
    fn slower_by_disk(&mut self, to: ExtentId) -> u64 {
        let from = self.driver.copies.get(&to).map(|copying| copying.from);
        let is_disk = |id| self.driver.pieces.get(&id).is_some_and(|piece| piece.tier == Tier::Disk);
        match self.scenario.disks.filter(|_| from.into_iter().chain([to]).any(is_disk)) {
            Some(disks) if !disks.slower.is_zero() => {
                self.coverage.count_step(DiskStep::Slow);
                self.driver.dice.roll(disks.slower_micros())
            }
            _ => 0,
        }
    }

    /// Draws whether a piece on disk is read as damaged: this time, or from now on.
    pub(super) fn draw_damage(&mut self, extent: ExtentId) -> bool {
        if self.driver.damaged.contains(&extent) {
            return true;
        }
        let damaged = self.driver.dice.chance(self.scenario.faults.rate(Fault::DiskDamaged));
        if let Some(disks) = self.scenario.disks.filter(|_| damaged)
            && self.driver.dice.chance(disks.damaged_for_good)
        {
            self.driver.damaged.insert(extent);
        }
        damaged
    }

    /// Releases an extent, or puts that off, as a driver may until the memory is needed.
    pub(super) fn release(&mut self, extent: ExtentId) {
        let on_device = self.driver.pieces.get(&extent).is_some_and(|piece| piece.tier == Tier::Device);
        if on_device && self.driver.dice.roll(4) == 0 {
            self.driver.put_off.insert(extent);
            self.submit(Job::LateRelease { extent });
        } else {
            self.submit(Job::Release { extent });
        }
    }

    pub(super) fn release_now(&mut self, device: DeviceIndex) {
        let pieces = &self.driver.pieces;
        let there = |extent: &ExtentId| pieces.get(extent).is_some_and(|piece| piece.device == device);
        let (now, still): (BTreeSet<_>, BTreeSet<_>) = self.driver.put_off.iter().copied().partition(there);
        self.driver.put_off = still;
        for extent in now {
            self.submit(Job::Release { extent });
        }
    }

    /// Delays some completions, and loses some until the broker asks again.
    fn delay_by_fault(&mut self, micros: u64) -> u64 {
        if self.driver.dice.chance(self.scenario.faults.rate(Fault::LostCompletion)) {
            return 300_000;
        }
        match self.driver.dice.chance(self.scenario.faults.rate(Fault::Delayed)) {
            true => micros * 40,
            false => micros,
        }
    }

    pub(super) fn complete_job(&mut self, job: Job) {
        match job {
            Job::Create(make) => self.finish_create(make),
            Job::Open { extent, file, offset, size } => self.finish_open(extent, file, offset, size),
            Job::Copy { to } | Job::ReportCopy { to } => self.finish_copy(to),
            Job::Chunk { lane_id } => self.end_chunk(lane_id),
            Job::AskAgain { lane_id } => self.ask_again(lane_id),
            Job::Release { extent } => {
                // No driver sees who else holds memory of the host.
                let in_host = self.driver.pieces.get(&extent).is_some_and(|piece| piece.tier == Tier::Host);
                let held = self.is_referenced(extent) && !in_host;
                if let Some(piece) = self.driver.pieces.get_mut(&extent) {
                    piece.daemon_holds = false;
                }
                self.driver.damaged.remove(&extent);
                match held {
                    true => _ = self.driver.awaited.insert(extent),
                    false => _ = self.driver.pieces.remove(&extent),
                }
                self.handle_event(Event::Completion(Completion::Released { extent, returned: !held }));
            }
            Job::LateRelease { extent } => {
                if self.driver.put_off.remove(&extent) {
                    self.complete_job(Job::Release { extent });
                }
            }
            Job::Digest { allocation, spans } => {
                let fails = self.driver.dice.chance(self.scenario.faults.rate(Fault::DigestFails));
                let result = match (self.draw_damaged(&spans), fails) {
                    (Some(extent), _) => {
                        Err(DigestError::Damaged { extent, problem: format!("{extent} is damaged") })
                    }
                    (None, true) => Err(DigestError::Failed("the device does not answer".to_owned())),
                    (None, false) => {
                        self.check_hashed(allocation, &spans);
                        Ok(digest_of(&spans))
                    }
                };
                self.handle_event(Event::Completion(Completion::Digested { allocation, result }));
            }
            Job::Survey { device, clients } => self.finish_survey(device, clients),
        }
    }

    /// Draws an extent that the disk or a file does not give as it was, this time.
    fn draw_damaged(&mut self, spans: &[DigestSpan]) -> Option<ExtentId> {
        if let Some(span) = spans.iter().find(|span| self.draw_file_change(span.extent)) {
            return Some(span.extent);
        }
        let on_disk = |span: &&DigestSpan| {
            let piece = self.driver.pieces.get(&span.extent);
            piece.is_some_and(|piece| piece.tier == Tier::Disk && piece.storage == Storage::Own)
        };
        let extent = spans.iter().find(on_disk)?.extent;
        self.draw_damage(extent).then_some(extent)
    }

    fn finish_create(&mut self, Make { extent, device, tier, size, zeroed }: Make) {
        let faults = &self.scenario.faults;
        let (full, fails) = (faults.rate(Fault::OutOfMemory), faults.rate(Fault::CreateFails));
        let takes = |it: &&Piece| (it.device, it.tier) == (device, tier) && it.storage == Storage::Own;
        let there = self.driver.pieces.values().filter(takes);
        let used: u128 = there.map(|piece| u128::from(piece.size.get())).sum();
        let at = usize::from(device.0);
        let config = &self.scenario.config.devices[at];
        let (total, outside) = match tier {
            Tier::Device => (config.total, self.driver.other_programs[at]),
            Tier::Host => (config.host, self.driver.other_programs_in_host[at]),
            Tier::Disk if self.driver.filled.contains(&at) => (config.disk, config.disk),
            Tier::Disk => (config.disk, Bytes::ZERO),
        };
        let fits = used + u128::from(outside.get()) + u128::from(size.get()) <= u128::from(total.get());
        if !fits && tier == Tier::Disk {
            self.coverage.count_step(DiskStep::Full);
        }
        let result = if !fits || self.driver.dice.chance(full) {
            Err(CreateError::OutOfMemory)
        } else if self.driver.dice.chance(fails) {
            Err(CreateError::Failed("the driver does not feel like it".to_owned()))
        } else {
            let content = if zeroed { Content::Zeros } else { self.driver.contents.garbage() };
            let piece = Piece {
                device,
                tier,
                size,
                content,
                daemon_holds: true,
                orphan: false,
                storage: Storage::Own,
            };
            self.driver.pieces.insert(extent, piece);
            Ok(())
        };
        self.handle_event(Event::Completion(Completion::Created { extent, result }));
    }

    /// Surveys a device as a driver does: independently of any ledger.
    fn finish_survey(&mut self, device: DeviceIndex, clients: usize) {
        let awaited = self.driver.awaited.iter().copied();
        let back: Vec<_> = awaited
            .filter(|id| self.driver.pieces.get(id).is_some_and(|piece| piece.device == device))
            .filter(|id| !self.is_referenced(*id))
            .collect();
        for extent in back {
            self.driver.awaited.remove(&extent);
            self.driver.pieces.remove(&extent);
            self.handle_event(Event::Completion(Completion::Returned { extent }));
        }
        let orphans = self.driver.pieces.iter().filter(|(_, piece)| piece.orphan);
        let gone: Vec<_> = orphans.map(|(id, _)| *id).filter(|id| !self.is_referenced(*id)).collect();
        gone.iter().for_each(|id| _ = self.driver.pieces.remove(id));
        let orphans = self.driver.pieces.values().filter(|piece| piece.orphan && piece.device == device);
        let held = Bytes::checked_sum(orphans.map(|piece| piece.size)).unwrap_or(Bytes::MAX);
        let held = held.saturating_add(self.resident_managed(device));
        let unbrokered = held.saturating_add(self.driver.other_programs[usize::from(device.0)]);
        let contexts = self.driver.dice.index(clients + 1);
        let contexts = u32::try_from(contexts).unwrap_or(u32::MAX);
        let host_missing = self.missing_in_host(device);
        self.handle_event(Event::Completion(Completion::Surveyed {
            device,
            unbrokered,
            contexts,
            host_missing,
        }));
    }

    /// How much of the processes' managed memory lies on the device now: any part of it may.
    fn resident_managed(&mut self, device: DeviceIndex) -> Bytes {
        let of_all = self.processes.values().flat_map(|process| process.managed.values());
        let on_device = of_all.filter(|(of, _)| *of == usize::from(device.0)).map(|(_, bytes)| bytes);
        match on_device.sum::<u64>() {
            0 => Bytes::ZERO,
            all => Bytes::new(all / self.driver.dice.one(&[1, 1, 2, 8])),
        }
    }

    /// Host memory that other programs have, except where the daemon's extents lie.
    fn missing_in_host(&self, device: DeviceIndex) -> Bytes {
        let at = usize::from(device.0);
        let there = self.driver.pieces.values().filter(|it| (it.device, it.tier) == (device, Tier::Host));
        let used = there.map(|piece| piece.size).fold(Bytes::ZERO, Bytes::saturating_add);
        let free = self.scenario.config.devices[at].host.saturating_sub(used);
        self.driver.other_programs_in_host[at].min(free)
    }

    fn is_referenced(&self, extent: ExtentId) -> bool {
        self.processes.values().any(|process| process.references.contains_key(&extent))
    }

    pub(super) fn change_other_programs(&mut self) {
        let rate = self.scenario.faults.rate(Fault::OtherPrograms);
        for (at, device) in self.scenario.config.devices.iter().enumerate() {
            let mut taken = |total: Bytes| match self.driver.dice.chance(rate) {
                true => {
                    Bytes::mib(u32::try_from(self.driver.dice.roll((total.get() >> 21).max(1))).unwrap_or(0))
                }
                false => Bytes::ZERO,
            };
            let (outside, in_host) = (taken(device.total), taken(device.host));
            (self.driver.other_programs[at], self.driver.other_programs_in_host[at]) = (outside, in_host);
            if let Some(disks) = self.scenario.disks.filter(|_| rate > 0) {
                match self.driver.dice.chance(disks.filled) {
                    true => self.driver.filled.insert(at),
                    false => self.driver.filled.remove(&at),
                };
            }
        }
        if !self.calm {
            let again = Duration::from_micros(self.driver.dice.between(5_000, 100_000));
            self.queue.schedule(self.now.after(again), 0, Action::OtherPrograms);
        }
    }

    pub(super) fn store(&mut self, content: StoredQuotas) {
        let micros = self.driver.dice.between(100, 3_000);
        let delay = Duration::from_micros(self.delay_by_fault(micros));
        self.queue.schedule(self.now.after(delay), self.life, Action::Stored(content));
    }

    pub(super) fn finish_store(&mut self, content: StoredQuotas) {
        let result = match self.driver.dice.chance(self.scenario.faults.rate(Fault::StoreFails)) {
            true => Err("no space left on device".to_owned()),
            false => Ok(()),
        };
        if result.is_ok() {
            self.disk = content;
        }
        self.handle_event(Event::QuotasStored { result });
    }

    /// Restarts the daemon after the driver failed. It begins with what is on disk, and clients keep what
    /// they map.
    pub(super) fn restart(&mut self) {
        self.life += 1;
        self.scenario.config.boot_epoch += 1;
        for channel in self.channels.values_mut() {
            channel.broker_open = false;
            channel.watched = false;
        }
        let held: BTreeSet<_> =
            self.processes.values().flat_map(|process| process.references.keys()).collect();
        self.driver.pieces.retain(|id, piece| {
            (piece.daemon_holds, piece.orphan) = (false, true);
            held.contains(id) && piece.tier == Tier::Device
        });
        self.driver.awaited.clear();
        self.driver.put_off.clear();
        self.driver.copies.clear();
        self.driver.damaged.clear();
        self.driver.lanes.iter_mut().for_each(Lanes::restart);
        for process in self.processes.values_mut() {
            process.lose_session();
        }
        self.calls.clear();
        self.attaching_unpinned.clear();
        self.boot();
    }
}

/// A digest of what was read, so that a digest of anything else is noticed.
pub(crate) fn digest_of(spans: &[DigestSpan]) -> [u8; 32] {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for word in spans.iter().flat_map(|span| [span.extent.get(), span.bytes.get()]) {
        sum = (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&sum.to_be_bytes());
    digest
}

/// A moment from `low` to `high` microseconds after `now`.
pub(super) fn soon(dice: &mut Dice, now: Time, low: u64, high: u64) -> Time {
    now.after(Duration::from_micros(dice.between(low, high)))
}
