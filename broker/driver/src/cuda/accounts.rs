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
//! a small extent is no larger than the difference. So a return is concluded only where two looks in a row agree on it,
//! against the same figure from before.
//!
//! Its limit: what an outsider gives up for good, or a context that was larger than ours, looks like the return of an
//! extent of about that size. Then a tenant is discharged early and the bytes count as outsiders', so that nothing is
//! handed out twice; the other choice, to wait until even outsiders have left, would charge tenants for ever.

use vramd_types::{Bytes, ExtentId};

use super::memory::Trace;

#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Of extents that were made and not released.
    live: Bytes,
    awaited: Vec<Awaited>,
    /// As of the latest look.
    outsiders: Bytes,
    /// As of the latest look that left nothing for the next one to confirm: a drop is counted from here.
    known: Bytes,
    /// Those that the latest look found to be back, and the next one may confirm.
    seen_back: Vec<ExtentId>,
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
    pub(super) fn live(&self) -> Bytes {
        self.live
    }

    /// `None` while a release is under way: what the device is said to have then may be of before or after it.
    pub(super) fn state(&self) -> Option<u64> {
        (self.unsettled == 0).then_some(self.changes)
    }

    pub(super) fn enter(&mut self, size: Bytes) {
        self.changes += 1;
        self.live = self.live.saturating_add(size);
    }

    /// What was entered and then not made after all.
    pub(super) fn withdraw(&mut self, size: Bytes) {
        self.changes += 1;
        self.live = self.live.saturating_sub(size);
    }

    /// From live to awaited.
    pub(super) fn retire(&mut self, extent: ExtentId, size: Bytes, trace: Trace) {
        self.withdraw(size);
        self.awaited.push(Awaited { extent, size, trace });
    }

    /// An awaited one is back.
    pub(super) fn forget(&mut self, extent: ExtentId) {
        self.awaited.retain(|it| it.extent != extent);
    }

    /// Of awaited extents that this process itself still holds, by the caller's clone of a descriptor or a digest.
    pub(super) fn held_here(&self) -> Bytes {
        sum(self.awaited.iter().filter(|it| it.trace.is_alive()).map(|it| it.size))
    }

    pub(super) fn begin_release(&mut self) {
        self.changes += 1;
        self.unsettled += 1;
    }

    pub(super) fn end_release(&mut self) {
        self.unsettled -= 1;
    }

    /// Takes a look's figure, and returns the extents that have come back.
    pub(super) fn settle(&mut self, others: Bytes) -> Vec<ExtentId> {
        if self.unsettled > 0 {
            return Vec::new();
        }
        let mut drop = self.known.saturating_add(self.awaited()).saturating_sub(others);
        let free = self.awaited.iter().filter(|it| !it.trace.is_alive()).map(|it| (it.extent, it.size));
        let (returned, seen_back) =
            covered(free, &mut drop).into_iter().partition(|extent| self.seen_back.contains(extent));
        let returned: Vec<ExtentId> = returned;
        self.seen_back = seen_back;
        self.awaited.retain(|it| !returned.contains(&it.extent));
        let latest = others.saturating_sub(self.awaited());
        if self.seen_back.is_empty() {
            self.known = latest;
        }
        self.outsiders = latest;
        returned
    }

    fn awaited(&self) -> Bytes {
        sum(self.awaited.iter().map(|it| it.size))
    }

    /// As of the latest look.
    pub(super) fn outsiders(&self) -> Bytes {
        self.outsiders
    }
}

/// Of the extents those that a drop explains, in their order. Figures are never quite still, so three quarters of an
/// extent explain it.
pub(super) fn covered(extents: impl Iterator<Item = (ExtentId, Bytes)>, drop: &mut Bytes) -> Vec<ExtentId> {
    let mut covered = Vec::new();
    for (extent, size) in extents {
        if explains(*drop, size) {
            *drop = drop.saturating_sub(size);
            covered.push(extent);
        }
    }
    covered
}

fn explains(drop: Bytes, size: Bytes) -> bool {
    drop >= Bytes::new(size.get() - size.get() / 4)
}

