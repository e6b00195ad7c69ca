//! The items of a waiting `FreeBatch` or `Detach`. Each has its own result.

use std::ops::Deref;

use vramd_types::AllocationId;

use crate::{command::Released, error::Refusal};

/// The result of one item. The box keeps remembered results small, since refusals are large and rare.
pub(crate) type ItemResult = Result<Released, Box<Refusal>>;

/// One allocation of a `FreeBatch` or `Detach`.
#[derive(Debug)]
pub(crate) struct ReleaseItem {
    pub(crate) allocation: AllocationId,
    /// `None` until it is known.
    pub(crate) result: Option<ItemResult>,
}

/// The items in the order of the request. A binary search finds the item of a result.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    items: Vec<ReleaseItem>,
    /// Indices into `items`, in the order of the ids.
    by_id: Vec<usize>,
    open: usize,
}

impl Releases {
    pub(crate) fn new(items: Vec<ReleaseItem>) -> Self {
        let open = items.iter().filter(|item| item.result.is_none()).count();
        let mut by_id: Vec<_> = (0..items.len()).collect();
        by_id.sort_unstable_by_key(|at| items.get(*at).map(|item| item.allocation));
        Self { items, by_id, open }
    }

    /// Whether all results are known.
    pub(crate) const fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// Sets the result of an allocation, wherever the request named it.
    pub(crate) fn resolve(&mut self, id: AllocationId, released: Released) {
        let Self { items, by_id, open } = self;
        let of = |at: &usize| items.get(*at).map(|item| item.allocation);
        let first = by_id.partition_point(|at| of(at) < Some(id));
        let same = by_id.iter().skip(first).take_while(|at| of(at) == Some(id)).count();
        for at in by_id.iter().skip(first).take(same) {
            if let Some(item) = items.get_mut(*at).filter(|item| item.result.is_none()) {
                item.result = Some(Ok(released));
                *open = open.saturating_sub(1);
            }
        }
    }

    /// Returns the results in the order of the request.
    pub(crate) fn into_results(self) -> Box<[(AllocationId, ItemResult)]> {
        let mut results = Vec::with_capacity(self.items.len());
        results.extend(self.items.into_iter().filter_map(|item| Some((item.allocation, item.result?))));
        results.into_boxed_slice()
    }
}

impl Deref for Releases {
    type Target = [ReleaseItem];

    fn deref(&self) -> &[ReleaseItem] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::Bytes;

    use super::*;

    #[test]
    fn release_item_named_twice_is_resolved_twice() {
        let ids = [5, 3, 9, 3].map(AllocationId::from_raw);
        let refused = Some(Err(Box::new(Refusal::NotOwner { allocation: ids[2] })));
        let item =
            |at: usize| ReleaseItem { allocation: ids[at], result: refused.clone().filter(|_| at == 2) };
        let mut releases = Releases::new((0..4).map(item).collect());
        let gone = Released { still_charged: Bytes::ZERO, mappers: 0 };
        for (id, complete) in
            [(ids[2], false), (AllocationId::from_raw(4), false), (ids[1], false), (ids[0], true)]
        {
            releases.resolve(id, gone);
            assert_eq!(releases.is_complete(), complete);
        }
        let results = releases.into_results();
        assert!(results.iter().map(|(id, _)| *id).eq(ids));
        assert_eq!(results.iter().filter(|(_, result)| result.is_ok()).count(), 3);
    }
}
