//! Which series each observed metric has, and their values.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{DeviceView, Pressure, Tier, TierView};
use opentelemetry::{KeyValue, Value};
use vramd_types::{Bytes, CopyClass};

use super::{
    ended_move::Kind,
    ends,
    figures::{Account, Balance},
    links,
    metrics::Shown,
    moves::Count,
    pools,
    registry::{self as of, Definition},
};

/// Says each series of a metric once; those that are zero are left out by whoever listens, but of gauges.
pub(super) type Series = fn(&Shown, &mut dyn FnMut(u64, &[KeyValue]));

/// The same of what is no whole number.
pub(super) type Ratios = fn(&Shown, &mut dyn FnMut(f64, &[KeyValue]));

pub(super) const RATIOS: &[(&Definition, Ratios)] = &[
    (&of::OVERSUBSCRIPTION, oversubscription),
    (&of::PRESSURE_BATCH_FACTOR, pressure_batch_factor),
    (&of::PRESSURE_FULL_IN, pressure_full_in),
    (&of::PRESSURE_THRESHOLD, pressure_threshold),
    (&of::PRESSURE_FALL, |shown, say| say(percent(shown.figures().bounds.fall_percent), &[])),
    (&of::PRESSURE_EVICT_TO, |shown, say| say(percent(shown.figures().bounds.evict_to_percent), &[])),
    (&of::PRESSURE_COLD_AFTER, |shown, say| say(shown.figures().bounds.cold_after.as_secs_f64(), &[])),
    (&of::LINK_SHARE, link_share),
];

/// Every metric that is read when it is collected.
pub(super) const OBSERVED: &[(&Definition, Series)] = &[
    (&of::QUOTA_USAGE, quota_usage),
    (&of::QUOTA_GUARANTEE, |shown, say| of_tenants(shown, say, |balance| balance.guarantee)),
    (&of::QUOTA_LIMIT, |shown, say| of_tenants(shown, say, |balance| balance.limit)),
    (&of::MEMORY_USAGE, memory_usage),
    (&of::MEMORY_LIMIT, |shown, say| of_devices(shown, say, |device| device.total, |host| host.total)),
    (&of::MEMORY_CAPACITY, |shown, say| {
        of_devices(shown, say, |device| device.capacity, |host| host.capacity)
    }),
    (&of::MEMORY_COMMITTED, |shown, say| {
        of_devices(shown, say, |device| device.committed, |host| host.committed);
    }),
    (&of::MEMORY_SHORTFALL, |shown, say| {
        of_devices(shown, say, |device| device.shortfall, |host| host.shortfall);
    }),
    (&of::PRESSURE, pressure),
    (&of::PRESSURE_CHANGES, pressure_changes),
    (&of::MIGRATIONS, |shown, say| migrations(shown, say, &by_outcome(|count| count.parts))),
    (&of::MIGRATION_IO, |shown, say| migrations(shown, say, &by_outcome(|count| count.bytes))),
    (&of::MIGRATION_USED, |shown, say| {
        migrations(shown, say, &|kind, count, [tenant, device]| {
            (count.used, vec![tenant, device, text(of::MIGRATION_CAUSE, kind.cause)])
        });
    }),
    (&of::LINK_LIMIT, link_limits),
    (&of::LINK_IO, link_io),
    (&of::FRAGMENTATION_INTERNAL, |shown, say| of_allocations(&shown.figures().rounded, say)),
    (&of::DIGEST_IO, |shown, say| {
        shown.driver().into_iter().for_each(|driver| say(driver.hashed().get(), &[]));
    }),
    (&of::IN_FILE, |shown, say| of_allocations(&shown.figures().in_file, say)),
    (&of::IN_PLACE, |shown, say| of_allocations(&shown.figures().in_place, say)),
    (&of::POOL_USAGE, pools::usage),
    (&of::FRAGMENTATION_EXTERNAL, pools::other_sizes),
    (&of::POOL_REBUILDS, pools::rebuilds),
    (&of::QUEUE_SIZE, |shown, say| {
        let figures = shown.figures();
        say(figures.parts_waiting, &[text(of::WAIT_KIND, ends::PART)]);
        say(figures.batches_waiting, &[text(of::WAIT_KIND, ends::BATCH)]);
    }),
    (&of::PIN_STALLS, |shown, say| say(shown.counters.pin_stalls(), &[])),
    (&of::CREATE_RETRIES, |shown, say| say(shown.counters.create_retries(), &[])),
    (&of::TENANT_ALLOCATIONS, allocations_of),
    (&of::ALLOCATIONS, allocations),
    (&of::SESSIONS, sessions),
    (&of::DESCRIPTORS_IN_FLIGHT, |shown, say| say(shown.figures().fds_in_flight, &[])),
    (&of::REFUSALS, refusals),
    (&of::INVARIANT_VIOLATIONS, |shown, say| say(shown.figures().violations, &[])),
    (&of::TELEMETRY_DROPPED, |shown, say| {
        shown
            .counters
            .all_dropped()
            .for_each(|(signal, count)| say(count, &[text(of::SIGNAL, signal.name())]));
    }),
    (&of::EXPORT_FAILURES, |shown, say| {
        shown
            .counters
            .all_failures()
            .for_each(|(signal, count)| say(count, &[text(of::SIGNAL, signal.name())]));
    }),
];

