//! Why parts lie where they do, and whether a part that a session pins moves to its device or is read in host memory.
//!
//! ```text
//!   benefit = expected uses × (time to read it over the link − time to read it on the device)
//!   cost    = time to copy it over the link + time to map it anew
//!   it moves if    benefit > factor × cost
//! ```
//!
//! The factor is 1.5. It is 2 while the link is more than 80 % busy, since a copy delays others, and 1 while clients wait for
//! copies more than 30 % of the time, since the next use would wait too. If both hold it is 1.5.
//!
//! The sum needs to know how often a use reads the bytes. So it is made only for parts whose owner, or an operator, advised
//! a pattern: a use reads each byte once, and of a sparse part one of [`SPARSE_READS_ONE_OF`]. Every other part moves.
//! How many uses to expect is learnt from the uses of the allocation so far: all uses, by the number of times that a part
//! of it came or stayed for a pin.

use std::{collections::BTreeMap, time::Duration};

use vramd_types::{AllocationId, Bytes, DeviceIndex};

use crate::{
    event::{PartRef, Pattern},
    eviction::EvictionReason,
    moves::Cause,
    time::Time,
};

/// How much of a sparse part a use reads.
const SPARSE_READS_ONE_OF: u32 = 16;

/// The bytes that a device reads in its own memory in a second, roughly: what counts is that the link is far slower.
const LOCAL_BYTES_PER_SECOND: u64 = 2_000_000_000_000;

/// The time to unmap and map a part, and to tell its sessions (`docs/benchmarks`, the table of residency).
const REMAP: Duration = Duration::from_micros(200);

/// In percent.
const FACTOR: u32 = 150;
const FACTOR_BUSY: u32 = 200;
const FACTOR_WAITING: u32 = 100;
const BUSY_PERCENT: u64 = 80;
const WAITING_PERCENT: u64 = 30;

/// The older measurements lose one of so many parts of their weight with each new one.
const SMOOTHING: u64 = 8;

/// From so many stays on, older ones count less.
const STAYS_MAX: u32 = 64;

/// Both sides of the sum that decides where a part is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementSum {
    pub benefit: Duration,
    pub cost: Duration,
    /// In percent.
    pub factor: u32,
    /// In hundredths.
    pub expected_uses: u32,
}

impl PlacementSum {
    /// Whether the part moves to its device.
    pub fn pays(&self) -> bool {
        self.benefit.as_micros().saturating_mul(100)
            > self.cost.as_micros().saturating_mul(self.factor.into())
    }
}

/// How a part came to where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub by: PlacedBy,
    pub at: Time,
    /// The sum, if one decided.
    pub sum: Option<PlacementSum>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedBy {
    /// It was brought to its device.
    Fetched(Cause),
    /// It left its device, or moved on between the tiers below.
    Left(Cause, Option<EvictionReason>),
    /// A session pinned it in host memory, and it does not pay to move it.
    ReadInPlace,
}

/// How busy the link to a device is, and how fast.
#[derive(Debug, Default)]
struct Link {
    /// Of the last copies together.
    bytes: u64,
    busy: u64,
    waiting: u64,
    /// From the end of the copy before the first of them.
    elapsed: u64,
    last: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    uses: u32,
    stays: u32,
}

/// The measurements that decide where parts are read, and how each part came to where it lies.
#[derive(Debug, Default)]
pub(crate) struct Placements {
    links: BTreeMap<DeviceIndex, Link>,
    uses: BTreeMap<AllocationId, Uses>,
    placed: BTreeMap<PartRef, Placement>,
    /// Sums of parts that are to move, until their moves begin.
    decided: BTreeMap<PartRef, PlacementSum>,
}

impl Link {
    fn percent(part: u64, of: u64) -> u64 {
        part.saturating_mul(100).checked_div(of).unwrap_or_default()
    }

