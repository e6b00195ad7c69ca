//! Room for one waiter or request: what it needs, whether it fits, and whether it ever could.

use std::collections::BTreeSet;

use smallvec::SmallVec;
use vramd_types::{Bytes, DeviceIndex, ExtentId};

use crate::{
    broker::Broker,
    command::PartMove,
    error::{FullBecause, Refusal},
    event::{PartRef, Tier},
    invariants,
    ledger::{Account, Infeasible, Place, Shortage},
    line::{Footprint, LOOKAHEAD, Need, Position, Waiter},
    moves::{MoveError, Stop},
    pool::{Age, ExtentError, ExtentState},
    tenancy::{Arrival, TenantId},
    time::Time,
};

impl Broker {
    /// Whether any waiter needs others to give something up.
    pub(crate) fn is_room_wanted(&self) -> bool {
        !self.line.is_empty() || self.line.is_any_over_limit()
    }

    pub(crate) fn needs(&self, waiter: Waiter, arrived: Arrival) -> SmallVec<[Need; 1]> {
        match waiter {
            Waiter::Part(part) if self.line.is_deferred(part) => SmallVec::new(),
            Waiter::Part(part) => {
                let lets_pass = self.lets_pass(waiter);
                let need = |footprint| Need { footprint, arrived, own_cached: Vec::new(), lets_pass };
                self.footprint_of(part).map(need).into_iter().collect()
            }
            Waiter::Batch(op) => self.batch_needs(op, arrived).into_iter().collect(),
        }
    }

    /// Whether the waiter lets those behind it pass.
    pub(crate) fn lets_pass(&self, waiter: Waiter) -> bool {
        let is_hopeless = self.line.is_hopeless(waiter);
        planted!(self, HelpedPassed => is_hopeless = true);
        planted!(self, HopelessHolds => is_hopeless = false);
        planted!(self, HopelessAlwaysPassed => return is_hopeless && !self.config.limits.hold_after.is_zero());
        is_hopeless && self.line.is_in_turn_to_pass(waiter, self.shell.now, self.config.limits.hold_after)
    }

    /// Whether the device has waiters for room.
    pub(crate) fn has_waiters_on(&self, device: DeviceIndex) -> bool {
        self.first_waiter_on(device, |_| true).is_some()
    }

    /// The first waiter for room on the device that lets no other pass, with its tenant.
    pub(crate) fn holder_of(&self, device: DeviceIndex) -> Option<(Position, TenantId)> {
        self.first_waiter_on(device, |need| !need.lets_pass)
    }

    fn first_waiter_on(
        &self,
        device: DeviceIndex,
        is_meant: impl Fn(&Need) -> bool,
    ) -> Option<(Position, TenantId)> {
        if self.line.devices().all(|(of, _)| of != device) {
            return None;
        }
        let found = self.line.iter().find(|(position, entry)| {
            let needs = self.needs(entry.waiter, position.arrived);
            needs.iter().any(|need| need.footprint.device == device && is_meant(need))
        });
        found.map(|(position, entry)| (position, entry.tenant))
    }

    /// Whether the tenant stays within its guarantee with this much more on the device. That room is kept for
    /// it, ahead of other waiters.
    pub(crate) fn is_within_guarantee(&self, tenant: TenantId, device: DeviceIndex, more: Bytes) -> bool {
        let account = self.ledger.account(tenant, Place::device(device));
        account.is_some_and(|account| {
            (more.is_zero() || !account.guarantee.is_zero())
                && self.charged_without_cached(tenant, device, &account).saturating_add(more)
                    <= account.guarantee
        })
    }

    /// Whether the tenant stays within its guarantee with what the waiter needs there. Cached extents that it
    /// reuses count: they would otherwise be released for others.
    pub(crate) fn is_guaranteed(&self, need: &Need) -> bool {
        let Footprint { tenant, device, size } = need.footprint;
        let reused = self.cached_sizes(&need.own_cached);
        planted!(self, ReusedBeyondGuarantee => reused = Bytes::ZERO);
        self.is_within_guarantee(tenant, device, size.saturating_add(reused))
    }

    /// The charge without cached extents: the daemon releases these for what the tenant itself wants.
    pub(crate) fn charged_without_cached(
        &self,
        tenant: TenantId,
        device: DeviceIndex,
        account: &Account,
    ) -> Bytes {
        account.charged().saturating_sub(self.pool.cache().bytes_of(tenant, device))
    }

