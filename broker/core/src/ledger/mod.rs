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
mod quota;
mod reservation;
mod trial_balance;

use std::collections::{BTreeMap, BTreeSet};

use vramd_types::{Bytes, DeviceIndex, GRANULARITY};

pub(crate) use account::Account;
pub(crate) use quota::{Quota, QuotaDevice, QuotaTable};
pub(crate) use reservation::{Charge, Debt, Reservation};
pub(crate) use trial_balance::TrialBalance;

use crate::{
    event::Tier,
    observed::ChangedKeys,
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
    Limit { limit: Bytes, charged: Bytes },
    Room { free: Bytes },
}

/// All accounts of one place, and their sums.
#[derive(Debug)]
pub(crate) struct PlaceBalances {
    /// What there is to hand out when nobody else holds any.
    share: Bytes,
    /// What operators let be handed out of it, if that is less.
    offered: Bytes,
    /// What processes hold that no tenant explains.
    unbrokered: Bytes,
    /// Room kept for the contexts of clients.
    contexts: Bytes,
    /// What there is at most, since the driver had not so much more: until somebody has looked who holds it.
    cap: Option<Bytes>,
    /// Sum of what the accounts hold.
    charged: Bytes,
    /// Sum of the larger of guarantee and held, by account.
    committed: Bytes,
    /// Sum of the guarantees.
    guaranteed: Bytes,
    accounts: ByTenant<Account>,
}

impl PlaceBalances {
    pub(crate) fn capacity(&self) -> Bytes {
        let usual = self.surveyed_capacity();
        self.cap.map_or(usual, |cap| usual.min(cap))
    }

