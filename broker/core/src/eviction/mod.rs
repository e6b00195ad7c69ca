//! The order in which parts are evicted. Each policy has its own file.
//!
//! A policy only orders the parts. A part that is pinned, guaranteed, protected by a pin call or without
//! backing is skipped, whatever the policy says.
//!
//! Policies are pure: they know the time and the sizes that they are told, use integers only, and draw nothing
//! at random. Their memory of parts that left is bounded by the number of parts that are there.

mod advice;
mod gdsf;
mod ghosts;
mod hit_density;
mod known_future;
mod log;
mod lru;
mod ranking;
mod residents;
mod s3_fifo;
mod scripted;
mod sieve;
mod weight;
mod weighted_lru;

use std::{fmt, str::FromStr};

use vramd_types::{AllocationId, DeviceIndex};

use crate::{event::PartRef, placement::Placements, tenancy::TenantClass, time::Time};

pub(crate) use advice::{AdviceChange, AdviceTable, Course, GivenAdvice, Rank};
pub use advice::{PartAdvice, PartNeed};
use gdsf::Gdsf;
use hit_density::HitDensity;
pub use residents::Residents;
use s3_fifo::S3Fifo;
use sieve::Sieve;
pub use weight::{Source, Weight};
use weighted_lru::WeightedLru;

/// The choice of policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionPolicy {
    /// Least recently used first, by harvested use.
    Lru,
    /// The same, but large parts count as used earlier, and parts that come back from a slow tier as used later.
    WeightedLru,
    /// Fewest uses first, weighted by what it costs to bring the part back; uses age with every eviction.
    Gdsf,
    /// Parts that were not used again soon after they arrived first, then the others in turns.
    S3Fifo,
    /// In turns, in the order of arrival; a use spares a part for one turn.
    Sieve,
    /// Fewest expected uses for each byte and time first, as learnt from earlier uses.
    #[default]
    HitDensity,
}

/// Why a part was the next to leave its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// It is of a working set, and turns order those of its class: the turn of its set comes later.
    Turn,
    /// A declared sequence says when it is needed.
    Sequence,
    /// Its pattern says when it is used again.
    Pattern,
    /// Its owner or an operator advised it, so that it has another rank than parts without advice.
    Advice,
    /// It was not used for long, and the daemon makes room because of pressure.
    Cold,
    /// Nothing else decides, so the policy does.
    Policy(EvictionPolicy),
}

impl EvictionReason {
    pub const ALL: [Self; 11] = [
        Self::Turn,
        Self::Sequence,
        Self::Pattern,
        Self::Advice,
        Self::Cold,
        Self::Policy(EvictionPolicy::Lru),
        Self::Policy(EvictionPolicy::WeightedLru),
        Self::Policy(EvictionPolicy::Gdsf),
        Self::Policy(EvictionPolicy::S3Fifo),
        Self::Policy(EvictionPolicy::Sieve),
        Self::Policy(EvictionPolicy::HitDensity),
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Sequence => "sequence",
            Self::Pattern => "pattern",
            Self::Advice => "advice",
            Self::Cold => "cold",
            Self::Policy(policy) => policy.name(),
        }
    }
}

impl EvictionPolicy {
    pub const ALL: [Self; 6] =
        [Self::Lru, Self::WeightedLru, Self::Gdsf, Self::S3Fifo, Self::Sieve, Self::HitDensity];

    /// The names of all policies, for messages.
    pub const NAMES: &str = "lru, weighted-lru, gdsf, s3-fifo, sieve, hit-density";