    /// The factor at a time, in percent.
    fn factor(&self, now: Time) -> u32 {
        let elapsed = self.elapsed.saturating_add(micros(now.since(self.last)));
        let is_busy = Self::percent(self.busy, elapsed) > BUSY_PERCENT;
        let is_awaited = Self::percent(self.waiting, elapsed) > WAITING_PERCENT;
        match (is_busy, is_awaited) {
            (true, false) => FACTOR_BUSY,
            (false, true) => FACTOR_WAITING,
            (true, true) | (false, false) => FACTOR,
        }
    }

    fn time_for(&self, bytes: Bytes) -> Duration {
        let took = u128::from(bytes.get()).saturating_mul(self.busy.into()) / u128::from(self.bytes.max(1));
        Duration::from_micros(u64::try_from(took).unwrap_or(u64::MAX))
    }
}

impl Placements {
    /// Records a copy from host memory to a device that began then and has ended now. Of copies that overlap, each counts
    /// from the end of the one before. `awaited`: a client waited for it.
    pub(crate) fn record_copy(
        &mut self,
        device: DeviceIndex,
        (bytes, awaited): (Bytes, bool),
        (began, now): (Time, Time),
    ) {
        let link = self.links.entry(device).or_insert_with(|| Link { last: began, ..Link::default() });
        let keep = |sum: u64| sum.saturating_sub(sum / SMOOTHING);
        let took = micros(now.since(began.max(link.last))).max(1);
        link.bytes = keep(link.bytes).saturating_add(bytes.get());
        link.busy = keep(link.busy).saturating_add(took);
        link.waiting = keep(link.waiting).saturating_add(if awaited { took } else { 0 });
        link.elapsed = keep(link.elapsed).saturating_add(micros(now.since(link.last)).max(took));
        link.last = now;
    }

    /// Records a use of a part of the allocation.
    pub(crate) fn record_use(&mut self, id: AllocationId) {
        let uses = self.uses.entry(id).or_default();
        uses.uses = uses.uses.saturating_add(1);
    }

    /// Records that a part of the allocation came to its device, or stays in host memory for a pin.
    pub(crate) fn record_stay(&mut self, id: AllocationId) {
        let uses = self.uses.entry(id).or_default();
        uses.stays = uses.stays.saturating_add(1);
        if uses.stays > STAYS_MAX {
            *uses = Uses { uses: uses.uses / 2, stays: uses.stays / 2 };
        }
    }

    /// The uses to expect while a part of the allocation stays where it is, in hundredths; at least one, since a session
    /// pins it. `None` if none has stayed yet.
    pub(crate) fn expected_uses(&self, id: AllocationId) -> Option<u32> {
        let Uses { uses, stays } = *self.uses.get(&id)?;
        uses.saturating_mul(100).checked_div(stays).map(|uses| uses.max(100))
    }

    /// The sum for a part of that pattern. `None` if the daemon does not know enough: then the part moves.
    pub(crate) fn sum_for(
        &self,
        (id, device): (AllocationId, DeviceIndex),
        (bytes, pattern): (Bytes, Pattern),
        now: Time,
    ) -> Option<PlacementSum> {
        let (link, expected_uses) = (self.links.get(&device)?, self.expected_uses(id)?);
        let copy = link.time_for(bytes);
        let reads_one_of = if pattern == Pattern::Sparse { SPARSE_READS_ONE_OF } else { 1 };
        let local = u128::from(bytes.get()).saturating_mul(1_000_000) / u128::from(LOCAL_BYTES_PER_SECOND);
        let local = Duration::from_micros(u64::try_from(local).unwrap_or(u64::MAX));
        let gained = copy.saturating_sub(local) / reads_one_of;
        Some(PlacementSum {
            benefit: gained.saturating_mul(expected_uses) / 100,
            cost: copy.saturating_add(REMAP),
            factor: link.factor(now),
            expected_uses,
        })
    }

    /// Records the sum by which a part is to move.
    pub(crate) fn decide(&mut self, part: PartRef, sum: PlacementSum) {
        self.decided.insert(part, sum);
    }

