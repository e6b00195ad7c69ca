//! The markup of the page. All text goes through `maud`, which escapes it: names may come from clients.
//!
//! The page names no allocation and no session, since the metrics beside it do not either.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use broker_core::{
    Cause, DeviceView, MigrationState, MoveView, QuotaInForce, QuotaView, Tier, Time, WaitCause, WaitReason,
    WaitView, WaiterView,
};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use vramd_types::{Bytes, ExtentId};

use super::{
    Facts,
    chart::{Plot, chart},
    colours::{Colour, Known, Named, named_tenants},
    history::{History, NAMED_MAX, Window},
    places::{Place, Present, places_of},
};

/// Maximum rows of a table. The page says how many are left out.
const ROWS_MAX: usize = 20;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The whole document around its main part. `nonce` marks its style and its script as the daemon's own.
pub(super) fn document(facts: &Facts, window: Window, main: &str, nonce: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "vramd on " (facts.host) }
                link rel="icon" href="data:,";
                // With scripts the page changes in place.
                noscript { meta http-equiv="refresh" content="5"; }
                style nonce=(nonce) { (PreEscaped(STYLE)) }
            }
            body data-main=(window.main_path()) {
                header {
                    h1 { "vramd " span { (facts.host) } }
                    nav {
                        @for other in Window::ALL {
                            @let current = (other == window).then_some("page");
                            a href=(other.path()) aria-current=[current] { (other.label()) }
                        }
                    }
                }
                p #stale role="alert" hidden { "The daemon does not answer. This is its last known state." }
                main { (PreEscaped(main)) }
                footer {
                    "Nothing can be changed here. The daemon is "
                    code { "vramd " (facts.version) }
                    " with the driver "
                    code { (facts.driver) }
                    ", started for the " (ordinal(facts.boot_epoch)) " time on this node. "
                    a href="/metrics" { "Metrics" }
                }
                script nonce=(nonce) { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// The part of the page that changes from one refresh to the next.
pub(super) fn main_part(
    now: Time,
    time_of_day: &str,
    window: Window,
    history: &History,
    present: &Present,
    known: &mut Known,
    copied: impl Fn(ExtentId) -> Option<Bytes>,
) -> Markup {
    let Present { places, node, waits, moves } = present;
    let devices = &places.devices;
    let numbers = Numbers(devices);
    let named = named_tenants(history, window, devices, known);
    html! {
        section.node aria-label="Node" {
            p.state {
                @if node.draining {
                    span.chip.elevated { "draining" }
                } @else {
                    span.chip.normal { "serving" }
                }
                @if node.invariant_violations > 0 {
                    span.chip.critical { "invariants violated: " (node.invariant_violations) }
                }
                time datetime=(time_of_day) { (time_of_day.replace('T', " ").replace('Z', " UTC")) }
            }
            dl {
                (fact("sessions", node.sessions))
                (fact("allocations", node.allocations))
                (fact("moves in flight", moves.len()))
                (fact("parts waiting", node.parts_waiting))
                (fact("batches waiting", node.batches_waiting))
            }
        }
        @for (device, named) in devices.iter().zip(&named) {
            (device_section(now, window, history, device, named, &places.quotas))
        }
        (moves_section(now, moves, &numbers, copied))
        (waits_section(now, waits, &numbers))
    }
}

fn device_section(
    now: Time,
    window: Window,
    history: &History,
    device: &DeviceView,
    named: &Named,
    quotas: &[QuotaView],
) -> Markup {
    let places: Vec<_> = places_of(device).collect();
    let facts = [
        ("not vramd's", device.unbrokered),
        ("for contexts", device.contexts),
        ("cached", device.cached),
        ("unreturned", device.unreturned),
        ("arriving", device.moving_in),
        ("leaving", device.moving_out),
    ];
    html! {
        section.device id={ "device-" (device.index.0) } {
            h2 { "Device " (device.index.0) small { (device.name) " · " code { (device.uuid) } } }
            p.facts {
                @for (name, bytes) in facts.iter().filter(|(_, bytes)| !bytes.is_zero()) {
                    span { (bytes) " " (name) }
                }
                @if device.parts_waiting > 0 {
                    span { (counted(device.parts_waiting, "part")) " waiting" }
                }
            }
            div.charts {
                @for place in &places {
                    (place_figure(now, window, history, device, place, named))
                }
            }
            p.legend {
                @for (name, colour) in named {
                    span { i.swatch.(colour.class()) {} (name) }
                }
                @if named.len() == NAMED_MAX {
                    span { i.swatch.others {} "all others" }
                }
                @if places.iter().any(|place| place.capacity < place.total) {
                    span { i.swatch.taken {} "not available to tenants" }
                }
            }
            (tenants_table(device, &places, named, quotas))
        }
    }
}

fn place_figure(
    now: Time,
    window: Window,
    history: &History,
    device: &DeviceView,
    place: &Place,
    named: &Named,
) -> Markup {
    let samples = history.samples(window).iter();
    let plot = Plot { window, now, total: place.total };
    let tier = place.tier;
    let label = format!("Memory of tenants over time, device {}, tier {tier}", device.index.0);
    html! {
        figure {
            figcaption {
                strong { (tier_name(tier)) }
                span.amount {
                    b data-bytes=(place.charged.get()) { (place.charged) }
                    " of " (place.capacity)
                }
                span.chip.(place.pressure.name()) { (place.pressure) }
            }
            (chart(plot, samples, |sample| sample.place(device.index, tier), named, &label))
        }
    }
}

/// A tenant's balances on one device, in the order of its tiers.
struct Row<'a> {
    tenant: &'a str,
    balances: Vec<Option<QuotaInForce>>,
}

impl Row<'_> {
    fn charges(&self) -> impl Iterator<Item = Bytes> {
        self.balances.iter().map(|balance| balance.map_or(Bytes::ZERO, |balance| balance.charged))
    }
}

