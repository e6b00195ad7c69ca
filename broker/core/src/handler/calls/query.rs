//! Views: what clients and operators may see. Nothing here changes anything.

use std::collections::BTreeMap;

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, SessionId, name};

use crate::{
    broker::Broker,
    error::Refusal,
    event::{PartRef, Peer, Target, Tier},
    ledger::{Place, PlaceBalances, QuotaDevice},
    pool::{Extent, ExtentState},
    residency::{Allocation, AllocationState, Entry, Mapping, Part},
    tenancy::{Session, TenantId},
    view::{
        AllocationView, Backing, Counts, DeviceView, MapperView, NodeView, OwnQuotaView, PartView,
        QuotaInForce, QuotaView, SessionView, StandingSource, TenantView, TierView,
    },
};

/// The most names with a prefix that are gathered to find a page among them. With more names a page is soon
/// full.
const PREFIX_MATCHES_MAX: usize = 1024;

impl Broker {
    /// One allocation with its parts, for a session whose tenant may see it.
    pub fn describe(
        &self,
        session: SessionId,
        peer: Peer,
        target: &Target,
    ) -> Result<AllocationView, Refusal> {
        let tenant = self.authenticate(session, peer)?;
        let (id, allocation) = self.find_visible(tenant, target)?;
        Ok(self.view_of(id, allocation, true, false))
    }

    /// Up to `limit` allocations that a session's tenant may see, by id, and whether there are more. The prefix
    /// is of a name, `name` or `tenant/name`; without a tenant only its own are listed.
    pub fn list_visible(
        &self,
        session: SessionId,
        peer: Peer,
        prefix: &str,
        after: Option<AllocationId>,
        limit: usize,
    ) -> Result<(Vec<AllocationView>, bool), Refusal> {
        let tenant = self.authenticate(session, peer)?;
        let own = self.tenants.name(tenant);
        let (of, prefix) = prefix.split_once('/').unwrap_or((own, prefix));
        if !name::is_valid(of) {
            return Err(Refusal::NameInvalid { field: "name_prefix", name: of.to_owned() });
        }
        let Some(of) = self.tenants.find(of) else { return Ok((Vec::new(), false)) };
        let fits = |allocation: &Allocation| {
            planted!(self, FreedNotListed => if allocation.state.is_freeing() { return false });
            let shown = allocation.tenant == tenant
                || (allocation.state == AllocationState::Sealed && allocation.readers.admit(own));
            let named =
                prefix.is_empty() || allocation.name.as_deref().is_some_and(|name| name.starts_with(prefix));
            shown && named
        };
        let found = match of == tenant {
            true if prefix.is_empty() => None,
            true => self.allocations.named_like(of, prefix, PREFIX_MATCHES_MAX),
            false => return Ok(self.page(self.allocations.shared_of(of, after), limit, fits)),
        };
        Ok(match found {
            None => self.page(self.allocations.of_tenant(of, after), limit, fits),
            Some(ids) => {
                let later = ids.into_iter().filter(|id| after.is_none_or(|after| *id > after));
                let entries = later.filter_map(|id| Some((id, self.allocations.get(id)?)));
                self.page(entries, limit, fits)
            }
        })
    }

    /// One allocation of any tenant, with its parts and their mappers.
    pub fn show(&self, target: &Target) -> Result<AllocationView, Refusal> {
        let (id, allocation) = self.find_any(target)?;
        Ok(self.view_of(id, allocation, true, true))
    }

