//! A map for ids that only grow, in their order.
//!
//! In a tree with an entry per id, half-empty nodes cost as much as the entries, since growing keys split
//! every node in the middle, and each step between nodes is a cache miss. So here a list leads to regions
//! of 256 blocks, nearly always a handful; most ids are in the last. A block has 64 pages. A page has one bit for each of 16 successive
//! ids, and the values of present ids side by side in any order:
//!
//! ```text
//!   list ──► region 0 ──► block 1: ids 1024 to 2047 ──► page 4: ids 1088 to 1103   bits   1 0 1 1 0 0 …
//!                                                                                  places 1 · 0 2 · · …
//!                                                             values [ of 1090, of 1088, of 1091 ]
//! ```
//!
//! A removal moves the last value of the page into the gap; nothing else moves.
//!
//! The price: a region takes 2 KiB and a block 3 KiB as long as one of its ids is present, and the last of each
//! that became empty is kept. A sparse page takes little more than its values.

/// Ids per page, one for each bit.
const PAGE: usize = 16;
const PAGES: usize = 64;
const BLOCK: u64 = (PAGE * PAGES) as u64;
const BLOCKS: usize = 256;
const REGION: u64 = BLOCK * BLOCKS as u64;

#[derive(Debug)]
pub(crate) struct IdMap<V> {
    /// In the order of their numbers.
    regions: Vec<(u64, Box<Region<V>>)>,
    len: usize,
    /// The last region that became empty: an id that comes and goes costs no memory anew.
    spare_region: Option<Box<Region<V>>>,
    /// The same of a block.
    spare_block: Option<Box<Block<V>>>,
}

/// `len` counts blocks.
#[derive(Debug)]
struct Region<V> {
    len: usize,
    blocks: [Option<Box<Block<V>>>; BLOCKS],
}

#[derive(Debug)]
struct Block<V> {
    len: usize,
    pages: [Page<V>; PAGES],
}

#[derive(Debug)]
struct Page<V> {
    bits: u16,
    /// For each present id, the index of its value.
    places: Sixteen,
    /// For each value, the id of the page that it belongs to.
    owners: Sixteen,
    values: Vec<V>,
}

/// Sixteen numbers below sixteen.
#[derive(Clone, Copy, Debug, Default)]
struct Sixteen(u64);

impl Sixteen {
    const fn get(self, at: usize) -> usize {
        (self.0 >> (4 * at) & 0xf) as usize
    }

    const fn set(&mut self, at: usize, number: usize) {
        self.0 = self.0 & !(0xf << (4 * at)) | (number as u64) << (4 * at);
    }
}

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        Self { regions: Vec::new(), len: 0, spare_region: None, spare_block: None }
    }
}

impl<V> IdMap<V> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, id: u64) -> Option<&V> {
        let number = id / REGION;
        let region = match self.regions.last() {
            // Nearly always.
            Some((last, region)) if *last == number => region,
            Some((last, _)) if number < *last => &self.regions.get(self.find_region(number)?)?.1,
            _ => return None,
        };
        let block = region.blocks.get(block_of(id))?.as_ref()?;
        let page = block.pages.get(page_of(id))?;
        page.values.get(page.find(id)?)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut V> {
        let number = id / REGION;
        let region = match self.regions.last() {
            Some((last, _)) if *last == number => &mut self.regions.last_mut()?.1,
            Some((last, _)) if number < *last => {
                let at = self.find_region(number)?;
                &mut self.regions.get_mut(at)?.1
            }
            _ => return None,
        };
        let block = region.blocks.get_mut(block_of(id))?.as_mut()?;
        let page = block.pages.get_mut(page_of(id))?;
        let at = page.find(id)?;
        page.values.get_mut(at)
    }

    /// Inserts a value and returns the old one.
    pub(crate) fn insert(&mut self, id: u64, value: V) -> Option<V> {
        let at = self.find_region(id / REGION).unwrap_or_else(|| {
            let at = self.regions.partition_point(|(number, _)| *number < id / REGION);
            self.regions.insert(at, (id / REGION, self.spare_region.take().unwrap_or_default()));
            at
        });
        let (_, region) = self.regions.get_mut(at)?;
        let slot = region.blocks.get_mut(block_of(id))?;
        let block = match slot {
            Some(block) => block,
            None => {
                region.len = region.len.saturating_add(1);
                slot.insert(self.spare_block.take().unwrap_or_default())
            }
        };
        let old = block.pages.get_mut(page_of(id))?.insert(id, value);
        if old.is_none() {
            block.len = block.len.saturating_add(1);
            self.len = self.len.saturating_add(1);
        }
        old
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<V> {
        let at = self.find_region(id / REGION)?;
        let (_, region) = self.regions.get_mut(at)?;
        let slot = region.blocks.get_mut(block_of(id))?;
        let block = slot.as_mut()?;
        let value = block.pages.get_mut(page_of(id))?.remove(id)?;
        self.len = self.len.saturating_sub(1);
        block.len = block.len.saturating_sub(1);
        if block.len == 0 {
            self.spare_block = slot.take();
            region.len = region.len.saturating_sub(1);
            if region.len == 0 {
                self.spare_region = Some(self.regions.remove(at).1);
            }
        }
        Some(value)
    }

    /// Returns all entries in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.iter_after(None)
    }

