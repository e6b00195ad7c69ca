//! Computes the values of metrics from one snapshot of the broker per collection.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use broker_core::{
    Broker, Counts, DeviceView, NodeView, PressureBounds, QuotaView, Tier, Time, TurnPhase, WorkingSetView,
};
use vramd_types::{Bytes, Shares};

use super::metrics::OTHER_TENANTS;

/// The number of series of one tenant in one place: one for each state of memory.
const fn memory_state_count(tier: Tier) -> usize {
    match tier {
        Tier::Device => 6,
        Tier::Host | Tier::Disk => 4,
    }
}

/// A copy of the broker's views. It is taken under the broker's lock, so nothing is computed here.
#[derive(Debug)]
pub(super) struct Snapshot {
    quotas: Vec<QuotaView>,
    devices: Vec<DeviceView>,
    counts: Counts,
    node: NodeView,
    bounds: PressureBounds,
    shares: Shares,
    sets: Vec<WorkingSetView>,
}

impl Snapshot {
    pub(super) fn of(broker: &Broker) -> Self {
        Self {
            quotas: broker.list_quotas(None),
            devices: broker.devices(),
            counts: broker.counts(),
            node: broker.node(),
            bounds: broker.settings().pressure,
            shares: broker.settings().shares,
            sets: broker.working_sets(),
        }
    }
}

/// The values that the instruments export.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) tenants: BTreeMap<Account, Balance>,
    /// By tenant.
    pub(super) allocations_of: BTreeMap<String, u64>,
    pub(super) sessions_of: BTreeMap<String, u64>,
    /// By tenant and device.
    pub(super) rounded: BTreeMap<(String, String), Bytes>,
    pub(super) in_place: BTreeMap<(String, String), Bytes>,
    pub(super) in_file: BTreeMap<(String, String), Bytes>,
    /// By the name of the state.
    pub(super) allocations: BTreeMap<String, u64>,
    pub(super) sessions: BTreeMap<String, u64>,
    pub(super) devices: Vec<DeviceView>,
    pub(super) fds_in_flight: u64,
    pub(super) parts_waiting: u64,
    pub(super) batches_waiting: u64,
    /// Working sets that wait for their turn, by device.
    pub(super) turns_waiting: BTreeMap<String, u64>,
    pub(super) violations: u64,
    /// Bounds of the pressure levels.
    pub(super) bounds: PressureBounds,
    pub(super) shares: Shares,
}

/// A tenant in one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Account {
    pub(super) tenant: String,
    /// UUID.
    pub(super) device: String,
    pub(super) tier: Tier,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Balance {
    pub(super) guarantee: Bytes,
    pub(super) limit: Bytes,
    pub(super) reserved: Bytes,
    pub(super) unreturned: Bytes,
    pub(super) cached: Bytes,
    /// Managed memory: ordered there, and not known to be resident.
    pub(super) managed: Bytes,
    /// Bytes that lie there and can leave without a copy.
    pub(super) clean: Bytes,
    /// Bytes that back parts on the device.
    pub(super) backing: Bytes,
    /// All other charged bytes.
    pub(super) dirty: Bytes,
}