    /// Whether the next waiter of the device, after those with a cached extent of this size, is a part of that
    /// tenant and size. Waiters at the limit of another tenant do not count, unless they need room on other
    /// devices too: what they are short of there may keep this device's waiters waiting.
    pub(crate) fn is_next_for_extent(&self, footprint: Footprint) -> bool {
        let Footprint { tenant, device, size } = footprint;
        let kept = self.pool.cache().oldest(tenant, device, size).count();
        let mut first = 0usize;
        for (position, entry) in self.line.iter().take(LOOKAHEAD) {
            let needs = self.needs(entry.waiter, position.arrived);
            let Some(need) = needs.iter().find(|need| need.footprint.device == device) else { continue };
            let is_alone = needs.len() == 1;
            if is_alone && need.footprint.tenant != tenant && self.is_at_limit(need.footprint) {
                continue;
            }
            let takes_cached = matches!(entry.waiter, Waiter::Part(part) if !self.is_unwritten(part));
            if need.footprint != footprint || !takes_cached {
                return false;
            }
            first = first.saturating_add(1);
            if first > kept {
                return true;
            }
        }
        false
    }

    pub(crate) fn is_at_limit(&self, Footprint { tenant, device, size }: Footprint) -> bool {
        matches!(self.ledger.admit(tenant, Place::device(device), size), Err(Shortage::Limit { .. }))
    }

    pub(crate) fn has_cached_for(&self, part: PartRef) -> bool {
        // An extent with old bytes cannot serve a part that reads as zeros.
        let is_cached =
            |it: Footprint| self.pool.cache().oldest(it.tenant, it.device, it.size).next().is_some();
        self.footprint_of(part).is_some_and(is_cached) && !self.is_unwritten(part)
    }

    /// Whether the part fits on its device now. Checked before anything is created, since most of the line
    /// waits.
    pub(crate) fn check_part_room(&self, part: PartRef) -> Result<(), Shortage> {
        let Some(Footprint { tenant, device, size }) = self.footprint_of(part) else { return Ok(()) };
        // With too many extents that is the reason to report.
        if self.has_cached_for(part) || self.pool.len() >= self.config.limits.extents_max {
            return Ok(());
        }
        self.ledger.admit(tenant, Place::device(device), size)
    }

    /// Whether the next waiter of the device is a part of the same tenant and size.
    pub(crate) fn is_extent_wanted(&self, part: PartRef) -> bool {
        self.footprint_of(part).is_some_and(|footprint| self.is_next_for_extent(footprint))
    }

    /// Whether the next request of the part's tenant brings more parts of this size than extents of it are cached.
    pub(crate) fn is_extent_requested(&self, part: PartRef) -> bool {
        let Some(footprint @ Footprint { tenant, device, size }) = self.footprint_of(part) else {
            return false;
        };
        let prefetches = &self.moves.prefetches;
        let next = prefetches.queues.first(device, tenant).and_then(|id| prefetches.get(id));
        let Some(next) = next.filter(|_| !self.has_waiters_on(device)) else { return false };
        let lacks = |other: PartRef| {
            self.footprint_of(other) == Some(footprint)
                && self.is_off_device(other)
                && !self.stays_in_place(other)
                && !self.is_unwritten(other)
        };
        let lacking = next.parts.iter().filter(|other| lacks(**other));
        let cached = self.pool.cache().oldest(tenant, device, size).count();
        lacking.take(cached.saturating_add(1)).count() > cached
    }

    /// Whether this many more extents can exist. `Err` lists cached extents, of any device, that have to be
    /// released first.
    pub(crate) fn check_extent_count(&self, reused: &BTreeSet<Age>, more: usize) -> Result<(), Vec<Age>> {
        let over = self.pool.len().saturating_add(more).saturating_sub(self.config.limits.extents_max);
        planted!(self, CountsIgnored => over = 0);
        if over == 0 {
            return Ok(());
        }
        let released = |(extent, _): &(ExtentId, Footprint)| {
            self.pool.get(*extent).is_some_and(|it| matches!(it.state, ExtentState::Releasing(_)))
        };
        let leaving = self.line.room.iter().filter(released).count();
        let ages = self.pool.cache().iter().map(|(age, _)| age).filter(|age| !reused.contains(age));
        Err(ages.take(over.saturating_sub(leaving)).collect())
    }

    /// Other tenants whose guarantees keep free room in the place.
    pub(crate) fn tenants_below_guarantee(
        &self,
        place: Place,
        tenant: TenantId,
    ) -> impl Iterator<Item = TenantId> {
        let balances = self.ledger.balances(place);
        let accounts = balances.into_iter().flat_map(|balances| balances.accounts());
        let below =
            accounts.filter(move |(of, account)| *of != tenant && account.charged() < account.guarantee);
        below.map(|(of, _)| of)
    }

