//! What of a device's memory is whose, as far as its own figures tell. Pure: no driver calls.
//!
//! CUDA does not say who holds an extent that was released. What it says is how much of the device is taken in all.
//! So an extent that did not come back at its release is *awaited*, and each later look compares what others hold
//! with what they held before:
//!
//! ```text
//!  used by all ─ our live extents ─ our context ─ others' contexts  =  others
//!  others  =  outsiders  +  awaited extents that somebody still holds
//! ```
//!
//! Where `others` has grown, outsiders took memory. Where it has shrunk, awaited extents are taken to have come back,
//! the oldest first, as far as the drop covers them; what is left of the drop is outsiders' again.
//!
//! One look is not enough for that. The list of processes and the figure of the device are read one after the other,
//! and while a process loses its context they do not fit: it is listed still, and what it had is gone, so that for a
//! moment hundreds of MiB are missing. Nor is a client's context quite as large as ours, by which we know contexts, and
//! a small extent is no larger than the difference. So a return is concluded only where all looks of [`LASTS`] agree on
//! it, against the same figure from before. It is time that decides and not a number of looks: two processes that end
//! together bring two looks within a millisecond, which see the same moment.
//!
//! Until then the extent is charged to its tenants, and what outsiders hold is counted as if it were back: together
//! never less than what is taken.
//!
//! Nor must anything of ours grow in nobody's name while an extent is awaited: it would look as if that were held. Two such
//! things were found, and are explained: what contexts grow by (`contexts`), and page tables for memory of the host (`device`). For what is
//! left: an extent that is larger than all that others hold is held by nobody.
//!
//! Its limit: what an outsider gives up for good, or a context that was larger than ours, looks like the return of an
//! extent of about that size. Then a tenant is discharged early and the bytes count as outsiders', so that nothing is
//! handed out twice; the other choice, to wait until even outsiders have left, would charge tenants for ever.

use std::time::{Duration, Instant};

use vramd_types::{Bytes, ExtentId, GRANULARITY};

use crate::cuda::device::memory::Trace;

/// How long an extent must be seen to be back before it is taken to be. Contexts go in tens of milliseconds.
pub(crate) const CONFIRM_AFTER: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Of extents that were made and not released.
    live: Bytes,
    awaited: Vec<Awaited>,
    /// As of the latest look.
    other_programs: Bytes,
    /// As of the latest look that left nothing for a later one to confirm: a drop is counted from here.
    baseline: Bytes,
    /// Those that every look since some time has found to be back, and a later one may confirm.
    unconfirmed: Vec<(ExtentId, Instant)>,
    /// Goes up with every change of the books, so that a figure can be told to be of the same ones.
    changes: u64,
    /// Releases under way whose end can't be told yet: no conclusions meanwhile.
    releases_in_flight: u32,
}

#[derive(Debug)]
struct Awaited {
    extent: ExtentId,
    size: Bytes,
    trace: Trace,
}

impl Accounts {
    pub(crate) fn live(&self) -> Bytes {
        self.live
    }

    /// `None` while a release is under way: what the device is said to have then may be of before or after it.
    pub(crate) fn revision(&self) -> Option<u64> {
        (self.releases_in_flight == 0).then_some(self.changes)
    }

    pub(crate) fn enter(&mut self, size: Bytes) {
        self.changes += 1;
        self.live = self.live.saturating_add(size);
    }

    /// What was entered and then not made after all.
    pub(crate) fn withdraw(&mut self, size: Bytes) {
        self.changes += 1;
        self.live = self.live.saturating_sub(size);
    }

    /// From live to awaited.
    pub(crate) fn retire(&mut self, extent: ExtentId, size: Bytes, trace: Trace) {
        self.withdraw(size);
        self.awaited.push(Awaited { extent, size, trace });
    }

    /// An awaited one is back.
    pub(crate) fn mark_returned(&mut self, extent: ExtentId) {
        self.awaited.retain(|it| it.extent != extent);
    }

    /// Of awaited extents that this process itself still holds, by the caller's clone of a descriptor or a digest.
    pub(crate) fn held_by_daemon(&self) -> Bytes {
        sum(self.awaited.iter().filter(|it| it.trace.is_alive()).map(|it| it.size))
    }