fn tenants_table(device: &DeviceView, places: &[Place], named: &Named, quotas: &[QuotaView]) -> Markup {
    let mut of: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    for quota in quotas.iter().filter(|quota| quota.device == device.uuid) {
        let tenant = quota.tenant.as_str();
        let row = of.entry(tenant).or_insert_with(|| Row { tenant, balances: vec![None; places.len()] });
        for (place, balance) in places.iter().zip(&mut row.balances) {
            if place.tier == quota.tier {
                *balance = quota.in_force;
            }
        }
    }
    let mut rows: Vec<_> = of.into_values().collect();
    // A stable sort: equal ones stay in the order of their names.
    rows.sort_by(|a, b| b.charges().cmp(a.charges()));
    let others = rows.split_off(rows.len().min(ROWS_MAX));
    if rows.is_empty() {
        return html! { p.none { "No tenant has a charge or a quota here." } };
    }
    html! {
        div.wide {
            table.tenants {
                thead {
                    tr {
                        th rowspan="2" { "Tenant" }
                        @for place in places {
                            th.tier colspan="3" { (tier_name(place.tier)) }
                        }
                    }
                    tr {
                        @for _ in places {
                            th.number.tier { "charged" }
                            th.number { "guarantee" }
                            th.number { "limit" }
                        }
                    }
                }
                tbody {
                    @for row in &rows {
                        @let named = named.iter().find(|(name, _)| **name == *row.tenant);
                        @let colour = named.map_or(Colour::OTHERS, |(_, colour)| *colour);
                        tr data-tenant=(row.tenant) {
                            th scope="row" {
                                i.swatch.(colour.class()).idle[row.charges().all(|charge| charge.is_zero())] {}
                                (row.tenant)
                            }
                            @for (balance, place) in row.balances.iter().zip(places) {
                                (balance_cells(balance.as_ref(), place.tier, colour))
                            }
                        }
                    }
                    @if !others.is_empty() {
                        tr.rest {
                            th scope="row" { (counted(others.len(), "more tenant")) }
                            @for (index, _) in places.iter().enumerate() {
                                @let charges = others.iter().filter_map(|row| row.charges().nth(index));
                                @let sum = charges.fold(Bytes::ZERO, Bytes::saturating_add);
                                td.number.tier data-bytes=(sum.get()) { (sum) }
                                td {}
                                td {}
                            }
                        }
                    }
                }
            }
        }
    }
}

