//! Tells contexts from other memory of a process. Pure: no driver calls.
//!
//! An extent is charged to this process as long as it has the VMM handle or its descriptor. After that it is
//! charged in full to a process that still maps it, on top of that process's context. But contexts grow too,
//! with what is done there. So the memory of a process while nothing was awaited is its context. If it has
//! grown since by enough for an awaited extent, the extent is taken as held there; if by less, the context has
//! grown.
//!
//! A process that has only the descriptor of an extent is charged nothing: the device's use is then larger than what
//! the list adds up to. Page tables for host memory look the same. They come in pieces of 2 MiB, one for each GiB,
//! and hide the return of an extent of that size from the device's own figure. So the list tells how much can be held
//! ([`Contexts::held_max`]).

use std::collections::BTreeMap;

use vramd_types::{Bytes, GRANULARITY};

use crate::cuda::device::accounts::explains_return;

/// How much the use that no process explains may grow or shrink without a cause of its own: the page tables for host
/// memory are known but for one piece at either time.
const UNLISTED_VARIES: Bytes = Bytes::new(2 * GRANULARITY.get());

/// The list of processes, as it was while nothing was awaited.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    /// By process, its memory.
    of: BTreeMap<u32, Bytes>,
    /// Use that neither a listed process nor a page table for host memory explains.
    unlisted: Bytes,
}

impl Contexts {
    /// Records the contexts. No awaited extent may be held by another process now.
    pub(crate) fn learn(&mut self, processes: &[(u32, Bytes)], unlisted: Bytes) {
        *self = Self { of: processes.iter().copied().collect(), unlisted };
    }

    /// The most that awaited extents can have in use: what these other processes have gained since nothing was awaited,
    /// and what no process explains. `None` if a process was not there then.
    pub(crate) fn held_max(
        &self,
        mut others: impl Iterator<Item = (u32, Bytes)>,
        unlisted: Bytes,
    ) -> Option<Bytes> {
        let listed = others.try_fold(Bytes::ZERO, |all, (pid, used)| {
            Some(all.saturating_add(used.saturating_sub(*self.of.get(&pid)?)))
        });
        let unlisted = unlisted.saturating_sub(self.unlisted.saturating_add(UNLISTED_VARIES));
        listed.map(|listed| listed.saturating_add(unlisted))
    }

    /// The context of a process with so much memory. No context is larger than `max`; beyond that the process
    /// has memory of its own. `smallest` is the smallest awaited extent.
    pub(crate) fn size_of(&self, (pid, used): (u32, Bytes), max: Bytes, smallest: Option<Bytes>) -> Bytes {
        let now = used.min(max);
        let before = self.of.get(&pid).map_or(now, |before| (*before).min(now));
        let may_hold = |smallest| explains_return(now.saturating_sub(before), smallest);
        if smallest.is_some_and(may_hold) { before } else { now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Bytes = Bytes::mib(540);
    const PID: u32 = 7;

    fn of(contexts: &Contexts, used: u32, smallest: Option<u32>) -> Bytes {
        contexts.size_of((PID, Bytes::mib(used)), MAX, smallest.map(Bytes::mib))
    }

    fn known(used: u32) -> Contexts {
        let mut contexts = Contexts::default();
        contexts.learn(&[(PID, Bytes::mib(used))], Bytes::mib(500));
        contexts
    }

    /// As seen on an H200: 532 MiB became 534 when a mapped extent of 2 MiB was released.
    #[test]
    fn growth_as_large_as_an_awaited_extent_is_that_extent() {
        let contexts = known(532);
        assert_eq!(of(&contexts, 534, Some(2)), Bytes::mib(532));
        assert_eq!(of(&contexts, 532, Some(2)), Bytes::mib(532));
        assert_eq!(of(&contexts, 534, None), Bytes::mib(534), "nothing is awaited");
    }

    #[test]
    fn growth_that_no_awaited_extent_explains_is_the_context() {
        let contexts = known(520);
        assert_eq!(of(&contexts, 528, Some(64)), Bytes::mib(528));
        assert_eq!(of(&contexts, 600, Some(64)), MAX, "beyond that it is memory of its own");
    }

    /// As measured on an H100: an extent of 2 MiB is charged to a process that maps it, and to none that has only its descriptor.
    #[test]
    fn awaited_extents_are_no_more_than_processes_have_gained() {
        let contexts = known(518);
        let held =
            |used, unlisted| contexts.held_max([(PID, Bytes::mib(used))].into_iter(), Bytes::mib(unlisted));
        assert_eq!(held(518, 500), Some(Bytes::ZERO));
        assert_eq!(held(520, 500), Some(Bytes::mib(2)), "it maps one");
        assert_eq!(held(518, 504), Some(Bytes::ZERO), "page tables vary");
        assert_eq!(held(518, 564), Some(Bytes::mib(60)), "descriptors are not closed");
        assert_eq!(held(510, 490), Some(Bytes::ZERO), "memory was given back");
        let new = [(PID, Bytes::mib(518)), (PID + 1, Bytes::mib(518))];
        assert_eq!(contexts.held_max(new.into_iter(), Bytes::mib(500)), None, "its context is not known");
        assert_eq!(contexts.held_max([].into_iter(), Bytes::mib(500)), Some(Bytes::ZERO), "it has ended");
    }

    #[test]
    fn a_new_process_has_no_known_context_size() {
        assert_eq!(of(&Contexts::default(), 530, Some(2)), Bytes::mib(530));
        assert_eq!(of(&known(530), 500, Some(2)), Bytes::mib(500), "it may give something back");
    }

    #[test]
    fn a_process_with_much_memory_has_no_larger_context() {
        let contexts = known(20_000);
        assert_eq!(of(&contexts, 20_000, Some(2)), MAX);
        assert_eq!(of(&contexts, 20_064, Some(64)), MAX);
    }
}