    /// The smallest that somebody else may hold.
    pub(crate) fn smallest_awaited(&self) -> Option<Bytes> {
        self.awaited.iter().filter(|it| !it.trace.is_alive()).map(|it| it.size).min()
    }

    pub(crate) fn begin_release(&mut self) {
        self.changes += 1;
        self.releases_in_flight += 1;
    }

    pub(crate) fn end_release(&mut self) {
        self.releases_in_flight -= 1;
    }

    /// Takes the figure of a look at this moment, and returns the extents that have come back.
    pub(crate) fn apply_survey(&mut self, now: Instant, others: Bytes) -> Vec<ExtentId> {
        if self.releases_in_flight > 0 {
            return Vec::new();
        }
        let seen =
            self.find_returned(others).into_iter().map(|extent| (extent, self.seen_since(extent, now)));
        let (returned, unconfirmed): (Vec<_>, Vec<_>) =
            seen.partition(|(_, since)| now.saturating_duration_since(*since) >= CONFIRM_AFTER);
        let returned: Vec<ExtentId> = returned.into_iter().map(|(extent, _)| extent).collect();
        self.unconfirmed = unconfirmed;
        self.awaited.retain(|it| !returned.contains(&it.extent));
        self.other_programs = others.saturating_sub(self.still_awaited_bytes());
        if self.unconfirmed.is_empty() {
            self.baseline = self.other_programs;
        }
        returned
    }

    /// Whether a look is wanted that confirms what the latest one found.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// The extents that what others hold has no room for, as far as one look tells.
    fn find_returned(&self, others: Bytes) -> Vec<ExtentId> {
        let free = || self.awaited.iter().filter(|it| !it.trace.is_alive()).map(|it| (it.extent, it.size));
        let mut drop = self.baseline.saturating_add(self.awaited_bytes()).saturating_sub(others);
        let mut back = explained_by(free(), &mut drop);
        // Of the rest the newest are taken to be held, as many as there is room for. Figures are never quite still.
        let mut room = others.saturating_sub(self.held_by_daemon()).saturating_add(GRANULARITY);
        let rest: Vec<_> = free().filter(|(extent, _)| !back.contains(extent)).collect();
        for (extent, size) in rest.into_iter().rev() {
            match room.checked_sub(size) {
                Some(left) => room = left,
                None => back.push(extent),
            }
        }
        back
    }

    fn seen_since(&self, extent: ExtentId, now: Instant) -> Instant {
        self.unconfirmed.iter().find(|(seen, _)| *seen == extent).map_or(now, |(_, since)| *since)
    }

    /// Awaited extents that the latest look did not find to be back.
    fn still_awaited_bytes(&self) -> Bytes {
        let is_back = |extent| self.unconfirmed.iter().any(|(seen, _)| *seen == extent);
        sum(self.awaited.iter().filter(|it| !is_back(it.extent)).map(|it| it.size))
    }

    fn awaited_bytes(&self) -> Bytes {
        sum(self.awaited.iter().map(|it| it.size))
    }

    /// As of the latest look.
    pub(crate) fn other_programs(&self) -> Bytes {
        self.other_programs
    }
}

/// Of the extents those that a drop explains, in their order.
pub(crate) fn explained_by(
    extents: impl Iterator<Item = (ExtentId, Bytes)>,
    drop: &mut Bytes,
) -> Vec<ExtentId> {
    let mut explained_by = Vec::new();
    for (extent, size) in extents {
        if explains_return(*drop, size) {
            *drop = drop.saturating_sub(size);
            explained_by.push(extent);
        }
    }
    explained_by
}

/// Figures are never quite still, so three quarters of an extent explain it.
pub(crate) fn explains_return(drop: Bytes, size: Bytes) -> bool {
    drop >= Bytes::new(size.get() - size.get() / 4)
}