    pub(crate) fn shortage_refusal(
        &self,
        tenant: TenantId,
        place: Place,
        shortage: Shortage,
        requested: Bytes,
    ) -> Refusal {
        let (tier, device) = (place.tier, self.uuid(place.device).to_owned());
        let balances = self.ledger.balances(place);
        let capacity = balances.map_or(Bytes::ZERO, |balances| balances.surveyed_capacity());
        let free = match shortage {
            Shortage::Room { free } => free,
            // No quota keeps the request out: the tier is smaller than it.
            Shortage::Limit { limit, .. } if limit >= capacity && requested > capacity => {
                self.ledger.trial(place).map_or(Bytes::ZERO, |trial| trial.admittable(tenant))
            }
            Shortage::Limit { limit, charged } => {
                let (tenant, is_whole_tier) = (self.tenants.name(tenant).to_owned(), limit >= capacity);
                return Refusal::QuotaLimit {
                    tenant,
                    device,
                    tier,
                    limit,
                    charged,
                    requested,
                    is_whole_tier,
                };
            }
        };
        let why = match requested > capacity {
            true => FullBecause::TooSmall { capacity },
            false => FullBecause::InUse {
                capacity,
                is_guaranteed: self.tenants_below_guarantee(place, tenant).next().is_some(),
                has_below: tier == Tier::Device && self.ledger.below(place.device).next().is_some(),
            },
        };
        Refusal::DeviceFull { device, tier, free, requested, why }
    }

    /// Checks that all these parts, except those accessed in place, fit on their devices at once if other
    /// tenants give up what they can be made to.
    pub(crate) fn check_feasible(
        &self,
        asker: TenantId,
        parts: impl Iterator<Item = PartRef>,
    ) -> Result<(), Refusal> {
        // One sum for each device and tenant, in their order. Mostly there is one.
        let mut sums: Vec<(DeviceIndex, (TenantId, Bytes))> = Vec::new();
        for part in parts.filter(|part| !self.stays_in_place(*part)) {
            let Some(Footprint { tenant, device, size }) = self.footprint_of(part) else { continue };
            let found =
                sums.binary_search_by_key(&(device, tenant), |(device, (tenant, _))| (*device, *tenant));
            let at = found.unwrap_or_else(|at| {
                sums.insert(at, (device, (tenant, Bytes::ZERO)));
                at
            });
            if let Some((_, (_, sum))) = sums.get_mut(at) {
                *sum = sum.saturating_add(size);
            }
        }
        sums.chunk_by(|(one, _), (next, _)| one == next).try_for_each(|of_device| {
            let Some((device, _)) = of_device.first() else { return Ok(()) };
            let checked = self.check_feasible_on(*device, of_device.iter().map(|(_, requested)| *requested));
            checked.map_err(|why| self.infeasible_refusal(asker, *device, why))
        })
    }

    /// The first need of the line on the device, and since when it waits.
    pub(crate) fn first_need_on(&self, device: DeviceIndex) -> Option<(Time, Need)> {
        self.line.iter().filter(|(_, entry)| entry.devices.contains(&device)).find_map(|(position, entry)| {
            let needs = self.needs(entry.waiter, position.arrived);
            let need = needs.into_iter().find(|need| need.footprint.device == device)?;
            Some((entry.since, need))
        })
    }

