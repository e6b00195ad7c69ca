//! Tells contexts from other memory of a process. Pure: no driver calls.
//!
//! An extent is charged to this process as long as it has the VMM handle or its descriptor. After that it is
//! charged in full to a process that still maps it, on top of that process's context. But contexts grow too,
//! with what is done there. So the memory of a process while nothing was awaited is its context. If it has
//! grown since by enough for an awaited extent, the extent is taken as held there; if by less, the context has
//! grown.

use std::collections::BTreeMap;

use vramd_types::Bytes;

use crate::cuda::device::accounts::explains_return;

/// By process, its memory while nothing was awaited.
#[derive(Debug, Default)]
pub(crate) struct Contexts(BTreeMap<u32, Bytes>);

impl Contexts {
    /// Records the contexts. No awaited extent may be held by another process now.
    pub(crate) fn learn(&mut self, processes: &[(u32, Bytes)]) {
        self.0 = processes.iter().copied().collect();
    }

    /// The context of a process with so much memory. No context is larger than `max`; beyond that the process
    /// has memory of its own. `smallest` is the smallest awaited extent.
    pub(crate) fn size_of(&self, (pid, used): (u32, Bytes), max: Bytes, smallest: Option<Bytes>) -> Bytes {
        let now = used.min(max);
        let before = self.0.get(&pid).map_or(now, |before| (*before).min(now));
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
        contexts.learn(&[(PID, Bytes::mib(used))]);
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