impl Balance {
    /// The bytes in each state of memory. They add up to the charge.
    pub(super) const fn states(&self) -> [(&'static str, Bytes); 7] {
        [
            ("clean", self.clean),
            ("dirty", self.dirty),
            ("backing", self.backing),
            ("reserved", self.reserved),
            ("cached", self.cached),
            ("managed", self.managed),
            ("unreturned", self.unreturned),
        ]
    }

    fn add(&mut self, other: Self) {
        let sum = |a: &mut Bytes, b: Bytes| *a = a.saturating_add(b);
        sum(&mut self.guarantee, other.guarantee);
        sum(&mut self.limit, other.limit);
        sum(&mut self.reserved, other.reserved);
        sum(&mut self.unreturned, other.unreturned);
        sum(&mut self.cached, other.cached);
        sum(&mut self.managed, other.managed);
        sum(&mut self.clean, other.clean);
        sum(&mut self.backing, other.backing);
        sum(&mut self.dirty, other.dirty);
    }
}

/// Chooses the tenants that have series of their own: those of the greatest interest whose series fit together. All other
/// tenants are summed up.
///
/// The choice is as steady as it can be. A tenant counts with the greatest interest and the most series of the last
/// [`HOLD`], and one without series replaces only tenants of less interest. So no series comes and goes with a value.
#[derive(Debug)]
pub(super) struct NamedTenants {
    /// Maximum series of one metric.
    series_max: usize,
    tenants: BTreeMap<String, Known>,
}

/// How long a tenant counts with the greatest interest that it had.
pub(super) const HOLD: Duration = Duration::from_secs(900);

/// A tenant with a quota, a charge, an allocation or a session.
#[derive(Debug, Default)]
struct Known {
    interest: Held<Interest>,
    /// The number of its series in the metric where it has most.
    series: Held<usize>,
    is_named: bool,
}

/// How much an operator wants to see a tenant. A later field matters only if the ones before are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Interest {
    is_refused: bool,
    /// It has nine tenths of a limit in use.
    is_near_limit: bool,
    /// Number of binary digits of its charge, halved: a small change of the charge is none of the interest. At least 1
    /// if it has a session or an allocation.
    size: u32,
}

/// The largest value within [`HOLD`], or a later one.
#[derive(Debug, Default)]
struct Held<V> {
    value: V,
    until: Time,
}

impl<V: Ord + Copy> Held<V> {
    fn update(&mut self, value: V, now: Time) {
        if value >= self.value || now >= self.until {
            *self = Self { value, until: now.after(HOLD) };
        }
    }
}

/// A tenant's part of one snapshot.
#[derive(Debug, Default)]
struct Seen {
    charge: Bytes,
    is_near_limit: bool,
    is_active: bool,
    /// Series by metric: quotas, states of memory, and the others by device.
    quotas: usize,
    states: usize,
    others: [usize; 3],
}

impl Seen {
    fn add_place(&mut self, balance: &Balance) {
        let states = balance.states();
        let charge = states.iter().fold(Bytes::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes));
        self.charge = self.charge.saturating_add(charge);
        let is_near = u128::from(charge.get()) * 10 >= u128::from(balance.limit.get()) * 9;
        self.is_near_limit |= is_near && !charge.is_zero();
        self.quotas += 1;
        self.states += states.iter().filter(|(_, bytes)| !bytes.is_zero()).count();
    }

    fn interest(&self, is_refused: bool) -> Interest {
        let size = (u64::BITS - self.charge.get().leading_zeros()) / 2;
        Interest { is_refused, is_near_limit: self.is_near_limit, size: size.max(u32::from(self.is_active)) }
    }

    fn series(&self) -> usize {
        let most = self.others.into_iter().fold(1, usize::max);
        most.max(self.quotas).max(self.states)
    }
}

impl NamedTenants {
    pub(super) fn new(series_max: usize) -> Self {
        Self { series_max, tenants: BTreeMap::new() }
    }

