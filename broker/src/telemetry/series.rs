//! Computes the series of each observed metric.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{DeviceView, Pressure, Tier, TierView};
use opentelemetry::{KeyValue, Value};
use vramd_types::{Bytes, CopyClass};

use super::{
    ended_move::MoveKind,
    figures::{Account, Balance},
    histograms,
    instruments::Sources,
    links,
    metrics::{self, Definition},
    move_counters::Count,
    pools, process,
};
use crate::driver_choice::SIM;

/// Passes each series of a metric to the observer once. The observer leaves out zeros of up-down counters.
pub(super) type Series = fn(&Sources, &mut dyn FnMut(u64, &[KeyValue]));

/// The same for values that are not whole numbers.
pub(super) type Ratios = fn(&Sources, &mut dyn FnMut(f64, &[KeyValue]));

pub(super) const RATIOS: &[(&Definition, Ratios)] = &[
    (&metrics::OVERSUBSCRIPTION, oversubscription),
    (&metrics::PRESSURE_BATCH_FACTOR, pressure_batch_factor),
    (&metrics::PRESSURE_FULL_IN, pressure_full_in),
    (&metrics::PRESSURE_THRESHOLD, pressure_threshold),
    (&metrics::PRESSURE_FALL, |sources, observe| {
        observe(percent(sources.figures().bounds.fall_percent), &[])
    }),
    (&metrics::PRESSURE_EVICT_TO, |sources, observe| {
        observe(percent(sources.figures().bounds.evict_to_percent), &[])
    }),
    (&metrics::PRESSURE_COLD_AFTER, |sources, observe| {
        observe(sources.figures().bounds.cold_after.as_secs_f64(), &[])
    }),
    (&metrics::LINK_SHARE, link_share),
];

