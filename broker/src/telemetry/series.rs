//! Which series each observed metric has, and their values.

use broker_core::DeviceView;
use opentelemetry::{KeyValue, Value};
use vramd_types::Bytes;

use super::{
    figures::{Account, Balance},
    metrics::Shown,
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
    (&of::MEMORY_LIMIT, |shown, say| of_devices(shown, say, |device| device.total)),
    (&of::MEMORY_CAPACITY, |shown, say| of_devices(shown, say, |device| device.capacity)),
    (&of::MEMORY_COMMITTED, |shown, say| of_devices(shown, say, |device| device.committed)),
    (&of::MEMORY_SHORTFALL, |shown, say| of_devices(shown, say, |device| device.shortfall)),
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
        let [id, name, tier] = node_place(device);
        let mut attributes = [id, name, tier, text(of::MEMORY_STATE, "")];
        let reserved_or_resident =
            device.held.saturating_sub(device.unreturned).saturating_sub(device.cached);
        let reserved = reserved_on(shown, &device.uuid).min(reserved_or_resident);
        let states = [
            ("resident", reserved_or_resident.saturating_sub(reserved)),
            ("reserved", reserved),
            ("cached", device.cached),
            ("unreturned", device.unreturned),
            ("unbrokered", device.unbrokered),
            ("context", device.contexts),
        ];
        for (state, bytes) in states {
            attributes[3].value = Value::from(state);
            say(bytes.get(), &attributes);
        }
    }
}

/// What is being made for tenants there.
fn reserved_on(shown: &Shown, device: &str) -> Bytes {
    let figures = shown.figures();
    let there = figures.tenants.iter().filter(|(account, _)| account.device == device);
    Bytes::checked_sum(there.map(|(_, balance)| balance.reserved)).unwrap_or(Bytes::MAX)
}

fn of_devices(shown: &Shown, say: &mut dyn FnMut(u64, &[KeyValue]), bytes: fn(&DeviceView) -> Bytes) {
    for device in &shown.figures().devices {
        say(bytes(device).get(), &node_place(device));
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

/// What the daemon hands out of a device is all in one tier.
fn node_place(device: &DeviceView) -> [KeyValue; 3] {
    [
        text(of::HW_ID, device.uuid.clone()),
        text(of::HW_NAME, device.name.clone()),
        text(of::TIER, broker_core::Tier::Device.to_string()),
    ]
}

fn text(key: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(key, value)
}
