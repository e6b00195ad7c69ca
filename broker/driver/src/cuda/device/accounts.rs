//! The accounts of a device's memory, as far as the device's own figures tell. Pure: no driver calls.
//!
//! CUDA does not say which process holds a released extent, only how much of the device is used in all. So an
//! extent that did not return at its release is *awaited*. Each later survey compares what others hold with
//! what they held before:
//!
//! ```text
//!  used by all ─ our live extents ─ our context ─ others' contexts  =  others
//!  others  =  other programs  +  awaited extents that some process still holds
//! ```
//!
//! If `others` has grown, other programs took memory. If it has shrunk, the accounts take awaited extents as
//! returned, the oldest first, as far as the drop covers them. The rest of the drop belongs to other programs.
//!
//! One survey is not enough for that:
//! - The list of processes and the figure of the device are read one after the other, and disagree while a
//!   process loses its context. The process is still listed, but its memory is gone, so that for a moment
//!   hundreds of MiB are missing.
//! - A client's context is not quite as large as the daemon's, which serves as the measure of contexts. A small
//!   extent is no larger than the difference.
//!
//! So a return is concluded only if all surveys during [`CONFIRM_AFTER`] agree on it, against the same earlier
//! figure. Time decides and not the number of surveys: two processes that end together cause two surveys within
//! a millisecond, which see the same moment.
//!
//! Until then the extent stays charged to its tenants, and the figure of other programs is computed as if it
//! had returned. The sum is never less than what is used.
//!
//! The daemon's own use must not grow unnoticed while an extent is awaited: the growth would look as if the
//! extent were held. Two causes are known and explained: the growth of contexts (`contexts`), and page tables
//! for host memory (`device`). For any other growth: an extent that is larger than all that others hold is not
//! held, nor is one that is larger than what the list of processes leaves for it (`contexts`).
//!
//! Its limit: memory that another program frees for good, or a context larger than the daemon's, looks like the
//! return of an extent of about that size. Then a tenant is discharged early and the bytes count as other
//! programs', so that nothing is handed out twice. The alternative, to wait until other programs have left,
//! would charge tenants forever.

use std::time::{Duration, Instant};

use vramd_types::{Bytes, ExtentId, GRANULARITY};

use crate::cuda::device::memory::Trace;

/// How long an extent must look returned before it counts as returned. Contexts disappear in tens of
/// milliseconds.
pub(crate) const CONFIRM_AFTER: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Extents that were created and not released.
    live: Bytes,
    awaited: Vec<Awaited>,
    /// As of the latest survey.
    other_programs: Bytes,
    /// The figure of others in the latest survey that left nothing to confirm. Drops are counted from here.
    baseline: Bytes,
    /// Extents that every survey since that time has found returned, and a later one may confirm.
    unconfirmed: Vec<(ExtentId, Instant)>,
    /// Counts changes of the accounts, so that a figure can be matched with them.
    changes: u64,
    /// Releases in flight whose outcome is open. No return is concluded meanwhile.
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

    /// The revision of the accounts. `None` during a release: the figures of the device may be from before or
    /// after it.
    pub(crate) fn revision(&self) -> Option<u64> {
        (self.releases_in_flight == 0).then_some(self.changes)
    }

    pub(crate) fn enter(&mut self, size: Bytes) {
        self.changes += 1;
        self.live = self.live.saturating_add(size);
    }

    /// Takes back an entered extent that was not created after all.
    pub(crate) fn withdraw(&mut self, size: Bytes) {
        self.changes += 1;
        self.live = self.live.saturating_sub(size);
    }

    /// Moves an extent from live to awaited.
    pub(crate) fn retire(&mut self, extent: ExtentId, size: Bytes, trace: Trace) {
        self.withdraw(size);
        self.awaited.push(Awaited { extent, size, trace });
    }

    /// An awaited extent has returned.
    pub(crate) fn mark_returned(&mut self, extent: ExtentId) {
        self.awaited.retain(|it| it.extent != extent);
    }

    /// Awaited extents that this process itself still holds, through the caller's clone of a descriptor or a
    /// digest.
    pub(crate) fn held_by_daemon(&self) -> Bytes {
        sum(self.awaited.iter().filter(|it| it.trace.is_alive()).map(|it| it.size))
    }

    /// The smallest awaited extent that another process may hold.
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

    /// Applies the figure of a survey at this moment, and returns the extents that have returned.
    /// `held_max` is the most that awaited extents can have in use, if the list of processes tells.
    pub(crate) fn apply_survey(
        &mut self,
        now: Instant,
        others: Bytes,
        held_max: Option<Bytes>,
    ) -> Vec<ExtentId> {
        if self.releases_in_flight > 0 {
            return Vec::new();
        }
        let seen = self
            .find_returned(others, held_max)
            .into_iter()
            .map(|extent| (extent, self.unconfirmed_since(extent, now)));
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

    /// Whether another survey should confirm the latest one.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// The extents that no longer fit into what others hold, as far as one survey tells.
    fn find_returned(&self, others: Bytes, held_max: Option<Bytes>) -> Vec<ExtentId> {
        let free = || self.awaited.iter().filter(|it| !it.trace.is_alive()).map(|it| (it.extent, it.size));
        let mut drop = self.baseline.saturating_add(self.awaited_bytes()).saturating_sub(others);
        let mut back = explained_by(free(), &mut drop);
        // Of the rest, the newest count as held, as many as fit. Figures always vary a little.
        let mut room = others.saturating_sub(self.held_by_daemon()).saturating_add(GRANULARITY);
        let rest: Vec<_> = free().filter(|(extent, _)| !back.contains(extent)).collect();
        let mut listed = held_max;
        for (extent, size) in rest.into_iter().rev() {
            match room.checked_sub(size) {
                Some(left) if listed.is_none_or(|listed| explains_return(listed, size)) => {
                    room = left;
                    listed = listed.map(|listed| listed.saturating_sub(size));
                }
                _ => back.push(extent),
            }
        }
        back
    }

    fn unconfirmed_since(&self, extent: ExtentId, now: Instant) -> Instant {
        self.unconfirmed.iter().find(|(seen, _)| *seen == extent).map_or(now, |(_, since)| *since)
    }

    /// Awaited extents that the latest survey did not find returned.
    fn still_awaited_bytes(&self) -> Bytes {
        let is_back = |extent| self.unconfirmed.iter().any(|(seen, _)| *seen == extent);
        sum(self.awaited.iter().filter(|it| !is_back(it.extent)).map(|it| it.size))
    }

    fn awaited_bytes(&self) -> Bytes {
        sum(self.awaited.iter().map(|it| it.size))
    }

    /// As of the latest survey.
    pub(crate) fn other_programs(&self) -> Bytes {
        self.other_programs
    }
}

