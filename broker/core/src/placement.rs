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

use vramd_types::{AllocationId, Bytes};

use crate::{
    event::{PartRef, Pattern, Tier},
    eviction::EvictionReason,
    moves::{Cause, LinkLoad},
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

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    uses: u32,
    stays: u32,
}

/// The measurements that decide where parts are read, and how each part came to where it lies.
#[derive(Debug, Default)]
pub(crate) struct Placements {
    uses: BTreeMap<AllocationId, Uses>,
    placed: BTreeMap<PartRef, Placement>,
    /// Sums of parts that are to move, until their moves begin.
    decided: BTreeMap<PartRef, PlacementSum>,
}

/// The factor at a load of the link, in percent.
const fn factor(load: LinkLoad) -> u32 {
    match (load.busy > BUSY_PERCENT, load.awaited > WAITING_PERCENT) {
        (true, false) => FACTOR_BUSY,
        (false, true) => FACTOR_WAITING,
        (true, true) | (false, false) => FACTOR,
    }
}

impl Placements {
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

    /// The sum for a part of the allocation with that pattern, which takes the link so long. `None` if no part of the
    /// allocation has stayed yet: then the part moves.
    pub(crate) fn sum_for(
        &self,
        id: AllocationId,
        (bytes, pattern): (Bytes, Pattern),
        (copy, load): (Duration, LinkLoad),
    ) -> Option<PlacementSum> {
        let expected_uses = self.expected_uses(id)?;
        let reads_one_of = if pattern == Pattern::Sparse { SPARSE_READS_ONE_OF } else { 1 };
        let local = u128::from(bytes.get()).saturating_mul(1_000_000) / u128::from(LOCAL_BYTES_PER_SECOND);
        let local = Duration::from_micros(u64::try_from(local).unwrap_or(u64::MAX));
        let gained = copy.saturating_sub(local) / reads_one_of;
        Some(PlacementSum {
            benefit: gained.saturating_mul(expected_uses) / 100,
            cost: copy.saturating_add(REMAP),
            factor: factor(load),
            expected_uses,
        })
    }

    /// Records the sum by which a part is to move.
    pub(crate) fn decide(&mut self, part: PartRef, sum: PlacementSum) {
        self.decided.insert(part, sum);
    }

    /// Takes the sum by which a part was to move, for a move that begins. Another one makes it void.
    pub(crate) fn take_decided(&mut self, part: PartRef, (to, cause): (Tier, Cause)) -> Option<PlacementSum> {
        let is_decided = to == Tier::Device && matches!(cause, Cause::Demand | Cause::Speculation);
        self.decided.remove(&part).filter(|_| is_decided)
    }

    /// The part does not move by its sum: a later move is decided anew.
    pub(crate) fn forget_decided(&mut self, part: PartRef) {
        self.decided.remove(&part);
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

#[cfg(test)]
mod tests {
    use vramd_types::PartIndex;

    use super::*;

    const ID: AllocationId = AllocationId::from_raw(7);
    const IDLE: LinkLoad = LinkLoad { busy: 5, awaited: 5 };

    /// The sum for 256 MiB, which take 5 ms.
    fn sum(placements: &Placements, pattern: Pattern) -> Option<PlacementSum> {
        placements.sum_for(ID, (Bytes::mib(256), pattern), (Duration::from_micros(5_369), IDLE))
    }

    #[test]
    fn part_moves_from_the_second_expected_use_on() {
        let mut placements = Placements::default();
        assert_eq!(sum(&placements, Pattern::Sequential), None, "no part has stayed yet");
        placements.record_stay(ID);
        let once = sum(&placements, Pattern::Sequential).unwrap();
        assert!(!once.pays() && once.factor == FACTOR && once.expected_uses == 100, "{once:?}");
        (0..2).for_each(|_| placements.record_use(ID));
        assert!(sum(&placements, Pattern::Sequential).is_some_and(|sum| sum.pays()));
        assert!(sum(&placements, Pattern::Sparse).is_some_and(|sum| !sum.pays()));
        (0..30).for_each(|_| placements.record_use(ID));
        assert!(
            sum(&placements, Pattern::Sparse).is_some_and(|sum| sum.pays()),
            "even one of sixteen bytes pays when read so often"
        );
    }

    #[test]
    fn factor_follows_the_link() {
        let of = |busy, awaited| factor(LinkLoad { busy, awaited });
        assert_eq!(of(97, 0), FACTOR_BUSY, "the link is hardly ever idle");
        assert_eq!(of(54, 54), FACTOR_WAITING, "clients wait half of the time");
        assert_eq!(of(97, 97), FACTOR);
        assert_eq!(of(5, 5), FACTOR);
    }

    #[test]
    fn sum_is_void_for_another_move() {
        let mut placements = Placements::default();
        placements.record_stay(ID);
        let (part, decided) =
            (PartRef { allocation: ID, part: PartIndex(0) }, sum(&placements, Pattern::Sparse));
        for (to, cause, taken) in [
            (Tier::Device, Cause::Demand, decided),
            (Tier::Device, Cause::Prefetch, None),
            (Tier::Disk, Cause::Demand, None),
        ] {
            placements.decide(part, decided.unwrap());
            assert_eq!(placements.take_decided(part, (to, cause)), taken);
            assert_eq!(placements.take_decided(part, (Tier::Device, Cause::Demand)), None);
        }
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
