//! Who is charged for what. The only writer of balances.
//!
//! Bookkeeping is done in three steps: *reserve*, act, *settle*. What is reserved or settled is a value
//! ([`Reservation`], [`Charge`], [`Debt`]) that cannot be copied and that only the ledger takes back, so no byte is
//! charged twice and none is forgotten without the audit finding it.
//!
//! The admission rule: over all tenants, the sum of the larger of guarantee and unmovable held bytes never exceeds
//! the capacity because of something that was admitted. As long as no memory moves, all of it is unmovable. Where
//! the capacity itself shrinks, the gap is a shortfall that admission only lets shrink.

mod account;
mod draft;
mod quota;
mod reservation;

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, GRANULARITY};

pub(crate) use account::Account;
pub(crate) use draft::Draft;
pub(crate) use quota::{Quota, QuotaBook, QuotaDevice};
pub(crate) use reservation::{Charge, Debt, Reservation};

use crate::{
    event::Tier,
    observed::Touched,
    tenancy::{ByTenant, TenantId},
};

/// Where bytes are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) device: DeviceIndex,
    pub(crate) tier: Tier,
}

impl Place {
    pub(crate) const fn device(device: DeviceIndex) -> Self {
        Self { device, tier: Tier::Device }
    }

    /// Where parts of a device may be while they are not on it, the nearest first. Not all need be there.
    pub(crate) const fn below(device: DeviceIndex) -> [Self; 2] {
        [Self { device, tier: Tier::Host }, Self { device, tier: Tier::Disk }]
    }
}

/// Why bytes were not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Limit { limit: Bytes, held: Bytes },
    Room { free: Bytes },
}

/// All accounts of one place, and their sums.
#[derive(Debug)]
pub(crate) struct Books {
    /// What there is to hand out when nobody else holds any.
    share: Bytes,
    /// What operators let be handed out of it, if that is less.
    offered: Bytes,
    /// What processes hold that no tenant explains.
    unbrokered: Bytes,
    /// Room kept for the contexts of clients.
    contexts: Bytes,
    /// What there is at most, since the driver had not so much more: until somebody has looked who holds it.
    at_most: Option<Bytes>,
    /// Sum of what the accounts hold.
    held: Bytes,
    /// Sum of the larger of guarantee and held, by account.
    committed: Bytes,
    /// Sum of the guarantees.
    guaranteed: Bytes,
    accounts: ByTenant<Account>,
}

impl Books {
    pub(crate) fn capacity(&self) -> Bytes {
        let usual = self.usual_capacity();
        self.at_most.map_or(usual, |most| usual.min(most))
    }

    /// As it was when somebody looked last who holds what.
    pub(crate) fn usual_capacity(&self) -> Bytes {
        self.share.saturating_sub(self.unbrokered).saturating_sub(self.contexts).min(self.offered)
    }

    pub(crate) const fn share(&self) -> Bytes {
        self.share
    }

    pub(crate) fn offered(&self) -> Bytes {
        self.offered.min(self.share)
    }

    pub(crate) const fn unbrokered(&self) -> Bytes {
        self.unbrokered
    }

    pub(crate) const fn contexts(&self) -> Bytes {
        self.contexts
    }

    pub(crate) const fn held(&self) -> Bytes {
        self.held
    }

    pub(crate) const fn committed(&self) -> Bytes {
        self.committed
    }

    pub(crate) const fn guaranteed(&self) -> Bytes {
        self.guaranteed
    }

    /// What these tenants could have there together, who ask for so much each: what is guaranteed to others is lent to nobody, and
    /// from what is guaranteed to themselves they are kept by nobody.
    pub(crate) fn most(&self, asked: &BTreeMap<TenantId, Bytes>) -> Bytes {
        let guarantee = |tenant| self.account(tenant).map_or(Bytes::ZERO, |account| account.guarantee);
        let own = asked.iter().map(|(tenant, asked)| guarantee(*tenant).min(*asked));
        let own = own.fold(Bytes::ZERO, Bytes::saturating_add);
        let capacity = self.usual_capacity();
        match own == asked.values().copied().fold(Bytes::ZERO, Bytes::saturating_add) {
            true => capacity,
            false => capacity.saturating_sub(self.guaranteed.saturating_sub(own)),
        }
    }

