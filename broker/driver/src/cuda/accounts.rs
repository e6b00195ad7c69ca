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
//! the oldest first, as far as the drop covers them; what is left of the drop is outsiders' again. Its limit: an
//! outsider that gives up about as much as an extent has looks like the extent's return. Then a tenant is discharged
//! early and the bytes count as outsiders', so that nothing is handed out twice; the other choice, to wait until even
//! outsiders have left, would charge tenants for ever.

use vramd_types::{Bytes, ExtentId};

use super::memory::Trace;

#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Of extents that were made and not released.
    live: Bytes,
    awaited: Vec<Awaited>,
    /// As of the latest look.
    outsiders: Bytes,
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

    pub(super) fn enter(&mut self, size: Bytes) {
        self.live = self.live.saturating_add(size);
    }

    /// What was entered and then not made after all.
    pub(super) fn withdraw(&mut self, size: Bytes) {
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
        let awaited = sum(self.awaited.iter().map(|it| it.size));
        let mut drop = self.outsiders.saturating_add(awaited).saturating_sub(others);
        let free = self.awaited.iter().filter(|it| !it.trace.is_alive()).map(|it| (it.extent, it.size));
        let returned = covered(free, &mut drop);
        self.awaited.retain(|it| !returned.contains(&it.extent));
        self.outsiders = others.saturating_sub(sum(self.awaited.iter().map(|it| it.size)));
        returned
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
        assert_eq!(accounts.settle(outsiders), []);
        for (raw, size) in awaited {
            accounts.enter(*size);
            accounts.retire(id(*raw), *size, Trace::default());
        }
        accounts
    }

    #[test]
    fn what_is_held_stays_awaited() {
        let mut accounts = accounts(Bytes::ZERO, &[(1, Bytes::mib(2))]);
        assert_eq!(accounts.settle(Bytes::mib(2)), []);
        assert_eq!(accounts.outsiders(), Bytes::ZERO, "it is explained");
        assert_eq!(accounts.settle(Bytes::ZERO), [id(1)]);
        assert_eq!(accounts.settle(Bytes::ZERO), [], "told once");
    }

    #[test]
    fn outsiders_do_not_hide_a_return() {
        let mut accounts = accounts(Bytes::gib(20), &[(1, Bytes::mib(256))]);
        assert_eq!(accounts.settle(Bytes::gib(20).saturating_add(Bytes::mib(256))), []);
        assert_eq!(accounts.settle(Bytes::gib(20)), [id(1)]);
        assert_eq!(accounts.outsiders(), Bytes::gib(20));
    }

    #[test]
    fn an_outsider_s_growth_is_its_own() {
        let mut accounts = accounts(Bytes::mib(10), &[(1, Bytes::mib(256))]);
        assert_eq!(accounts.settle(Bytes::mib(766)), []);
        assert_eq!(accounts.outsiders(), Bytes::mib(510));
        assert_eq!(accounts.settle(Bytes::mib(700)), [], "66 MiB less are no 256");
        assert_eq!(accounts.outsiders(), Bytes::mib(444));
    }

    #[test]
    fn the_oldest_come_first_as_far_as_the_drop_goes() {
        let mut accounts =
            accounts(Bytes::ZERO, &[(1, Bytes::mib(64)), (2, Bytes::mib(64)), (3, Bytes::mib(2))]);
        assert_eq!(accounts.settle(Bytes::mib(64)), [id(1), id(3)]);
        assert_eq!(accounts.settle(Bytes::ZERO), [id(2)]);
    }

    #[test]
    fn while_a_release_is_under_way_nothing_is_concluded() {
        let mut accounts = accounts(Bytes::ZERO, &[(1, Bytes::mib(64))]);
        accounts.begin_release();
        assert_eq!(accounts.settle(Bytes::ZERO), []);
        accounts.end_release();
        assert_eq!(accounts.settle(Bytes::ZERO), [id(1)]);
    }

    #[test]
    fn live_memory_is_entered_and_retired() {
        let mut accounts = accounts(Bytes::ZERO, &[(1, Bytes::mib(4))]);
        accounts.enter(Bytes::mib(2));
        assert_eq!(accounts.live(), Bytes::mib(2));
        accounts.forget(id(1));
        assert_eq!(accounts.settle(Bytes::mib(1)), []);
        assert_eq!((accounts.outsiders(), accounts.held_here()), (Bytes::mib(1), Bytes::ZERO));
    }
}