    /// Sums up the snapshot. `refused` are tenants that were refused lately.
    pub(super) fn compute_figures(
        &mut self,
        snapshot: Snapshot,
        refused: &BTreeSet<String>,
        now: Time,
    ) -> Figures {
        let Snapshot { quotas, devices, counts, node, bounds, shares, sets } = snapshot;
        let quotas: Vec<_> = quotas.into_iter().filter_map(account_of).collect();
        self.update(&quotas, &counts, refused, now);
        let places: BTreeSet<_> = quotas.iter().map(|(account, _)| (&account.device, account.tier)).collect();
        self.choose_named(series_per_tenant(places.into_iter().map(|(_, tier)| tier)));

        let mut figures = Figures {
            sessions: by_name(counts.sessions),
            allocations: by_name(counts.allocations),
            devices,
            fds_in_flight: wide(node.fds_in_flight),
            parts_waiting: wide(node.parts_waiting),
            batches_waiting: wide(node.batches_waiting),
            violations: node.invariant_violations,
            bounds,
            shares,
            ..Figures::default()
        };
        for set in sets.into_iter().filter(|set| set.phase == TurnPhase::Waiting) {
            let waiting = figures.turns_waiting.entry(set.device).or_default();
            *waiting = waiting.saturating_add(1);
        }
        for (mut account, balance) in quotas {
            account.tenant = self.series_name(account.tenant);
            figures.tenants.entry(account).or_default().add(balance);
        }
        for (tenant, count) in counts.allocations_by_tenant {
            let sum = figures.allocations_of.entry(self.series_name(tenant)).or_default();
            *sum = sum.saturating_add(wide(count));
        }
        for (tenant, count) in counts.sessions_by_tenant {
            let sum = figures.sessions_of.entry(self.series_name(tenant)).or_default();
            *sum = sum.saturating_add(wide(count));
        }
        let by_both = [
            (counts.rounding, &mut figures.rounded),
            (counts.in_place, &mut figures.in_place),
            (counts.in_file, &mut figures.in_file),
        ];
        for (from, to) in by_both {
            for ((tenant, device), bytes) in from {
                let sum = to.entry((self.series_name(tenant), device)).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        figures
    }

    /// Forgets tenants that are gone, and takes down how interesting the others are.
    fn update(
        &mut self,
        quotas: &[(Account, Balance)],
        counts: &Counts,
        refused: &BTreeSet<String>,
        now: Time,
    ) {
        let mut all: BTreeMap<&str, Seen> = BTreeMap::new();
        for (account, balance) in quotas {
            all.entry(&account.tenant).or_default().add_place(balance);
        }
        for tenant in counts.allocations_by_tenant.keys().chain(counts.sessions_by_tenant.keys()) {
            all.entry(tenant).or_default().is_active = true;
        }
        for (at, sums) in [&counts.rounding, &counts.in_place, &counts.in_file].into_iter().enumerate() {
            for (tenant, _) in sums.keys() {
                all.entry(tenant).or_default().others[at] += 1;
            }
        }
        self.tenants.retain(|tenant, _| all.contains_key(tenant.as_str()));
        for (tenant, seen) in all {
            let known = self.tenants.entry(tenant.to_owned()).or_default();
            known.interest.update(seen.interest(refused.contains(tenant)), now);
            known.series.update(seen.series(), now);
        }
    }

    /// Gives series to the most interesting tenants. Beside them there is room for `others_max` series of the others.
    fn choose_named(&mut self, others_max: usize) {
        let mut order: Vec<_> = self.tenants.values_mut().collect();
        order.sort_by_key(|known| Reverse((known.interest.value, known.is_named)));
        let mut left = self.series_max.saturating_sub(others_max);
        for known in order {
            known.is_named = known.series.value <= left;
            if known.is_named {
                left -= known.series.value;
            }
        }
    }

    fn series_name(&self, tenant: String) -> String {
        let is_named = self.tenants.get(&tenant).is_some_and(|known| known.is_named);
        if is_named { tenant } else { OTHER_TENANTS.to_owned() }
    }
}

/// The maximum number of series that one tenant has of one metric, in places of these tiers.
pub(super) fn series_per_tenant(tiers: impl IntoIterator<Item = Tier>) -> usize {
    tiers
        .into_iter()
        .map(memory_state_count)
        .fold(0, usize::saturating_add)
        .max(memory_state_count(Tier::Device))
}

/// Converts a row, unless its device is absent.
fn account_of(row: QuotaView) -> Option<(Account, Balance)> {
    let QuotaView { tenant, device, tier, in_force, .. } = row;
    let force = in_force?;
    let apart = [force.unreturned, force.cached, force.managed.charged];
    let apart = apart.into_iter().fold(force.reserved, Bytes::saturating_add);
    let resident = force.charged.saturating_sub(apart);
    let clean = force.clean.min(resident);
    let backing = force.backing.min(resident.saturating_sub(clean));
    let balance = Balance {
        guarantee: force.guarantee,
        limit: force.limit,
        reserved: force.reserved,
        unreturned: force.unreturned,
        cached: force.cached,
        managed: force.managed.charged,
        clean,
        backing,
        dirty: resident.saturating_sub(clean).saturating_sub(backing),
    };
    Some((Account { tenant, device, tier }, balance))
}

/// Sums up states that have the same name.
fn by_name<State: ToString>(counts: BTreeMap<State, usize>) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (state, count) in counts {
        let sum = sums.entry(state.to_string()).or_default();
        *sum = sum.saturating_add(wide(count));
    }
    sums
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use broker_core::{AllocationState, ManagedBytes, Pressure, QuotaInForce, TierView};
    use vramd_types::{DeviceIndex, Quantity};

    use super::*;

    /// A number of tenants, each charged on two devices and in two tiers.
    pub(in crate::telemetry) fn snapshot(tenants: usize) -> Snapshot {
        let mut quotas = Vec::new();
        for tenant in 0..tenants {
            for device in ["GPU-a", "GPU-b"] {
                for tier in [Tier::Device, Tier::Host] {
                    quotas.push(row(&team(tenant), device, tier));
                }
            }
        }
        let counts = Counts {
            sessions: [].into(),
            allocations: [(AllocationState::Unmapping, tenants), (AllocationState::Digesting, tenants)]
                .into(),
            allocations_by_tenant: (0..tenants).map(|tenant| (team(tenant), 2)).collect(),
            sessions_by_tenant: BTreeMap::new(),
            rounding: (0..tenants)
                .map(|tenant| ((team(tenant), "GPU-a".to_owned()), Bytes::mib(1)))
                .collect(),
            in_place: (0..tenants)
                .map(|tenant| ((team(tenant), "GPU-a".to_owned()), Bytes::mib(2)))
                .collect(),
            in_file: (0..tenants).map(|tenant| ((team(tenant), "GPU-a".to_owned()), Bytes::mib(4))).collect(),
        };
        let node = NodeView {
            draining: false,
            boot_epoch: 1,
            sessions: 0,
            allocations: tenants,
            fds_in_flight: 3,
            parts_waiting: 2,
            batches_waiting: 1,
            invariant_violations: 0,
        };
        Snapshot {
            quotas,
            devices: Vec::new(),
            counts,
            node,
            bounds: PressureBounds::default(),
            shares: Shares::default(),
            sets: Vec::new(),
        }
    }

    /// Tenants with a quota in three tiers of devices with real UUIDs. Each has dirty parts in all of them, and clean parts
    /// on the device.
    pub(in crate::telemetry) fn wide_snapshot(tenants: usize, devices: u16) -> Snapshot {
        let full = full_snapshot();
        let of_device = |index: u16| {
            let uuid = format!("GPU-5e0f2d1c-7a3b-4c9d-8e6f-0123456789{index:02}");
            let first = &full.devices[0];
            DeviceView { index: DeviceIndex(index), uuid, disk: first.host, ..first.clone() }
        };
        let devices: Vec<_> = (0..devices).map(of_device).collect();
        let mut quotas = Vec::new();
        for tenant in 0..tenants {
            for device in &devices {
                for tier in [Tier::Device, Tier::Host, Tier::Disk] {
                    let row = row(&team(tenant), &device.uuid, tier);
                    let none = Bytes::ZERO;
                    let force = row.in_force.map(|force| QuotaInForce {
                        reserved: none,
                        unreturned: none,
                        cached: none,
                        backing: none,
                        ..force
                    });
                    quotas.push(QuotaView { in_force: force, ..row });
                }
            }
        }
        let of_each = |count| (0..tenants).map(|tenant| (team(tenant), count)).collect();
        let (allocations_by_tenant, sessions_by_tenant) = (of_each(2), of_each(1));
        let counts = Counts {
            allocations_by_tenant,
            sessions_by_tenant,
            rounding: BTreeMap::new(),
            in_place: BTreeMap::new(),
            in_file: BTreeMap::new(),
            ..full.counts
        };
        Snapshot { quotas, devices, counts, ..full }
    }

    /// A snapshot with a value for every metric.
    pub(in crate::telemetry) fn full_snapshot() -> Snapshot {
        let mib = Bytes::mib;
        let device = DeviceView {
            index: DeviceIndex(0),
            uuid: "GPU-a".to_owned(),
            name: "a device".to_owned(),
            total: mib(1024),
            capacity: mib(1000),
            charged: mib(32),
            unreturned: mib(8),
            cached: mib(8),
            cached_smaller: mib(2),
            cached_larger: mib(4),
            managed: ManagedBytes { charged: mib(2), on_device: mib(1), on_host: mib(1) },
            disk: None,
            host: Some(TierView {
                total: mib(512),
                capacity: mib(512),
                charged: mib(24),
                unreturned: mib(1),
                committed: mib(24),
                shortfall: mib(1),
                pressure: Pressure::High,
                batch_factor: 800,
                full_in: Some(std::time::Duration::from_secs(2)),
            }),
            moving_in: mib(2),
            moving_out: mib(2),
            parts_waiting: 1,
            unbrokered: mib(3),
            contexts: mib(4),
            committed: mib(40),
            shortfall: mib(1),
            pressure: Pressure::Normal,
            batch_factor: 800,
            full_in: Some(std::time::Duration::from_secs(2)),
        };
        let base = snapshot(1);
        let sessions = [(broker_core::SessionState::Live, 2)].into();
        let sessions_by_tenant = [("team-000".to_owned(), 2)].into();
        let counts = Counts { sessions, sessions_by_tenant, ..base.counts };
        let node = NodeView { invariant_violations: 1, ..base.node };
        let waiting = WorkingSetView {
            session: vramd_types::SessionId::from_shown(1),
            tenant: "team-000".into(),
            device: "GPU-a".to_owned(),
            number: 1,
            name: "llama".into(),
            allocations: 1,
            bytes: mib(2),
            phase: TurnPhase::Waiting,
            since: Some(Time::START),
            turns: 0,
            held: Duration::ZERO,
        };
        let idle = WorkingSetView { phase: TurnPhase::Idle, ..waiting.clone() };
        Snapshot { devices: vec![device], counts, node, sets: vec![waiting, idle], ..base }
    }

    fn team(number: usize) -> String {
        format!("team-{number:03}")
    }

    fn row(tenant: &str, device: &str, tier: Tier) -> QuotaView {
        let mib = Bytes::mib;
        let on = |only, count| if tier == only { mib(count) } else { Bytes::ZERO };
        QuotaView {
            tenant: tenant.to_owned(),
            device: device.to_owned(),
            tier,
            guarantee: Quantity::Bytes(mib(1)),
            limit: Quantity::Percent(100),
            in_force: Some(QuotaInForce {
                guarantee: mib(1),
                limit: mib(100),
                charged: mib(16),
                reserved: mib(2),
                unreturned: mib(4),
                cached: on(Tier::Device, 1),
                managed: ManagedBytes { charged: on(Tier::Device, 2), ..ManagedBytes::default() },
                clean: on(Tier::Device, 3),
                backing: on(Tier::Host, 4),
            }),
            default_quota: false,
            device_absent: false,
        }
    }

    fn figures(tenants: &mut NamedTenants, snapshot: Snapshot) -> Figures {
        tenants.compute_figures(snapshot, &BTreeSet::new(), Time::START)
    }

    fn minute(minutes: u64) -> Time {
        Time::START.after(Duration::from_secs(60 * minutes))
    }

    /// Changes the charge of a tenant's rows.
    fn charge(snapshot: &mut Snapshot, tenant: &str, charge: Bytes) {
        for row in snapshot.quotas.iter_mut().filter(|row| row.tenant == tenant) {
            let limit = row.in_force.map_or(Bytes::ZERO, |force| force.limit);
            let none = Bytes::ZERO;
            row.in_force = Some(QuotaInForce {
                guarantee: none,
                limit,
                charged: charge,
                reserved: none,
                unreturned: none,
                cached: none,
                managed: ManagedBytes::default(),
                clean: none,
                backing: none,
            });
        }
    }

    /// Tenants with quotas only. Each has four series of a metric.
    fn idle(tenants: usize) -> Snapshot {
        let mut snapshot = snapshot(tenants);
        (0..tenants).for_each(|tenant| charge(&mut snapshot, &team(tenant), Bytes::ZERO));
        let counts = Counts {
            allocations_by_tenant: BTreeMap::new(),
            rounding: BTreeMap::new(),
            in_place: BTreeMap::new(),
            in_file: BTreeMap::new(),
            ..snapshot.counts
        };
        Snapshot { counts, ..snapshot }
    }

    fn named(figures: &Figures) -> BTreeSet<String> {
        let named = figures.tenants.keys().map(|of| of.tenant.clone());
        named.filter(|tenant| tenant != OTHER_TENANTS).collect()
    }

    /// Series for ten tenants with quotas only, beside those of all others.
    const TEN_IDLE: usize = 10 * 4 + 2 * (6 + 4);

    #[test]
    fn the_states_of_a_balance_add_up_to_the_charge() {
        let figures = figures(&mut NamedTenants::new(4000), snapshot(1));
        for balance in figures.tenants.values() {
            let states = balance.states().map(|(_, bytes)| bytes);
            assert_eq!(Bytes::checked_sum(states), Some(Bytes::mib(16)));
        }
        let bytes_in = |tier| {
            let balance = figures.tenants.iter().find(|(of, _)| of.tier == tier).unwrap().1;
            [balance.clean, balance.backing, balance.dirty].map(|bytes| bytes.get() >> 20)
        };
        assert_eq!((bytes_in(Tier::Device), bytes_in(Tier::Host)), ([3, 0, 4], [0, 4, 6]));
        assert_eq!(figures.tenants.len(), 4);
    }

    #[test]
    fn tenants_that_do_not_fit_are_summed_and_no_byte_is_lost() {
        let figures = figures(&mut NamedTenants::new(512), snapshot(200));
        let named: BTreeSet<_> = figures.tenants.keys().map(|of| of.tenant.as_str()).collect();
        // Each tenant is charged on two devices and in the tier below.
        let each = 2 * (6 + 4);
        assert_eq!(named.len(), 512 / each);
        assert_eq!(figures.tenants.len(), named.len() * 4);
        assert!(named.contains(OTHER_TENANTS));
        let held = figures.tenants.values().map(|balance| balance.reserved);
        assert_eq!(Bytes::checked_sum(held), Some(Bytes::mib(2 * 4 * 200)));
        assert_eq!(figures.allocations_of.values().sum::<u64>(), 400);
        assert_eq!(figures.allocations_of.len(), 512 / each);
        assert_eq!(figures.rounded.len(), 512 / each);
        assert_eq!(Bytes::checked_sum(figures.rounded.values().copied()), Some(Bytes::mib(200)));
        assert_eq!(figures.allocations, [("sealing".to_owned(), 400)].into());
    }

    #[test]
    fn a_tenant_with_series_keeps_them_when_others_sort_before_it() {
        let mut tenants = NamedTenants::new(512);
        let mut late = snapshot(200);
        late.quotas.retain(|row| row.tenant.as_str() >= "team-150");
        late.counts.allocations_by_tenant.clear();
        late.counts.rounding.clear();
        late.counts.in_place.clear();
        late.counts.in_file.clear();
        let first = named(&figures(&mut tenants, late));
        assert_eq!(first.len(), 512 / 20 - 1);
        assert_eq!(named(&figures(&mut tenants, snapshot(200))), first);
        assert_eq!(named(&figures(&mut tenants, snapshot(3))).len(), 3);
    }

    #[test]
    fn the_tenants_that_matter_have_series_whatever_their_names_are() {
        let mut tenants = NamedTenants::new(TEN_IDLE);
        assert_eq!(named(&figures(&mut tenants, idle(200))).len(), 10);
        let mut busy = idle(200);
        for tenant in 150..156 {
            charge(&mut busy, &team(tenant), Bytes::mib(16));
        }
        charge(&mut busy, "team-160", Bytes::mib(95));
        let chosen = named(&tenants.compute_figures(busy, &["team-170".to_owned()].into(), Time::START));
        assert_eq!(chosen.len(), 10);
        for tenant in (150..156).chain([160, 170]) {
            assert!(chosen.contains(&team(tenant)), "{tenant}: {chosen:?}");
        }
    }

    #[test]
    fn a_refused_tenant_goes_before_a_full_one_and_that_before_a_large_one() {
        let interest = |charge, is_refused| {
            let mut seen = Seen::default();
            seen.add_place(&Balance { limit: Bytes::gib(1), dirty: charge, ..Balance::default() });
            seen.interest(is_refused)
        };
        let idle = interest(Bytes::ZERO, false);
        let order = [
            idle,
            Interest { size: 1, ..idle },
            interest(Bytes::mib(16), false),
            interest(Bytes::mib(900), false),
            interest(Bytes::mib(1000), false),
            interest(Bytes::ZERO, true),
            interest(Bytes::mib(1000), true),
        ];
        assert!(order.is_sorted_by(|less, more| less < more), "{order:?}");
        assert_eq!(
            interest(Bytes::mib(600), false),
            interest(Bytes::mib(700), false),
            "a small change is none"
        );
    }

    #[test]
    fn series_do_not_come_and_go_with_the_charge() {
        let mut tenants = NamedTenants::new(TEN_IDLE);
        let with = |charged: usize| {
            let mut snapshot = idle(40);
            (charged..charged + 10).for_each(|tenant| charge(&mut snapshot, &team(tenant), Bytes::mib(16)));
            snapshot
        };
        let none = BTreeSet::new();
        let first = named(&tenants.compute_figures(with(20), &none, Time::START));
        assert_eq!(first, (20..30).map(team).collect());
        for time in 1..15 {
            let charged = if time % 2 == 0 { with(20) } else { with(30) };
            assert_eq!(named(&tenants.compute_figures(charged, &none, minute(time))), first, "minute {time}");
        }
        for time in 15..29 {
            tenants.compute_figures(with(30), &none, minute(time));
        }
        let last = named(&tenants.compute_figures(with(30), &none, minute(29)));
        assert_eq!(last, (30..40).map(team).collect(), "15 minutes after their last charge");
    }

    #[test]
    fn a_passing_state_of_memory_takes_no_series_from_another_tenant() {
        let mut tenants = NamedTenants::new(TEN_IDLE);
        let charged = |states: usize| {
            let mut snapshot = idle(10);
            (0..10).for_each(|tenant| charge(&mut snapshot, &team(tenant), Bytes::mib(16)));
            for row in snapshot.quotas.iter_mut().filter(|row| row.tenant == "team-005") {
                let force = row.in_force.unwrap();
                let reserved = if states == 2 { Bytes::mib(2) } else { Bytes::ZERO };
                row.in_force = Some(QuotaInForce { reserved, ..force });
            }
            snapshot
        };
        assert_eq!(named(&figures(&mut tenants, charged(1))).len(), 10);
        let with_two = named(&figures(&mut tenants, charged(2)));
        assert_eq!(with_two.len(), 9, "one tenant gives way to the states of another");
        for time in 1..14 {
            let again = charged(usize::try_from(time % 2).unwrap() + 1);
            assert_eq!(named(&tenants.compute_figures(again, &BTreeSet::new(), minute(time))), with_two);
        }
    }

    #[test]
    fn rows_of_absent_devices_add_no_series() {
        let mut snapshot = snapshot(1);
        snapshot.counts.allocations_by_tenant.clear();
        for row in &mut snapshot.quotas {
            row.in_force = None;
        }
        assert!(figures(&mut NamedTenants::new(4000), snapshot).tenants.is_empty());
    }
}
