//! Traces of a program's allocations, drawn once and replayed on each side.

use fastrand::Rng;

/// The number of blocks that live at a time.
const LIVE: usize = 1_000;
/// Sizes are drawn by their doubling, up to 64 KiB.
const DOUBLINGS: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetimes {
    /// The program frees a random live block.
    Random,
    /// The program frees the newest block first.
    Stack,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Alloc { slot: usize, size: usize },
    Free { slot: usize },
}

#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) steps: Vec<Step>,
}

impl Trace {
    /// Draws a trace that frees every block it allocates.
    pub(crate) fn new(lifetimes: Lifetimes, seed: u64, allocations: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut steps = Vec::new();
        let mut live: Vec<usize> = Vec::new();
        let mut vacant: Vec<usize> = (0..LIVE).collect();
        let mut left = allocations;
        while left > 0 || !live.is_empty() {
            // Stacks grow and shrink completely. With random lifetimes about half of the slots are in use.
            let grows = left > 0 && !vacant.is_empty() && (live.is_empty() || rng.bool());
            if grows {
                let slot = vacant.swap_remove(rng.usize(0..vacant.len()));
                steps.push(Step::Alloc { slot, size: size(&mut rng) });
                live.push(slot);
                left -= 1;
            } else {
                let at = match lifetimes {
                    Lifetimes::Random => rng.usize(0..live.len()),
                    Lifetimes::Stack => live.len() - 1,
                };
                let slot = live.swap_remove(at);
                steps.push(Step::Free { slot });
                vacant.push(slot);
            }
        }
        Self { steps }
    }

    /// Returns an empty slot for each block that can live at a time.
    pub(crate) fn slots<T>(&self) -> Vec<Option<T>> {
        (0..LIVE).map(|_| None).collect()
    }
}

fn size(rng: &mut Rng) -> usize {
    let most = 1 << rng.u32(0..=DOUBLINGS);
    rng.usize(1..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_can_be_taken_and_all_is_freed() {
        for lifetimes in [Lifetimes::Random, Lifetimes::Stack] {
            let trace = Trace::new(lifetimes, 3, 10_000);
            let mut live: Vec<Option<usize>> = trace.slots();
            let (mut order, mut allocated) = (Vec::new(), 0);
            for step in &trace.steps {
                match *step {
                    Step::Alloc { slot, size } => {
                        assert!(size > 0 && live[slot].replace(size).is_none());
                        order.push(slot);
                        allocated += 1;
                    }
                    Step::Free { slot } => {
                        assert!(live[slot].take().is_some());
                        assert!(lifetimes == Lifetimes::Random || order.pop() == Some(slot));
                    }
                }
            }
            assert!(allocated == 10_000 && live.iter().all(Option::is_none));
        }
    }
}
