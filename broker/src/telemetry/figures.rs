//! Computes the values of metrics from one snapshot of the broker per collection.

use std::collections::{BTreeMap, BTreeSet};

use broker_core::{Broker, Counts, DeviceView, NodeView, PressureBounds, QuotaView, Tier};
use vramd_types::{Bytes, Shares};

use super::metrics::OTHER_TENANTS;

/// The number of series of one tenant in one place: one for each state of memory.
const fn memory_state_count(tier: Tier) -> usize {
    match tier {
        Tier::Device => 5,
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
    /// Bytes that lie there and can leave without a copy.
    pub(super) clean: Bytes,
    /// Bytes that back parts on the device.
    pub(super) backing: Bytes,
    /// All other charged bytes.
    pub(super) dirty: Bytes,
}

impl Balance {
    fn add(&mut self, other: Self) {
        let sum = |a: &mut Bytes, b: Bytes| *a = a.saturating_add(b);
        sum(&mut self.guarantee, other.guarantee);
        sum(&mut self.limit, other.limit);
        sum(&mut self.reserved, other.reserved);
        sum(&mut self.unreturned, other.unreturned);
        sum(&mut self.cached, other.cached);
        sum(&mut self.clean, other.clean);
        sum(&mut self.backing, other.backing);
        sum(&mut self.dirty, other.dirty);
    }
}

/// Chooses the tenants that have series of their own. A tenant keeps its series while it has a quota, a charge or an
/// allocation.
#[derive(Debug)]
pub(super) struct NamedTenants {
    /// Maximum series of one metric.
    series_max: usize,
    named: BTreeSet<String>,
}

impl NamedTenants {
    pub(super) fn new(series_max: usize) -> Self {
        Self { series_max, named: BTreeSet::new() }
    }

    pub(super) fn compute_figures(&mut self, snapshot: Snapshot) -> Figures {
        let Snapshot { quotas, devices, counts, node, bounds, shares } = snapshot;
        let quotas: Vec<_> = quotas.into_iter().filter_map(account_of).collect();
        let places: BTreeSet<_> = quotas.iter().map(|(account, _)| (&account.device, account.tier)).collect();
        let series_each = series_per_tenant(places.into_iter().map(|(_, tier)| tier));
        let tenants = quotas.iter().map(|(account, _)| &account.tenant);
        let tenants = tenants.chain(counts.allocations_by_tenant.keys());
        let tenants = tenants.chain(counts.sessions_by_tenant.keys());
        self.choose_named(&tenants.collect(), series_each);

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

    /// Removes tenants that are gone, and adds new ones while all series of the others fit too.
    fn choose_named(&mut self, tenants: &BTreeSet<&String>, series_each: usize) {
        let named_max = (self.series_max / series_each).saturating_sub(1);
        self.named.retain(|name| tenants.contains(name));
        while self.named.len() > named_max {
            self.named.pop_last();
        }
        for tenant in tenants {
            if self.named.len() >= named_max {
                return;
            }
            if !self.named.contains(*tenant) {
                self.named.insert((*tenant).clone());
            }
        }
    }

    fn series_name(&self, tenant: String) -> String {
        if self.named.contains(&tenant) { tenant } else { OTHER_TENANTS.to_owned() }
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
    let apart = force.reserved.saturating_add(force.unreturned).saturating_add(force.cached);
    let resident = force.charged.saturating_sub(apart);
    let clean = force.clean.min(resident);
    let backing = force.backing.min(resident.saturating_sub(clean));
    let balance = Balance {
        guarantee: force.guarantee,
        limit: force.limit,
        reserved: force.reserved,
        unreturned: force.unreturned,
        cached: force.cached,
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
    use broker_core::{AllocationState, Pressure, QuotaInForce, TierView};
    use vramd_types::Quantity;

    use super::*;

    /// A number of tenants, each charged on two devices and in two tiers.
    pub(in crate::telemetry) fn snapshot(tenants: usize) -> Snapshot {
        let mut quotas = Vec::new();
        for tenant in 0..tenants {
            for device in ["GPU-a", "GPU-b"] {
                for tier in [Tier::Device, Tier::Host] {
                    quotas.push(row(&format!("team-{tenant:03}"), device, tier));
                }
            }
        }
        let counts = Counts {
            sessions: [].into(),
            allocations: [(AllocationState::Unmapping, tenants), (AllocationState::Digesting, tenants)]
                .into(),
            allocations_by_tenant: (0..tenants).map(|tenant| (format!("team-{tenant:03}"), 2)).collect(),
            sessions_by_tenant: BTreeMap::new(),
            rounding: (0..tenants)
                .map(|tenant| ((format!("team-{tenant:03}"), "GPU-a".to_owned()), Bytes::mib(1)))
                .collect(),
            in_place: (0..tenants)
                .map(|tenant| ((format!("team-{tenant:03}"), "GPU-a".to_owned()), Bytes::mib(2)))
                .collect(),
            in_file: (0..tenants)
                .map(|tenant| ((format!("team-{tenant:03}"), "GPU-a".to_owned()), Bytes::mib(4)))
                .collect(),
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
        }
    }

    /// A snapshot with a value for every metric.
    pub(in crate::telemetry) fn full_snapshot() -> Snapshot {
        let mib = Bytes::mib;
        let device = DeviceView {
            index: vramd_types::DeviceIndex(0),
            uuid: "GPU-a".to_owned(),
            name: "a device".to_owned(),
            total: mib(1024),
            capacity: mib(1000),
            charged: mib(32),
            unreturned: mib(8),
            cached: mib(8),
            cached_smaller: mib(2),
            cached_larger: mib(4),
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
        Snapshot { devices: vec![device], counts, node, ..base }
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
                clean: on(Tier::Device, 3),
                backing: on(Tier::Host, 4),
            }),
            default_quota: false,
            device_absent: false,
        }
    }

    #[test]
    fn the_states_of_a_balance_add_up_to_the_charge() {
        let figures = NamedTenants::new(4000).compute_figures(snapshot(1));
        for balance in figures.tenants.values() {
            let states = [balance.clean, balance.backing, balance.dirty, balance.reserved];
            let states = states.into_iter().chain([balance.unreturned, balance.cached]);
            assert_eq!(Bytes::checked_sum(states), Some(Bytes::mib(16)));
        }
        let bytes_in = |tier| {
            let balance = figures.tenants.iter().find(|(of, _)| of.tier == tier).unwrap().1;
            [balance.clean, balance.backing, balance.dirty].map(|bytes| bytes.get() >> 20)
        };
        assert_eq!((bytes_in(Tier::Device), bytes_in(Tier::Host)), ([3, 0, 6], [0, 4, 6]));
        assert_eq!(figures.tenants.len(), 4);
    }

    #[test]
    fn tenants_that_do_not_fit_are_summed_and_no_byte_is_lost() {
        let mut named = NamedTenants::new(512);
        let figures = named.compute_figures(snapshot(200));
        let named: BTreeSet<_> = figures.tenants.keys().map(|of| of.tenant.as_str()).collect();
        // Each tenant is charged on two devices and in the tier below.
        let each = 2 * (5 + 4);
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
        tenants.compute_figures(late);
        let named = tenants.named.clone();
        assert_eq!(named.len(), 512 / 18 - 1);
        tenants.compute_figures(snapshot(200));
        assert_eq!(tenants.named, named);
        tenants.compute_figures(snapshot(3));
        assert_eq!(tenants.named.len(), 3);
    }

    #[test]
    fn rows_of_absent_devices_add_no_series() {
        let mut snapshot = snapshot(1);
        snapshot.counts.allocations_by_tenant.clear();
        for row in &mut snapshot.quotas {
            row.in_force = None;
        }
        assert!(NamedTenants::new(4000).compute_figures(snapshot).tenants.is_empty());
    }
}
