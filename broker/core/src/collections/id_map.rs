//! What is known by ids that only grow, in their order.
//!
//! A tree with an entry for each id costs as much for its half-empty nodes as for what is in them, since keys that
//! only grow split every node in the middle; and each step from node to node is a miss of the cache. So the tree leads
//! to blocks instead, each of 64 pages. A page has a bit for each of 16 ids in a row and the values of those that are
//! there, side by side:
//!
//! ```text
//!   tree ──► block 1: ids 1024 to 2047 ──► page 4: ids 1088 to 1103   bits 1 0 1 1 0 0 …
//!                                                                          │   │ └──────────────┐
//!                                                                   values [ of 1088, of 1090, of 1091 ]
//! ```
//!
//! The price: to insert or remove moves the values behind it in the page, and a block takes 2 KiB for as long as one
//! of its ids is there. What is left of a page takes little more than the values that are still in it.

use std::{collections::BTreeMap, ops::Bound};

/// Ids in a page: as many as there are bits.
const PAGE: usize = 16;
const PAGES: usize = 64;
const BLOCK: u64 = (PAGE * PAGES) as u64;

#[derive(Debug)]
pub(crate) struct IdMap<V> {
    blocks: BTreeMap<u64, Box<Block<V>>>,
    len: usize,
}

#[derive(Debug)]
struct Block<V> {
    len: usize,
    pages: [Page<V>; PAGES],
}

#[derive(Debug)]
struct Page<V> {
    bits: u16,
    values: Vec<V>,
}

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        Self { blocks: BTreeMap::new(), len: 0 }
    }
}

impl<V> IdMap<V> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, id: u64) -> Option<&V> {
        let page = self.blocks.get(&(id / BLOCK))?.pages.get(page_of(id))?;
        page.values.get(page.find(id)?)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut V> {
        let page = self.blocks.get_mut(&(id / BLOCK))?.pages.get_mut(page_of(id))?;
        let at = page.find(id)?;
        page.values.get_mut(at)
    }

    /// Puts a value in, and returns the one that was there.
    pub(crate) fn insert(&mut self, id: u64, value: V) -> Option<V> {
        let block = self.blocks.entry(id / BLOCK).or_default();
        let page = block.pages.get_mut(page_of(id))?;
        if let Some(old) = page.find(id).and_then(|at| page.values.get_mut(at)) {
            return Some(std::mem::replace(old, value));
        }
        if page.bits == 0 {
            // Ids grow: the rest of the page is next.
            page.values.reserve_exact(PAGE);
        }
        page.values.insert(page.rank(id), value);
        page.bits |= bit(id);
        block.len = block.len.saturating_add(1);
        self.len = self.len.saturating_add(1);
        None
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<V> {
        let block = self.blocks.get_mut(&(id / BLOCK))?;
        let page = block.pages.get_mut(page_of(id))?;
        let at = page.find(id)?;
        let value = page.values.remove(at);
        page.bits &= !bit(id);
        if page.values.len() <= page.values.capacity() / 4 {
            page.values.shrink_to_fit();
        }
        block.len = block.len.saturating_sub(1);
        if block.len == 0 {
            self.blocks.remove(&(id / BLOCK));
        }
        self.len = self.len.saturating_sub(1);
        Some(value)
    }

    /// In the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.iter_after(None)
    }

    /// In the order of their ids, those after `after`.
    pub(crate) fn iter_after(&self, after: Option<u64>) -> impl Iterator<Item = (u64, &V)> {
        let first = after.map_or(0, |after| after / BLOCK);
        let blocks = self.blocks.range((Bound::Included(first), Bound::Unbounded));
        blocks
            .flat_map(|(number, block)| {
                let base = number.saturating_mul(BLOCK);
                let pages = block.pages.iter().zip(0u64..);
                pages.flat_map(move |(page, at)| {
                    page.iter(base.saturating_add(at.saturating_mul(PAGE as u64)))
                })
            })
            .skip_while(move |(id, _)| after.is_some_and(|after| *id <= after))
    }
}

impl<V> Default for Block<V> {
    fn default() -> Self {
        Self { len: 0, pages: std::array::from_fn(|_| Page { bits: 0, values: Vec::new() }) }
    }
}

impl<V> Page<V> {
    /// Where the value of the id is.
    const fn find(&self, id: u64) -> Option<usize> {
        if self.bits & bit(id) == 0 { None } else { Some(self.rank(id)) }
    }

    /// How many ids before this one are there.
    const fn rank(&self, id: u64) -> usize {
        (self.bits & bit(id).wrapping_sub(1)).count_ones() as usize
    }

    fn iter(&self, base: u64) -> impl Iterator<Item = (u64, &V)> {
        let bits = self.bits;
        let ids = (base..=base.saturating_add(PAGE as u64 - 1)).filter(move |id| bits & bit(*id) != 0);
        ids.zip(&self.values)
    }
}

/// Which page of its block the id is in.
#[allow(clippy::cast_possible_truncation, reason = "below the number of pages")]
const fn page_of(id: u64) -> usize {
    (id % BLOCK) as usize / PAGE
}

const fn bit(id: u64) -> u16 {
    1 << (id % PAGE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the standard library's, over ids that are near each other, far from each other, and the last ones.
    #[test]
    fn it_is_a_map() {
        let (mut map, mut model) = (IdMap::default(), BTreeMap::new());
        let mut seed = 1u64;
        for step in 0..30_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let near = seed >> 33;
            let id = match near % 7 {
                0 => u64::MAX - near % 70,
                1 => near << 20,
                _ => near % 3000,
            };
            match seed >> 13 & 3 {
                0 | 1 => assert_eq!(map.insert(id, step), model.insert(id, step)),
                2 => assert_eq!(map.remove(id), model.remove(&id)),
                _ => assert_eq!(map.get_mut(id), model.get_mut(&id)),
            }
            assert_eq!((map.len(), map.get(id)), (model.len(), model.get(&id)));
            if step % 500 == 0 {
                assert!(map.iter().eq(model.iter().map(|(id, value)| (*id, value))));
                let after = model.range((Bound::Excluded(id), Bound::Unbounded));
                assert!(map.iter_after(Some(id)).eq(after.map(|(id, value)| (*id, value))));
            }
        }
        for id in model.into_keys() {
            map.remove(id);
        }
        assert!(map.blocks.is_empty(), "blocks go with their last id");
    }

    #[test]
    fn what_survives_alone_takes_little() {
        let mut map = IdMap::default();
        for id in 0..BLOCK {
            map.insert(id, id);
        }
        for id in 1..BLOCK {
            map.remove(id);
        }
        let pages = map.blocks.values().flat_map(|block| &block.pages);
        assert_eq!(pages.map(|page| page.values.capacity()).sum::<usize>(), 1);
    }
}