    pub(crate) fn take_decided(&mut self, part: PartRef) -> Option<PlacementSum> {
        self.decided.remove(&part)
    }

    pub(crate) fn place(&mut self, part: PartRef, placement: Placement) {
        self.placed.insert(part, placement);
    }

    /// How the part came to where it lies; `None` if it was created there.
    pub(crate) fn of(&self, part: PartRef) -> Option<Placement> {
        self.placed.get(&part).copied()
    }

    pub(crate) fn forget(&mut self, id: AllocationId) {
        self.uses.remove(&id);
        let placed: Vec<_> = self.placed.range(PartRef::all_of(id)).map(|(part, _)| *part).collect();
        let decided: Vec<_> = self.decided.range(PartRef::all_of(id)).map(|(part, _)| *part).collect();
        placed.iter().for_each(|part| _ = self.placed.remove(part));
        decided.iter().for_each(|part| _ = self.decided.remove(part));
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: DeviceIndex = DeviceIndex(0);
    const ID: AllocationId = AllocationId::from_raw(7);

    /// Copies of 256 MiB at 50 GB/s, one each 100 ms, of which a client waits for the last `awaited` ones.
    fn link(every_us: u64, awaited: u64) -> Placements {
        let mut placements = Placements::default();
        for at in 0..40 {
            let began = Time::from_micros(at * every_us);
            let times = (began, began.after(Duration::from_micros(5_369)));
            placements.record_copy(ON, (Bytes::mib(256), at >= 40 - awaited), times);
        }
        placements.record_stay(ID);
        placements
    }

    fn sum(placements: &Placements, pattern: Pattern, every_us: u64) -> PlacementSum {
        let now = Time::from_micros(39 * every_us + 5_369);
        placements.sum_for((ID, ON), (Bytes::mib(256), pattern), now).expect("all is known")
    }

    #[test]
    fn part_moves_from_the_second_expected_use_on() {
        let mut placements = link(100_000, 0);
        let once = sum(&placements, Pattern::Sequential, 100_000);
        assert!(!once.pays() && once.factor == FACTOR && once.expected_uses == 100, "{once:?}");
        (0..2).for_each(|_| placements.record_use(ID));
        assert!(sum(&placements, Pattern::Sequential, 100_000).pays());
        assert!(!sum(&placements, Pattern::Sparse, 100_000).pays());
        (0..30).for_each(|_| placements.record_use(ID));
        assert!(
            sum(&placements, Pattern::Sparse, 100_000).pays(),
            "even one of sixteen bytes pays when read so often"
        );
    }

    #[test]
    fn factor_follows_the_link() {
        let of = |every_us, awaited| sum(&link(every_us, awaited), Pattern::Sequential, every_us).factor;
        assert_eq!(of(5_500, 0), FACTOR_BUSY, "the link is hardly ever idle");
        assert_eq!(of(10_000, 40), FACTOR_WAITING, "clients wait half of the time");
        assert_eq!(of(5_500, 40), FACTOR);
        assert_eq!(of(100_000, 40), FACTOR);
    }

    #[test]
    fn nothing_is_decided_without_measurements() {
        let placements = Placements::default();
        assert_eq!(
            placements.sum_for((ID, ON), (Bytes::mib(2), Pattern::Sparse), Time::from_micros(0)),
            None
        );
        let mut measured = link(100_000, 0);
        measured.forget(ID);
        assert_eq!(measured.sum_for((ID, ON), (Bytes::mib(2), Pattern::Sparse), Time::from_micros(0)), None);
    }

    #[test]
    fn older_stays_count_less() {
        let mut placements = Placements::default();
        for _ in 0..1_000 {
            placements.record_stay(ID);
        }
        for _ in 0..2_000 {
            placements.record_stay(ID);
            (0..3).for_each(|_| placements.record_use(ID));
        }
        assert!(placements.expected_uses(ID).is_some_and(|uses| (280..=310).contains(&uses)));
    }
}