/// Every metric whose values are read at a collection.
pub(super) const OBSERVED: &[(&Definition, Series)] = &[
    (&metrics::QUOTA_USAGE, quota_usage),
    (&metrics::QUOTA_GUARANTEE, |sources, observe| {
        observe_tenants(sources, observe, |balance| balance.guarantee)
    }),
    (&metrics::QUOTA_LIMIT, |sources, observe| observe_tenants(sources, observe, |balance| balance.limit)),
    (&metrics::MEMORY_USAGE, memory_usage),
    (&metrics::MEMORY_LIMIT, |sources, observe| {
        observe_bytes_of_places(sources, observe, |device| device.total, |host| host.total)
    }),
    (&metrics::MEMORY_CAPACITY, |sources, observe| {
        observe_bytes_of_places(sources, observe, |device| device.capacity, |host| host.capacity)
    }),
    (&metrics::MEMORY_COMMITTED, |sources, observe| {
        observe_bytes_of_places(sources, observe, |device| device.committed, |host| host.committed);
    }),
    (&metrics::MEMORY_SHORTFALL, |sources, observe| {
        observe_bytes_of_places(sources, observe, |device| device.shortfall, |host| host.shortfall);
    }),
    (&metrics::PRESSURE, pressure),
    (&metrics::PRESSURE_CHANGES, pressure_changes),
    (&metrics::MIGRATIONS, |sources, observe| migrations(sources, observe, |count| count.parts)),
    (&metrics::MIGRATION_IO, |sources, observe| migrations(sources, observe, |count| count.bytes)),
    (&metrics::MIGRATION_USED, migration_used),
    (&metrics::TENANT_MIGRATION_IO, tenant_migrations),
    (&metrics::TENANT_MIGRATION_USED, tenant_migration_used),
    (&metrics::DRIVER_SIMULATED, |sources, observe| {
        sources.driver().into_iter().for_each(|driver| observe(u64::from(driver.name() == SIM), &[]));
    }),
    (&metrics::LINK_LIMIT, link_limits),
    (&metrics::LINK_IO, link_io),
    (&metrics::FRAGMENTATION_INTERNAL, |sources, observe| {
        observe_allocations(&sources.figures().rounded, observe)
    }),
    (&metrics::DIGEST_IO, |sources, observe| {
        sources.driver().into_iter().for_each(|driver| observe(driver.hashed_bytes().get(), &[]));
    }),
    (&metrics::IN_FILE, |sources, observe| observe_allocations(&sources.figures().in_file, observe)),
    (&metrics::IN_PLACE, |sources, observe| observe_allocations(&sources.figures().in_place, observe)),
    (&metrics::POOL_USAGE, pools::usage),
    (&metrics::FRAGMENTATION_EXTERNAL, pools::other_sizes),
    (&metrics::POOL_REBUILDS, pools::rebuilds),
    (&metrics::QUEUE_SIZE, |sources, observe| {
        let figures = sources.figures();
        observe(figures.parts_waiting, &[text(metrics::WAIT_KIND, histograms::PART)]);
        observe(figures.batches_waiting, &[text(metrics::WAIT_KIND, histograms::BATCH)]);
    }),
    (&metrics::BUILD_INFO, build_info),
    (&metrics::PINS, |sources, observe| observe(sources.counters.pins(), &[])),
    (&metrics::TENANT_PIN_WAITS, tenant_pin_waits),
    (&metrics::PIN_STALLS, |sources, observe| observe(sources.counters.pin_stalls(), &[])),
    (&metrics::EVICTIONS, |sources, observe| {
        for (cause, reason, count) in sources.counters.evictions() {
            observe(count, &[text(metrics::MIGRATION_CAUSE, cause), text(metrics::EVICTION_REASON, reason)]);
        }
    }),
    (&metrics::PREFETCHES, |sources, observe| {
        let counts = sources.counters.prefetches();
        counts.for_each(|(end, count)| observe(count, &[text(metrics::PREFETCH_OUTCOME, end)]));
    }),
    (&metrics::SPECULATION, |sources, observe| {
        let bytes = sources.counters.speculated();
        bytes.for_each(|(end, bytes)| observe(bytes, &[text(metrics::SPECULATION_OUTCOME, end)]));
    }),
    (&metrics::PLACEMENTS, |sources, observe| {
        let counts = sources.counters.placed();
        counts.for_each(|(outcome, count)| observe(count, &[text(metrics::PLACEMENT_OUTCOME, outcome)]));
    }),
    (&metrics::TURNS_WAITING, |sources, observe| {
        for (device, waiting) in &sources.figures().turns_waiting {
            observe(*waiting, &[text(metrics::HW_ID, device.clone())]);
        }
    }),
    (&metrics::TURNS_OVERDUE, |sources, observe| observe(sources.counters.turns_overdue(), &[])),
    (&metrics::MANAGED_ORDERED, |sources, observe| {
        for device in &sources.figures().devices {
            observe(device.managed.on_device.get(), &node_place(device, Tier::Device));
            observe(device.managed.on_host.get(), &node_place(device, Tier::Host));
        }
    }),
    (&metrics::MANAGED_ORDERS, |sources, observe| {
        let counts = sources.counters.managed_orders();
        counts.for_each(|(outcome, count)| observe(count, &[text(metrics::MANAGED_ORDER_OUTCOME, outcome)]));
    }),
    (&metrics::FALL_BACKS, |sources, observe| {
        let counts = sources.counters.fall_backs();
        counts.for_each(|(reason, count)| observe(count, &[text(metrics::FALL_BACK_REASON, reason)]));
    }),
    (&metrics::CREATE_RETRIES, |sources, observe| observe(sources.counters.create_retries(), &[])),
    (&metrics::TENANT_ALLOCATIONS, tenant_allocations),
    (&metrics::TENANT_SESSIONS, |sources, observe| {
        for (tenant, count) in &sources.figures().sessions_of {
            observe(*count, &[text(metrics::TENANT, tenant.clone())]);
        }
    }),
    (&metrics::ALLOCATIONS, allocations),
    (&metrics::SESSIONS, sessions),
    (&metrics::DESCRIPTORS_IN_FLIGHT, |sources, observe| observe(sources.figures().fds_in_flight, &[])),
    (&metrics::REFUSALS, refusals),
    (&metrics::TENANT_REFUSALS, tenant_refusals),
    (&metrics::INVARIANT_VIOLATIONS, |sources, observe| observe(sources.figures().violations, &[])),
    (&metrics::TELEMETRY_DROPPED, |sources, observe| {
        sources
            .counters
            .all_dropped()
            .for_each(|(signal, count)| observe(count, &[text(metrics::SIGNAL, signal.name())]));
    }),
    (&metrics::EXPORT_FAILURES, |sources, observe| {
        sources
            .counters
            .all_failures()
            .for_each(|(signal, count)| observe(count, &[text(metrics::SIGNAL, signal.name())]));
    }),
    (&metrics::LOG_DROPPED, |sources, observe| observe(sources.counters.lost_lines(), &[])),
    (&metrics::PROCESS_CPU, |_, observe| observe_some(process::cpu_seconds(), observe)),
    (&metrics::PROCESS_MEMORY, |_, observe| observe_some(process::resident_bytes(), observe)),
    (&metrics::PROCESS_FDS, |_, observe| observe_some(process::open_fds(), observe)),
    (&metrics::PROCESS_MAX_FDS, |_, observe| observe_some(process::max_fds(), observe)),
    (&metrics::PROCESS_START, |_, observe| observe_some(process::start_time(), observe)),
];