fn balance_cells(balance: Option<&QuotaInForce>, tier: Tier, colour: Colour) -> Markup {
    let Some(QuotaInForce { guarantee, limit, charged, .. }) = balance else {
        return html! { td.number.tier.zero { "–" } td {} td {} };
    };
    let part = |bytes: &Bytes| percent(*bytes, *limit).min(100);
    html! {
        td.number.tier.zero[charged.is_zero()] data-tier=(tier) data-bytes=(charged.get()) {
            (charged)
            svg.bar viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" {
                rect.track width="100" height="4" {}
                rect.(colour.class()) width=(part(charged)) height="4" {}
                @if !guarantee.is_zero() {
                    rect.guarantee x=(part(guarantee)) width="1" height="4" {}
                }
            }
        }
        td.number.zero[guarantee.is_zero()] data-guarantee=(guarantee.get()) { (guarantee) }
        td.number data-limit=(limit.get()) { (limit) }
    }
}

fn moves_section(
    now: Time,
    moves: &[MoveView],
    numbers: &Numbers<'_>,
    copied: impl Fn(ExtentId) -> Option<Bytes>,
) -> Markup {
    html! {
        section #moves {
            h2 { "Moves in flight" }
            @if moves.is_empty() {
                p.none { "No part moves." }
            } @else {
                div.wide {
                    table {
                        thead {
                            tr {
                                th { "Tenant" } th { "Device" } th { "From, to" } th.number { "Size" }
                                th { "Copied" } th { "State" } th { "Cause" } th.number { "For" }
                            }
                        }
                        tbody {
                            @for it in moves.iter().take(ROWS_MAX) {
                                @let done = copied(it.extent).map_or(0, |bytes| percent(bytes, it.bytes));
                                tr {
                                    th scope="row" { (it.tenant) }
                                    td { (numbers.name(&it.device)) }
                                    td { (it.from) " → " (it.to) }
                                    td.number { (it.bytes) }
                                    td { progress max="100" value=(done) {} " " (done) " %" }
                                    td { (state(it.state)) }
                                    td { (cause(it.cause)) }
                                    td.number { (age(now.since(it.since))) }
                                }
                            }
                        }
                    }
                }
                (more(moves.len(), "vramctl move list"))
            }
        }
    }
}

fn waits_section(now: Time, waits: &[WaitView], numbers: &Numbers<'_>) -> Markup {
    let requests = requests(waits);
    html! {
        section #waits {
            h2 { "Waiting for room" }
            @if requests.is_empty() {
                p.none { "No request waits." }
            } @else {
                div.wide {
                    table {
                        thead {
                            tr {
                                th { "Tenant" } th { "Waiter" } th { "Device" } th.number { "Size" } th.number { "For" }
                                th { "Why" } th.number { "Requests ahead" }
                            }
                        }
                        tbody {
                            @for request in requests.iter().take(ROWS_MAX) {
                                tr {
                                    th scope="row" { (request.first.tenant) }
                                    td { (waiter(request)) }
                                    td { (numbers.name(&request.first.device)) }
                                    td.number { (request.bytes) }
                                    td.number { (age(now.since(request.first.since))) }
                                    td { (why(&request.first.reason)) }
                                    td.number { (request.first.ahead.0) }
                                }
                            }
                        }
                    }
                }
                (more(requests.len(), "vramctl wait list"))
            }
        }
    }
}

