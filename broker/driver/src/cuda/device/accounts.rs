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
pub(crate) const LASTS: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Of extents that were made and not released.
    live: Bytes,
    awaited: Vec<Awaited>,
    /// As of the latest look.
    outsiders: Bytes,
    /// As of the latest look that left nothing for a later one to confirm: a drop is counted from here.
    known: Bytes,
    /// Those that every look since some time has found to be back, and a later one may confirm.
    seen_back: Vec<(ExtentId, Instant)>,
    /// Goes up with every change of the books, so that a figure can be told to be of the same ones.
    changes: u64,
    /// Releases under way whose end can't be told yet: no conclusions meanwhile.
    unsettled: u32,
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
    pub(crate) fn state(&self) -> Option<u64> {
        (self.unsettled == 0).then_some(self.changes)
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
    pub(crate) fn forget(&mut self, extent: ExtentId) {
        self.awaited.retain(|it| it.extent != extent);
    }

    /// Of awaited extents that this process itself still holds, by the caller's clone of a descriptor or a digest.
    pub(crate) fn held_here(&self) -> Bytes {
        sum(self.awaited.iter().filter(|it| it.trace.is_alive()).map(|it| it.size))
    }

    /// The smallest that somebody else may hold.
    pub(crate) fn smallest_awaited(&self) -> Option<Bytes> {
        self.awaited.iter().filter(|it| !it.trace.is_alive()).map(|it| it.size).min()
    }

    pub(crate) fn begin_release(&mut self) {
        self.changes += 1;
        self.unsettled += 1;
    }

    pub(crate) fn end_release(&mut self) {
        self.unsettled -= 1;
    }

    /// Takes the figure of a look at this moment, and returns the extents that have come back.
    pub(crate) fn settle(&mut self, now: Instant, others: Bytes) -> Vec<ExtentId> {
        if self.unsettled > 0 {
            return Vec::new();
        }
        let seen = self.back(others).into_iter().map(|extent| (extent, self.seen_since(extent, now)));
        let (returned, seen_back): (Vec<_>, Vec<_>) =
            seen.partition(|(_, since)| now.saturating_duration_since(*since) >= LASTS);
        let returned: Vec<ExtentId> = returned.into_iter().map(|(extent, _)| extent).collect();
        self.seen_back = seen_back;
        self.awaited.retain(|it| !returned.contains(&it.extent));
        self.outsiders = others.saturating_sub(self.missed());
        if self.seen_back.is_empty() {
            self.known = self.outsiders;
        }
        returned
    }

    /// Whether a look is wanted that confirms what the latest one found.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        !self.seen_back.is_empty()
    }

    /// The extents that what others hold has no room for, as far as one look tells.
    fn back(&self, others: Bytes) -> Vec<ExtentId> {
        let free = || self.awaited.iter().filter(|it| !it.trace.is_alive()).map(|it| (it.extent, it.size));
        let mut drop = self.known.saturating_add(self.awaited()).saturating_sub(others);
        let mut back = covered(free(), &mut drop);
        // Of the rest the newest are taken to be held, as many as there is room for. Figures are never quite still.
        let mut room = others.saturating_sub(self.held_here()).saturating_add(GRANULARITY);
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
        self.seen_back.iter().find(|(seen, _)| *seen == extent).map_or(now, |(_, since)| *since)
    }

    /// Awaited extents that the latest look did not find to be back.
    fn missed(&self) -> Bytes {
        let is_back = |extent| self.seen_back.iter().any(|(seen, _)| *seen == extent);
        sum(self.awaited.iter().filter(|it| !is_back(it.extent)).map(|it| it.size))
    }

    fn awaited(&self) -> Bytes {
        sum(self.awaited.iter().map(|it| it.size))
    }

    /// As of the latest look.
    pub(crate) fn outsiders(&self) -> Bytes {
        self.outsiders
    }
}

/// Of the extents those that a drop explains, in their order.
pub(crate) fn covered(extents: impl Iterator<Item = (ExtentId, Bytes)>, drop: &mut Bytes) -> Vec<ExtentId> {
    let mut covered = Vec::new();
    for (extent, size) in extents {
        if explains(*drop, size) {
            *drop = drop.saturating_sub(size);
            covered.push(extent);
        }
    }
    covered
}

