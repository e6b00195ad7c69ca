//! The measures of a policy: the fewest bytes that any policy has to fetch, as `broker-replay` computes them, and those
//! that the best fixed set of parts leaves.

use broker_replay::bound::{self, Sequence};

use crate::traces::Trace;

/// The fewest granules that have to be fetched, with the future known.
pub(crate) fn furthest_next_use(trace: &Trace) -> u64 {
    bound::furthest_next_use(&sequence(trace))
}

/// Whether some policy reaches that.
pub(crate) fn is_exact(trace: &Trace) -> bool {
    sequence(trace).is_exact()
}

fn sequence(trace: &Trace) -> Sequence<'_> {
    let Trace { memory, sizes, steps, .. } = trace;
    Sequence { memory: *memory, sizes, steps, counted_from: trace.counted_from() }
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
    use broker_replay::bound::Step;

    use super::*;

    #[test]
    fn best_static_set_keeps_a_part_in_part() {
        let steps = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1].map(Step::Use).to_vec();
        let trace = Trace { name: "test", memory: 5, sizes: vec![2, 4], steps };
        // One granule of the larger part is missing.
        assert_eq!((best_static_set(&trace), furthest_next_use(&trace)), (4, 4));
    }
}
