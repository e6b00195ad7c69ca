//! Hit rates of the cache: which share of the requested bytes comes from freed memory, in the broker and in a
//! model of it that can also round sizes up to classes. The figures stand in
//! `docs/decisions/0020-sizes-of-extents.md`; if these differ, the decision has to be revised.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::world::{World, config, spec};
use broker_core::{AllocationSpec, ClientRequest, Notice, StoredQuotas};
use vramd_types::{AllocationId, Bytes};

/// In MiB, as all sizes here.
const PART: u32 = 256;

/// The sizes that programs request.
#[derive(Clone, Copy, Debug)]
enum Mix {
    /// Six models, loaded and dropped as a whole.
    Models,
    /// Forty sizes of layers and buffers.
    Layers,
    /// Any size, from 2 MiB to 2 GiB.
    Any,
    /// One as often as another of all these.
    All,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(usize, u32),
    Free(usize),
}

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((z ^ (z >> 31)) % u64::from(sides)).expect("below a u32")
    }

    fn even(&mut self, from: u32, to: u32) -> u32 {
        from + 2 * self.below((to - from) / 2)
    }

    /// As often of one doubling as of another.
    fn any(&mut self) -> u32 {
        let least = 2 << self.below(10);
        self.even(least, 2 * least)
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(u32::try_from(items.len()).expect("few")) as usize]
    }
}

/// The most bytes that live at once.
fn steps(mix: Mix, count: usize, live_max: u32) -> Vec<Step> {
    let mut dice = Dice(7);
    let models: Vec<u32> = (0..6).map(|_| dice.even(1 << 10, 14 << 10)).collect();
    let mut layers = vec![2, 2, 20, 20];
    layers.extend((0..36).map(|_| dice.even(20, 600)));
    let (mut steps, mut live, mut held) = (Vec::new(), Vec::new(), 0);
    for id in 0..count {
        let size = match (mix, dice.below(3)) {
            (Mix::Models, _) | (Mix::All, 0) => dice.of(&models),
            (Mix::Layers, _) | (Mix::All, 1) => dice.of(&layers),
            _ => dice.any(),
        };
        while held + size > live_max || (!live.is_empty() && dice.below(2) == 0) {
            let (gone, its): (usize, u32) =
                live.swap_remove(dice.below(u32::try_from(live.len()).expect("few")) as usize);
            steps.push(Step::Free(gone));
            held -= its;
        }
        live.push((id, size));
        held += size;
        steps.push(Step::Allocate(id, size));
    }
    steps
}

fn parts(size: u32) -> impl Iterator<Item = u32> {
    (0..size.div_ceil(PART)).map(move |part| (size - part * PART).min(PART))
}

/// Rounds up to one of this many steps between two powers of two; 0 is exact.
fn class(size: u32, steps: u32) -> u32 {
    if steps == 0 || size >= PART {
        return size;
    }
    let step = ((1 << size.ilog2()) / steps).next_multiple_of(2).max(2);
    size.next_multiple_of(step).min(PART)
}

/// The rule of a full cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// A full cache refuses a freed extent.
    Refuse,
    /// A full cache releases the oldest extents of other sizes.
    MakeWay,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    asked: u64,
    again: u64,
    rounded: u64,
}

impl Sum {
    fn again_percent(&self) -> u64 {
        (100 * self.again + self.asked / 2) / self.asked
    }
}

fn model(steps: &[Step], classes: u32, full: Full, cached_max: u32) -> Sum {
    let (mut sum, mut cached, mut live) = (Sum::default(), VecDeque::new(), BTreeMap::new());
    for step in steps {
        match *step {
            Step::Allocate(id, size) => {
                for part in parts(size) {
                    let size = class(part, classes);
                    sum.asked += u64::from(part);
                    sum.rounded += u64::from(size - part);
                    if let Some(at) = cached.iter().position(|it| *it == size) {
                        cached.remove(at);
                        sum.again += u64::from(part);
                    }
                }
                live.insert(id, size);
            }
            Step::Free(id) => {
                for part in parts(live.remove(&id).expect("it is there")) {
                    let size = class(part, classes);
                    let same: u32 = cached.iter().filter(|it| **it == size).sum();
                    while full == Full::MakeWay
                        && same + size <= cached_max
                        && cached.iter().sum::<u32>() + size > cached_max
                    {
                        let oldest = cached.iter().position(|it| *it != size);
                        cached.remove(oldest.expect("extents of its size leave room"));
                    }
                    if cached.iter().sum::<u32>() + size <= cached_max {
                        cached.push_back(size);
                    }
                }
            }
        }
    }
    sum
}

/// The same by the broker.
fn served(steps: &[Step], cached_max: u32) -> Sum {
    let mut config = config(&[Bytes::gib(128)]);
    config.part_size = Bytes::mib(PART);
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(cached_max);
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open("a");
    let mut ids: BTreeMap<usize, AllocationId> = BTreeMap::new();
    let mut sum = Sum::default();
    for step in steps {
        match *step {
            Step::Allocate(id, size) => {
                world.notices.clear();
                let spec = AllocationSpec { uninitialized: true, ..spec(size) };
                ids.insert(id, world.allocate(client, spec).expect("room"));
                let again = world.notices.iter().filter_map(|notice| match notice {
                    Notice::Reused { part, .. } => parts(size).nth(part.part.0 as usize),
                    _ => None,
                });
                sum.again += again.map(u64::from).sum::<u64>();
                sum.asked += u64::from(size);
            }
            Step::Free(id) => {
                let id = ids.remove(&id).expect("it is there");
                world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
            }
        }
    }
    sum
}

#[test]
fn broker_caches_as_the_model_does() {
    for mix in [Mix::Models, Mix::Layers, Mix::Any, Mix::All] {
        let steps = steps(mix, 60, 30 << 10);
        let cached_max = 4 << 10;
        let (by_model, by_broker) = (model(&steps, 0, Full::MakeWay, cached_max), served(&steps, cached_max));
        assert_eq!(by_model, by_broker, "{mix:?}");
        assert!(by_broker.again > 0, "{mix:?}");
    }
}

/// Percent of the requested bytes found in the cache: where a full cache refuses, where it makes way, and where
/// sizes are also rounded up to eight classes a doubling; and by how many thousandths that adds to the charge.
#[test]
fn whole_parts_are_most_reused_and_displace_older_sizes() {
    let mut found = Vec::new();
    for cached_max in [4 << 10, 16 << 10] {
        for mix in [Mix::Models, Mix::Layers, Mix::Any, Mix::All] {
            let steps = steps(mix, 4000, 30 << 10);
            let of = |classes, full| model(&steps, classes, full, cached_max);
            let classes = of(8, Full::MakeWay);
            let again = [of(0, Full::Refuse), of(0, Full::MakeWay)].map(|sum| sum.again_percent());
            let rounded = (1000 * classes.rounded).div_ceil(classes.asked);
            found.push((again[0], again[1], classes.again_percent(), rounded));
        }
    }
    let sizes: BTreeSet<u32> = (1..PART / 2).map(|half| class(2 * half, 8)).collect();
    assert_eq!(sizes.len(), 40, "of 127 that there are");
    #[rustfmt::skip]
    let figures = [
        // Models, layers, any size, and all of these, where 4 GiB are cached at most.
        (34, 32, 32, 1), (49, 66, 77, 21), (13, 62, 69, 9), (3, 34, 34, 2),
        // The same with 16 GiB.
        (82, 82, 82, 1), (91, 91, 94, 21), (68, 83, 94, 9), (50, 83, 84, 2),
    ];
    assert_eq!(found, figures);
}