pub(super) fn sum(sizes: impl Iterator<Item = Bytes>) -> Bytes {
    sizes.fold(Bytes::ZERO, Bytes::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: u64) -> ExtentId {
        ExtentId::from_raw(raw)
    }

    fn accounts(outsiders: Bytes, awaited: &[(u64, Bytes)]) -> Accounts {
        let mut accounts = Accounts::default();
        assert_eq!(twice(&mut accounts, outsiders), []);
        for (raw, size) in awaited {
            accounts.enter(*size);
            accounts.retire(id(*raw), *size, Trace::default());
        }
        accounts
    }

    /// Two looks that see the same: the first concludes nothing.
    fn twice(accounts: &mut Accounts, others: Bytes) -> Vec<ExtentId> {
        assert_eq!(accounts.settle(others), [], "one look is not enough");
        accounts.settle(others)
    }

    #[test]
    fn what_is_held_stays_awaited() {
        let mut accounts = accounts(Bytes::ZERO, &[(1, Bytes::mib(2))]);
        assert_eq!(twice(&mut accounts, Bytes::mib(2)), []);
        assert_eq!(accounts.outsiders(), Bytes::ZERO, "it is explained");
        assert_eq!(twice(&mut accounts, Bytes::ZERO), [id(1)]);
        assert_eq!(twice(&mut accounts, Bytes::ZERO), [], "told once");
    }

    #[test]
    fn what_one_look_misses_has_not_come_back() {
        let mut accounts = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        for _ in 0..3 {
            assert_eq!(accounts.settle(Bytes::ZERO), [], "a context was listed that had gone");
            assert_eq!(accounts.settle(Bytes::mib(64)), [], "the extent is there still");
        }
        assert_eq!(twice(&mut accounts, Bytes::ZERO), [id(1)]);
    }

    #[test]
    fn outsiders_do_not_hide_a_return() {
        let mut accounts = accounts(Bytes::gib(20), &[(1, Bytes::mib(256))]);
        assert_eq!(accounts.settle(Bytes::gib(20).saturating_add(Bytes::mib(256))), []);
        assert_eq!(twice(&mut accounts, Bytes::gib(20)), [id(1)]);
        assert_eq!(accounts.outsiders(), Bytes::gib(20));
    }

    #[test]
    fn an_outsider_s_growth_is_its_own() {
        let mut accounts = accounts(Bytes::mib(10), &[(1, Bytes::mib(256))]);
        assert_eq!(twice(&mut accounts, Bytes::mib(766)), []);
        assert_eq!(accounts.outsiders(), Bytes::mib(510));
        assert_eq!(twice(&mut accounts, Bytes::mib(700)), [], "66 MiB less are no 256");
        assert_eq!(accounts.outsiders(), Bytes::mib(444));
        assert_eq!(twice(&mut accounts, Bytes::mib(510)), [], "190 MiB less are none either");
    }

    #[test]
    fn the_oldest_come_first_as_far_as_the_drop_goes() {
        let mut accounts =
            accounts(Bytes::ZERO, &[(1, Bytes::mib(64)), (2, Bytes::mib(64)), (3, Bytes::mib(2))]);
        assert_eq!(twice(&mut accounts, Bytes::mib(64)), [id(1), id(3)]);
        assert_eq!(twice(&mut accounts, Bytes::ZERO), [id(2)]);
    }

    #[test]
    fn while_a_release_is_under_way_nothing_is_concluded() {
        let mut accounts = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        accounts.begin_release();
        assert_eq!(accounts.state(), None);
        assert_eq!(twice(&mut accounts, Bytes::ZERO), []);
        accounts.end_release();
        assert!(accounts.state().is_some());
        assert_eq!(twice(&mut accounts, Bytes::ZERO), [id(1)]);
    }

    #[test]
    fn live_memory_is_entered_and_retired() {
        let mut accounts = accounts(Bytes::ZERO, &[(1, Bytes::mib(4))]);
        let before = accounts.state();
        accounts.enter(Bytes::mib(2));
        assert_eq!(accounts.live(), Bytes::mib(2));
        accounts.withdraw(Bytes::mib(2));
        assert_ne!(accounts.state(), before, "the same sum is not the same state");
        accounts.forget(id(1));
        assert_eq!(twice(&mut accounts, Bytes::mib(1)), []);
        assert_eq!((accounts.outsiders(), accounts.held_here()), (Bytes::mib(1), Bytes::ZERO));
    }
}