    /// The name in configurations and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::WeightedLru => "weighted-lru",
            Self::Gdsf => "gdsf",
            Self::S3Fifo => "s3-fifo",
            Self::Sieve => "sieve",
            Self::HitDensity => "hit-density",
        }
    }

    /// Returns the policy. `None` means the order of last use, which is kept beside every policy.
    fn make(self) -> Option<Box<dyn Policy>> {
        Some(match self {
            Self::Lru => return None,
            Self::WeightedLru => Box::<WeightedLru>::default(),
            Self::Gdsf => Box::<Gdsf>::default(),
            Self::S3Fifo => Box::<S3Fifo>::default(),
            Self::Sieve => Box::<Sieve>::default(),
            Self::HitDensity => Box::<HitDensity>::default(),
        })
    }
}

impl fmt::Display for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No policy has that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no eviction policy has that name; the names are {}", EvictionPolicy::NAMES)
    }
}

impl FromStr for EvictionPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or(UnknownPolicy)
    }
}

/// The use of parts, as it was last seen, on each tier that parts leave.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Parts on their devices that may leave.
    pub(crate) residents: Residents,
    /// Parts in host memory, in the order of their last use.
    pub(crate) idle_on_host: Residents,
    /// Advice on the order in which parts leave a device.
    pub(crate) advice: AdviceTable,
    /// Measurements that decide where parts are read.
    pub(crate) placements: Placements,
}

impl Usage {
    pub(crate) fn new(policy: EvictionPolicy, script: &[PartRef]) -> Self {
        let residents = if script.is_empty() { Residents::new(policy) } else { Residents::scripted(script) };
        Self {
            residents,
            idle_on_host: Residents::new(EvictionPolicy::Lru),
            advice: AdviceTable::default(),
            placements: Placements::default(),
        }
    }
}

/// A part, as a policy is told of it.
#[derive(Clone, Copy, Debug)]
struct Part {
    device: DeviceIndex,
    part: PartRef,
    /// The last use, or the arrival.
    used: Time,
    weight: Weight,
    /// Of the tenant that is charged for it. Policies need not know it: [`Residents`] puts lower classes first.
    class: TenantClass,
}

/// Why a part is no longer in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// It leaves its device, and may come back.
    Leaves,
    /// It is freed, or cannot leave.
    Ends,
}

/// One order of all parts of each device. A policy does not choose, so it never learns which parts were skipped.
/// An update costs O(log n).
trait Policy: fmt::Debug + Send {
    /// Adds a part that arrived. It is not there yet.
    fn insert(&mut self, part: Part);
    /// Records a use of a part that is there; `part.used` is the use before. `again` is false for the first use
    /// after the arrival, which is the one that the part arrived for.
    fn record_use(&mut self, part: Part, now: Time, again: bool);
    /// Removes a part that is there.
    fn remove(&mut self, part: Part, why: Removal);
    /// Forgets what it remembers of parts that left: their allocation ended.
    fn forget(&mut self, _: AllocationId) {}
    /// Tells it when a part will be used: `uses` ascend. `listed` is the part, if it is there.
    fn foretell(&mut self, _: PartRef, _: Option<Part>, _: Vec<Time>) {}
    /// Returns all parts of a device, first the best victim.
    fn order(&self, device: DeviceIndex) -> Box<dyn Iterator<Item = PartRef> + '_>;
    /// Returns the parts that it remembers although they left.
    fn remembered(&self) -> Box<dyn Iterator<Item = PartRef> + '_> {
        Box::new(std::iter::empty())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use vramd_types::{AllocationId, Bytes, PartIndex};

    use super::*;

    const ON: DeviceIndex = DeviceIndex(0);

    /// One device with parts of one allocation, by their numbers.
    pub(super) struct TestDevice {
        residents: Residents,
        now: u64,
        /// The class of parts that arrive.
        pub(super) class: TenantClass,
    }

    const ALLOCATION: AllocationId = AllocationId::from_raw(7);

    fn part(number: u32) -> PartRef {
        PartRef { allocation: ALLOCATION, part: PartIndex(number) }
    }

    impl TestDevice {
        pub(super) fn new(policy: EvictionPolicy) -> Self {
            Self { residents: Residents::new(policy), now: 0, class: TenantClass::default() }
        }