fn observe_some(value: Option<u64>, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    if let Some(value) = value {
        observe(value, &[]);
    }
}

fn quota_usage(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for (account, balance) in &sources.figures().tenants {
        let [tenant, device, tier] = place(account);
        let mut attributes = [tenant, device, tier, text(metrics::MEMORY_STATE, "")];
        for (state, bytes) in balance.states() {
            attributes[3].value = Value::from(state);
            observe(bytes.get(), &attributes);
        }
    }
}

fn oversubscription(sources: &Sources, observe: &mut dyn FnMut(f64, &[KeyValue])) {
    let figures = sources.figures();
    for device in figures.devices.iter().filter(|device| !device.capacity.is_zero()) {
        let of_device = figures.tenants.iter().filter(|(account, _)| account.device == device.uuid);
        let owned = of_device.map(|(_, balance)| balance.clean.saturating_add(balance.dirty));
        let owned = owned.fold(Bytes::ZERO, Bytes::saturating_add);
        if !owned.is_zero() {
            let attributes =
                [text(metrics::HW_ID, device.uuid.clone()), text(metrics::HW_NAME, device.name.clone())];
            observe(owned.get() as f64 / device.capacity.get() as f64, &attributes);
        }
    }
}

fn observe_tenants(
    sources: &Sources,
    observe: &mut dyn FnMut(u64, &[KeyValue]),
    bytes: fn(&Balance) -> Bytes,
) {
    for (account, balance) in &sources.figures().tenants {
        observe(bytes(balance).get(), &place(account));
    }
}

/// Observes sums by tenant and device.
fn observe_allocations(sums: &BTreeMap<(String, String), Bytes>, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for ((tenant, device), bytes) in sums {
        observe(bytes.get(), &[text(metrics::TENANT, tenant.clone()), text(metrics::HW_ID, device.clone())]);
    }
}

fn memory_usage(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for device in &sources.figures().devices {
        let apart = device.unreturned.saturating_add(device.cached).saturating_add(device.managed.charged);
        let made = device.charged.saturating_sub(apart);
        let reserved = reserved_on(sources, &device.uuid, Tier::Device).min(made);
        observe_states(
            observe,
            node_place(device, Tier::Device),
            &[
                ("resident", made.saturating_sub(reserved)),
                ("reserved", reserved),
                ("cached", device.cached),
                ("managed", device.managed.charged),
                ("unreturned", device.unreturned),
                ("unbrokered", device.unbrokered),
                ("context", device.contexts),
            ],
        );
        for (tier, below) in tiers_below(device) {
            let made = below.charged.saturating_sub(below.unreturned);
            let reserved = reserved_on(sources, &device.uuid, tier).min(made);
            observe_states(
                observe,
                node_place(device, tier),
                &[
                    ("resident", made.saturating_sub(reserved)),
                    ("reserved", reserved),
                    ("unreturned", below.unreturned),
                ],
            );
        }
    }
}

/// Lists the tiers below a device that exist.
fn tiers_below(device: &DeviceView) -> impl Iterator<Item = (Tier, TierView)> {
    let tiers = [(Tier::Host, device.host), (Tier::Disk, device.disk)];
    tiers.into_iter().filter_map(|(tier, view)| Some((tier, view?)))
}

