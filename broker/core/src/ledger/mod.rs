//! The ledger: the only writer of balances.
//!
//! A charge takes three steps: *reserve*, act, *settle*. Each step is a value ([`Reservation`], [`Charge`],
//! [`Debt`]) that cannot be copied and that only the ledger takes back. So no byte is charged twice, and the
//! audit finds a byte that is forgotten.
//!
//! The admission rule: no admission raises the sum over all tenants of the larger of guarantee and charge
//! above the capacity. If the capacity itself shrinks, the gap is a shortfall, which admission only lets
//! shrink.

mod account;
mod by_place;
mod quota;
mod reservation;
mod trial_balance;

use vramd_types::{Bytes, DeviceIndex, GRANULARITY};

pub(crate) use account::Account;
pub(crate) use by_place::ByPlace;
pub(crate) use quota::{Quota, QuotaDevice, QuotaTable};
pub(crate) use reservation::{Charge, Debt, Reservation};
pub(crate) use trial_balance::TrialBalance;

use crate::{
    event::Tier,
    follow_up::{Fact, Facts},
    observed::ChangedKeys,
    tenancy::{ByTenant, TenantId},
};

/// A place: one tier of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) device: DeviceIndex,
    pub(crate) tier: Tier,
}

impl Place {
    pub(crate) const fn device(device: DeviceIndex) -> Self {
        Self { device, tier: Tier::Device }
    }

    /// The places below a device, the nearest first. A device need not have all of them.
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

/// Why requests can never be on a device together, whatever other tenants give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Infeasible {
    /// The tenant is charged for more of them than its limit.
    Limit { tenant: TenantId, limit: Bytes, charged: Bytes, requested: Bytes },
    /// The device has no more than `free` for all of them.
    Room { free: Bytes, requested: Bytes },
}

/// All accounts of one place, with their sums.
#[derive(Debug)]
pub(crate) struct PlaceBalances {
    /// The bytes to hand out if no other program holds any.
    share: Bytes,
    /// The bytes that operators allow to be handed out, if less.
    offered: Bytes,
    /// Memory that no tenant explains.
    unbrokered: Bytes,
    /// Room kept free for the contexts of clients.
    contexts: Bytes,
    /// A cap on the capacity, set when the driver ran out of memory. The next survey lifts it.
    cap: Option<Bytes>,
    /// The sum of the charges.
    charged: Bytes,
    /// The sum over accounts of the larger of guarantee and charge.
    committed: Bytes,
    /// The sum of the guarantees.
    guaranteed: Bytes,
    accounts: ByTenant<Account>,
}

impl PlaceBalances {
    pub(crate) fn capacity(&self) -> Bytes {
        let usual = self.surveyed_capacity();
        self.cap.map_or(usual, |cap| usual.min(cap))
    }

    /// The capacity by the last survey, without the cap.
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

    /// The most that these tenants could have here together, for these requests. A guarantee of another
    /// tenant is never lent; their own guarantees are theirs.
    pub(crate) fn max_available_to(&self, requested: impl Iterator<Item = (TenantId, Bytes)>) -> Bytes {
        let guarantee = |tenant| self.account(tenant).map_or(Bytes::ZERO, |account| account.guarantee);
        let (mut own, mut sum) = (Bytes::ZERO, Bytes::ZERO);
        for (tenant, requested) in requested {
            own = own.saturating_add(guarantee(tenant).min(requested));
            sum = sum.saturating_add(requested);
        }
        let capacity = self.surveyed_capacity();
        match own == sum {
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
    balances: ByPlace<PlaceBalances>,
    quotas: QuotaTable,
    /// Inconsistencies, to be counted and logged.
    broken: Vec<String>,
    pub(crate) changed_keys: ChangedKeys<(TenantId, Place)>,
    /// Changes of balances, each once, for the follow-ups. One event may change a balance thousands of times.
    facts: Facts,
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
            facts: Facts::default(),
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
        self.balances.get(place)
    }

    /// The existing places below a device, the nearest first.
    pub(crate) fn below(&self, device: DeviceIndex) -> impl Iterator<Item = Place> {
        Place::below(device).into_iter().filter(|place| self.balances.get(*place).is_some())
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, &PlaceBalances)> {
        self.balances.iter()
    }

    /// The account as it is, or as it would be opened.
    pub(crate) fn account(&self, tenant: TenantId, place: Place) -> Option<Account> {
        let balances = self.balances.get(place)?;
        Some(
            balances
                .account(tenant)
                .copied()
                .unwrap_or_else(|| self.quotas.new_account(tenant, place, balances.share)),
        )
    }

    /// A trial balance of a place.
    pub(crate) fn trial(&self, place: Place) -> Option<TrialBalance<'_>> {
        TrialBalance::new(self, place)
    }