/// The waits of one request on one device.
struct Waiting<'a> {
    first: &'a WaitView,
    parts: usize,
    bytes: Bytes,
}

/// Groups waits, in the order of the line.
fn requests(waits: &[WaitView]) -> Vec<Waiting<'_>> {
    let mut requests: Vec<Waiting<'_>> = Vec::new();
    let mut known: BTreeMap<(u64, &str), usize> = BTreeMap::new();
    for wait in waits {
        match known.entry((wait.request, &wait.device)) {
            Entry::Vacant(entry) => {
                entry.insert(requests.len());
                requests.push(Waiting { first: wait, parts: 1, bytes: wait.bytes });
            }
            Entry::Occupied(entry) => {
                if let Some(request) = requests.get_mut(*entry.get()) {
                    request.parts = request.parts.saturating_add(1);
                    request.bytes = request.bytes.saturating_add(wait.bytes);
                }
            }
        }
    }
    requests
}

fn waiter(request: &Waiting<'_>) -> String {
    match &request.first.waiter {
        WaiterView::Part { .. } => counted(request.parts, "part"),
        WaiterView::Batch { items, .. } => format!("batch of {}", counted(*items, "allocation")),
    }
}

fn why(reason: &WaitReason) -> Markup {
    let figures = html! { (reason.charged) " of " (reason.bound) };
    html! {
        @match reason.cause {
            WaitCause::Limit => { "the tenant is at its limit: " (figures) }
            WaitCause::Guarantee => { "the room is guaranteed to " (reason.tenants.join(", ")) }
            WaitCause::InUse => { "the device is full: " (figures) }
            WaitCause::Leaving => { "the device is full, and room is being made: " (figures) }
            WaitCause::Turn => { "earlier waiters come first" }
            WaitCause::Driver => { "the driver has no memory" }
        }
        @if !reason.sessions.is_empty() {
            ", in use by " (counted(reason.sessions.len(), "session"))
        }
        @if !reason.operator_held.is_zero() {
            ", " (reason.operator_held) " held by operators"
        }
    }
}

const fn state(state: MigrationState) -> &'static str {
    match state {
        MigrationState::Preparing => "preparing",
        MigrationState::Copying => "copying",
        MigrationState::Stopping => "stopping",
    }
}

const fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Demand => "a client needs it or its room",
        Cause::WriteBack => "write-back ahead of need",
        Cause::Rebalance => "its tenant is above its limit",
        Cause::Pressure => "pressure",
        Cause::Operator => "an operator asked",
        Cause::Owner => "its owner asked",
        Cause::Prefetch => "a client asked ahead",
        Cause::Speculation => "it will probably be used",
    }
}

const fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "Device memory",
        Tier::Host => "Host memory",
        Tier::Disk => "Disk",
    }
}

/// Says how many rows a table leaves out.
fn more(rows: usize, command: &str) -> Markup {
    html! {
        @if rows > ROWS_MAX {
            p.none { (rows - ROWS_MAX) " more: " code { (command) } }
        }
    }
}

fn fact(name: &str, count: usize) -> Markup {
    html! {
        div.zero[count == 0] {
            dt { (name) }
            dd data-fact=(name) { (count) }
        }
    }
}

/// Devices by UUID.
struct Numbers<'a>(&'a [DeviceView]);

impl Numbers<'_> {
    fn name(&self, uuid: &str) -> String {
        let found = self.0.iter().find(|device| device.uuid == uuid);
        found.map_or_else(|| uuid.to_owned(), |device| device.index.0.to_string())
    }
}

fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

fn ordinal(number: u64) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

fn percent(part: Bytes, whole: Bytes) -> u64 {
    let percent = (u128::from(part.get()) * 100).checked_div(whole.get().into()).unwrap_or_default();
    u64::try_from(percent).unwrap_or(u64::MAX)
}

fn age(age: Duration) -> String {
    match age.as_secs() {
        0 => format!("{} ms", age.as_millis()),
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}
