//! Backings: what a part owns below its device, so that it can be evicted whatever else lies there.

use std::collections::BTreeMap;

use vramd_types::{Bytes, DeviceIndex, ExtentId};

use super::MissingBackings;
use crate::{
    collections::PartMap,
    event::{PartRef, Tier},
    ledger::Reservation,
    tenancy::TenantId,
};

/// The backing of a part that lies on its device. A part without one cannot be evicted.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Reserved bytes, in which no extent has been created yet.
    Reserved(Reservation),
    /// An extent that the part came from, or was about to go to. A clean one has the part's bytes, so the
    /// part can leave without a copy.
    Extent { extent: ExtentId, tier: Tier, clean: bool },
    /// A piece of a file that always has the part's bytes. It is charged to no tenant, and the part leaves
    /// without a copy.
    File { extent: ExtentId },
    /// The part is discardable and needs no backing.
    Needless,
}

impl Backing {
    /// The tier of the backing, if it lies anywhere.
    pub(crate) const fn tier(&self) -> Option<Tier> {
        match self {
            Self::Reserved(reservation) => Some(reservation.place().tier),
            Self::Extent { tier, .. } => Some(*tier),
            Self::File { .. } => Some(Tier::Disk),
            Self::Needless => None,
        }
    }

    /// Whether the backing has the part's bytes.
    pub(crate) const fn is_clean(&self) -> bool {
        matches!(self, Self::Extent { clean: true, .. } | Self::File { .. })
    }
}

/// The backings of all parts, with running sums.
#[derive(Debug, Default)]
pub(crate) struct Backings {
    parts: PartMap<Backed>,
    missing: MissingBackings,
    sums: BTreeMap<(BackingAccount, Tier), BackingSum>,
}

/// Tenant and device of a backing.
pub(crate) type BackingAccount = (TenantId, DeviceIndex);

#[derive(Debug)]
struct Backed {
    backing: Backing,
    account: BackingAccount,
    size: Bytes,
}

/// Bytes of the backings that a tenant's parts on one device have in one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackingSum {
    pub(crate) total: Bytes,
    /// Bytes of clean backings, those in files included.
    pub(crate) clean: Bytes,
}

impl Backings {
    pub(crate) fn insert(&mut self, part: PartRef, account: BackingAccount, size: Bytes, backing: Backing) {
        self.missing.remove(&part, account);
        let backed = Backed { backing, account, size };
        count(&mut self.sums, &backed, Bytes::saturating_add);
        if let Some(before) = self.parts.insert(part, backed) {
            count(&mut self.sums, &before, Bytes::saturating_sub);
        }
    }

    pub(crate) fn remove(&mut self, part: &PartRef) -> Option<Backing> {
        let backed = self.parts.remove(*part)?;
        count(&mut self.sums, &backed, Bytes::saturating_sub);
        Some(backed.backing)
    }

    /// Records that no backing could be reserved for the part.
    pub(crate) fn mark_missing(&mut self, part: PartRef, account: BackingAccount, size: Bytes) {
        self.missing.insert(part, account, size);
    }

    /// Forgets a part without backing: it is freed, or leaves its device.
    pub(crate) fn clear_missing(&mut self, part: &PartRef, account: BackingAccount) {
        self.missing.remove(part, account);
    }

    pub(crate) const fn missing(&self) -> &MissingBackings {
        &self.missing
    }

    /// Marks the part's backing as clean or dirty.
    pub(crate) fn set_clean(&mut self, part: &PartRef, holds_same: bool) {
        let Some(backed) = self.parts.get_mut(*part) else { return };
        let Backing::Extent { tier, clean, .. } = &mut backed.backing else { return };
        if std::mem::replace(clean, holds_same) != holds_same {
            let below = self.sums.entry((backed.account, *tier)).or_default();
            let change = if holds_same { Bytes::saturating_add } else { Bytes::saturating_sub };
            below.clean = change(below.clean, backed.size);
        }
    }