    pub(crate) fn shortfall(&self) -> Bytes {
        self.committed.saturating_sub(self.capacity())
    }

    pub(crate) fn unreturned(&self) -> Bytes {
        self.accounts.iter().fold(Bytes::ZERO, |sum, (_, account)| sum.saturating_add(account.unreturned))
    }

    pub(crate) fn account(&self, tenant: TenantId) -> Option<&Account> {
        self.accounts.get(tenant)
    }

    pub(crate) fn accounts(&self) -> impl Iterator<Item = (TenantId, &Account)> {
        self.accounts.iter()
    }
}

#[derive(Debug)]
pub(crate) struct Ledger {
    books: BTreeMap<Place, Books>,
    quotas: QuotaBook,
    /// What did not add up, to be counted and logged.
    broken: Vec<String>,
    pub(crate) touched: Touched<(TenantId, Place)>,
    /// Devices below which somebody may be admitted to more than before.
    pub(crate) eased: BTreeSet<DeviceIndex>,
    /// Places that may be fuller than before, or less full.
    pub(crate) changed: BTreeSet<Place>,
    #[cfg(feature = "planted")]
    planted: Option<crate::Bug>,
}

impl Ledger {
    pub(crate) fn new(shares: impl IntoIterator<Item = (Place, Bytes)>, quotas: QuotaBook) -> Self {
        let books = |share| Books {
            share,
            offered: Bytes::MAX,
            unbrokered: Bytes::ZERO,
            contexts: Bytes::ZERO,
            at_most: None,
            held: Bytes::ZERO,
            committed: Bytes::ZERO,
            guaranteed: Bytes::ZERO,
            accounts: ByTenant::default(),
        };
        let books = shares.into_iter().map(|(place, share)| (place, books(share))).collect();
        let mut ledger = Self {
            books,
            quotas,
            broken: Vec::new(),
            touched: Touched::default(),
            eased: BTreeSet::new(),
            changed: BTreeSet::new(),
            #[cfg(feature = "planted")]
            planted: None,
        };
        for tenant in ledger.quotas.tenants() {
            ledger.refresh(tenant);
        }
        ledger
    }

    pub(crate) const fn quotas(&self) -> &QuotaBook {
        &self.quotas
    }

    pub(crate) fn books(&self, place: Place) -> Option<&Books> {
        self.books.get(&place)
    }

    /// What there is of it below a device, the nearest first.
    pub(crate) fn below(&self, device: DeviceIndex) -> impl Iterator<Item = Place> {
        Place::below(device).into_iter().filter(|place| self.books.contains_key(place))
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, &Books)> {
        self.books.iter().map(|(place, books)| (*place, books))
    }

    /// The account as it is, or as it would be opened.
    pub(crate) fn account(&self, tenant: TenantId, place: Place) -> Option<Account> {
        let books = self.books.get(&place)?;
        Some(books.account(tenant).copied().unwrap_or_else(|| self.quotas.open(tenant, place, books.share)))
    }

