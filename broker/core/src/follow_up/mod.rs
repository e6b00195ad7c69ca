//! Follow-up work: what an event makes necessary, beyond what its own handler does.
//!
//! A handler only pushes a [`Fact`] about what it changed. So no handler has to know which calls, revocations or
//! waiters depend on it, and several changes of one part are followed up once. At the end of the event,
//! `handler/follow_up.rs` turns facts into [`Work`] by one table, and does the work in the order of that enum.

mod fact;
mod work;

use std::collections::BTreeSet;

use vramd_types::SessionId;

use crate::command::RevokedPart;

pub(crate) use fact::{Fact, Facts};
pub(crate) use work::Work;

/// The facts of an event, and the work that follows from them.
#[derive(Debug, Default)]
pub(crate) struct FollowUps {
    facts: Facts,
    /// The first work, if there is any that is not in `others`: most events have one or two.
    first: Option<Work>,
    /// Further work, which comes after `first`.
    others: BTreeSet<Work>,
    /// Work for a later event, since this one did enough of its kind.
    postponed: Vec<Work>,
    /// How many evicted mappings were reported in this event.
    evictions: u64,
    /// How many parts had their words asked in this event, to be unmapped in place.
    pub(crate) words_asked: usize,
    /// Whether this event has dropped the hopeless waiters that a plan helps by now.
    pub(crate) are_helped_dropped: bool,
    /// How many parts of calls were ever checked.
    #[cfg(test)]
    pub(crate) parts_checked: usize,
}

impl FollowUps {
    /// Adds a fact.
    pub(crate) fn push(&mut self, fact: Fact) {
        self.facts.push(fact);
    }

    /// Takes the first fact.
    pub(crate) fn take_fact(&mut self) -> Option<Fact> {
        self.facts.take()
    }

    /// Drops a fact that the caller has dealt with.
    pub(crate) fn forget(&mut self, fact: Fact) {
        self.facts.forget(fact);
    }

    /// Counts from zero again, and brings back what was postponed.
    pub(crate) fn begin_event(&mut self) {
        (self.evictions, self.words_asked, self.are_helped_dropped) = (0, 0, false);
        if !self.postponed.is_empty() {
            std::mem::take(&mut self.postponed).into_iter().for_each(|work| self.add(work));
        }
    }

    /// Adds work, unless it is there.
    pub(crate) fn add(&mut self, work: Work) {
        match self.first {
            None if self.others.is_empty() => self.first = Some(work),
            Some(first) if first == work => {}
            Some(first) if work < first => {
                self.others.insert(first);
                self.first = Some(work);
            }
            _ => _ = self.others.insert(work),
        }
    }

    /// Adds a part of which the session has to be told, behind all others.
    pub(crate) fn add_revoke(&mut self, session: SessionId, revoked: RevokedPart) {
        self.add(Work::SendRevoke(session, self.evictions, revoked));
        self.evictions = self.evictions.saturating_add(1);
    }

    pub(crate) fn remove(&mut self, work: &Work) {
        if self.first.as_ref() == Some(work) {
            self.first = None;
        } else {
            self.others.remove(work);
        }
    }

    pub(crate) fn postpone(&mut self, work: Work) {
        self.postponed.push(work);
    }

    /// Takes the work that comes first.
    pub(crate) fn take_first(&mut self) -> Option<Work> {
        self.first.take().or_else(|| self.others.pop_first())
    }

    /// Takes the work that comes first, if it is of a kind.
    pub(crate) fn take_first_if<T>(&mut self, of_kind: impl Fn(&Work) -> Option<T>) -> Option<T> {
        let found = self.first.as_ref().or_else(|| self.others.first()).and_then(of_kind)?;
        self.take_first();
        Some(found)
    }

    #[cfg_attr(not(test), allow(clippy::unused_self, reason = "only tests count"))]
    pub(crate) const fn count_checked(&mut self, parts: usize) {
        #[cfg(test)]
        {
            self.parts_checked += parts;
        }
        #[cfg(not(test))]
        let _ = parts;
    }
}
