//! Which series each observed metric has, and their values.

use broker_core::{DeviceView, HostView, Tier};
use opentelemetry::{KeyValue, Value};
use vramd_types::Bytes;

use super::{
    figures::{Account, Balance},
    metrics::Shown,
    moves::Count,
    registry::{self as of, Definition},
};

/// Says each series of a metric once; those that are zero are left out by whoever listens.
pub(super) type Series = fn(&Shown, &mut dyn FnMut(u64, &[KeyValue]));

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
    (&of::MIGRATIONS, |shown, say| migrations(shown, say, |count| count.parts)),
    (&of::MIGRATION_IO, |shown, say| migrations(shown, say, |count| count.bytes)),
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
            ("resident", balance.resident),
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

fn of_tenants(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue]), bytes: fn(&Balance) -> Bytes) {
    for (account, balance) in &shown.figures().tenants {
        say(bytes(balance).get(), &place(account));
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
        let Some(host) = &device.host else { continue };
        let made = host.held.saturating_sub(host.unreturned);
        let reserved = reserved_on(shown, &device.uuid, Tier::Host).min(made);
        say_states(
            say,
            node_place(device, Tier::Host),
            &[
                ("resident", made.saturating_sub(reserved)),
                ("reserved", reserved),
                ("unreturned", host.unreturned),
            ],
        );
    }
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

/// Of each device, and of the host's memory beside it where there is any.
fn of_devices(
    shown: &Shown,
    say: &mut dyn FnMut(u64, &[KeyValue]),
    on_device: fn(&DeviceView) -> Bytes,
    in_host: fn(&HostView) -> Bytes,
) {
    for device in &shown.figures().devices {
        say(on_device(device).get(), &node_place(device, Tier::Device));
        if let Some(host) = &device.host {
            say(in_host(host).get(), &node_place(device, Tier::Host));
        }
    }
}

fn migrations(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue]), value: fn(&Count) -> u64) {
    let figures = shown.figures();
    for (tenant, counts) in shown.moves.all() {
        for (kind, count) in counts {
            let Some(device) = figures.devices.iter().find(|device| device.index == kind.device) else {
                continue;
            };
            say(
                value(&count),
                &[
                    text(of::TENANT, tenant.clone()),
                    text(of::HW_ID, device.uuid.clone()),
                    text(of::MIGRATION_DIRECTION, kind.direction),
                    text(of::MIGRATION_OUTCOME, kind.outcome),
                ],
            );
        }
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

fn text(key: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(key, value)
}
