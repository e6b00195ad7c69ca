//! The measures of a policy: the fewest bytes that any policy has to fetch, and those that the best fixed set of
//! parts leaves.

use std::collections::BTreeSet;

use crate::traces::{Step, Trace, index};

const NEVER: usize = usize::MAX;

/// The fewest granules that have to be fetched, with the future known: what is needed furthest ahead leaves (Belady).
///
/// With equal sizes this is exact: parts leave whole, and the part in use stays. With unequal sizes it is a lower bound:
/// every granule is a part of its own, may be missing alone, and may leave as soon as it was used. All granules cost the
/// same, so the furthest next use is the best choice among them, and any policy with whole parts is one with granules.
pub(crate) fn furthest_next_use(trace: &Trace) -> u64 {
    let next = next_uses(&trace.steps, trace.sizes.len());
    let whole = trace.has_equal_sizes();
    let mut there = vec![0_u64; trace.sizes.len()];
    // The next use of each part that is there, at least in part.
    let mut order: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut current = vec![NEVER; trace.sizes.len()];
    let (mut left, mut missed) = (trace.memory, 0);
    for (at, step) in trace.steps.iter().enumerate() {
        let (part, size) = (step.part(), trace.size(step.part()));
        let held = &mut there[index(part)];
        order.remove(&(current[index(part)], part));
        if matches!(step, Step::Free(_)) {
            left += std::mem::take(held);
            continue;
        }
        let lacks = size - *held;
        *held = size;
        if at >= trace.counted_from() && matches!(step, Step::Use(_)) {
            missed += lacks;
        }
        current[index(part)] = next[at];
        if !whole {
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
        if whole {
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

/// The granules that have to be fetched if the same parts stay all the time: those with the most uses, one of them in part.
pub(crate) fn best_static_set(trace: &Trace) -> u64 {
    let uses = trace.counted_by_part();
    let mut order: Vec<usize> = (0..uses.len()).collect();
    // A use saves as many granules as the part takes, so the uses alone decide.
    order.sort_by_key(|part| (std::cmp::Reverse(uses[*part]), *part));
    let (mut left, mut missed) = (trace.memory, 0);
    for part in order {
        let stays = trace.sizes[part].min(left);
        left -= stays;
        missed += (trace.sizes[part] - stays) * uses[part];
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fewest fetches by trying every choice, for whole parts of equal size.
    fn tried(uses: &[u32], room: usize, there: &BTreeSet<u32>) -> u64 {
        let Some((part, later)) = uses.split_first() else { return 0 };
        if there.contains(part) {
            return tried(later, room, there);
        }
        let with = |mut set: BTreeSet<u32>| {
            set.insert(*part);
            1 + tried(later, room, &set)
        };
        if there.len() < room {
            return with(there.clone());
        }
        let without = |victim: &u32| there.iter().copied().filter(|it| it != victim).collect();
        there.iter().map(|victim| with(without(victim))).min().unwrap_or(u64::MAX)
    }

    #[test]
    fn bound_of_equal_sizes_is_the_best_of_all_choices() {
        let mut dice = crate::dice::Dice::new(5);
        for _ in 0..50 {
            let uses: Vec<u32> = (0..12).map(|_| u32::try_from(dice.below(5)).unwrap()).collect();
            // The steps that do not count use another part.
            let before = [9, 9, 9].map(Step::Use);
            let steps = before.into_iter().chain(uses.iter().map(|part| Step::Use(*part))).collect();
            let trace = Trace { name: "test", memory: 3, sizes: vec![1; 10], steps };
            assert_eq!(trace.counted_from(), 3);
            assert_eq!(furthest_next_use(&trace), tried(&uses, 3, &BTreeSet::from([9])), "{uses:?}");
        }
    }

    #[test]
    fn bound_of_unequal_sizes_counts_granules() {
        let steps = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1].map(Step::Use).to_vec();
        let trace = Trace { name: "test", memory: 5, sizes: vec![2, 4], steps };
        // One granule of the six is missing at each pair of uses.
        assert_eq!(furthest_next_use(&trace), 4);
        // The larger part in part.
        assert_eq!(best_static_set(&trace), 4);
    }
}