fn quota_usage(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for (account, balance) in &shown.figures().tenants {
        let [tenant, device, tier] = place(account);
        let mut attributes = [tenant, device, tier, text(of::MEMORY_STATE, "")];
        let states = [
            ("clean", balance.clean),
            ("dirty", balance.dirty),
            ("backing", balance.backing),
            ("reserved", balance.reserved),
            ("cached", balance.cached),
            ("unreturned", balance.unreturned),
        ];
        for (state, bytes) in states {
            attributes[3].value = Value::from(state);
            say(bytes.get(), &attributes);
        }
    }
}

fn oversubscription(shown: &Shown, say: &mut dyn FnMut(f64, &[KeyValue])) {
    let figures = shown.figures();
    for device in figures.devices.iter().filter(|device| !device.capacity.is_zero()) {
        let of_device = figures.tenants.iter().filter(|(account, _)| account.device == device.uuid);
        let owned = of_device.map(|(_, balance)| balance.clean.saturating_add(balance.dirty));
        let owned = owned.fold(Bytes::ZERO, Bytes::saturating_add);
        if !owned.is_zero() {
            let attributes = [text(of::HW_ID, device.uuid.clone()), text(of::HW_NAME, device.name.clone())];
            say(owned.get() as f64 / device.capacity.get() as f64, &attributes);
        }
    }
}

fn of_tenants(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue]), bytes: fn(&Balance) -> Bytes) {
    for (account, balance) in &shown.figures().tenants {
        say(bytes(balance).get(), &place(account));
    }
}

/// By tenant and device.
fn of_allocations(sums: &BTreeMap<(String, String), Bytes>, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for ((tenant, device), bytes) in sums {
        say(bytes.get(), &[text(of::TENANT, tenant.clone()), text(of::HW_ID, device.clone())]);
    }
}