    /// Checks whether further bytes would be admitted.
    pub(crate) fn admit(&self, tenant: TenantId, place: Place, requested: Bytes) -> Result<(), Shortage> {
        let nowhere = Err(Shortage::Room { free: Bytes::ZERO });
        self.trial(place).map_or(nowhere, |trial| trial.admit(tenant, requested))
    }

    /// Reserves bytes for memory that is about to be created.
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

    /// A reservation of no bytes, for a piece of a file, which is charged to no tenant.
    pub(crate) const fn uncharged(tenant: TenantId, place: Place) -> Reservation {
        Reservation::new(tenant, place, Bytes::ZERO)
    }

    /// The place below a device where a tenant's bytes are reserved: the nearest one that admits them. If
    /// none does, the place that was tried last.
    pub(crate) fn place_below(&self, tenant: TenantId, device: DeviceIndex, bytes: Bytes) -> Option<Place> {
        let mut last = None;
        for place in self.below(device) {
            last = Some(place);
            planted!(self, BackedOnDiskFirst => continue);
            if self.admit(tenant, place, bytes).is_ok() {
                break;
            }
        }
        last
    }

    /// Turns a reservation into a charge: the memory was created.
    pub(crate) fn settle(&mut self, reservation: Reservation) -> Charge {
        let (tenant, place, bytes) = reservation.redeem();
        planted!(self, SettleSkipped => return Charge::new(tenant, place, bytes));
        if bytes.is_zero() {
            return Charge::new(tenant, place, bytes);
        }
        self.change(tenant, place, |account| {
            account.reserved = account.reserved.checked_sub(bytes)?;
            account.settled = account.settled.checked_add(bytes)?;
            Some(())
        });
        Charge::new(tenant, place, bytes)
    }

    /// Charges bytes that a client is about to allocate in its own process: the daemon creates nothing for them.
    pub(crate) fn charge_managed(
        &mut self,
        tenant: TenantId,
        place: Place,
        bytes: Bytes,
    ) -> Result<Charge, Shortage> {
        let admitted = self.admit(tenant, place, bytes);
        planted!(self, ManagedUnasked => admitted = Ok(()));
        admitted?;
        self.change(tenant, place, |account| account.settled.checked_add(bytes).map(|b| account.settled = b));
        Ok(Charge::new(tenant, place, bytes))
    }

    /// Ends a reservation: the memory will not be created.
    pub(crate) fn cancel(&mut self, reservation: Reservation) {
        let (tenant, place, bytes) = reservation.redeem();
        planted!(self, ReservationKept => return);
        if bytes.is_zero() {
            return;
        }
        self.change(tenant, place, |account| {
            account.reserved.checked_sub(bytes).map(|b| account.reserved = b)
        });
    }

    /// Ends a charge: the memory is back.
    pub(crate) fn discharge(&mut self, charge: Charge) {
        let (tenant, place, bytes) = charge.redeem();
        if bytes.is_zero() {
            return;
        }
        self.change(tenant, place, |account| account.settled.checked_sub(bytes).map(|b| account.settled = b));
    }