    /// The books of a place, to try something on.
    pub(crate) fn draft(&self, place: Place) -> Option<Draft<'_>> {
        Draft::new(self, place)
    }

    /// Whether so many more bytes would be admitted.
    pub(crate) fn admit(&self, tenant: TenantId, place: Place, asked: Bytes) -> Result<(), Shortage> {
        let nowhere = Err(Shortage::Room { free: Bytes::ZERO });
        self.draft(place).map_or(nowhere, |draft| draft.admit(tenant, asked))
    }

    /// Sets bytes aside for something that is about to be made.
    pub(crate) fn reserve(
        &mut self,
        tenant: TenantId,
        place: Place,
        bytes: Bytes,
    ) -> Result<Reservation, Shortage> {
        self.admit(tenant, place, bytes)?;
        self.change(tenant, place, |account| {
            account.reserved.checked_add(bytes).map(|b| account.reserved = b)
        });
        Ok(Reservation::new(tenant, place, bytes))
    }

    /// For a piece of a file that is nobody's: it costs nothing, wherever it counts.
    pub(crate) const fn costless(tenant: TenantId, place: Place) -> Reservation {
        Reservation::new(tenant, place, Bytes::ZERO)
    }

    /// Where below a device bytes of a tenant are set aside: as near to it as there are any. Where there are none nowhere, the
    /// place that was tried last.
    pub(crate) fn place_below(&self, tenant: TenantId, device: DeviceIndex, bytes: Bytes) -> Option<Place> {
        let mut last = None;
        for place in self.below(device) {
            last = Some(place);
            if self.admit(tenant, place, bytes).is_ok() && !planted!(self, BackedFarther) {
                break;
            }
        }
        last
    }

    /// What was reserved has been made.
    pub(crate) fn settle(&mut self, reservation: Reservation) -> Charge {
        let (tenant, place, bytes) = reservation.redeem();
        if planted!(self, SettleSkipped) || bytes.is_zero() {
            return Charge::new(tenant, place, bytes);
        }
        self.change(tenant, place, |account| {
            account.reserved = account.reserved.checked_sub(bytes)?;
            account.settled = account.settled.checked_add(bytes)?;
            Some(())
        });
        Charge::new(tenant, place, bytes)
    }

    /// What was reserved will not be made.
    pub(crate) fn cancel(&mut self, reservation: Reservation) {
        let (tenant, place, bytes) = reservation.redeem();
        if planted!(self, ReservationKept) || bytes.is_zero() {
            return;
        }
        self.change(tenant, place, |account| {
            account.reserved.checked_sub(bytes).map(|b| account.reserved = b)
        });
    }

    /// What was made has been given back.
    pub(crate) fn discharge(&mut self, charge: Charge) {
        let (tenant, place, bytes) = charge.redeem();
        if bytes.is_zero() {
            return;
        }
        self.change(tenant, place, |account| account.settled.checked_sub(bytes).map(|b| account.settled = b));
    }

    /// What was made was let go, and is still held by somebody: the tenants who were given it owe it, in equal
    /// shares, the first one the rest. With none of them known, whoever paid goes on paying.
    pub(crate) fn owe(&mut self, charge: Charge, debtors: &[TenantId]) -> Vec<Debt> {
        let (payer, place, bytes) = charge.redeem();
        self.change(payer, place, |account| account.settled.checked_sub(bytes).map(|b| account.settled = b));
        if planted!(self, UnreturnedToNobody) {
            return Vec::new();
        }
        let only_payer = debtors.is_empty() || planted!(self, DebtToOwnerOnly);
        let debtors = if only_payer { &[payer][..] } else { debtors };
        let count = u64::try_from(debtors.len()).unwrap_or(u64::MAX);
        let share = Bytes::new(bytes.get() / count);
        let mut rest = Bytes::new(bytes.get() % count);
        let mut debts = Vec::with_capacity(debtors.len());
        for debtor in debtors {
            let owed = share.saturating_add(std::mem::take(&mut rest));
            self.change(*debtor, place, |account| {
                account.unreturned.checked_add(owed).map(|b| account.unreturned = b)
            });
            debts.push(Debt::new(*debtor, place, owed));
        }
        debts
    }

    /// Memory that was owed is back.
    pub(crate) fn repay(&mut self, debt: Debt) {
        let (tenant, place, bytes) = debt.redeem();
        self.change(tenant, place, |account| {
            account.unreturned.checked_sub(bytes).map(|b| account.unreturned = b)
        });
    }

    /// What may not be handed out now: what others hold, and room for contexts.
    pub(crate) fn set_withheld(&mut self, place: Place, unbrokered: Bytes, contexts: Bytes) {
        if let Some(books) = self.books.get_mut(&place) {
            (books.unbrokered, books.contexts) = (unbrokered, contexts);
            self.changed.insert(place);
            if place.tier != Tier::Device {
                self.eased.insert(place.device);
            }
        }
    }

    /// Operators let no more than this be handed out of a place.
    pub(crate) fn offer(&mut self, place: Place, bytes: Bytes) {
        let Some(books) = self.books.get_mut(&place) else { return };
        if std::mem::replace(&mut books.offered, bytes) != bytes {
            self.changed.insert(place);
            if place.tier != Tier::Device {
                self.eased.insert(place.device);
            }
        }
    }

    /// It is known now who holds what the driver had not.
    pub(crate) fn found(&mut self, place: Place) {
        if let Some(books) = self.books.get_mut(&place) {
            books.at_most = None;
            self.changed.insert(place);
        }
    }

    /// The driver had not so much more: whoever holds it, there is less of the place than what is held of it and that.
    pub(crate) fn lacked(&mut self, place: Place, asked: Bytes) {
        if planted!(self, MissingForgotten) {
            return;
        }
        if let Some(books) = self.books.get_mut(&place) {
            let most = books.held.saturating_add(asked).saturating_sub(GRANULARITY);
            books.at_most = Some(books.at_most.map_or(most, |before| before.min(most)));
            self.changed.insert(place);
        }
    }

    /// What a place would have committed if the tenant's guarantee there were this, if that cannot be kept.
    pub(crate) fn unbacked(&self, tenant: TenantId, place: Place, guarantee: Bytes) -> Option<Bytes> {
        self.draft(place)?.unbacked(tenant, guarantee)
    }

    /// Changes what is stored for a tenant and applies it. The admission sum was checked before; while the change
    /// is being written to disk both the old and the new guarantee are kept.
    pub(crate) fn set_quota(
        &mut self,
        tenant: TenantId,
        device: QuotaDevice,
        tier: Tier,
        quota: Option<Quota>,
    ) {
        self.quotas.set(tenant, device, tier, quota);
        if planted!(self, DefaultQuotaForgotten) && quota.is_none() {
            return;
        }
        self.refresh(tenant);
    }

    /// Holds back a guarantee that is to be set once it is on disk.
    pub(crate) fn stage(&mut self, tenant: TenantId, place: Place, guarantee: Bytes) {
        if planted!(self, StagedGuaranteeForgotten) {
            return;
        }
        self.change(tenant, place, |account| {
            account.guarantee = account.guarantee.max(guarantee);
            Some(())
        });
    }

    /// Makes the tenant's accounts say what its quotas say.
    pub(crate) fn refresh(&mut self, tenant: TenantId) {
        let places: Vec<_> = self.books.iter().map(|(place, books)| (*place, books.share)).collect();
        for (place, share) in places {
            let fresh = self.quotas.open(tenant, place, share);
            self.change(tenant, place, |account| {
                (account.guarantee, account.limit) = (fresh.guarantee, fresh.limit);
                Some(())
            });
        }
    }

    #[cfg(feature = "planted")]
    pub(crate) const fn plant(&mut self, bug: Option<crate::Bug>) {
        self.planted = bug;
    }

    pub(crate) fn take_broken(&mut self) -> Vec<String> {
        std::mem::take(&mut self.broken)
    }

    /// The one place where a balance changes, and the sums with it. A change that would not fit in 64 bits, or
    /// below zero, is not made, and is a bug.
    fn change(&mut self, tenant: TenantId, place: Place, change: impl FnOnce(&mut Account) -> Option<()>) {
        self.touched.note((tenant, place));
        let Some(books) = self.books.get_mut(&place) else {
            self.broken.push(format!("no books for device {} tier {}", place.device, place.tier));
            return;
        };
        let quotas = &self.quotas;
        let known = books.accounts.get_mut(tenant);
        let old = known.as_deref().copied().unwrap_or_else(|| quotas.open(tenant, place, books.share));
        let mut new = old;
        let was = known.as_ref();
        let before = was.map_or(Bytes::ZERO, |account| account.commitment());
        let guaranteed_before = was.map_or(Bytes::ZERO, |account| account.guarantee);
        let sums = change(&mut new).and_then(|()| {
            let held = books.held.checked_sub(old.held())?.checked_add(new.checked_held()?)?;
            let committed = books.committed.checked_sub(before)?.checked_add(new.commitment())?;
            let guaranteed = books.guaranteed.checked_sub(guaranteed_before)?.checked_add(new.guarantee)?;
            Some((held, committed, guaranteed))
        });
        match sums {
            Some(sums) => {
                // Who holds more may be at its limit now, and so in nobody's way.
                let eases = new.held() != old.held() || new.limit != old.limit || new.commitment() < before;
                if eases && place.tier != Tier::Device {
                    self.eased.insert(place.device);
                }
                (books.held, books.committed, books.guaranteed) = sums;
                self.changed.insert(place);
                match known {
                    Some(account) => *account = new,
                    None => books.accounts.insert(tenant, new),
                }
            }
            None => self.broken.push(format!("account of device {} does not add up: {old:?}", place.device)),
        }
    }
}

#[cfg(test)]
mod tests;
