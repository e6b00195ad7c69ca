//! The page for people: by HTTP, and in a real browser with and without scripts.

use std::{collections::BTreeMap, io::Write as _, net::TcpStream, time::Duration};

use serde_json::Value;
use vramd_proto::v1::{AllocateBatchRequest, WriteBackPartsRequest, write_back_parts_request::Target};
use vramd_tests::{
    Config, Daemon, GIB, MIB, RawSession,
    browser::{Browser, Scripts},
    config::Effect,
    http,
    session::spec,
    wait::{until, within},
};

use super::{address, measured};
use crate::moves::{open_and_write, parts, tiers};

/// Tenant, index of the device, and tier.
type Place = (String, usize, String);
/// Charge, guarantee and limit.
type Balance = [u64; 3];

fn node() -> Config {
    Config { devices: vec!["1GiB".into(), "512MiB".into()], ..measured() }.memory("host_size = \"256MiB\"")
}

/// The balances in the tables of the page.
fn shown(page: &str) -> BTreeMap<Place, Balance> {
    let number = |text: &str, name: &str| -> u64 {
        let (_, rest) = text.split_once(&format!("{name}=\"")).unwrap_or_else(|| panic!("{name}: {text}"));
        rest.split_once('"').unwrap().0.parse().unwrap()
    };
    let mut shown = BTreeMap::new();
    for section in page.split("id=\"device-").skip(1) {
        let index = section.split_once('"').unwrap().0.parse().unwrap();
        for row in section.split("<tr data-tenant=\"").skip(1) {
            let tenant = row.split_once('"').unwrap().0;
            for cells in row.split("data-tier=\"").skip(1) {
                let tier = cells.split_once('"').unwrap().0;
                let balance = ["data-bytes", "data-guarantee", "data-limit"].map(|name| number(cells, name));
                shown.insert((tenant.to_owned(), index, tier.to_owned()), balance);
            }
        }
    }
    shown
}

/// The same by `vramctl quota list`.
fn listed(daemon: &Daemon) -> BTreeMap<Place, Balance> {
    let devices: Vec<_> =
        daemon.state().devices.into_iter().map(|status| status.device.unwrap_or_default().uuid).collect();
    let output = daemon.vramctl().args(["quota", "list", "--json"]).output().expect("vramctl starts");
    let listed: Value = serde_json::from_slice(&output.stdout).expect("vramctl prints JSON");
    let of = |quota: &Value| {
        let text = |field: &str| quota[field].as_str().unwrap_or_default().to_owned();
        let index = devices.iter().position(|uuid| *uuid == text("device"))?;
        let balance =
            ["held_bytes", "guarantee_bytes", "limit_bytes"].map(|field| quota[field].as_u64().unwrap());
        Some(((text("tenant"), index, text("tier")), balance))
    };
    listed["quotas"].as_array().unwrap().iter().filter_map(of).collect()
}

/// Some tenants with quotas, of which one is charged.
#[track_caller]
fn loaded(daemon: &Daemon) -> RawSession {
    let mut session = daemon.open();
    daemon.set_quota(session.tenant(), "64MiB", "256MiB");
    daemon.set_quota("team-b", "32MiB", "128MiB");
    session.allocate(spec(6 * MIB));
    daemon.settled_state();
    session
}

/// Waits until the browser shows this, and the tables of operators.
#[track_caller]
fn until_shown(browser: &mut Browser, daemon: &Daemon, text: &str) {
    let mut page = String::new();
    let found = within(Duration::from_secs(40), || {
        page = browser.document();
        (page.contains(text) && shown(&page) == listed(daemon)).then_some(())
    });
    assert!(found.is_some(), "{text}\n{:?}\n{page}", listed(daemon));
}

#[test]
fn the_page_has_the_numbers_of_operators_and_is_not_kept() {
    let daemon = Daemon::start(&node());
    let session = loaded(&daemon);
    let at = address(&daemon);
    let expected = listed(&daemon);
    assert_eq!(
        expected[&(session.tenant().to_owned(), 0, "device".to_owned())],
        [6 * MIB, 64 * MIB, 256 * MIB]
    );
    for path in ["/", "/hours", "/main/minutes", "/main/hours"] {
        let mut page = http::get(at, path);
        // A rendering lasts a second.
        until("the page shows what is allocated", || {
            page = http::get(at, path);
            shown(&page.body) == expected
        });
        assert_eq!(page.status, 200);
        for header in [
            "content-type: text/html; charset=utf-8",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "content-security-policy: default-src 'none';",
        ] {
            assert!(page.head.contains(header), "{header}: {}", page.head);
        }
        assert!(page.body.contains("<dd data-fact=\"sessions\">1</dd>"), "{}", page.body);
    }
}