/// Figures are never quite still, so three quarters of an extent explain it.
pub(crate) fn explains(drop: Bytes, size: Bytes) -> bool {
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
    struct Looks {
        accounts: Accounts,
        now: Instant,
    }

    impl Looks {
        fn after(&mut self, time: Duration, others: Bytes) -> Vec<ExtentId> {
            self.now += time;
            self.accounts.settle(self.now, others)
        }

        /// Two looks that see the same: the first concludes nothing.
        fn twice(&mut self, others: Bytes) -> Vec<ExtentId> {
            assert_eq!(self.after(LASTS, others), [], "one look is not enough");
            self.after(LASTS, others)
        }
    }

    fn accounts(outsiders: Bytes, awaited: &[(u64, Bytes)]) -> Looks {
        let mut looks = Looks { accounts: Accounts::default(), now: Instant::now() };
        assert_eq!(looks.twice(outsiders), []);
        for (raw, size) in awaited {
            looks.accounts.enter(*size);
            looks.accounts.retire(id(*raw), *size, Trace::default());
        }
        looks
    }

    #[test]
    fn what_is_held_stays_awaited() {
        let mut looks = accounts(Bytes::ZERO, &[(1, Bytes::mib(2))]);
        assert_eq!(looks.twice(Bytes::mib(2)), []);
        assert_eq!(looks.accounts.outsiders(), Bytes::ZERO, "it is explained");
        assert_eq!(looks.twice(Bytes::ZERO), [id(1)]);
        assert_eq!(looks.twice(Bytes::ZERO), [], "told once");
    }

    #[test]
    fn what_one_look_misses_has_not_come_back() {
        let mut looks = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..3 {
            assert_eq!(looks.after(LASTS, Bytes::ZERO), [], "a context was listed that had gone");
            assert_eq!(looks.after(LASTS, Bytes::mib(64)), [], "the extent is there still");
        }
        assert_eq!(looks.twice(Bytes::ZERO), [id(1)]);
    }

    /// As when two sessions end together: the looks are many, and all of the same moment.
    #[test]
    fn what_all_looks_of_a_moment_miss_has_not_come_back() {
        let mut looks = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..10 {
            assert_eq!(looks.after(LASTS / 11, Bytes::ZERO), [], "seen for less than it must last");
        }
        assert_eq!(looks.after(LASTS / 11, Bytes::mib(64)), [], "the extent is there still");
        assert!(!looks.accounts.is_unconfirmed());
        assert_eq!(looks.after(LASTS, Bytes::ZERO), [], "and what was seen before no longer counts");
    }

    #[test]
    fn looks_in_between_do_not_put_a_return_off() {
        let mut looks = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..4 {
            assert_eq!(looks.after(LASTS / 4, Bytes::ZERO), []);
            assert!(looks.accounts.is_unconfirmed());
        }
        assert_eq!(looks.after(LASTS / 4, Bytes::ZERO), [id(1)]);
        assert!(!looks.accounts.is_unconfirmed());
    }

    /// Its bytes are charged to its tenants, and none of them is anybody else's meanwhile.
    #[test]
    fn until_a_return_is_confirmed_outsiders_have_what_they_had() {
        let mut looks = accounts(Bytes::gib(20), &[(1, Bytes::mib(256)), (2, Bytes::mib(2))]);
        let others = Bytes::gib(20).saturating_add(Bytes::mib(2));
        assert_eq!(looks.after(LASTS, others), []);
        assert_eq!(looks.accounts.outsiders(), Bytes::gib(20));
        assert_eq!(looks.after(LASTS, others), [id(1)]);
        assert_eq!(looks.accounts.outsiders(), Bytes::gib(20), "the same as before it was told");
    }

    #[test]
    fn outsiders_do_not_hide_a_return() {
        let mut looks = accounts(Bytes::gib(20), &[(1, Bytes::mib(256))]);
        assert_eq!(looks.after(LASTS, Bytes::gib(20).saturating_add(Bytes::mib(256))), []);
        assert_eq!(looks.twice(Bytes::gib(20)), [id(1)]);
        assert_eq!(looks.accounts.outsiders(), Bytes::gib(20));
    }

    /// A process that loses its context while it is still listed: for a moment less is taken than contexts explain.
    #[test]
    fn a_moment_in_which_all_is_explained_hides_no_return() {
        let mut looks = accounts(Bytes::mib(40), &[]);
        assert_eq!(looks.after(LASTS, Bytes::ZERO), [], "hundreds of MiB are missing");
        looks.accounts.enter(Bytes::mib(64));
        looks.accounts.retire(id(1), Bytes::mib(64), Trace::default());
        assert_eq!(looks.twice(Bytes::mib(40)), [id(1)]);
        assert_eq!(looks.accounts.outsiders(), Bytes::mib(40));
    }

    /// As of the context of who holds it, which is larger than ours.
    #[test]
    fn what_grows_while_it_is_held_hides_no_return() {
        let mut looks = accounts(Bytes::mib(10), &[(1, Bytes::mib(2))]);
        assert_eq!(looks.after(LASTS / 2, Bytes::mib(20)), [], "it is held, and 8 MiB more are taken");
        assert_eq!(looks.twice(Bytes::mib(18)), [id(1)]);
        assert_eq!(looks.accounts.outsiders(), Bytes::mib(18));
    }

    /// However little was known of outsiders when it was released.
    #[test]
    fn what_there_is_no_room_for_is_held_by_nobody() {
        let mut looks = accounts(Bytes::ZERO, &[(1, Bytes::mib(64)), (2, Bytes::mib(64))]);
        assert_eq!(looks.twice(Bytes::mib(126)), [], "both may be held");
        assert_eq!(looks.twice(Bytes::mib(125)), [id(1)], "something of ours has grown by 61 MiB");
        let mut looks = accounts(Bytes::ZERO, &[(2, Bytes::mib(64))]);
        assert_eq!(looks.twice(Bytes::mib(62)), [], "it may be held");
        assert_eq!(looks.twice(Bytes::mib(61)), [id(2)]);
        assert_eq!(looks.accounts.outsiders(), Bytes::mib(61));
    }

    #[test]
    fn an_outsider_s_growth_is_its_own() {
        let mut looks = accounts(Bytes::mib(10), &[(1, Bytes::mib(256))]);
        assert_eq!(looks.twice(Bytes::mib(766)), []);
        assert_eq!(looks.accounts.outsiders(), Bytes::mib(510));
        assert_eq!(looks.twice(Bytes::mib(700)), [], "66 MiB less are no 256");
        assert_eq!(looks.accounts.outsiders(), Bytes::mib(444));
        assert_eq!(looks.twice(Bytes::mib(510)), [], "190 MiB less are none either");
    }

    #[test]
    fn the_oldest_come_first_as_far_as_the_drop_goes() {
        let mut looks =
            accounts(Bytes::ZERO, &[(1, Bytes::mib(64)), (2, Bytes::mib(64)), (3, Bytes::mib(2))]);
        assert_eq!(looks.twice(Bytes::mib(64)), [id(1), id(3)]);
        assert_eq!(looks.twice(Bytes::ZERO), [id(2)]);
    }

    #[test]
    fn while_a_release_is_under_way_nothing_is_concluded() {
        let mut looks = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        looks.accounts.begin_release();
        assert_eq!(looks.accounts.state(), None);
        assert_eq!(looks.twice(Bytes::ZERO), []);
        looks.accounts.end_release();
        assert!(looks.accounts.state().is_some());
        assert_eq!(looks.twice(Bytes::ZERO), [id(1)]);
    }

    #[test]
    fn live_memory_is_entered_and_retired() {
        let mut looks = accounts(Bytes::ZERO, &[(1, Bytes::mib(4))]);
        let before = looks.accounts.state();
        looks.accounts.enter(Bytes::mib(2));
        assert_eq!(looks.accounts.live(), Bytes::mib(2));
        looks.accounts.withdraw(Bytes::mib(2));
        assert_ne!(looks.accounts.state(), before, "the same sum is not the same state");
        looks.accounts.forget(id(1));
        assert_eq!(looks.twice(Bytes::mib(1)), []);
        assert_eq!((looks.accounts.outsiders(), looks.accounts.held_here()), (Bytes::mib(1), Bytes::ZERO));
    }
}