        /// Parts of 8 MiB arrive, one each microsecond.
        pub(super) fn arrive_at(&mut self, micros: u64, numbers: &[u32]) {
            self.now = micros;
            for number in numbers {
                self.arrive_with(*number, 8, Source::Host);
            }
        }

        pub(super) fn arrive_with(&mut self, number: u32, mib: u32, source: Source) {
            let weight = Weight::new(Bytes::mib(mib), source);
            self.residents.arrive(ON, part(number), (weight, self.class), Time::from_micros(self.now));
            self.now += 1;
        }

        pub(super) fn pass(&mut self, micros: u64) {
            self.now += micros;
        }

        pub(super) fn use_each(&mut self, numbers: &[u32]) {
            for number in numbers {
                self.residents.record_use(part(*number), Time::from_micros(self.now));
                self.now += 1;
            }
        }

        /// The part leaves for the tier below.
        pub(super) fn leave(&mut self, number: u32) {
            self.residents.exclude(part(number));
            self.residents.remove(part(number));
        }

        pub(super) fn free(&mut self, number: u32) {
            self.residents.remove(part(number));
        }

        pub(super) fn is_there(&self, number: u32) -> bool {
            self.residents.contains(part(number))
        }

        pub(super) fn order(&self) -> Vec<u32> {
            self.residents.order(ON).map(|part| part.part.0).collect()
        }

        pub(super) fn order_after(&self, number: u32, micros: u64) -> Vec<u32> {
            let seen = Some((part(number), Time::from_micros(micros)));
            self.residents.order_by_use(ON, self.class, seen).map(|(part, _)| part.part.0).collect()
        }

        pub(super) fn remembered(&self) -> Vec<u32> {
            self.residents.remembered().map(|part| part.part.0).collect()
        }
    }

    /// Draws numbers from a seed.
    pub(super) struct Dice(pub(super) u64);

    impl Dice {
        /// Returns a number below `sides`.
        pub(super) fn roll(&mut self, sides: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(self.0 >> 33).unwrap() % sides
        }
    }

    pub(super) fn ghosts_are_bounded_by_residents(policy: EvictionPolicy, each: usize) {
        let mut device = TestDevice::new(policy);
        for number in 0..100 {
            device.arrive_at(u64::from(number), &[number]);
            if number >= 10 {
                device.leave(number - 10);
            }
            assert!(device.remembered().len() <= each * 10, "{number}");
        }
        assert_eq!(device.remembered().len(), each * 10);
        device.residents.forget(AllocationId::from_raw(8));
        assert!(device.remembered().contains(&89));
        device.residents.forget(ALLOCATION);
        assert_eq!(device.remembered(), []);
    }

    #[test]
    fn names_lead_back_to_their_policies() {
        let names: Vec<_> = EvictionPolicy::ALL.iter().map(|policy| policy.name()).collect();
        assert_eq!(names.join(", "), EvictionPolicy::NAMES);
        for policy in EvictionPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let unknown = "LRU".parse::<EvictionPolicy>();
        assert_eq!(unknown, Err(UnknownPolicy));
        assert!(UnknownPolicy.to_string().ends_with(EvictionPolicy::NAMES));
    }

    #[test]
    fn every_policy_is_a_reason_of_evictions() {
        for policy in EvictionPolicy::ALL {
            assert!(EvictionReason::ALL.contains(&EvictionReason::Policy(policy)));
        }
    }