    /// As it was when somebody looked last who holds what.
    pub(crate) fn surveyed_capacity(&self) -> Bytes {
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

    pub(crate) const fn charged(&self) -> Bytes {
        self.charged
    }

    pub(crate) const fn committed(&self) -> Bytes {
        self.committed
    }

    pub(crate) const fn guaranteed(&self) -> Bytes {
        self.guaranteed
    }

    /// What these tenants could have there together, who ask for so much each: what is guaranteed to others is lent to nobody, and
    /// from what is guaranteed to themselves they are kept by nobody.
    pub(crate) fn max_available_to(&self, requested: &BTreeMap<TenantId, Bytes>) -> Bytes {
        let guarantee = |tenant| self.account(tenant).map_or(Bytes::ZERO, |account| account.guarantee);
        let own = requested.iter().map(|(tenant, requested)| guarantee(*tenant).min(*requested));
        let own = own.fold(Bytes::ZERO, Bytes::saturating_add);
        let capacity = self.surveyed_capacity();
        match own == requested.values().copied().fold(Bytes::ZERO, Bytes::saturating_add) {
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
    balances: BTreeMap<Place, PlaceBalances>,
    quotas: QuotaTable,
    /// What did not add up, to be counted and logged.
    broken: Vec<String>,
    pub(crate) changed_keys: ChangedKeys<(TenantId, Place)>,
    /// Devices below which somebody may be admitted to more than before.
    pub(crate) relieved: BTreeSet<DeviceIndex>,
    /// Places that may be fuller than before, or less full.
    pub(crate) changed: BTreeSet<Place>,
    #[cfg(feature = "planted")]
    planted: Option<crate::Bug>,
}

impl Ledger {
    pub(crate) fn new(shares: impl IntoIterator<Item = (Place, Bytes)>, quotas: QuotaTable) -> Self {
        let balances = |share| PlaceBalances {
            share,
            offered: Bytes::MAX,
            unbrokered: Bytes::ZERO,
            contexts: Bytes::ZERO,
            cap: None,
            charged: Bytes::ZERO,
            committed: Bytes::ZERO,
            guaranteed: Bytes::ZERO,
            accounts: ByTenant::default(),
        };
        let balances = shares.into_iter().map(|(place, share)| (place, balances(share))).collect();
        let mut ledger = Self {
            balances,
            quotas,
            broken: Vec::new(),
            changed_keys: ChangedKeys::default(),
            relieved: BTreeSet::new(),
            changed: BTreeSet::new(),
            #[cfg(feature = "planted")]
            planted: None,
        };
        for tenant in ledger.quotas.tenants() {
            ledger.apply_quotas(tenant);
        }
        ledger
    }

    pub(crate) const fn quotas(&self) -> &QuotaTable {
        &self.quotas
    }

    pub(crate) fn balances(&self, place: Place) -> Option<&PlaceBalances> {
        self.balances.get(&place)
    }

    /// What there is of it below a device, the nearest first.
    pub(crate) fn below(&self, device: DeviceIndex) -> impl Iterator<Item = Place> {
        Place::below(device).into_iter().filter(|place| self.balances.contains_key(place))
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, &PlaceBalances)> {
        self.balances.iter().map(|(place, balances)| (*place, balances))
    }

    /// The account as it is, or as it would be opened.
    pub(crate) fn account(&self, tenant: TenantId, place: Place) -> Option<Account> {
        let balances = self.balances.get(&place)?;
        Some(
            balances
                .account(tenant)
                .copied()
                .unwrap_or_else(|| self.quotas.new_account(tenant, place, balances.share)),
        )
    }

    /// The books of a place, to try something on.
    pub(crate) fn trial(&self, place: Place) -> Option<TrialBalance<'_>> {
        TrialBalance::new(self, place)
    }

    /// Whether so many more bytes would be admitted.
    pub(crate) fn admit(&self, tenant: TenantId, place: Place, requested: Bytes) -> Result<(), Shortage> {
        let nowhere = Err(Shortage::Room { free: Bytes::ZERO });
        self.trial(place).map_or(nowhere, |trial| trial.admit(tenant, requested))
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
    pub(crate) const fn uncharged(tenant: TenantId, place: Place) -> Reservation {
        Reservation::new(tenant, place, Bytes::ZERO)
    }

    /// Where below a device bytes of a tenant are set aside: as near to it as there are any. Where there are none nowhere, the
    /// place that was tried last.
    pub(crate) fn place_below(&self, tenant: TenantId, device: DeviceIndex, bytes: Bytes) -> Option<Place> {
        let mut last = None;
        for place in self.below(device) {
            last = Some(place);
            if self.admit(tenant, place, bytes).is_ok() && !planted!(self, BackedOnDiskFirst) {
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
        if planted!(self, UnreturnedUncharged) {
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
        if let Some(balances) = self.balances.get_mut(&place) {
            (balances.unbrokered, balances.contexts) = (unbrokered, contexts);
            self.changed.insert(place);
            if place.tier != Tier::Device {
                self.relieved.insert(place.device);
            }
        }
    }

    /// Operators let no more than this be handed out of a place.
    pub(crate) fn set_offered(&mut self, place: Place, bytes: Bytes) {
        let Some(balances) = self.balances.get_mut(&place) else { return };
        if std::mem::replace(&mut balances.offered, bytes) != bytes {
            self.changed.insert(place);
            if place.tier != Tier::Device {
                self.relieved.insert(place.device);
            }
        }
    }

    /// It is known now who holds what the driver had not.
    pub(crate) fn lift_cap(&mut self, place: Place) {
        if let Some(balances) = self.balances.get_mut(&place) {
            balances.cap = None;
            self.changed.insert(place);
        }
    }

    /// The driver had not so much more: whoever holds it, there is less of the place than what is held of it and that.
    pub(crate) fn cap_capacity(&mut self, place: Place, requested: Bytes) {
        if planted!(self, MissingMemoryForgotten) {
            return;
        }
        if let Some(balances) = self.balances.get_mut(&place) {
            let cap = balances.charged.saturating_add(requested).saturating_sub(GRANULARITY);
            balances.cap = Some(balances.cap.map_or(cap, |before| before.min(cap)));
            self.changed.insert(place);
        }
    }

    /// What a place would have committed if the tenant's guarantee there were this, if that cannot be kept.
    pub(crate) fn overcommitment(&self, tenant: TenantId, place: Place, guarantee: Bytes) -> Option<Bytes> {
        self.trial(place)?.overcommitment(tenant, guarantee)
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
        if planted!(self, DeletedQuotaEnforced) && quota.is_none() {
            return;
        }
        self.apply_quotas(tenant);
    }

    /// Holds back a guarantee that is to be set once it is on disk.
    pub(crate) fn stage_guarantee(&mut self, tenant: TenantId, place: Place, guarantee: Bytes) {
        if planted!(self, StagedGuaranteeForgotten) {
            return;
        }
        self.change(tenant, place, |account| {
            account.guarantee = account.guarantee.max(guarantee);
            Some(())
        });
    }

    /// Makes the tenant's accounts say what its quotas say.
    pub(crate) fn apply_quotas(&mut self, tenant: TenantId) {
        let places: Vec<_> = self.balances.iter().map(|(place, balances)| (*place, balances.share)).collect();
        for (place, share) in places {
            let fresh = self.quotas.new_account(tenant, place, share);
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
        self.changed_keys.note((tenant, place));
        let Some(balances) = self.balances.get_mut(&place) else {
            self.broken.push(format!("no books for device {} tier {}", place.device, place.tier));
            return;
        };
        let quotas = &self.quotas;
        let known = balances.accounts.get_mut(tenant);
        let old =
            known.as_deref().copied().unwrap_or_else(|| quotas.new_account(tenant, place, balances.share));
        let mut new = old;
        let was = known.as_ref();
        let before = was.map_or(Bytes::ZERO, |account| account.commitment());
        let guaranteed_before = was.map_or(Bytes::ZERO, |account| account.guarantee);
        let sums = change(&mut new).and_then(|()| {
            let charged = balances.charged.checked_sub(old.charged())?.checked_add(new.checked_charged()?)?;
            let committed = balances.committed.checked_sub(before)?.checked_add(new.commitment())?;
            let guaranteed =
                balances.guaranteed.checked_sub(guaranteed_before)?.checked_add(new.guarantee)?;
            Some((charged, committed, guaranteed))
        });
        match sums {
            Some(sums) => {
                // Who holds more may be at its limit now, and so in nobody's way.
                let eases =
                    new.charged() != old.charged() || new.limit != old.limit || new.commitment() < before;
                if eases && place.tier != Tier::Device {
                    self.relieved.insert(place.device);
                }
                (balances.charged, balances.committed, balances.guaranteed) = sums;
                self.changed.insert(place);
                match known {
                    Some(account) => *account = new,
                    None => balances.accounts.insert(tenant, new),
                }
            }
            None => self.broken.push(format!("account of device {} does not add up: {old:?}", place.device)),
        }
    }
}

#[cfg(test)]
mod tests;