fn memory_usage(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for device in &shown.figures().devices {
        let made = device.held.saturating_sub(device.unreturned).saturating_sub(device.cached);
        let reserved = reserved_on(shown, &device.uuid, Tier::Device).min(made);
        say_states(
            say,
            node_place(device, Tier::Device),
            &[
                ("resident", made.saturating_sub(reserved)),
                ("reserved", reserved),
                ("cached", device.cached),
                ("unreturned", device.unreturned),
                ("unbrokered", device.unbrokered),
                ("context", device.contexts),
            ],
        );
        for (tier, below) in below(device) {
            let made = below.held.saturating_sub(below.unreturned);
            let reserved = reserved_on(shown, &device.uuid, tier).min(made);
            say_states(
                say,
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

/// The tiers below a device that there are.
fn below(device: &DeviceView) -> impl Iterator<Item = (Tier, TierView)> {
    let tiers = [(Tier::Host, device.host), (Tier::Disk, device.disk)];
    tiers.into_iter().filter_map(|(tier, view)| Some((tier, view?)))
}

fn say_states(say: &mut dyn FnMut(u64, &[KeyValue]), place: [KeyValue; 3], states: &[(&'static str, Bytes)]) {
    let [id, name, tier] = place;
    let mut attributes = [id, name, tier, text(of::MEMORY_STATE, "")];
    for (state, bytes) in states {
        attributes[3].value = Value::from(*state);
        say(bytes.get(), &attributes);
    }
}

/// What is being made for tenants there.
fn reserved_on(shown: &Shown, device: &str, tier: Tier) -> Bytes {
    let figures = shown.figures();
    let there = |account: &Account| account.device == device && account.tier == tier;
    let there = figures.tenants.iter().filter(|(account, _)| there(account));
    Bytes::checked_sum(there.map(|(_, balance)| balance.reserved)).unwrap_or(Bytes::MAX)
}

/// Of each device, and of the tiers below it that there are.
fn of_places<V>(
    shown: &Shown,
    on_device: impl Fn(&DeviceView) -> V,
    in_tier: impl Fn(&TierView) -> V,
    mut say: impl FnMut(V, &[KeyValue]),
) {
    for device in &shown.figures().devices {
        say(on_device(device), &node_place(device, Tier::Device));
        for (tier, view) in below(device) {
            say(in_tier(&view), &node_place(device, tier));
        }
    }
}

fn of_devices(
    shown: &Shown,
    say: &mut dyn FnMut(u64, &[KeyValue]),
    on_device: fn(&DeviceView) -> Bytes,
    in_tier: fn(&TierView) -> Bytes,
) {
    of_places(shown, on_device, in_tier, |bytes, place| say(bytes.get(), place));
}

fn pressure(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    let level = |level, place: &[KeyValue]| say(level as u64, place);
    of_places(shown, |device| device.pressure, |tier| tier.pressure, level);
}

fn pressure_batch_factor(shown: &Shown, say: &mut dyn FnMut(f64, &[KeyValue])) {
    let factor = |thousandths, place: &[KeyValue]| say(f64::from(thousandths) / 1000.0, place);
    of_places(shown, |device| device.batch_factor, |tier| tier.batch_factor, factor);
}

fn pressure_full_in(shown: &Shown, say: &mut dyn FnMut(f64, &[KeyValue])) {
    let forecast = |time: Option<Duration>, place: &[KeyValue]| {
        time.into_iter().for_each(|time| say(time.as_secs_f64(), place));
    };
    of_places(shown, |device| device.full_in, |tier| tier.full_in, forecast);
}

fn pressure_threshold(shown: &Shown, say: &mut dyn FnMut(f64, &[KeyValue])) {
    let bounds = &shown.figures().bounds;
    for (step, begins) in [
        (Pressure::Elevated, bounds.elevated_percent),
        (Pressure::High, bounds.high_percent),
        (Pressure::Critical, bounds.critical_percent),
    ] {
        say(percent(begins), &[text(of::PRESSURE_LEVEL, step.name())]);
    }
}

fn percent(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

fn pressure_changes(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for device in &shown.figures().devices {
        for tier in std::iter::once(Tier::Device).chain(below(device).map(|(tier, _)| tier)) {
            for step in Pressure::ALL {
                let [id, name, tier_of] = node_place(device, tier);
                let entered = shown.pressures.entered(device.index, tier, step);
                say(entered, &[id, name, tier_of, text(of::PRESSURE_LEVEL, step.name())]);
            }
        }
    }
}

fn link_limits(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    let Some(driver) = shown.driver() else { return };
    for link in driver.links() {
        for (lane, carries) in &link.lanes {
            let [way, device] = links::place(&*driver, *lane);
            say(*carries, &[text(of::LINK, link.name.clone()), way, device]);
        }
    }
}

fn link_share(shown: &Shown, say: &mut dyn FnMut(f64, &[KeyValue])) {
    for class in CopyClass::ALL {
        say(percent(shown.figures().shares.percent(class)), &[text(of::COPY_CLASS, class.name())]);
    }
}

fn link_io(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    let Some(driver) = shown.driver() else { return };
    for traffic in driver.traffic() {
        for class in CopyClass::ALL {
            let [way, device] = links::place(&*driver, traffic.lane);
            say(traffic.begun[class.index()].get(), &[way, device, text(of::COPY_CLASS, class.name())]);
        }
    }
}

/// A value of what was counted, and what says which it is.
type OfMoves = dyn Fn(&Kind, &Count, [KeyValue; 2]) -> (u64, Vec<KeyValue>);

fn migrations(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue]), value: &OfMoves) {
    let figures = shown.figures();
    for (tenant, counts) in shown.moves.all() {
        for (kind, count) in counts {
            let Some(device) = figures.devices.iter().find(|device| device.index == kind.device) else {
                continue;
            };
            let place = [text(of::TENANT, tenant.clone()), text(of::HW_ID, device.uuid.clone())];
            let (value, attributes) = value(&kind, &count, place);
            say(value, &attributes);
        }
    }
}

fn by_outcome(value: fn(&Count) -> u64) -> impl Fn(&Kind, &Count, [KeyValue; 2]) -> (u64, Vec<KeyValue>) {
    move |kind, count, [tenant, device]| {
        let attributes = vec![
            tenant,
            device,
            text(of::MIGRATION_DIRECTION, kind.direction),
            text(of::MIGRATION_CAUSE, kind.cause),
            text(of::MIGRATION_OUTCOME, kind.outcome),
        ];
        (value(count), attributes)
    }
}

fn allocations_of(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for (tenant, count) in &shown.figures().allocations_of {
        say(*count, &[text(of::TENANT, tenant.clone())]);
    }
}

fn allocations(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for (state, count) in &shown.figures().allocations {
        say(*count, &[text(of::ALLOCATION_STATE, state.clone())]);
    }
}

fn sessions(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for (state, count) in &shown.figures().sessions {
        say(*count, &[text(of::SESSION_STATE, state.clone())]);
    }
}

fn refusals(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue])) {
    for (scope, reason, count) in shown.counters.refusals() {
        say(count, &[text(of::REFUSAL_SCOPE, scope.name()), text(of::REFUSAL_REASON, reason.name())]);
    }
}

fn place(account: &Account) -> [KeyValue; 3] {
    [
        text(of::TENANT, account.tenant.clone()),
        text(of::HW_ID, account.device.clone()),
        text(of::TIER, account.tier.to_string()),
    ]
}

fn node_place(device: &DeviceView, tier: Tier) -> [KeyValue; 3] {
    [
        text(of::HW_ID, device.uuid.clone()),
        text(of::HW_NAME, device.name.clone()),
        text(of::TIER, tier.to_string()),
    ]
}

pub(super) fn text(key: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(key, value)
}