    /// Checks that all these requests fit on the device at once. `requested` has the bytes of each tenant that is
    /// charged.
    pub(crate) fn check_feasible_on(
        &self,
        device: DeviceIndex,
        requested: impl Iterator<Item = (TenantId, Bytes)> + Clone,
    ) -> Result<(), Infeasible> {
        let Some(balances) = self.ledger.balances(Place::device(device)) else { return Ok(()) };
        let capacity = balances.surveyed_capacity();
        let sum = requested.clone().map(|(_, bytes)| bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        if sum > capacity {
            return Err(Infeasible::Room { free: capacity, requested: sum });
        }
        self.check_limits_on(device, requested.clone())?;
        self.check_capacity_on(device, requested)
    }

    /// Checks that no tenant requests more than its limit.
    pub(crate) fn check_limits_on(
        &self,
        device: DeviceIndex,
        requested: impl Iterator<Item = (TenantId, Bytes)>,
    ) -> Result<(), Infeasible> {
        for (tenant, requested) in requested {
            let account = self.ledger.account(tenant, Place::device(device));
            if let Some(account) = account.filter(|account| requested > account.limit) {
                let (limit, charged) = (account.limit, account.charged());
                return Err(Infeasible::Limit { tenant, limit, charged, requested });
            }
        }
        Ok(())
    }

    /// Checks the capacity of the device, and the guarantees of other tenants.
    pub(crate) fn check_capacity_on(
        &self,
        device: DeviceIndex,
        requested: impl Iterator<Item = (TenantId, Bytes)> + Clone,
    ) -> Result<(), Infeasible> {
        let Some(balances) = self.ledger.balances(Place::device(device)) else { return Ok(()) };
        let sum = requested.clone().map(|(_, bytes)| bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        let fits_in = |free: Bytes| match sum <= free {
            true => Ok(()),
            false => Err(Infeasible::Room { free, requested: sum }),
        };
        fits_in(balances.surveyed_capacity())?;
        planted!(self, GuaranteeAwaited => return Ok(()));
        fits_in(balances.max_available_to(requested))
    }

    /// The refusal that the tenant reads whose request never fits.
    fn infeasible_refusal(&self, asker: TenantId, device: DeviceIndex, why: Infeasible) -> Refusal {
        let place = Place::device(device);
        let (shortage, requested) = match why {
            // A tenant sees only its own figures, never those of a tenant whose memory it reads.
            Infeasible::Limit { tenant, requested, .. } if tenant != asker => {
                let (device, tier) = (self.uuid(device).to_owned(), place.tier);
                return Refusal::SetTooLarge { device, tier, requested };
            }
            Infeasible::Limit { limit, charged, requested, .. } => {
                (Shortage::Limit { limit, charged }, requested)
            }
            Infeasible::Room { free, requested } => (Shortage::Room { free }, requested),
        };
        self.shortage_refusal(asker, place, shortage, requested)
    }

    /// The refusal that a user reads.
    pub(crate) fn extent_refusal(&self, tenant: TenantId, error: &ExtentError) -> Refusal {
        match error {
            ExtentError::Shortage { place, shortage, requested } => {
                self.shortage_refusal(tenant, *place, *shortage, *requested)
            }
            ExtentError::TooMany => {
                let (tenant, limit) = (self.tenants.name(tenant).to_owned(), self.config.limits.extents_max);
                Refusal::AllocationsTooMany { tenant, limit }
            }
            ExtentError::IdsExhausted => Refusal::InvariantBroken { invariant: invariants::IDS },
            ExtentError::OutOfMemory { place, requested } => {
                let (device, tier) = (self.uuid(place.device).to_owned(), place.tier);
                let (free, why) = (Bytes::ZERO, FullBecause::Driver);
                Refusal::DeviceFull { device, tier, free, requested: *requested, why }
            }
            ExtentError::OutOfRoom { place, requested, problem } => Refusal::TierExhausted {
                device: self.uuid(place.device).to_owned(),
                tier: place.tier,
                requested: *requested,
                problem: problem.clone(),
            },
            ExtentError::DriverFailed { device, problem } => {
                Refusal::DriverFailed { device: self.uuid(*device).to_owned(), problem: problem.clone() }
            }
        }
    }

    /// The refusal that a user of the part reads.
    pub(crate) fn move_refusal(&self, part: PartRef, error: &MoveError) -> Refusal {
        let gone = || Refusal::AllocationNotFound { allocation: part.allocation.to_string() };
        let Some(allocation) = self.allocations.get(part.allocation) else { return gone() };
        match error {
            MoveError::Extent(error) => self.extent_refusal(allocation.tenant, error),
            MoveError::Gone => gone(),
            MoveError::NoTierBelow => Refusal::TierUnsupported { tier: Tier::Host },
            MoveError::CopyFailed { problem } => Refusal::DriverFailed {
                device: self.uuid(allocation.device).to_owned(),
                problem: problem.clone(),
            },
            MoveError::ContentLost { problem } => Refusal::ContentLost {
                allocation: part.allocation,
                part: part.part,
                problem: problem.clone(),
            },
        }
    }

    /// The outcome that an operator reads.
    pub(crate) fn move_outcome(&self, part: PartRef, stop: &Stop) -> PartMove {
        match stop {
            Stop::InUse(why) => why.clone().into(),
            Stop::Wanted => PartMove::Wanted,
            Stop::Held => PartMove::Held,
            Stop::Freed => PartMove::Freed,
            Stop::Failed(MoveError::CopyFailed { problem }) => PartMove::Failed { problem: problem.clone() },
            Stop::Failed(error) => PartMove::Refused { refusal: Box::new(self.move_refusal(part, error)) },
        }
    }
}