    /// Turns a charge into debts: the memory was released, and a process still has it open. The tenants that
    /// were sent it owe equal shares, the first one also the rest. If none is known, the payer goes on
    /// paying.
    pub(crate) fn owe(&mut self, charge: Charge, debtors: &[TenantId]) -> Vec<Debt> {
        let (payer, place, bytes) = charge.redeem();
        self.change(payer, place, |account| account.settled.checked_sub(bytes).map(|b| account.settled = b));
        planted!(self, UnreturnedUncharged => return Vec::new());
        let debtors = if debtors.is_empty() { &[payer][..] } else { debtors };
        planted!(self, DebtToOwnerOnly => debtors = &[payer][..]);
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

    /// Ends a debt: the memory is back.
    pub(crate) fn repay(&mut self, debt: Debt) {
        let (tenant, place, bytes) = debt.redeem();
        self.change(tenant, place, |account| {
            account.unreturned.checked_sub(bytes).map(|b| account.unreturned = b)
        });
    }

    /// Sets what may not be handed out now: unbrokered memory, and room for contexts.
    pub(crate) fn set_withheld(&mut self, place: Place, unbrokered: Bytes, contexts: Bytes) {
        if let Some(balances) = self.balances.get_mut(place) {
            (balances.unbrokered, balances.contexts) = (unbrokered, contexts);
            self.facts.push_new(Fact::BalanceChanged(place));
            if place.tier != Tier::Device {
                self.facts.push_new(Fact::RoomBelow(place.device));
            }
        }
    }

    /// Sets how many bytes of a place operators allow to be handed out.
    pub(crate) fn set_offered(&mut self, place: Place, bytes: Bytes) {
        let Some(balances) = self.balances.get_mut(place) else { return };
        if std::mem::replace(&mut balances.offered, bytes) != bytes {
            self.facts.push_new(Fact::BalanceChanged(place));
            if place.tier != Tier::Device {
                self.facts.push_new(Fact::RoomBelow(place.device));
            }
        }
    }

    /// Lifts the cap on the capacity: a survey shows now which program holds the memory.
    pub(crate) fn lift_cap(&mut self, place: Place) {
        if let Some(balances) = self.balances.get_mut(place) {
            balances.cap = None;
            self.facts.push_new(Fact::BalanceChanged(place));
        }
    }

    /// Caps the capacity after the driver ran out of memory: whichever program holds it, the place has less
    /// than its charge and the request together.
    pub(crate) fn cap_capacity(&mut self, place: Place, requested: Bytes) {
        planted!(self, MissingMemoryForgotten => return);
        if let Some(balances) = self.balances.get_mut(place) {
            let cap = balances.charged.saturating_add(requested).saturating_sub(GRANULARITY);
            balances.cap = Some(balances.cap.map_or(cap, |before| before.min(cap)));
            self.facts.push_new(Fact::BalanceChanged(place));
        }
    }

    /// The committed bytes if the tenant's guarantee were this, if they would exceed the capacity.
    pub(crate) fn overcommitment(&self, tenant: TenantId, place: Place, guarantee: Bytes) -> Option<Bytes> {
        self.trial(place)?.overcommitment(tenant, guarantee)
    }

    /// Stores a tenant's quota and applies it. The admission sum was checked before. While the change is
    /// written to disk, the larger of old and new guarantee is kept free.
    pub(crate) fn set_quota(
        &mut self,
        tenant: TenantId,
        device: QuotaDevice,
        tier: Tier,
        quota: Option<Quota>,
    ) {
        self.quotas.set(tenant, device, tier, quota);
        planted!(self, DeletedQuotaEnforced => if quota.is_none() { return });
        self.apply_quotas(tenant);
    }

    /// Keeps a guarantee free that is set once it is on disk.
    pub(crate) fn stage_guarantee(&mut self, tenant: TenantId, place: Place, guarantee: Bytes) {
        planted!(self, StagedGuaranteeForgotten => return);
        self.change(tenant, place, |account| {
            account.guarantee = account.guarantee.max(guarantee);
            Some(())
        });
    }

    /// Applies the tenant's quotas to its accounts.
    pub(crate) fn apply_quotas(&mut self, tenant: TenantId) {
        let places: Vec<_> = self.balances.iter().map(|(place, balances)| (place, balances.share)).collect();
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

    /// Takes the first fact that came about.
    pub(crate) fn take_fact(&mut self) -> Option<Fact> {
        self.facts.take()
    }

    /// Drops a fact that the caller has dealt with.
    pub(crate) fn forget(&mut self, fact: Fact) {
        self.facts.forget(fact);
    }

    /// Whether an inconsistency was found.
    pub(crate) const fn is_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    pub(crate) fn take_broken(&mut self) -> Vec<String> {
        std::mem::take(&mut self.broken)
    }

    /// Changes a balance and the sums with it; no other method does. A change that would not fit in 64 bits,
    /// or would go below zero, is not made and counts as a bug.
    fn change(&mut self, tenant: TenantId, place: Place, change: impl FnOnce(&mut Account) -> Option<()>) {
        self.changed_keys.note((tenant, place));
        let Some(balances) = self.balances.get_mut(place) else {
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
                // A tenant that is charged more may be at its limit now, and then blocks no other tenant.
                let eases =
                    new.charged() != old.charged() || new.limit != old.limit || new.commitment() < before;
                if eases && place.tier != Tier::Device {
                    self.facts.push_new(Fact::RoomBelow(place.device));
                }
                (balances.charged, balances.committed, balances.guaranteed) = sums;
                self.facts.push_new(Fact::BalanceChanged(place));
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