/// The extents that a drop explains, in their order.
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

/// Figures always vary a little, so three quarters of an extent explain it.
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

    /// Surveys at chosen times.
    struct Surveys {
        accounts: Accounts,
        now: Instant,
    }

    impl Surveys {
        fn after(&mut self, time: Duration, others: Bytes) -> Vec<ExtentId> {
            self.now += time;
            self.accounts.apply_survey(self.now, others, None)
        }

        /// Two equal surveys with a list of processes that leaves so much for awaited extents.
        fn twice_with_list(&mut self, others: Bytes, held_max: Bytes) -> Vec<ExtentId> {
            self.now += CONFIRM_AFTER;
            assert_eq!(self.accounts.apply_survey(self.now, others, Some(held_max)), []);
            self.now += CONFIRM_AFTER;
            self.accounts.apply_survey(self.now, others, Some(held_max))
        }

        /// Two equal surveys: the first concludes nothing.
        fn twice(&mut self, others: Bytes) -> Vec<ExtentId> {
            assert_eq!(self.after(CONFIRM_AFTER, others), [], "one survey is not enough");
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
        assert_eq!(surveys.twice(Bytes::ZERO), [], "reported once");
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

    /// As when two sessions end together: many surveys, all of the same moment.
    #[test]
    fn an_extent_missed_by_surveys_of_one_moment_has_not_returned() {
        let mut surveys = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..10 {
            assert_eq!(surveys.after(CONFIRM_AFTER / 11, Bytes::ZERO), [], "seen for less than it must last");
        }
        assert_eq!(surveys.after(CONFIRM_AFTER / 11, Bytes::mib(64)), [], "the extent is there still");
        assert!(!surveys.accounts.has_unconfirmed());
        assert_eq!(surveys.after(CONFIRM_AFTER, Bytes::ZERO), [], "earlier surveys do not count any more");
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

    /// Its bytes are charged to its tenants, and to no other program meanwhile.
    #[test]
    fn other_programs_keep_their_bytes_until_a_return_is_confirmed() {
        let mut surveys = accounts(Bytes::gib(20), &[(1, Bytes::mib(256)), (2, Bytes::mib(2))]);
        let others = Bytes::gib(20).saturating_add(Bytes::mib(2));
        assert_eq!(surveys.after(CONFIRM_AFTER, others), []);
        assert_eq!(surveys.accounts.other_programs(), Bytes::gib(20));
        assert_eq!(surveys.after(CONFIRM_AFTER, others), [id(1)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::gib(20), "the same as before the report");
    }

    #[test]
    fn other_programs_do_not_hide_a_return() {
        let mut surveys = accounts(Bytes::gib(20), &[(1, Bytes::mib(256))]);
        assert_eq!(surveys.after(CONFIRM_AFTER, Bytes::gib(20).saturating_add(Bytes::mib(256))), []);
        assert_eq!(surveys.twice(Bytes::gib(20)), [id(1)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::gib(20));
    }

    /// A process loses its context while it is still listed: for a moment less is used than contexts explain.
    #[test]
    fn a_moment_that_explains_all_memory_hides_no_return() {
        let mut surveys = accounts(Bytes::mib(40), &[]);
        assert_eq!(surveys.after(CONFIRM_AFTER, Bytes::ZERO), [], "hundreds of MiB are missing");
        surveys.accounts.enter(Bytes::mib(64));
        surveys.accounts.retire(id(1), Bytes::mib(64), Trace::default());
        assert_eq!(surveys.twice(Bytes::mib(40)), [id(1)]);
        assert_eq!(surveys.accounts.other_programs(), Bytes::mib(40));
    }

    /// As with a holder whose context is larger than the daemon's.
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

    /// However little was known of other programs at the release.
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

    /// As with page tables for host memory that came in the moment of the release.
    #[test]
    fn growth_that_no_process_has_hides_no_return() {
        let awaited = [(1, Bytes::mib(2)), (2, Bytes::mib(2)), (3, Bytes::mib(64))];
        let mut surveys = accounts(Bytes::mib(9), &awaited);
        let others = Bytes::mib(9 + 68 + 8);
        assert_eq!(surveys.twice(others), [], "without a list all may be held");
        assert_eq!(surveys.twice_with_list(others, Bytes::mib(68)), [], "with one that explains them too");
        assert_eq!(
            surveys.twice_with_list(others, Bytes::mib(64)),
            [id(2), id(1)],
            "one process has 64 MiB more"
        );
        assert_eq!(surveys.accounts.other_programs(), Bytes::mib(9 + 12), "nothing is handed out twice");
        assert_eq!(surveys.twice_with_list(others, Bytes::ZERO), [id(3)]);
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