    /// Returns the entries after `after`, in the order of their ids.
    pub(crate) fn iter_after(&self, after: Option<u64>) -> impl Iterator<Item = (u64, &V)> {
        let first = after.unwrap_or(0);
        let regions = self.regions.iter().skip_while(move |(number, _)| *number < first / REGION);
        let blocks = regions.flat_map(|(number, region)| {
            let bases =
                (0u64..).map(|at| number.saturating_mul(REGION).saturating_add(at.saturating_mul(BLOCK)));
            bases.zip(&region.blocks).filter_map(|(base, block)| Some((base, block.as_ref()?)))
        });
        blocks
            .skip_while(move |(base, _)| *base < first / BLOCK * BLOCK)
            .flat_map(|(base, block)| {
                let pages = block.pages.iter().zip(0u64..);
                pages.flat_map(move |(page, at)| {
                    page.iter(base.saturating_add(at.saturating_mul(PAGE as u64)))
                })
            })
            .skip_while(move |(id, _)| after.is_some_and(|after| *id <= after))
    }
}

impl<V> IdMap<V> {
    /// The index of the region of that number.
    #[inline(never)]
    fn find_region(&self, number: u64) -> Option<usize> {
        match self.regions.last() {
            Some((last, _)) if *last == number => self.regions.len().checked_sub(1),
            _ => self.regions.binary_search_by_key(&number, |(number, _)| *number).ok(),
        }
    }
}

impl<V> Default for Region<V> {
    fn default() -> Self {
        Self { len: 0, blocks: std::array::from_fn(|_| None) }
    }
}

impl<V> Default for Block<V> {
    fn default() -> Self {
        Self { len: 0, pages: std::array::from_fn(|_| Page::default()) }
    }
}

impl<V> Default for Page<V> {
    fn default() -> Self {
        Self { bits: 0, places: Sixteen::default(), owners: Sixteen::default(), values: Vec::new() }
    }
}

impl<V> Page<V> {
    /// The index of the id's value.
    const fn find(&self, id: u64) -> Option<usize> {
        if self.bits & bit(id) == 0 { None } else { Some(self.places.get(slot_of(id))) }
    }

    fn insert(&mut self, id: u64, value: V) -> Option<V> {
        if let Some(old) = self.find(id).and_then(|at| self.values.get_mut(at)) {
            return Some(std::mem::replace(old, value));
        }
        if self.bits == 0 {
            // Ids grow, so the rest of the page comes next.
            self.values.reserve_exact(PAGE);
        }
        self.bits |= bit(id);
        self.places.set(slot_of(id), self.values.len());
        self.owners.set(self.values.len(), slot_of(id));
        self.values.push(value);
        None
    }

    /// Removes a value and moves the last one into its place.
    fn remove(&mut self, id: u64) -> Option<V> {
        let at = self.find(id)?;
        let value = self.values.swap_remove(at);
        self.bits &= !bit(id);
        let moved = self.owners.get(self.values.len());
        self.owners.set(at, moved);
        self.places.set(moved, at);
        if self.values.len() <= self.values.capacity() / 4 {
            self.values.shrink_to_fit();
        }
        Some(value)
    }

    fn iter(&self, base: u64) -> impl Iterator<Item = (u64, &V)> {
        let ids = base..=base.saturating_add(PAGE as u64 - 1);
        ids.filter_map(|id| Some((id, self.values.get(self.find(id)?)?)))
    }
}

/// The block of the id within its region.
#[allow(clippy::cast_possible_truncation, reason = "below the number of blocks")]
const fn block_of(id: u64) -> usize {
    (id % REGION / BLOCK) as usize
}

/// The page of the id within its block.
#[allow(clippy::cast_possible_truncation, reason = "below the number of pages")]
const fn page_of(id: u64) -> usize {
    (id % BLOCK) as usize / PAGE
}

/// The slot of the id within its page.
#[allow(clippy::cast_possible_truncation, reason = "below the number of ids in a page")]
const fn slot_of(id: u64) -> usize {
    id as usize % PAGE
}

const fn bit(id: u64) -> u16 {
    1 << slot_of(id)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ops::Bound};

    use super::*;

    /// Compares with the standard library's map, over near ids, far ids and the largest ids.
    #[test]
    fn id_map_behaves_like_a_map() {
        let (mut map, mut model) = (IdMap::default(), BTreeMap::new());
        let mut seed = 1u64;
        for step in 0..30_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let near = seed >> 33;
            let id = match near % 8 {
                0 => u64::MAX - near % 80,
                1 => near << 20,
                2 => (near % 90) << 10,
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
        assert!(map.regions.is_empty(), "blocks and regions go with their last id");
    }

    #[test]
    fn lone_survivor_of_a_block_takes_little_memory() {
        let mut map = IdMap::default();
        for id in 0..BLOCK {
            map.insert(id, id);
        }
        for id in 1..BLOCK {
            map.remove(id);
        }
        let blocks = map.regions.iter().flat_map(|(_, region)| region.blocks.iter().flatten());
        let pages = blocks.flat_map(|block| &block.pages);
        assert_eq!(pages.map(|page| page.values.capacity()).sum::<usize>(), 1);
    }
}