    /// Plays one random history with every policy, with changes of the policy in between.
    #[test]
    fn order_has_each_listed_part_once_whatever_happens() {
        for policy in EvictionPolicy::ALL {
            let mut device = TestDevice::new(policy);
            let mut dice = Dice(42);
            let mut listed = std::collections::BTreeMap::new();
            for step in 0..5000 {
                let number = u32::try_from(dice.roll(60)).unwrap();
                let now = Time::from_micros(device.now);
                match dice.roll(12) {
                    0..4 => {
                        let mib = u32::try_from(dice.roll(100)).unwrap();
                        let source = [Source::Nothing, Source::Host, Source::Disk][dice.roll(3)];
                        device.arrive_with(number, mib, source);
                        listed.insert(number, now);
                    }
                    4..8 => {
                        if device.is_there(number) {
                            listed.insert(number, now);
                        }
                        device.use_each(&[number]);
                    }
                    8 => {
                        device.residents.exclude(part(number));
                        listed.remove(&number);
                    }
                    9 => {
                        device.leave(number);
                        listed.remove(&number);
                    }
                    10 => {
                        device.free(number);
                        listed.remove(&number);
                    }
                    _ if step % 50 == 0 => device.residents.change_policy(policy),
                    _ => device.pass(1000),
                }
                let mut order = device.order();
                order.sort_unstable();
                assert_eq!(order, listed.keys().copied().collect::<Vec<_>>(), "{policy}, step {step}");
                let by_use = device.residents.order_by_use(ON, device.class, None);
                let by_use: Vec<_> = by_use.map(|(part, used)| (used, part.part.0)).collect();
                let mut expected: Vec<_> = listed.iter().map(|(number, used)| (*used, *number)).collect();
                expected.sort_unstable();
                assert_eq!(by_use, expected, "{policy}, step {step}");
            }
        }
    }

    #[test]
    fn changed_policy_begins_with_all_parts_in_the_order_of_use() {
        for policy in EvictionPolicy::ALL {
            let mut device = TestDevice::new(EvictionPolicy::Gdsf);
            device.arrive_at(0, &[0, 1, 2, 3, 4]);
            device.use_each(&[0, 1, 2, 3, 4, 0, 0, 2]);
            device.residents.exclude(part(3));
            device.residents.change_policy(policy);
            assert_eq!(device.order(), [1, 4, 0, 2], "{policy}");
            device.use_each(&[3]);
            assert!(device.order().contains(&3), "{policy}");
        }
    }

    /// Every policy has parts of a lower class first, and parts of one class in its own order.
    #[test]
    fn lower_class_comes_first_with_every_policy() {
        for policy in EvictionPolicy::ALL {
            let mut device = TestDevice::new(policy);
            for (number, class) in (0..8).zip(TenantClass::ALL.into_iter().rev().cycle()) {
                device.class = class;
                device.arrive_at(u64::from(number), &[number]);
            }
            assert_eq!(device.order(), [3, 7, 2, 6, 1, 5, 0, 4], "{policy}");
            // The tenant of parts 0 and 4 becomes a background tenant.
            device.residents.change_class(&[part(0), part(4)], TenantClass::Background);
            let mut lowest = device.order();
            lowest.truncate(4);
            lowest.sort_unstable();
            assert_eq!((lowest, device.order().len()), (vec![0, 3, 4, 7], 8), "{policy}");
            device.class = TenantClass::Background;
            assert_eq!(device.order_after(3, 3), [4, 7], "{policy}");
            device.free(4);
            device.use_each(&[3]);
            assert_eq!(device.order_after(0, 0), [7, 3], "{policy}");
        }
    }

    #[test]
    fn scripted_orders_other_parts_last_and_cold_ones_by_use() {
        let mut residents = Residents::scripted(&[part(3), part(1)]);
        for number in 0..5_u32 {
            let weight = Weight::new(Bytes::mib(2), Source::Host);
            let now = Time::from_micros(u64::from(9 - number));
            residents.arrive(ON, part(number), (weight, TenantClass::default()), now);
        }
        let order: Vec<_> = residents.order(ON).map(|part| part.part.0).collect();
        assert_eq!(order, [3, 1, 0, 2, 4]);
        let by_use = residents.order_by_use(ON, TenantClass::default(), None);
        let by_use: Vec<_> = by_use.map(|(part, _)| part.part.0).collect();
        assert_eq!(by_use, [4, 3, 2, 1, 0]);
    }
}
