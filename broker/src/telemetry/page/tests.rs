//! The page as text: what it shows of the present and of the history, and that it shows names as text.

use std::{collections::BTreeMap, time::Duration};

use broker_core::{
    Cause, DeviceView, MigrationState, MoveView, NodeView, PartRef, Pressure, QuotaInForce, QuotaView, Tier,
    TierView, Time, WaitCause, WaitReason, WaitView, WaiterView,
};
use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, Quantity, SessionId, WaitId};

use super::{
    Facts,
    colours::Known,
    history::{History, Window},
    html,
    places::{Places, Present},
};

const HOSTILE: &str = "</td><script>alert('&\")</script>";

/// A tenant's charge in one place, in MiB.
pub(super) fn charged(tenant: &str, device: u32, tier: Tier, mib: u32) -> QuotaView {
    let in_force = QuotaInForce {
        guarantee: Bytes::mib(2),
        limit: Bytes::mib(64),
        charged: Bytes::mib(mib),
        ..QuotaInForce::default()
    };
    QuotaView {
        tenant: tenant.to_owned(),
        device: format!("GPU-{device}"),
        tier,
        guarantee: Quantity::Bytes(in_force.guarantee),
        limit: Quantity::Bytes(in_force.limit),
        in_force: Some(in_force),
        default_quota: false,
        device_absent: false,
    }
}

/// Two devices of 1 GiB with a host tier each, with these charges.
pub(super) fn places(quotas: &[QuotaView]) -> Places {
    let sum = |device: &str, tier| {
        let here = quotas.iter().filter(|row| row.device == device && row.tier == tier);
        Bytes::checked_sum(here.filter_map(|row| Some(row.in_force?.charged))).unwrap()
    };
    let device = |index: u16| {
        let uuid = format!("GPU-{index}");
        let total = Bytes::gib(1);
        let (charged, in_host) = (sum(&uuid, Tier::Device), sum(&uuid, Tier::Host));
        let (capacity, pressure) = (Bytes::mib(768), Pressure::High);
        let host = TierView {
            total,
            capacity: total,
            charged: in_host,
            unreturned: Bytes::ZERO,
            committed: in_host,
            shortfall: Bytes::ZERO,
            pressure: Pressure::Normal,
            batch_factor: 1_000,
            full_in: None,
        };
        DeviceView {
            index: DeviceIndex(index),
            uuid,
            name: "a device".to_owned(),
            total,
            capacity,
            charged,
            unreturned: Bytes::ZERO,
            cached: Bytes::ZERO,
            cached_smaller: Bytes::ZERO,
            cached_larger: Bytes::ZERO,
            managed: broker_core::ManagedBytes::default(),
            host: Some(host),
            disk: None,
            moving_in: Bytes::ZERO,
            moving_out: Bytes::ZERO,
            parts_waiting: 0,
            unbrokered: Bytes::mib(256),
            contexts: Bytes::ZERO,
            committed: charged,
            shortfall: Bytes::ZERO,
            pressure,
            batch_factor: 1_000,
            full_in: None,
        }
    };
    Places { quotas: quotas.to_vec(), devices: vec![device(0), device(1)] }
}

fn present(quotas: &[QuotaView]) -> Present {
    let node = NodeView {
        draining: false,
        boot_epoch: 3,
        sessions: 5,
        allocations: 7,
        fds_in_flight: 0,
        parts_waiting: 2,
        batches_waiting: 1,
        invariant_violations: 0,
    };
    Present { places: places(quotas), node, waits: Vec::new(), moves: Vec::new() }
}

fn wait(request: u64, part: u32, tenant: &str) -> WaitView {
    WaitView {
        id: WaitId::from_shown(request),
        device: "GPU-1".to_owned(),
        tenant: tenant.to_owned(),
        waiter: WaiterView::Part { part: this_part(part), sessions: Vec::new() },
        bytes: Bytes::mib(2),
        since: seconds(10),
        deadline: None,
        request,
        reason: WaitReason {
            cause: WaitCause::InUse,
            bound: Bytes::mib(768),
            charged: Bytes::mib(766),
            sessions: vec![SessionId::from_shown(9)],
            tenants: Vec::new(),
            operator_held: Bytes::mib(4),
        },
        ahead: (0, None),
    }
}

fn this_part(part: u32) -> PartRef {
    PartRef { allocation: AllocationId::from_shown(17), part: PartIndex(part) }
}

fn seconds(seconds: u64) -> Time {
    Time::from_micros(seconds * 1_000_000)
}