pub(crate) fn sum(sizes: impl Iterator<Item = Bytes>) -> Bytes {
    sizes.fold(Bytes::ZERO, Bytes::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: u64) -> ExtentId {
        ExtentId::from_raw(raw)
    }

    /// Its looks are at the times that it says.
    struct Surveys {
        accounts: Accounts,
        now: Instant,
    }

    impl Surveys {
        fn after(&mut self, time: Duration, others: Bytes) -> Vec<ExtentId> {
            self.now += time;
            self.accounts.apply_survey(self.now, others)
        }

        /// Two looks that see the same: the first concludes nothing.
        fn twice(&mut self, others: Bytes) -> Vec<ExtentId> {
            assert_eq!(self.after(CONFIRM_AFTER, others), [], "one look is not enough");
            self.after(CONFIRM_AFTER, others)
        }
    }

    fn accounts(other_programs: Bytes, awaited: &[(u64, Bytes)]) -> Surveys {
        let mut surveys = Surveys { accounts: Accounts::default(), now: Instant::now() };
        assert_eq!(surveys.twice(other_programs), []);
        for (raw, size) in awaited {
            surveys.accounts.enter(*size);
            surveys.accounts.retire(id(*raw), *size, Trace::default());
        }
        surveys
    }

    #[test]
    fn an_extent_stays_awaited_while_a_process_holds_it() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(2))]);
        assert_eq!(surveys.twice(Bytes::mib(2)), []);
        assert_eq!(surveys.accounts.other_programs(), Bytes::ZERO, "it is explained");
        assert_eq!(surveys.twice(Bytes::ZERO), [id(1)]);
        assert_eq!(surveys.twice(Bytes::ZERO), [], "told once");
    }

    #[test]
    fn an_extent_missed_by_one_survey_has_not_returned() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..3 {
            assert_eq!(surveys.after(CONFIRM_AFTER, Bytes::ZERO), [], "a context was listed that had gone");
            assert_eq!(surveys.after(CONFIRM_AFTER, Bytes::mib(64)), [], "the extent is there still");
        }
        assert_eq!(surveys.twice(Bytes::ZERO), [id(1)]);
    }

    /// As when two sessions end together: the looks are many, and all of the same moment.
    #[test]
    fn an_extent_missed_by_surveys_of_one_moment_has_not_returned() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..10 {
            assert_eq!(surveys.after(CONFIRM_AFTER / 11, Bytes::ZERO), [], "seen for less than it must last");
        }
        assert_eq!(surveys.after(CONFIRM_AFTER / 11, Bytes::mib(64)), [], "the extent is there still");
        assert!(!surveys.accounts.has_unconfirmed());
        assert_eq!(
            surveys.after(CONFIRM_AFTER, Bytes::ZERO),
            [],
            "and what was seen before no longer counts"
        );
    }

    #[test]
    fn surveys_in_between_do_not_delay_a_return() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..4 {
            assert_eq!(surveys.after(CONFIRM_AFTER / 4, Bytes::ZERO), []);
            assert!(surveys.accounts.has_unconfirmed());
        }
        assert_eq!(surveys.after(CONFIRM_AFTER / 4, Bytes::ZERO), [id(1)]);
        assert!(!surveys.accounts.has_unconfirmed());
    }

    /// Its bytes are charged to its tenants, and none of them is anybody else's meanwhile.
    #[test]
    fn other_programs_keep_their_bytes_until_a_return_is_confirmed() {
        let mut surveys = accounts(Bytes::gib(20), &[(1, Bytes::mib(256)), (2, Bytes::mib(2))]);
        let others = Bytes::gib(20).saturating_add(Bytes::mib(2));
        assert_eq!(surveys.after(CONFIRM_AFTER, others), []);
        assert_eq!(surveys.accounts.other_programs(), Bytes::gib(20));
        assert_eq!(surveys.after(CONFIRM_AFTER, others), [id(1)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::gib(20), "the same as before it was told");
    }

    #[test]
    fn other_programs_do_not_hide_a_return() {
        let mut surveys = accounts(Bytes::gib(20), &[(1, Bytes::mib(256))]);
        assert_eq!(surveys.after(CONFIRM_AFTER, Bytes::gib(20).saturating_add(Bytes::mib(256))), []);
        assert_eq!(surveys.twice(Bytes::gib(20)), [id(1)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::gib(20));
    }

    /// A process that loses its context while it is still listed: for a moment less is taken than contexts explain.
    #[test]
    fn a_moment_that_explains_all_memory_hides_no_return() {
        let mut surveys = accounts(Bytes::mib(40), &[]);
        assert_eq!(surveys.after(CONFIRM_AFTER, Bytes::ZERO), [], "hundreds of MiB are missing");
        surveys.accounts.enter(Bytes::mib(64));
        surveys.accounts.retire(id(1), Bytes::mib(64), Trace::default());
        assert_eq!(surveys.twice(Bytes::mib(40)), [id(1)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::mib(40));
    }

    /// As of the context of who holds it, which is larger than ours.
    #[test]
    fn growth_of_a_holder_hides_no_return() {
        let mut surveys = accounts(Bytes::mib(10), &[(1, Bytes::mib(2))]);
        assert_eq!(
            surveys.after(CONFIRM_AFTER / 2, Bytes::mib(20)),
            [],
            "it is held, and 8 MiB more are taken"
        );
        assert_eq!(surveys.twice(Bytes::mib(18)), [id(1)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::mib(18));
    }

    /// However little was known of outsiders when it was released.
    #[test]
    fn an_extent_larger_than_all_held_memory_has_returned() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(64)), (2, Bytes::mib(64))]);
        assert_eq!(surveys.twice(Bytes::mib(126)), [], "both may be held");
        assert_eq!(surveys.twice(Bytes::mib(125)), [id(1)], "something of ours has grown by 61 MiB");
        let mut surveys = accounts(Bytes::ZERO, &[(2, Bytes::mib(64))]);
        assert_eq!(surveys.twice(Bytes::mib(62)), [], "it may be held");
        assert_eq!(surveys.twice(Bytes::mib(61)), [id(2)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::mib(61));
    }

    #[test]
    fn growth_of_another_program_is_its_own() {
        let mut surveys = accounts(Bytes::mib(10), &[(1, Bytes::mib(256))]);
        assert_eq!(surveys.twice(Bytes::mib(766)), []);
        assert_eq!(surveys.accounts.other_programs(), Bytes::mib(510));
        assert_eq!(surveys.twice(Bytes::mib(700)), [], "66 MiB less are no 256");
        assert_eq!(surveys.accounts.other_programs(), Bytes::mib(444));
        assert_eq!(surveys.twice(Bytes::mib(510)), [], "190 MiB less are none either");
    }

    #[test]
    fn a_drop_returns_the_oldest_extents_first() {
        let mut surveys =
            accounts(Bytes::ZERO, &[(1, Bytes::mib(64)), (2, Bytes::mib(64)), (3, Bytes::mib(2))]);
        assert_eq!(surveys.twice(Bytes::mib(64)), [id(1), id(3)]);
        assert_eq!(surveys.twice(Bytes::ZERO), [id(2)]);
    }

    #[test]
    fn no_return_is_concluded_during_a_release() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        surveys.accounts.begin_release();
        assert_eq!(surveys.accounts.revision(), None);
        assert_eq!(surveys.twice(Bytes::ZERO), []);
        surveys.accounts.end_release();
        assert!(surveys.accounts.revision().is_some());
        assert_eq!(surveys.twice(Bytes::ZERO), [id(1)]);
    }

    #[test]
    fn live_memory_is_entered_and_retired() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(4))]);
        let before = surveys.accounts.revision();
        surveys.accounts.enter(Bytes::mib(2));
        assert_eq!(surveys.accounts.live(), Bytes::mib(2));
        surveys.accounts.withdraw(Bytes::mib(2));
        assert_ne!(surveys.accounts.revision(), before, "the same sum is not the same state");
        surveys.accounts.mark_returned(id(1));
        assert_eq!(surveys.twice(Bytes::mib(1)), []);
        assert_eq!(
            (surveys.accounts.other_programs(), surveys.accounts.held_by_daemon()),
            (Bytes::mib(1), Bytes::ZERO)
        );
    }
}
