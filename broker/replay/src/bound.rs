//! The measure of a policy: the fewest bytes that any policy has to fetch.

use std::collections::BTreeSet;

const NEVER: usize = usize::MAX;

/// The steps of one device. Sizes are in granules of 2 MiB.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The memory of the device.
    pub memory: u64,
    /// The size of each part, by its number.
    pub sizes: &'a [u64],
    pub steps: &'a [Step],
    /// The steps before this one warm up: what they fetch does not count.
    pub counted_from: usize,
}

/// A change or a use of a part, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Use(u32),
    /// It comes to be on the device, and nothing is fetched. It was not there before.
    Create(u32),
    /// It is freed, and never used again.
    Free(u32),
}

impl Step {
    pub const fn part(self) -> u32 {
        match self {
            Self::Use(part) | Self::Create(part) | Self::Free(part) => part,
        }
    }
}

impl Sequence<'_> {
    pub fn has_equal_sizes(&self) -> bool {
        self.sizes.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Whether some policy with whole parts reaches the bound.
    pub fn is_exact(&self) -> bool {
        self.has_equal_sizes() && !self.steps.iter().any(|step| matches!(step, Step::Create(_)))
    }
}

/// The fewest granules that have to be fetched, with the future known: what is needed furthest ahead leaves (Belady).
///
/// With equal sizes this is exact for uses: parts leave whole, and the part in use stays. With unequal sizes it is a lower
/// bound: every granule is a part of its own, may be missing alone, and may leave as soon as it was used. All granules
/// cost the same, so the furthest next use is the best choice among them, and any policy with whole parts is one with
/// granules. A created part may leave at once, as where it comes to be below a full device.
///
/// A part must not be larger than the device.
pub fn furthest_next_use(sequence: &Sequence<'_>) -> u64 {
    let Sequence { memory, sizes, steps, counted_from } = *sequence;
    let next = next_uses(steps, sizes.len());
    let whole = sequence.has_equal_sizes();
    let mut there = vec![0_u64; sizes.len()];
    // The next use of each part that is there, at least in part.
    let mut order: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut current = vec![NEVER; sizes.len()];
    let (mut left, mut missed) = (memory, 0);
    for (at, step) in steps.iter().enumerate() {
        let (part, size) = (step.part(), sizes[index(step.part())]);
        let held = &mut there[index(part)];
        order.remove(&(current[index(part)], part));
        if matches!(step, Step::Free(_)) {
            left += std::mem::take(held);
            continue;
        }
        let lacks = size - *held;
        *held = size;
        if at >= counted_from && matches!(step, Step::Use(_)) {
            missed += lacks;
        }
        current[index(part)] = next[at];
        let may_leave_at_once = !whole || matches!(step, Step::Create(_));
        if may_leave_at_once {
            order.insert((next[at], part));
        }
        let mut short = lacks.saturating_sub(left);
        left = left.saturating_sub(lacks);
        while short > 0 {
            let (when, victim) = order.pop_last().expect("a part that can leave");
            let gives = if whole { there[index(victim)] } else { there[index(victim)].min(short) };
            there[index(victim)] -= gives;
            left += gives.saturating_sub(short);
            short = short.saturating_sub(gives);
            if there[index(victim)] > 0 {
                order.insert((when, victim));
            }
        }
        if !may_leave_at_once {
            order.insert((next[at], part));
        }
    }
    missed
}

/// For each step, when its part is used next. A part that is freed first is never used.
fn next_uses(steps: &[Step], parts: usize) -> Vec<usize> {
    let (mut coming, mut next) = (vec![NEVER; parts], vec![NEVER; steps.len()]);
    for (at, step) in steps.iter().enumerate().rev() {
        next[at] = coming[index(step.part())];
        coming[index(step.part())] = if matches!(step, Step::Free(_)) { NEVER } else { at };
    }
    next
}

fn index(part: u32) -> usize {
    usize::try_from(part).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws numbers from a seed.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, sides: u64) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from((self.0 >> 33) % sides).unwrap()
        }
    }

    /// The fewest fetches by trying every choice, for whole parts of equal size.
    fn tried(steps: &[Step], room: usize, there: &BTreeSet<u32>) -> u64 {
        let Some((step, later)) = steps.split_first() else { return 0 };
        let part = step.part();
        if matches!(step, Step::Free(_)) {
            return tried(later, room, &there.iter().copied().filter(|it| *it != part).collect());
        }
        if there.contains(&part) {
            return tried(later, room, there);
        }
        let is_use = matches!(step, Step::Use(_));
        let with = |mut set: BTreeSet<u32>| {
            set.insert(part);
            u64::from(is_use) + tried(later, room, &set)
        };
        let without = |victim: &u32| there.iter().copied().filter(|it| it != victim).collect();
        let skipped = if is_use { u64::MAX } else { tried(later, room, there) };
        if there.len() < room {
            return with(there.clone()).min(skipped);
        }
        there.iter().map(|victim| with(without(victim))).min().unwrap_or(u64::MAX).min(skipped)
    }

    #[test]
    fn bound_of_equal_sizes_is_the_best_of_all_choices() {
        let mut dice = Dice(5);
        for round in 0..80 {
            let (mut steps, mut born) = (Vec::new(), BTreeSet::new());
            for _ in 0..10 {
                let part = dice.below(5);
                let step = match dice.below(4) {
                    0 if round % 2 == 0 && born.contains(&part) => Step::Free(part),
                    1 | 2 if round % 2 == 0 && !born.contains(&part) => Step::Create(part),
                    _ => Step::Use(part),
                };
                if matches!(step, Step::Free(_)) {
                    born.remove(&part);
                } else {
                    born.insert(part);
                }
                steps.push(step);
            }
            let sequence = Sequence { memory: 3, sizes: &[1; 5], steps: &steps, counted_from: 0 };
            assert_eq!(furthest_next_use(&sequence), tried(&steps, 3, &BTreeSet::new()), "{steps:?}");
        }
    }

    #[test]
    fn bound_of_unequal_sizes_counts_granules() {
        let steps = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1].map(Step::Use);
        let sequence = Sequence { memory: 5, sizes: &[2, 4], steps: &steps, counted_from: 2 };
        // One granule of the six is missing at each pair of uses.
        assert_eq!(furthest_next_use(&sequence), 4);
        assert!(!sequence.is_exact());
    }

    #[test]
    fn steps_before_the_counted_ones_only_warm_up() {
        let steps = [0, 1, 2, 0, 1, 2].map(Step::Use);
        let counted = |counted_from| {
            furthest_next_use(&Sequence { memory: 3, sizes: &[1; 3], steps: &steps, counted_from })
        };
        assert_eq!([counted(0), counted(2), counted(3)], [3, 1, 0]);
    }
}