/// Renders a history with a sample of each of these states, two seconds apart, and the last state.
fn render(history: &[Present]) -> String {
    let mut samples = History::default();
    for (at, present) in (0..).zip(history) {
        samples.record(seconds(2 * at), &present.places);
    }
    let last = history.last().unwrap();
    let now = seconds(2 * u64::try_from(history.len()).unwrap());
    let main = html::main_part(
        now,
        "2026-01-02T03:04:05Z",
        Window::Minutes,
        &samples,
        last,
        &mut Known::new(),
        |_| Some(Bytes::mib(1)),
    );
    main.into_string()
}

/// The paths of the bands of all charts, by the name of their tenant.
fn bands(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut bands: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for path in page.split("<path class=\"band ").skip(1) {
        let (_, rest) = path.split_once("d=\"").unwrap();
        let (path, rest) = rest.split_once('"').unwrap();
        let (_, rest) = rest.split_once("<title>").unwrap();
        bands.entry(rest.split_once('<').unwrap().0).or_default().push(path);
    }
    bands
}

#[test]
fn the_first_page_has_no_history_and_shows_the_present() {
    let present = present(&[charged("team-a", 0, Tier::Device, 32)]);
    let main = html::main_part(
        Time::START,
        "",
        Window::Hours,
        &History::default(),
        &present,
        &mut Known::new(),
        |_| None,
    )
    .into_string();
    assert!(bands(&main).is_empty(), "{main}");
    assert!(main.contains("<dd data-fact=\"sessions\">5</dd>"), "{main}");
    assert!(main.contains(&format!("data-tier=\"device\" data-bytes=\"{}\">32 MiB<", 32 << 20)), "{main}");
    assert!(main.contains("No part moves") && main.contains("No request waits"), "{main}");
    assert!(main.contains("No tenant has a charge or a quota here"), "the second device: {main}");
}

#[test]
fn one_sample_is_a_rectangle_up_to_its_charge() {
    let page = render(&[present(&[
        charged("team-a", 0, Tier::Device, 512),
        charged("team-b", 0, Tier::Device, 256),
    ])]);
    let bands = bands(&page);
    // 512 MiB of 1 GiB are half of the height, and two of 600 seconds are 20 of 6,000 units.
    assert_eq!(bands["team-a"], ["M5980 1600V800H6000V1600Z"]);
    assert_eq!(bands["team-b"], ["M5980 1600V400H6000V1600Z"], "it stands on the first");
    assert_eq!(bands["others"], ["M5980 1600V400H6000V1600Z"], "there are none: it has no height of its own");
    assert!(
        page.contains("d=\"M5980 0V400H6000V0Z\"><title>not available"),
        "a quarter is unbrokered: {page}"
    );
    assert!(page.contains("<rect class=\"pressure high\" x=\"662.0\" y=\"172\" width=\"2.0\""), "{page}");
}

#[test]
fn an_area_has_corners_only_where_it_changes() {
    let states = [64, 64, 64, 128, 128, 0].map(|mib| present(&[charged("a", 1, Tier::Host, mib)]));
    let page = render(&states);
    assert_eq!(bands(&page)["a"], ["M5880 1600V1500H5940V1400H5980V1600H6000V1600Z"]);
}

#[test]
fn a_time_without_samples_is_a_gap() {
    let mut samples = History::default();
    let state = present(&[charged("a", 0, Tier::Device, 512)]);
    for at in [0, 2, 60, 62] {
        samples.record(seconds(at), &state.places);
    }
    let main =
        html::main_part(seconds(64), "", Window::Minutes, &samples, &state, &mut Known::new(), |_| None)
            .into_string();
    assert_eq!(bands(&main)["a"], ["M5360 1600V800H5440V1600ZM5960 1600V800H6000V1600Z"]);
}

#[test]
fn many_tenants_are_summed_up_and_the_page_stays_small() {
    let rows = |step: u32| -> Vec<_> {
        let of = |tenant: u32| {
            let mib = 1 + (tenant + step) % 3;
            [Tier::Device, Tier::Host]
                .map(|tier| [0, 1].map(|device| charged(&format!("team-{tenant:03}"), device, tier, mib)))
        };
        (0..200).flat_map(of).flatten().collect()
    };
    let states: Vec<_> = (0..300).map(|step| present(&rows(step))).collect();
    let page = render(&states);
    let bands = bands(&page);
    assert_eq!(bands["others"].len(), 4);
    assert!(bands.len() <= 2 * 8 + 1, "{:?}", bands.keys());
    assert_eq!(page.matches("<tr data-tenant=").count(), 2 * 20);
    assert_eq!(page.matches("180 more tenants").count(), 2);
    assert!(page.len() < 500 << 10, "{}", page.len());
}

