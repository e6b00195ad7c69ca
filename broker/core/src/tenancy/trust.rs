//! Trust: which sessions the daemon expects to unmap soon, by what they did last.
//!
//! All sessions are trusted until one is silent because it did not answer in time. From then on the daemon trusts a
//! session that has unmapped something since. The others are in doubt, and the sessions of the silent session's process
//! most: each may be silent too, and would cost a waiter an unmap deadline.
//!
//! Silences are counted rather than timed, so that a session that answers in the same moment counts as later. Doubt
//! ends when no process is left that had a silent session.

use std::{
    collections::{BTreeMap, VecDeque},
    iter,
};

/// The evidence against a session, from none to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// It has unmapped something since the last silence.
    Nothing,
    /// The daemon has not heard it unmap anything since the last silence.
    Unproven,
    /// The same, and the silence was in its process.
    Distrusted,
}

impl Doubt {
    /// Returns the items in the order of the doubt about them, and else in their own. Each is read once: items in doubt
    /// are kept aside until all others have been returned.
    pub(crate) fn order<T>(
        items: impl Iterator<Item = T>,
        doubt: impl Fn(&T) -> Self,
    ) -> impl Iterator<Item = T> {
        let mut items = items.fuse();
        let (mut unproven, mut distrusted) = (VecDeque::new(), VecDeque::new());
        iter::from_fn(move || {
            for item in items.by_ref() {
                match doubt(&item) {
                    Self::Nothing => return Some(item),
                    Self::Unproven => unproven.push_back(item),
                    Self::Distrusted => distrusted.push_back(item),
                }
            }
            unproven.pop_front().or_else(|| distrusted.pop_front())
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// How many silences there were, apart from those of sessions that were distrusted already.
    silences: u64,
    /// By process, the number of its last silence. Processes outside the daemon's pid namespace are one.
    processes: BTreeMap<u32, u64>,
}

impl Trust {
    /// Whether no session is in doubt.
    pub(crate) fn is_calm(&self) -> bool {
        self.processes.is_empty()
    }

    /// The number of the last silence. A session that answers now has answered since.
    pub(crate) const fn silences(&self) -> u64 {
        self.silences
    }

    /// The doubt about a session of a process that last answered after that many silences.
    pub(crate) fn doubt(&self, pid: u32, answered: u64) -> Doubt {
        if self.is_calm() || answered == self.silences {
            return Doubt::Nothing;
        }
        match self.processes.get(&pid) {
            Some(silence) if answered < *silence => Doubt::Distrusted,
            _ => Doubt::Unproven,
        }
    }

    /// Records that a session did not answer in time. The silence of a distrusted one tells nothing new.
    pub(crate) fn record_silence(&mut self, pid: u32, answered: u64) {
        if self.doubt(pid, answered) != Doubt::Distrusted {
            self.silences = self.silences.saturating_add(1);
            self.processes.insert(pid, self.silences);
        }
    }

    /// Whether the process had a silent session.
    pub(crate) fn has_silence(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Forgets a process that has no session.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn silence_puts_its_process_and_then_all_others_in_doubt() {
        let (mut trust, never) = (Trust::default(), 0);
        assert_eq!(trust.doubt(7, never), Doubt::Nothing);
        trust.record_silence(7, never);
        assert_eq!((trust.doubt(7, never), trust.doubt(8, never)), (Doubt::Distrusted, Doubt::Unproven));
        let since = trust.silences();
        assert_eq!((trust.doubt(7, since), trust.doubt(8, since)), (Doubt::Nothing, Doubt::Nothing));
        trust.record_silence(7, never);
        assert_eq!(trust.doubt(8, since), Doubt::Nothing, "the process was distrusted already");
        trust.record_silence(8, since);
        assert_eq!((trust.doubt(7, since), trust.doubt(8, since)), (Doubt::Unproven, Doubt::Distrusted));
        trust.forget(7);
        assert!(!trust.is_calm());
        trust.forget(8);
        assert_eq!(trust.doubt(8, never), Doubt::Nothing);
    }

    #[test]
    fn items_in_doubt_come_last_and_each_is_read_once() {
        use Doubt::{Distrusted, Nothing, Unproven};
        let items = [Distrusted, Unproven, Nothing, Distrusted, Nothing, Unproven].into_iter().enumerate();
        let read = Cell::new(0);
        let items = items.inspect(|_| read.set(read.get() + 1));
        let mut ordered = Doubt::order(items, |(_, doubt)| *doubt).map(|(at, _)| at);
        assert_eq!((ordered.next(), read.get()), (Some(2), 3), "no more than needed");
        assert_eq!(ordered.collect::<Vec<_>>(), [4, 1, 5, 0, 3]);
        assert_eq!(read.get(), 6);
    }
}