    pub(crate) fn contains(&self, part: &PartRef) -> bool {
        self.parts.contains(*part)
    }

    pub(crate) fn get(&self, part: &PartRef) -> Option<&Backing> {
        self.parts.get(*part).map(|backed| &backed.backing)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PartRef, &Backing)> {
        self.parts.iter().map(|(part, backed)| (part, &backed.backing))
    }

    pub(crate) fn sum(&self, account: BackingAccount, tier: Tier) -> BackingSum {
        self.sums.get(&(account, tier)).copied().unwrap_or_default()
    }

    pub(crate) fn sums(&self) -> impl Iterator<Item = ((BackingAccount, Tier), BackingSum)> {
        self.sums.iter().map(|(key, below)| (*key, *below))
    }
}

fn count(
    sums: &mut BTreeMap<(BackingAccount, Tier), BackingSum>,
    backed: &Backed,
    change: fn(Bytes, Bytes) -> Bytes,
) {
    let Backed { backing, account, size } = backed;
    let Some(tier) = backing.tier().filter(|_| !matches!(backing, Backing::Reserved(_))) else { return };
    let below = sums.entry((*account, tier)).or_default();
    if matches!(backing, Backing::Extent { .. }) {
        below.total = change(below.total, *size);
    }
    if backing.is_clean() {
        below.clean = change(below.clean, *size);
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::{AllocationId, PartIndex};

    use super::*;
    use crate::tenancy::Tenants;

    #[test]
    fn backing_sums_follow_every_change() {
        let part = |index| PartRef { allocation: AllocationId::from_raw(1), part: PartIndex(index) };
        let kept_in = |tier, clean| Backing::Extent { extent: ExtentId::from_raw(9), tier, clean };
        let kept = |clean| kept_in(Tier::Host, clean);
        let account = (Tenants::default().intern("a"), DeviceIndex(0));
        let mut backings = Backings::default();
        let sums = |backings: &Backings| {
            let BackingSum { total, clean } = backings.sum(account, Tier::Host);
            (total.get(), clean.get())
        };
        backings.insert(part(0), account, Bytes::new(3), kept(true));
        backings.insert(part(1), account, Bytes::new(5), kept(false));
        assert_eq!(sums(&backings), (8, 3));
        backings.insert(part(1), account, Bytes::new(5), kept(true));
        assert_eq!(sums(&backings), (8, 8));
        for _ in 0..2 {
            backings.set_clean(&part(0), false);
            assert_eq!(sums(&backings), (8, 5));
        }
        for clean in [8, 5] {
            backings.set_clean(&part(0), clean == 8);
            assert_eq!(sums(&backings), (8, clean));
        }
        for _ in 0..2 {
            backings.remove(&part(1));
            assert_eq!(sums(&backings), (3, 0));
        }
        // Each tier has its own sums.
        backings.insert(part(0), account, Bytes::new(3), kept_in(Tier::Disk, true));
        assert_eq!(sums(&backings), (0, 0));
        assert_eq!(
            backings.sum(account, Tier::Disk),
            BackingSum { total: Bytes::new(3), clean: Bytes::new(3) }
        );
        // A file is charged to no tenant.
        backings.insert(part(0), account, Bytes::new(3), Backing::File { extent: ExtentId::from_raw(9) });
        backings.set_clean(&part(0), false);
        assert_eq!(
            backings.sum(account, Tier::Disk),
            BackingSum { total: Bytes::ZERO, clean: Bytes::new(3) }
        );
        // A discardable part has no backing, and can leave.
        backings.insert(part(0), account, Bytes::new(3), Backing::Needless);
        backings.set_clean(&part(0), true);
        assert!(backings.contains(&part(0)));
        assert_eq!(sums(&backings), (0, 0));
        assert_eq!(backings.sum(account, Tier::Disk), BackingSum::default());
    }
}