#[test]
fn the_page_is_only_read() {
    let daemon = Daemon::start(&measured());
    let at = address(&daemon);
    let answer = |method: &str, path: &str| {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "{method} {path} HTTP/1.0\r\nHost: x\r\nContent-Length: 0\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    for path in ["/", "/hours", "/main/minutes", "/metrics"] {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let answer = answer(method, path);
            assert!(answer.starts_with("HTTP/1.0 405 "), "{method} {path}: {answer}");
            assert!(answer.to_ascii_lowercase().contains("allow: get,head"), "{answer}");
        }
        let head = answer("HEAD", path);
        assert!(head.starts_with("HTTP/1.0 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    }
}

#[test]
fn an_operator_can_switch_the_page_off() {
    let daemon = Daemon::start(&measured().telemetry("web_page = false"));
    let at = address(&daemon);
    for path in ["/", "/hours", "/main/minutes"] {
        assert_eq!(http::get(at, path).status, 404, "{path}");
    }
    assert_eq!(http::get(at, "/metrics").status, 200);
    assert_eq!(http::get(at, "/readyz").status, 200);
}

#[test]
fn moves_and_waiters_are_shown_with_their_reasons() {
    let config = tiers("8MiB", "8MiB").fault("copy", 1, Effect::Hold);
    let daemon = Daemon::start(&config.telemetry("prometheus_listen = \"127.0.0.1:0\""));
    let (session, id) = open_and_write(&daemon, 4);
    until("all maps are answered", || daemon.state().node.fds_in_flight == 0);
    let target = Some(Target::AllocationId(id));
    let written = daemon.admin.write_back_parts(WriteBackPartsRequest {
        target,
        part_indexes: vec![1],
        ..Default::default()
    });
    let at = address(&daemon);
    let moves_and_waits = || {
        let page = http::get(at, "/").body;
        let (_, rest) = page.split_once("<h2>Moves in flight</h2>").unwrap();
        let (moves, waits) = rest.split_once("<h2>Waiting for room</h2>").unwrap();
        (moves.to_owned(), waits.to_owned())
    };
    // A write-back that does not copy yet would end once its part is told to leave.
    until("a move is shown", || {
        let (moves, _) = moves_and_waits();
        moves.contains("device → host") && moves.contains("copying")
    });
    let other = daemon.open();
    let batch = AllocateBatchRequest { wait_ms: 60_000, ..other.request(vec![parts(2)]) };
    let batch = other.memory.allocate_batch(batch);
    until("a waiter is shown", || {
        let (_, waits) = moves_and_waits();
        let is_waiting = waits.contains("batch of 1 allocation<") && waits.contains("the device is full");
        is_waiting && waits.contains("4 MiB") && waits.contains(session.tenant())
    });
    daemon.end_holds();
    written.ok();
    batch.cancel();
}

#[test]
fn a_browser_without_scripts_loads_the_page_again() {
    let daemon = Daemon::start(&node());
    let mut session = loaded(&daemon);
    let at = address(&daemon);
    let mut browser = Browser::open(at, "/", Scripts::Off);
    until_shown(&mut browser, &daemon, "6 MiB");
    let loads = browser.loads();
    session.allocate(spec(10 * MIB));
    until_shown(&mut browser, &daemon, "16 MiB");
    // A document is there before its load has ended; asking for it reads the events.
    until("it has loaded the page again", || !browser.document().is_empty() && browser.loads() > loads);
    assert!(browser.requests().iter().all(|url| *url == format!("http://{at}/")), "{:?}", browser.requests());
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
}

#[test]
fn a_browser_with_scripts_changes_the_page_in_place() {
    let daemon = Daemon::start(&node());
    let mut session = loaded(&daemon);
    let at = address(&daemon);
    let mut browser = Browser::open(at, "/", Scripts::On);
    until_shown(&mut browser, &daemon, "6 MiB");
    session.allocate(spec(10 * MIB));
    until_shown(&mut browser, &daemon, "16 MiB");
    assert_eq!(browser.loads(), 1, "the document stays");
    let ours = [format!("http://{at}/"), format!("http://{at}/main/minutes")];
    assert!(
        browser.requests().iter().all(|url| ours.iter().any(|our| our == url)),
        "{:?}",
        browser.requests()
    );
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    let is_stale = |page: &str| !page.contains("id=\"stale\" role=\"alert\" hidden");
    assert!(!is_stale(&browser.document()));
    // Without an answer the page says so, and keeps what it knows.
    drop(session);
    daemon.stop();
    let mut page = String::new();
    until("the page says that it is old", || {
        page = browser.document();
        is_stale(&page)
    });
    assert!(page.contains("16 MiB"), "{page}");
}

#[test]
fn the_page_of_many_tenants_and_devices_stays_small() {
    let daemon = Daemon::start(&Config { devices: vec!["1GiB".into(); 8], ..measured() });
    for tenant in 0..200 {
        daemon.set_quota(&format!("team-{tenant:03}"), "1MiB", "10MiB");
    }
    let at = address(&daemon);
    let mut page = String::new();
    until("all tenants have a quota", || {
        page = http::get(at, "/").body;
        page.matches("180 more tenants").count() == 8
    });
    assert!(page.len() < 1 << 20, "{}", page.len());
    let scrape = http::get(at, "/metrics").body;
    assert!(scrape.len() < 2_000_000, "{}", scrape.len());
    assert!(!scrape.contains("vramd_tenant=\"_other\""), "by default each of them has series");
    assert!(daemon.state().devices.iter().all(|device| device.total_bytes == GIB));
}