fn observe_states(
    observe: &mut dyn FnMut(u64, &[KeyValue]),
    place: [KeyValue; 3],
    states: &[(&'static str, Bytes)],
) {
    let [id, name, tier] = place;
    let mut attributes = [id, name, tier, text(metrics::MEMORY_STATE, "")];
    for (state, bytes) in states {
        attributes[3].value = Value::from(*state);
        observe(bytes.get(), &attributes);
    }
}

/// Sums up the bytes that tenants have reserved there.
fn reserved_on(sources: &Sources, device: &str, tier: Tier) -> Bytes {
    let figures = sources.figures();
    let is_there = |account: &Account| account.device == device && account.tier == tier;
    let there = figures.tenants.iter().filter(|(account, _)| is_there(account));
    Bytes::checked_sum(there.map(|(_, balance)| balance.reserved)).unwrap_or(Bytes::MAX)
}

/// Observes a value of each device, and of each tier below it that exists.
fn observe_places<V>(
    sources: &Sources,
    on_device: impl Fn(&DeviceView) -> V,
    in_tier: impl Fn(&TierView) -> V,
    mut observe: impl FnMut(V, &[KeyValue]),
) {
    for device in &sources.figures().devices {
        observe(on_device(device), &node_place(device, Tier::Device));
        for (tier, view) in tiers_below(device) {
            observe(in_tier(&view), &node_place(device, tier));
        }
    }
}

fn observe_bytes_of_places(
    sources: &Sources,
    observe: &mut dyn FnMut(u64, &[KeyValue]),
    on_device: fn(&DeviceView) -> Bytes,
    in_tier: fn(&TierView) -> Bytes,
) {
    observe_places(sources, on_device, in_tier, |bytes, place| observe(bytes.get(), place));
}

fn pressure(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let level = |level, place: &[KeyValue]| observe(level as u64, place);
    observe_places(sources, |device| device.pressure, |tier| tier.pressure, level);
}

fn pressure_batch_factor(sources: &Sources, observe: &mut dyn FnMut(f64, &[KeyValue])) {
    let factor = |thousandths, place: &[KeyValue]| observe(f64::from(thousandths) / 1000.0, place);
    observe_places(sources, |device| device.batch_factor, |tier| tier.batch_factor, factor);
}

fn pressure_full_in(sources: &Sources, observe: &mut dyn FnMut(f64, &[KeyValue])) {
    let forecast = |time: Option<Duration>, place: &[KeyValue]| {
        time.into_iter().for_each(|time| observe(time.as_secs_f64(), place));
    };
    observe_places(sources, |device| device.full_in, |tier| tier.full_in, forecast);
}

fn pressure_threshold(sources: &Sources, observe: &mut dyn FnMut(f64, &[KeyValue])) {
    let bounds = &sources.figures().bounds;
    for (step, begins) in [
        (Pressure::Elevated, bounds.elevated_percent),
        (Pressure::High, bounds.high_percent),
        (Pressure::Critical, bounds.critical_percent),
    ] {
        observe(percent(begins), &[text(metrics::PRESSURE_LEVEL, step.name())]);
    }
}

fn percent(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

fn pressure_changes(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for device in &sources.figures().devices {
        for tier in std::iter::once(Tier::Device).chain(tiers_below(device).map(|(tier, _)| tier)) {
            for step in Pressure::ALL {
                let [id, name, tier_of] = node_place(device, tier);
                let entered = sources.pressures.entered(device.index, tier, step);
                observe(entered, &[id, name, tier_of, text(metrics::PRESSURE_LEVEL, step.name())]);
            }
        }
    }
}

fn link_limits(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let Some(driver) = sources.driver() else { return };
    for link in driver.links() {
        for (lane, carries) in &link.lanes {
            let [way, device] = links::place(&*driver, *lane);
            observe(*carries, &[text(metrics::LINK, link.name.clone()), way, device]);
        }
    }
}

fn link_share(sources: &Sources, observe: &mut dyn FnMut(f64, &[KeyValue])) {
    for class in CopyClass::ALL {
        observe(percent(sources.figures().shares.percent(class)), &[text(metrics::COPY_CLASS, class.name())]);
    }
}

fn link_io(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let Some(driver) = sources.driver() else { return };
    for traffic in driver.traffic() {
        for class in CopyClass::ALL {
            let [way, device] = links::place(&*driver, traffic.lane);
            observe(
                traffic.begun[class.index()].get(),
                &[way, device, text(metrics::COPY_CLASS, class.name())],
            );
        }
    }
}

/// Observes the moves of each device and kind. Kinds that can happen and did not are zero.
fn migrations(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue]), value: fn(&Count) -> u64) {
    let counted = sources.moves.by_kind();
    for device in &sources.figures().devices {
        let has = (device.host.is_some(), device.disk.is_some());
        let mut values: BTreeMap<_, _> = MoveKind::all(device.index, has).map(|kind| (kind, 0)).collect();
        let of_device = counted.iter().filter(|(kind, _)| kind.device == device.index);
        values.extend(of_device.map(|(kind, count)| (*kind, value(count))));
        for (kind, value) in values {
            let attributes = [
                text(metrics::HW_ID, device.uuid.clone()),
                text(metrics::MIGRATION_DIRECTION, kind.direction),
                text(metrics::MIGRATION_FROM, kind.from),
                text(metrics::MIGRATION_TO, kind.to),
                text(metrics::MIGRATION_CAUSE, kind.cause),
                text(metrics::MIGRATION_OUTCOME, kind.outcome),
            ];
            observe(value, &attributes);
        }
    }
}

/// Observes the bytes of arrivals that were used, whatever tier they came from.
fn migration_used(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let counted = sources.moves.by_kind();
    for device in &sources.figures().devices {
        let mut used: BTreeMap<&str, u64> = BTreeMap::new();
        let of_device = counted.iter().filter(|(kind, _)| kind.device == device.index && kind.is_arrival());
        for (kind, count) in of_device {
            let sum = used.entry(kind.cause).or_default();
            *sum = sum.saturating_add(count.used);
        }
        for (cause, bytes) in used {
            let attributes =
                [text(metrics::HW_ID, device.uuid.clone()), text(metrics::MIGRATION_CAUSE, cause)];
            observe(bytes, &attributes);
        }
    }
}

/// Observes the copied bytes of each tenant. Where there is no tier below a device they are not zero, but absent.
fn tenant_migrations(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let has_tiers = has_tiers_below(sources);
    for (tenant, counts) in sources.tenants.by_tenant() {
        for ((direction, cause), bytes) in counts.copied {
            if has_tiers || bytes > 0 {
                let attributes = [
                    text(metrics::TENANT, tenant.clone()),
                    text(metrics::MIGRATION_DIRECTION, direction),
                    text(metrics::MIGRATION_CAUSE, cause),
                ];
                observe(bytes, &attributes);
            }
        }
    }
}

fn tenant_migration_used(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let has_tiers = has_tiers_below(sources);
    for (tenant, counts) in sources.tenants.by_tenant() {
        if has_tiers || counts.used > 0 {
            observe(counts.used, &[text(metrics::TENANT, tenant)]);
        }
    }
}

fn has_tiers_below(sources: &Sources) -> bool {
    sources.figures().devices.iter().any(|device| tiers_below(device).next().is_some())
}

fn build_info(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    let Some(driver) = sources.driver() else { return };
    let version = text(metrics::VERSION, env!("CARGO_PKG_VERSION"));
    observe(1, &[version, text(metrics::DRIVER, driver.name())]);
}

fn tenant_refusals(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for (tenant, counts) in sources.tenants.by_tenant() {
        for (reason, count) in counts.refusals {
            let tenant = text(metrics::TENANT, tenant.clone());
            observe(count, &[tenant, text(metrics::REFUSAL_REASON, reason.name())]);
        }
    }
}

fn tenant_pin_waits(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for (tenant, counts) in sources.tenants.by_tenant() {
        for (end, count) in counts.pin_waits() {
            let tenant = text(metrics::TENANT, tenant.clone());
            observe(count, &[tenant, text(metrics::WAIT_OUTCOME, histograms::outcome_name(end))]);
        }
    }
}

fn tenant_allocations(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for (tenant, count) in &sources.figures().allocations_of {
        observe(*count, &[text(metrics::TENANT, tenant.clone())]);
    }
}

fn allocations(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for (state, count) in &sources.figures().allocations {
        observe(*count, &[text(metrics::ALLOCATION_STATE, state.clone())]);
    }
}

fn sessions(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for (state, count) in &sources.figures().sessions {
        observe(*count, &[text(metrics::SESSION_STATE, state.clone())]);
    }
}

fn refusals(sources: &Sources, observe: &mut dyn FnMut(u64, &[KeyValue])) {
    for (scope, reason, count) in sources.counters.refusals() {
        observe(
            count,
            &[text(metrics::REFUSAL_SCOPE, scope.name()), text(metrics::REFUSAL_REASON, reason.name())],
        );
    }
}

fn place(account: &Account) -> [KeyValue; 3] {
    [
        text(metrics::TENANT, account.tenant.clone()),
        text(metrics::HW_ID, account.device.clone()),
        text(metrics::TIER, account.tier.to_string()),
    ]
}

fn node_place(device: &DeviceView, tier: Tier) -> [KeyValue; 3] {
    [
        text(metrics::HW_ID, device.uuid.clone()),
        text(metrics::HW_NAME, device.name.clone()),
        text(metrics::TIER, tier.to_string()),
    ]
}

pub(super) fn text(key: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(key, value)
}
