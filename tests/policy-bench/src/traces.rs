//! The traces, each drawn from a seed. Sizes are in granules of 2 MiB.

use broker_replay::bound::Step;

use crate::dice::{Dice, Zipf};

#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    /// The memory of the device.
    pub(crate) memory: u64,
    /// The size of each part.
    pub(crate) sizes: Vec<u64>,
    pub(crate) steps: Vec<Step>,
}

impl Trace {
    pub(crate) fn size(&self, part: u32) -> u64 {
        self.sizes[index(part)]
    }

    /// The steps before this one warm up, and do not count.
    pub(crate) const fn counted_from(&self) -> usize {
        self.steps.len() / 5
    }

    fn counted(&self) -> impl Iterator<Item = u32> {
        self.steps[self.counted_from()..].iter().filter_map(|step| match step {
            Step::Use(part) => Some(*part),
            Step::Create(_) | Step::Free(_) => None,
        })
    }

    pub(crate) fn counted_uses(&self) -> u64 {
        u64::try_from(self.counted().count()).expect("64 bits")
    }

    /// The granules to fetch if no part ever stayed.
    pub(crate) fn counted_granules(&self) -> u64 {
        self.counted().map(|part| self.size(part)).sum()
    }

    /// How often each part is used.
    pub(crate) fn counted_by_part(&self) -> Vec<u64> {
        let mut uses = vec![0; self.sizes.len()];
        self.counted().for_each(|part| uses[index(part)] += 1);
        uses
    }
}

pub(crate) fn index(part: u32) -> usize {
    usize::try_from(part).expect("32 bits")
}

pub(crate) const GENERATORS: [fn(u64) -> Trace; 5] =
    [repeating, zipf, two_tenants, switching, layers_with_kv_cache];

const MIB: u64 = 2;
const GIB: u64 = 512;

/// 80 layers of 256 MiB, again and again, with room for 48.
fn repeating(_: u64) -> Trace {
    let steps = (0..1000).flat_map(|_| (0..80).map(Step::Use)).collect();
    Trace { name: "loop", memory: 12 * GIB, sizes: vec![256 / MIB; 80], steps }
}

/// Zipf 0.8 over 100 GiB in parts of 32 MiB, with 24 GiB of memory.
fn zipf(seed: u64) -> Trace {
    let mut dice = Dice::new(seed);
    let parts = 3200;
    let zipf = Zipf::new(parts, 80, &mut dice);
    let steps = (0..100_000).map(|_| Step::Use(zipf.draw(&mut dice))).collect();
    Trace { name: "zipf", memory: 24 * GIB, sizes: vec![32 / MIB; 3200], steps }
}

/// One tenant draws by Zipf 0.9 from 40 GiB, another one runs again and again over 20 GiB; three uses of the first for
/// each of the second. 24 GiB of memory, parts of 32 MiB.
fn two_tenants(seed: u64) -> Trace {
    let mut dice = Dice::new(seed);
    let (drawn, looped) = (1280, 640);
    let zipf = Zipf::new(drawn, 90, &mut dice);
    let mut next = 0;
    let step = |_| match dice.below(4) {
        0 => {
            next = (next + 1) % looped;
            Step::Use(drawn + next)
        }
        _ => Step::Use(zipf.draw(&mut dice)),
    };
    let steps = (0..100_000).map(step).collect();
    Trace { name: "two tenants", memory: 24 * GIB, sizes: vec![32 / MIB; 1920], steps }
}

/// Eight models of 5 to 20 GiB. One runs for some passes over its layers, then another one, some models more often than
/// others. 24 GiB of memory; layers of 128 to 512 MiB, with an embedding of up to 1 GiB.
fn switching(seed: u64) -> Trace {
    let mut dice = Dice::new(seed);
    let (mut sizes, mut models) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let first = u32::try_from(sizes.len()).expect("few parts");
        let (layers, layer) = (dice.between(32, 48), dice.between(128, 448) / MIB);
        sizes.push(dice.between(256, 1024) / MIB);
        // Some layers have more to them.
        sizes.extend((0..layers).map(|at| if at % 4 == 0 { layer + layer / 8 } else { layer }));
        models.push(first..u32::try_from(sizes.len()).expect("few parts"));
    }
    let popularity = Zipf::new(8, 100, &mut dice);
    let mut steps = Vec::new();
    while steps.len() < 100_000 {
        let model = models[index(popularity.draw(&mut dice))].clone();
        for _ in 0..dice.between(1, 12) {
            steps.extend(model.clone().map(Step::Use));
        }
    }
    Trace { name: "model switch", memory: 24 * GIB, sizes, steps }
}

/// 40 layers of 256 MiB, and eight requests at a time with a KV cache of their own for each layer, of 8 to 32 MiB. Each
/// step runs four of the requests, in turns, through all layers. A request ends after 20 to 60 steps, and a new one
/// begins. 10 GiB of memory.
fn layers_with_kv_cache(seed: u64) -> Trace {
    const LAYERS: u32 = 40;
    let mut dice = Dice::new(seed);
    let mut sizes = vec![256 / MIB; index(LAYERS)];
    let mut steps = Vec::new();
    // The number of the first part of each request, and how many steps it has left.
    let mut requests: Vec<(u32, u64)> = Vec::new();
    for step in 0..500_usize {
        while requests.len() < 8 {
            let first = u32::try_from(sizes.len()).expect("few parts");
            sizes.extend(vec![dice.between(4, 16); index(LAYERS)]);
            requests.push((first, dice.between(20, 60)));
            steps.extend((first..first + LAYERS).map(Step::Create));
        }
        let running: Vec<usize> = (0..4).map(|at| (step * 4 + at) % 8).collect();
        for layer in 0..LAYERS {
            steps.push(Step::Use(layer));
            steps.extend(running.iter().map(|at| Step::Use(requests[*at].0 + layer)));
        }
        for at in &running {
            requests[*at].1 -= 1;
        }
        let ended = requests.iter().filter(|(_, left)| *left == 0);
        steps.extend(ended.flat_map(|(first, _)| (*first..first + LAYERS).map(Step::Free)));
        requests.retain(|(_, left)| *left > 0);
    }
    Trace { name: "layers and KV", memory: 10 * GIB, sizes, steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_functions_of_their_seeds() {
        for generator in GENERATORS {
            let (one, again) = (generator(1), generator(1));
            assert_eq!((&one.steps, &one.sizes), (&again.steps, &again.sizes), "{}", one.name);
            assert!(one.sizes.iter().sum::<u64>() > one.memory, "{} needs no policy", one.name);
            assert!(one.name == "loop" || one.steps != generator(2).steps, "{}", one.name);
        }
    }

    #[test]
    fn parts_are_used_between_their_creation_and_their_end() {
        let trace = layers_with_kv_cache(1);
        let mut alive = vec![false; trace.sizes.len()];
        alive[..40].fill(true);
        for step in &trace.steps {
            let before = std::mem::replace(&mut alive[index(step.part())], !matches!(step, Step::Free(_)));
            assert_eq!(before, !matches!(step, Step::Create(_)), "{step:?}");
        }
    }
}