    /// Up to `limit` allocations, of one tenant or all, by id, and whether there are more.
    pub fn list_allocations(
        &self,
        tenant: Option<&str>,
        after: Option<AllocationId>,
        limit: usize,
    ) -> (Vec<AllocationView>, bool) {
        match tenant.map(|name| self.tenants.find(name)) {
            None => self.page(self.allocations.iter_after(after), limit, |_| true),
            Some(Some(of)) => self.page(self.allocations.of_tenant(of, after), limit, |_| true),
            Some(None) => (Vec::new(), false),
        }
    }

    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        self.sessions.get(id).map(|session| self.session_view(id, session))
    }

    /// Up to `limit` sessions, of one tenant or all, by id, and whether there are more.
    pub fn list_sessions(
        &self,
        tenant: Option<&str>,
        after: Option<SessionId>,
        limit: usize,
    ) -> (Vec<SessionView>, bool) {
        let of = tenant.map(|name| self.tenants.find(name));
        let fits = |session: &Session| of.is_none_or(|of| of == Some(session.tenant));
        let mut found = self.sessions.iter_after(after).filter(|(_, session)| fits(session));
        let page = found.by_ref().take(limit).map(|(id, session)| self.session_view(id, session)).collect();
        (page, found.next().is_some())
    }

    /// The quota of a tenant on a device (the first where none is named), and its charges.
    pub fn quota(&self, tenant: &str, device: Option<&str>, tier: Tier) -> Result<QuotaView, Refusal> {
        if !name::is_valid(tenant) {
            return Err(Refusal::NameInvalid { field: "tenant", name: tenant.to_owned() });
        }
        if !self.ledger.places().any(|(place, _)| place.tier == tier) {
            return Err(Refusal::TierUnsupported { tier });
        }
        let text = device.unwrap_or("0");
        let device =
            self.find_device(text).ok_or_else(|| Refusal::DeviceUnknown { device: text.to_owned() })?;
        Ok(match self.tenants.find(tenant) {
            Some(id) => self.quota_view(id, &QuotaDevice::Present(device), tier),
            None => self.default_view(tenant, Place { device, tier }),
        })
    }

    /// The name of a session's tenant, with its quota, its use and its free room in each tier of each device that
    /// the session sees.
    pub fn own_quota(&self, session: SessionId, peer: Peer) -> Result<(String, Vec<OwnQuotaView>), Refusal> {
        let tenant = self.authenticate(session, peer)?;
        let seen = self.sessions.get(session).map(|session| session.devices.as_slice()).unwrap_or_default();
        let places = self.ledger.places().filter(|(place, _)| seen.contains(&place.device));
        let view = |(place, balances): (Place, &PlaceBalances)| {
            let in_force =
                self.quota_view(tenant, &QuotaDevice::Present(place.device), place.tier).in_force?;
            let free = self.ledger.trial(place).map_or(Bytes::ZERO, |mut trial| {
                trial.spare(tenant, in_force.cached);
                trial.admittable(tenant)
            });
            Some(OwnQuotaView {
                device: place.device,
                uuid: self.uuid(place.device).to_owned(),
                tier: place.tier,
                in_force,
                free,
                capacity: balances.capacity(),
                default_quota: !self.ledger.quotas().effective(tenant, place).1,
            })
        };
        Ok((self.tenants.name(tenant).to_owned(), places.filter_map(view).collect()))
    }

    /// A row for each tenant and device with a stored quota or a charge, by name; of one tenant or all.
    pub fn list_quotas(&self, tenant: Option<&str>) -> Vec<QuotaView> {
        let mut rows = Vec::new();
        for (_, id) in self.tenants.iter().filter(|(name, _)| tenant.is_none_or(|tenant| tenant == *name)) {
            for (place, balances) in self.ledger.places() {
                let mappings = balances.account(id).is_some_and(|account| !account.charged().is_zero());
                if mappings || self.ledger.quotas().effective(id, place).1 {
                    rows.push(self.quota_view(id, &QuotaDevice::Present(place.device), place.tier));
                }
            }
            let stored = self.ledger.quotas().iter();
            let absent =
                stored.filter(|(of, device, ..)| *of == id && matches!(device, QuotaDevice::Absent(_)));
            rows.extend(absent.map(|(_, device, tier, _)| self.quota_view(id, device, tier)));
        }
        rows
    }

    /// The tenants with a class or weight of their own, a stored quota, a session or a charge, by name; one tenant or all.
    pub fn list_tenants(&self, tenant: Option<&str>) -> Vec<TenantView> {
        let mut sessions: BTreeMap<TenantId, usize> = BTreeMap::new();
        for (_, session) in self.sessions.iter() {
            let count = sessions.entry(session.tenant).or_default();
            *count = count.saturating_add(1);
        }
        let with_quota = self.ledger.quotas().tenants();
        let named = self.tenants.iter().filter(|(name, _)| tenant.is_none_or(|tenant| tenant == *name));
        let views = named
            .map(|(_, id)| (id, self.view_of_tenant(id, sessions.get(&id).copied().unwrap_or_default())));
        let is_shown = |(id, view): &(TenantId, TenantView)| {
            let charged = [view.on_device, view.in_host, view.on_disk];
            view.source != StandingSource::Default
                || view.sessions > 0
                || charged.iter().any(|bytes| !bytes.is_zero())
                || with_quota.contains(id)
        };
        views.filter(is_shown).map(|(_, view)| view).collect()
    }

    /// One tenant, with its class and its weight.
    pub(crate) fn tenant_view(&self, tenant: TenantId) -> TenantView {
        let own = self.sessions.iter().filter(|(_, session)| session.tenant == tenant);
        self.view_of_tenant(tenant, own.count())
    }

    fn view_of_tenant(&self, tenant: TenantId, sessions: usize) -> TenantView {
        let charged = |tier| {
            let places = self.ledger.places().filter(|(place, _)| place.tier == tier);
            let accounts = places.filter_map(|(_, balances)| balances.account(tenant));
            accounts.fold(Bytes::ZERO, |sum, account| sum.saturating_add(account.charged()))
        };
        let source = match self.tenants.sources(tenant) {
            (Some(_), _) => StandingSource::Operator,
            (None, Some(_)) => StandingSource::Configuration,
            (None, None) => StandingSource::Default,
        };
        TenantView {
            tenant: self.tenants.name(tenant).to_owned(),
            standing: self.tenants.standing(tenant),
            source,
            on_device: charged(Tier::Device),
            in_host: charged(Tier::Host),
            on_disk: charged(Tier::Disk),
            sessions,
        }
    }

    pub fn devices(&self) -> Vec<DeviceView> {
        let view = |(index, config): (_, &crate::config::DeviceConfig)| {
            let balances = self.ledger.balances(Place::device(index))?;
            let outlook = self.outlook_of(Place::device(index));
            let (cached_smaller, cached_larger) =
                self.pool.cache().bytes_of_other_sizes(index, self.config.part_size);
            Some(DeviceView {
                index,
                uuid: config.uuid.clone(),
                name: config.name.clone(),
                total: config.total,
                capacity: balances.capacity(),
                charged: balances.charged(),
                unreturned: balances.unreturned(),
                cached: self.pool.cache().bytes_on(index),
                cached_smaller,
                cached_larger,
                host: self.tier_view(Place { device: index, tier: Tier::Host }),
                disk: self.tier_view(Place { device: index, tier: Tier::Disk }),
                moving_in: self.moving_bytes(index, |it| it.to_tier == Tier::Device),
                moving_out: self.moving_bytes(index, |it| it.from_tier == Tier::Device),
                parts_waiting: self.line.parts().filter(|part| self.is_of(*part, index)).count(),
                unbrokered: balances.unbrokered(),
                managed: self.allocations.managed.sums_in(Place::device(index)).into(),
                contexts: balances.contexts(),
                committed: balances.committed(),
                shortfall: balances.shortfall(),
                pressure: self.pressure_of(Place::device(index)),
                batch_factor: outlook.batch_factor,
                full_in: outlook.full_in,
            })
        };
        self.device_indices().zip(&self.config.devices).filter_map(view).collect()
    }

    fn tier_view(&self, place: Place) -> Option<TierView> {
        let outlook = self.outlook_of(place);
        self.ledger.balances(place).map(|balances| TierView {
            total: balances.share(),
            capacity: balances.capacity(),
            charged: balances.charged(),
            unreturned: balances.unreturned(),
            committed: balances.committed(),
            shortfall: balances.shortfall(),
            pressure: self.pressure_of(place),
            batch_factor: outlook.batch_factor,
            full_in: outlook.full_in,
        })
    }

    fn is_of(&self, part: PartRef, device: DeviceIndex) -> bool {
        self.allocations.get(part.allocation).is_some_and(|allocation| allocation.device == device)
    }

    pub fn node(&self) -> NodeView {
        let (parts_waiting, batches_waiting) = self.line.counts();
        NodeView {
            parts_waiting,
            batches_waiting,
            draining: self.node.draining,
            boot_epoch: self.config.boot_epoch,
            sessions: self.sessions.len(),
            allocations: self.allocations.len(),
            fds_in_flight: self.mapping.fds.total,
            invariant_violations: self.shell.violations,
        }
    }

    /// How many sessions and allocations are in each state, and what allocations have beyond their requested
    /// bytes.
    pub fn counts(&self) -> Counts {
        let (mut sessions, mut sessions_of) = (BTreeMap::new(), BTreeMap::new());
        for (_, session) in self.sessions.iter() {
            let count: &mut usize = sessions.entry(session.state).or_default();
            *count = count.saturating_add(1);
            let of_tenant: &mut usize = sessions_of.entry(session.tenant).or_default();
            *of_tenant = of_tenant.saturating_add(1);
        }
        let sessions_by_tenant = sessions_of.into_iter();
        let sessions_by_tenant =
            sessions_by_tenant.map(|(tenant, count)| (self.tenants.name(tenant).to_owned(), count));
        let tenants =
            self.tenants.iter().map(|(name, id)| (name.to_owned(), self.allocations.count_of(id).0));
        Counts {
            sessions,
            allocations: self.allocations.states().filter(|(_, count)| *count > 0).collect(),
            allocations_by_tenant: tenants.filter(|(_, count)| *count > 0).collect(),
            sessions_by_tenant: sessions_by_tenant.collect(),
            rounding: self.named(self.rounded()),
            in_place: self.named(self.allocations.in_place()),
            in_file: self.named(self.pool.in_files()),
        }
    }

    fn named(
        &self,
        sums: impl IntoIterator<Item = ((TenantId, DeviceIndex), Bytes)>,
    ) -> BTreeMap<(String, String), Bytes> {
        let named = |((tenant, device), bytes)| {
            ((self.tenants.name(tenant).to_owned(), self.uuid(device).to_owned()), bytes)
        };
        sums.into_iter().map(named).collect()
    }

    fn rounded(&self) -> impl Iterator<Item = ((TenantId, DeviceIndex), Bytes)> {
        let of =
            |tenant| self.allocations.rounding_of(tenant).map(move |(device, sum)| ((tenant, device), sum));
        self.tenants.iter().flat_map(move |(_, tenant)| of(tenant))
    }

    fn page<'a>(
        &self,
        entries: impl Iterator<Item = Entry<'a>>,
        limit: usize,
        fits: impl Fn(&Allocation) -> bool,
    ) -> (Vec<AllocationView>, bool) {
        let mut found = entries.filter(|(_, allocation)| fits(allocation));
        let page =
            found.by_ref().take(limit).map(|(id, allocation)| self.view_of(id, allocation, false, true));
        (page.collect(), found.next().is_some())
    }

    pub(crate) fn view(&self, id: AllocationId, parts: bool, mappers: bool) -> Option<AllocationView> {
        self.allocations.get(id).map(|allocation| self.view_of(id, allocation, parts, mappers))
    }

    fn view_of(
        &self,
        id: AllocationId,
        allocation: &Allocation,
        parts: bool,
        mappers: bool,
    ) -> AllocationView {
        let tenant = self.tenants.name(allocation.tenant).to_owned();
        let part_view = |(index, part): (PartIndex, &Part)| {
            let mapper = |mapping: &Mapping| {
                let channel = self.sessions.get(mapping.session).map(|session| session.channel);
                let word = channel.zip(mapping.slot());
                MapperView { session: mapping.session, state: mapping.state, word }
            };
            let of_part = PartRef { allocation: id, part: index };
            PartView {
                index,
                offset: allocation.offset_of(index),
                size: allocation.size_of(index),
                tier: self.tier_of(of_part).unwrap_or(Self::tier()),
                operator_hold: self.moves.is_held(of_part),
                dropped: self.is_dropped(of_part),
                moves_to: self.moves.migrations.get(of_part).map(|migration| migration.to_tier),
                placement: self.usage.placements.of(of_part),
                backing: mappers.then(|| self.backing(of_part, part.extent)),
                mappers: if mappers { part.mappings.iter().map(mapper).collect() } else { Vec::new() },
            }
        };
        let parts = parts.then(|| allocation.indices().zip(&allocation.parts).map(part_view).collect());
        // The daemon does not know which pages of managed memory are resident.
        let mut charged = self.allocations.managed.bytes_of(id);
        let (mut resident, mut unreturned) = (Bytes::ZERO, Bytes::ZERO);
        let (mut in_host, mut on_disk, mut in_file) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        for (_, extent) in self.charged_extents(id, allocation) {
            charged = charged.saturating_add(extent.cost());
            match extent.state {
                ExtentState::Live(_) if extent.in_file => in_file = in_file.saturating_add(extent.size),
                ExtentState::Live(_) if extent.place.tier == Tier::Host => {
                    in_host = in_host.saturating_add(extent.size);
                }
                ExtentState::Live(_) if extent.place.tier == Tier::Disk => {
                    on_disk = on_disk.saturating_add(extent.size);
                }
                ExtentState::Live(_) => resident = resident.saturating_add(extent.size),
                ExtentState::Unreturned(_) => unreturned = unreturned.saturating_add(extent.size),
                ExtentState::Creating(_)
                | ExtentState::Cached(_)
                | ExtentState::Releasing(_)
                | ExtentState::Dropped => {}
            }
        }
        let mapper_count = allocation.mapper_count();
        planted!(self, MapperNotShown => mapper_count = mapper_count.saturating_sub(1));
        AllocationView {
            id,
            name: allocation.name.as_ref().map(|name| [&tenant, "/", name].concat()).unwrap_or_default(),
            tenant,
            device: self.uuid(allocation.device).to_owned(),
            kind: allocation.kind,
            lifetime: allocation.lifetime,
            discardable: allocation.discardable,
            accessed_by_device: allocation.in_place,
            advice: if parts.is_some() {
                let is_forbidden = self.is_advice_forbidden(allocation.tenant);
                self.usage.advice.spans(id, is_forbidden, self.shell.now).collect()
            } else {
                Vec::new()
            },
            speculation: self.moves.prefetches.learnt.speculation(id),
            as_of: self.shell.now,
            state: allocation.state,
            size: allocation.size,
            charged,
            resident,
            in_host,
            on_disk,
            in_file,
            file: allocation.file.as_deref().filter(|_| self.has_file(id)).map(|path| (*path.0).to_owned()),
            unreturned,
            digest: allocation.digest.as_deref().copied(),
            managed: self.allocations.managed.view(id),
            readers: allocation.readers.iter().map(str::to_owned).collect(),
            owner: allocation.owner,
            parts: parts.unwrap_or_default(),
            mapper_count,
        }
    }

    /// The state of the extent of a part. An extent that was reused belongs to another part, or to none.
    fn backing(&self, part: PartRef, extent: ExtentId) -> Backing {
        match self.pool.extent_of_part(part, extent).map(|extent| &extent.state) {
            Some(ExtentState::Creating(_)) => Backing::Creating,
            Some(ExtentState::Live(_)) => Backing::Live,
            Some(ExtentState::Releasing(_)) => Backing::Releasing,
            Some(ExtentState::Unreturned(_)) => Backing::Unreturned,
            Some(ExtentState::Cached(_) | ExtentState::Dropped) | None => Backing::Gone,
        }
    }

    /// The bytes that an allocation is charged for, without the backing of its parts.
    pub(crate) fn charged(&self, id: AllocationId, allocation: &Allocation) -> Bytes {
        let extents = self.charged_extents(id, allocation).map(|(_, extent)| extent.cost());
        Bytes::checked_sum(extents.chain([self.allocations.managed.bytes_of(id)])).unwrap_or(Bytes::MAX)
    }

    fn charged_extents<'a>(
        &'a self,
        id: AllocationId,
        of: &'a Allocation,
    ) -> impl Iterator<Item = (ExtentId, &'a Extent)> {
        let is_freed = of.state == AllocationState::Freeing;
        let is_charged = move |(id, extent): &(ExtentId, &Extent)| {
            !extent.is_dropped() && (is_freed || !self.is_below(*id, extent))
        };
        self.extents_of(id, of).filter(is_charged)
    }

    /// Whether the extent is the backing of a part, or its destination below.
    fn is_below(&self, id: ExtentId, extent: &Extent) -> bool {
        let on_its_way = |part: &PartRef| self.moves.migrations.get(*part).is_some_and(|it| it.to == id);
        extent.place.tier != Tier::Device
            && extent.part.as_ref().is_some_and(|part| self.is_backing_of(*part, id) || on_its_way(part))
    }

    /// The extents that an allocation's parts still have.
    pub(crate) fn extents_of<'a>(
        &'a self,
        id: AllocationId,
        of: &'a Allocation,
    ) -> impl Iterator<Item = (ExtentId, &'a Extent)> {
        let parts = of.indices().map(move |part| PartRef { allocation: id, part });
        let own = parts
            .zip(&of.parts)
            .filter_map(|(part, entry)| Some((entry.extent, self.pool.extent_of_part(part, entry.extent)?)));
        let detached = self.moves.detached.of(id);
        own.chain(detached.filter_map(|extent| Some((extent, self.pool.get(extent)?))))
    }

    pub(crate) fn held_in_all(&self) -> Bytes {
        Bytes::checked_sum(self.ledger.places().map(|(_, balances)| balances.charged())).unwrap_or(Bytes::MAX)
    }

    fn session_view(&self, id: SessionId, session: &Session) -> SessionView {
        SessionView {
            id,
            tenant: self.tenants.name(session.tenant).to_owned(),
            state: session.state,
            silent_reason: session.silent_reason.as_ref().map(ToString::to_string),
            pid: session.pid,
            uid: session.uid,
            client_name: session.client_name.clone(),
            allocations: session.owned.len(),
            mapped: session.mapped,
            fds_in_flight: session.fds_in_flight,
            opened: session.opened,
        }
    }

    pub(crate) fn quota_view(&self, tenant: TenantId, device: &QuotaDevice, tier: Tier) -> QuotaView {
        let name = self.tenants.name(tenant).to_owned();
        let book = self.ledger.quotas();
        match device {
            QuotaDevice::Present(index) => {
                let place = Place { device: *index, tier };
                let (quota, stored) = book.effective(tenant, place);
                let in_force = self.ledger.account(tenant, place).map(|account| QuotaInForce {
                    guarantee: account.guarantee,
                    limit: account.limit,
                    charged: account.charged(),
                    reserved: account.reserved,
                    unreturned: account.unreturned,
                    managed: self.allocations.managed.sums_of(tenant, place).into(),
                    cached: match tier {
                        Tier::Device => self.pool.cache().bytes_of(tenant, *index),
                        Tier::Host | Tier::Disk => Bytes::ZERO,
                    },
                    clean: match tier {
                        Tier::Device => {
                            let each = [Tier::Host, Tier::Disk]
                                .map(|tier| self.moves.backings.sum((tenant, *index), tier).clean);
                            each.into_iter().fold(Bytes::ZERO, Bytes::saturating_add)
                        }
                        Tier::Host | Tier::Disk => Bytes::ZERO,
                    },
                    backing: match tier {
                        Tier::Host | Tier::Disk => self.moves.backings.sum((tenant, *index), tier).total,
                        Tier::Device => Bytes::ZERO,
                    },
                });
                QuotaView {
                    tenant: name,
                    device: self.uuid(*index).to_owned(),
                    tier,
                    guarantee: quota.guarantee,
                    limit: quota.limit,
                    in_force,
                    default_quota: !stored,
                    device_absent: false,
                }
            }
            QuotaDevice::All | QuotaDevice::Absent(_) => {
                let stored = book.get(tenant, device, tier);
                let quota = stored.unwrap_or_else(|| book.default_quota(tier));
                QuotaView {
                    tenant: name,
                    device: self.device_text(device),
                    tier,
                    guarantee: quota.guarantee,
                    limit: quota.limit,
                    in_force: None,
                    default_quota: stored.is_none(),
                    device_absent: matches!(device, QuotaDevice::Absent(_)),
                }
            }
        }
    }

    /// The quota of a tenant that the daemon does not know yet.
    fn default_view(&self, tenant: &str, place: Place) -> QuotaView {
        let quota = self.ledger.quotas().default_quota(place.tier);
        let share = self.ledger.balances(place).map_or(Bytes::ZERO, |balances| balances.share());
        QuotaView {
            tenant: tenant.to_owned(),
            device: self.uuid(place.device).to_owned(),
            tier: place.tier,
            guarantee: quota.guarantee,
            limit: quota.limit,
            in_force: Some(QuotaInForce { limit: quota.limit.of(share), ..QuotaInForce::default() }),
            default_quota: true,
            device_absent: false,
        }
    }
}
