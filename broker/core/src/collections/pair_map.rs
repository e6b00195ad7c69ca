//! A map whose keys are pairs of an id and a number, such as the parts of allocations, in the order of the pairs.
//!
//! A tree of pairs compares both at each step. Here an [`IdMap`] leads to the id, and a tree of numbers goes on from
//! there. Most ids have one number, and need no tree.

use std::{collections::BTreeMap, fmt};

use super::IdMap;
use crate::event::PartRef;

/// A pair of an id and a number, in the order of first the one and then the other.
pub(crate) trait Pair: Copy {
    type Number: Copy + Ord + fmt::Debug;

    fn split(self) -> (u64, Self::Number);
    fn join(id: u64, number: Self::Number) -> Self;
}

#[derive(Debug)]
pub(crate) struct PairMap<K: Pair, V>(IdMap<Entries<K::Number, V>>);

/// A map by part.
pub(crate) type PartMap<V> = PairMap<PartRef, V>;

/// The entries of one id.
#[derive(Debug)]
enum Entries<N, V> {
    One(N, V),
    Several(BTreeMap<N, V>),
}

impl<K: Pair, V> Default for PairMap<K, V> {
    fn default() -> Self {
        Self(IdMap::default())
    }
}

impl<K: Pair, V> PairMap<K, V> {
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let (id, number) = key.split();
        match self.0.get(id)? {
            Entries::One(of, value) => (*of == number).then_some(value),
            Entries::Several(entries) => entries.get(&number),
        }
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let (id, number) = key.split();
        match self.0.get_mut(id)? {
            Entries::One(of, value) => (*of == number).then_some(value),
            Entries::Several(entries) => entries.get_mut(&number),
        }
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Inserts a value and returns the old one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (id, number) = key.split();
        let Some(entries) = self.0.get_mut(id) else {
            self.0.insert(id, Entries::One(number, value));
            return None;
        };
        match entries {
            Entries::One(of, old) if *of == number => Some(std::mem::replace(old, value)),
            Entries::Several(entries) => entries.insert(number, value),
            Entries::One(..) => {
                let several = Entries::Several(BTreeMap::from([(number, value)]));
                let one = std::mem::replace(entries, several);
                if let (Entries::One(of, first), Entries::Several(entries)) = (one, entries) {
                    entries.insert(of, first);
                }
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let (id, number) = key.split();
        match self.0.get_mut(id)? {
            Entries::One(of, _) if *of != number => None,
            Entries::One(..) => match self.0.remove(id)? {
                Entries::One(_, value) => Some(value),
                Entries::Several(_) => None,
            },
            Entries::Several(entries) => {
                let value = entries.remove(&number)?;
                if entries.is_empty() {
                    self.0.remove(id);
                }
                Some(value)
            }
        }
    }

    /// All entries, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().flat_map(|(id, entries)| entries.iter(id))
    }

    /// The entries of one id, in the order of their numbers.
    pub(crate) fn of(&self, id: u64) -> impl Iterator<Item = (K, &V)> {
        self.0.get(id).into_iter().flat_map(move |entries| entries.iter(id))
    }
}

impl<N: Copy + Ord, V> Entries<N, V> {
    fn iter<K: Pair<Number = N>>(&self, id: u64) -> impl Iterator<Item = (K, &V)> {
        let (one, several) = match self {
            Self::One(number, value) => (Some((number, value)), None),
            Self::Several(entries) => (None, Some(entries)),
        };
        let all = one.into_iter().chain(several.into_iter().flatten());
        all.map(move |(number, value)| (K::join(id, *number), value))
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::{AllocationId, PartIndex};

    use super::*;

    /// Compares with the standard library's map.
    #[test]
    fn pair_map_behaves_like_a_map() {
        let (mut map, mut model) = (PartMap::default(), BTreeMap::new());
        let mut seed = 1u64;
        for step in 0..20_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (allocation, index) = (seed >> 33 & 31, u32::try_from(seed >> 40 & 3).unwrap());
            let part = PartRef { allocation: AllocationId::from_raw(allocation), part: PartIndex(index) };
            match seed >> 50 & 3 {
                0 => assert_eq!(map.insert(part, step), model.insert(part, step)),
                1 | 2 => assert_eq!(map.remove(part), model.remove(&part)),
                _ => assert_eq!(map.get_mut(part), model.get_mut(&part)),
            }
            assert_eq!((map.get(part), map.contains(part)), (model.get(&part), model.contains_key(&part)));
            if step % 100 == 0 {
                let of = model.range(PartRef::all_of(part.allocation)).map(|(part, value)| (*part, value));
                assert!(map.of(allocation).eq(of));
                assert!(map.iter().eq(model.iter().map(|(part, value)| (*part, value))));
            }
        }
    }
}
