//! Plays a trace with the core's own policies, on one device and without pins: a part that is used is brought in whole,
//! and the best victims leave for it.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{EvictionPolicy, PartRef, Residents, Source, TenantClass, Time, Weight};
use broker_replay::bound::Step;
use vramd_types::{AllocationId, Bytes, DeviceIndex, GRANULARITY, PartIndex};

use crate::traces::Trace;

const DEVICE: DeviceIndex = DeviceIndex(0);
/// The time that the use of a granule takes: as long as bringing it in over PCIe.
const MICROS_PER_GRANULE: u64 = 84;

/// How the policy hears of uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Every use, when it happens.
    Each,
    /// As by a daemon with the default `harvest_ms`: after each period the parts that were used in it, once each and
    /// in the order of their ids.
    Harvested,
}

/// Which parts may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    /// The first of the policy's order, as in the daemon.
    Any,
    /// First the parts that have been there for four times what bringing them took: a rule against thrashing.
    Settled,
}

/// How many times what bringing a part took it is not settled.
const SETTLED_AFTER: u64 = 4;

/// The default of `harvest_ms`.
const HARVEST_MICROS: u64 = 100_000;

/// Granules that had to be fetched, in the part of the trace that counts.
pub(crate) fn missed(trace: &Trace, policy: EvictionPolicy, sight: Sight, victims: Victims) -> u64 {
    let mut residents = Residents::new(policy);
    let (mut now, mut left, mut missed) = (0, trace.memory, 0);
    let (mut unseen, mut harvest_at) = (BTreeSet::new(), HARVEST_MICROS);
    let mut settled_at = BTreeMap::new();
    for (at, step) in trace.steps.iter().enumerate() {
        let (part, size) = (reference(step.part()), trace.size(step.part()));
        now += size * MICROS_PER_GRANULE;
        let time = Time::from_micros(now);
        if now >= harvest_at {
            std::mem::take(&mut unseen).into_iter().for_each(|used| residents.record_use(used, time));
            harvest_at = now + HARVEST_MICROS;
        }
        let is_there = residents.contains(part);
        if matches!(step, Step::Free(_)) {
            if residents.remove(part) {
                left += size;
            }
            residents.forget(part.allocation);
            continue;
        }
        if !is_there {
            while left < size {
                let is_settled = |part: &PartRef| victims == Victims::Any || settled_at[part] <= now;
                let settled = residents.order(DEVICE).find(is_settled);
                let victim =
                    settled.or_else(|| residents.order(DEVICE).next()).expect("a part that can leave");
                residents.exclude(victim);
                residents.remove(victim);
                left += trace.size(number(victim));
            }
            left -= size;
            if at >= trace.counted_from() && matches!(step, Step::Use(_)) {
                missed += size;
            }
            let weight = Weight::new(Bytes::new(size * GRANULARITY.get()), Source::Host);
            settled_at.insert(part, now + SETTLED_AFTER * size * MICROS_PER_GRANULE);
            residents.arrive(DEVICE, part, (weight, TenantClass::default()), time);
        }
        match sight {
            Sight::Each => residents.record_use(part, time),
            Sight::Harvested => _ = unseen.insert(part),
        }
    }
    missed
}

/// Every part has an allocation to itself.
fn reference(part: u32) -> PartRef {
    PartRef { allocation: AllocationId::from_raw(u64::from(part) + 1), part: PartIndex(0) }
}

fn number(part: PartRef) -> u32 {
    u32::try_from(part.allocation.get() - 1).expect("a number of the trace")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds;

    fn trace(uses: &[u32], memory: u64) -> Trace {
        let steps = uses.iter().map(|part| Step::Use(*part)).collect();
        Trace { name: "test", memory, sizes: vec![1; 10], steps }
    }

    #[test]
    fn lru_misses_every_use_of_a_loop_that_does_not_fit() {
        let uses: Vec<u32> = (0..100).map(|at| at % 5).collect();
        assert_eq!(missed(&trace(&uses, 4), EvictionPolicy::Lru, Sight::Each, Victims::Any), 80);
        assert_eq!(bounds::furthest_next_use(&trace(&uses, 4)), 20);
        assert_eq!(missed(&trace(&uses, 5), EvictionPolicy::Lru, Sight::Each, Victims::Any), 0);
    }

    #[test]
    fn a_part_that_has_just_come_stays_while_another_can_leave() {
        // The bound lets the part leave that was just used. By the rule it has to stay for four uses.
        let uses: Vec<u32> = (0..2_000).map(|at| at % 9).collect();
        let of = |victims| missed(&trace(&uses, 8), EvictionPolicy::HitDensity, Sight::Each, victims);
        assert!(of(Victims::Any) < of(Victims::Settled), "{} {}", of(Victims::Any), of(Victims::Settled));
    }

    #[test]
    fn no_policy_is_better_than_the_bound() {
        for generator in crate::traces::GENERATORS {
            let mut trace = generator(9);
            trace.steps.truncate(10_000);
            let bound = bounds::furthest_next_use(&trace);
            for policy in EvictionPolicy::ALL {
                for (sight, victims) in [
                    (Sight::Each, Victims::Any),
                    (Sight::Harvested, Victims::Any),
                    (Sight::Each, Victims::Settled),
                ] {
                    let missed = missed(&trace, policy, sight, victims);
                    assert!(
                        missed >= bound,
                        "{policy} on {}, {sight:?}, {victims:?}: {missed} of {bound}",
                        trace.name
                    );
                }
            }
        }
    }
}