#[test]
fn every_name_is_text_wherever_it_stands() {
    let mut hostile = present(&[charged(HOSTILE, 0, Tier::Device, 32), charged(HOSTILE, 1, Tier::Host, 2)]);
    for device in &mut hostile.places.devices {
        device.name = HOSTILE.to_owned();
    }
    let mut waits = wait(1, 0, HOSTILE);
    waits.device = HOSTILE.to_owned();
    waits.reason.cause = WaitCause::Guarantee;
    waits.reason.tenants = vec![HOSTILE.to_owned()];
    hostile.waits = vec![waits];
    hostile.moves = vec![moved(HOSTILE, HOSTILE)];
    let main = render(&[hostile]);
    let facts = Facts { host: HOSTILE.to_owned(), version: "1", driver: HOSTILE.to_owned(), boot_epoch: 1 };
    let document = html::document(&facts, Window::Minutes, &main, "n").into_string();
    assert!(document.matches("&lt;/td&gt;&lt;script&gt;alert").count() >= 10, "{document}");
    assert!(!document.contains("<script>") && !document.contains("</td><script"), "{document}");
    // In an attribute a quote would end it.
    assert!(
        document.contains("<tr data-tenant=\"&lt;/td&gt;&lt;script&gt;alert('&amp;&quot;)"),
        "{document}"
    );
    assert_eq!(document.matches("<script").count(), 1, "the daemon's own");
}

fn moved(tenant: &str, device: &str) -> MoveView {
    MoveView {
        part: this_part(3),
        tenant: tenant.to_owned(),
        device: device.to_owned(),
        from: Tier::Device,
        to: Tier::Host,
        bytes: Bytes::mib(4),
        cause: Cause::Pressure,
        state: MigrationState::Copying,
        since: seconds(1),
        extent: ExtentId::from_raw(5),
    }
}

#[test]
fn moves_show_their_progress_and_cause() {
    let mut state = present(&[]);
    state.moves = vec![moved("team-a", "GPU-1")];
    let page = render(&[state]);
    let (_, row) = page.split_once("<h2>Moves in flight").unwrap();
    for shown in ["team-a", "<td>1</td>", "device → host", "4 MiB", "25 %", "copying", "pressure", "1 s"] {
        assert!(row.contains(shown), "{shown}: {row}");
    }
}

#[test]
fn the_waits_of_one_request_are_one_row_with_the_reason() {
    let mut state = present(&[]);
    state.waits =
        (0..30).map(|part| wait(1, part, "team-a")).chain((2..40).map(|it| wait(it, 0, "team-b"))).collect();
    let page = render(&[state]);
    let (_, table) = page.split_once("Waiting for room").unwrap();
    assert!(table.contains("<td>30 parts</td>") && table.contains("60 MiB"), "{table}");
    assert!(table.contains("the device is full: 766 MiB of 768 MiB, in use by 1 session, "), "{table}");
    assert!(table.contains("4 MiB held by operators"), "{table}");
    assert!(!page.contains(&SessionId::from_shown(9).to_string()), "{page}");
    assert!(!page.contains(&AllocationId::from_shown(17).to_string()), "{page}");
    assert!(table.contains("19 more: <code>vramctl wait list</code>"), "39 requests: {table}");
}

#[test]
fn a_draining_node_and_violated_invariants_are_said() {
    let mut state = present(&[]);
    state.node.draining = true;
    state.node.invariant_violations = 2;
    let page = render(&[state]);
    assert!(page.contains("draining</span>") && page.contains("invariants violated: 2"), "{page}");
    assert!(!page.contains("serving"), "{page}");
}

#[test]
fn the_document_asks_no_other_server_for_anything() {
    let facts = Facts { host: "n".to_owned(), version: "1", driver: "sim".to_owned(), boot_epoch: 2 };
    for window in Window::ALL {
        let document = html::document(&facts, window, "", "abc").into_string();
        for foreign in ["http://", "https://", "src=", "url(", "@import", "style="] {
            assert!(!document.contains(foreign), "{foreign}: {document}");
        }
        assert!(document.contains("<style nonce=\"abc\">") && document.contains("<script nonce=\"abc\">"));
        assert!(document.contains("started for the 2nd time"), "{document}");
    }
    assert_eq!(Window::Minutes.interval() * 300, Duration::from_secs(600));
}
