//! `/metrics`: its figures are those of operators, and a real Prometheus takes it.

use std::path::PathBuf;

use vramd::telemetry::metrics;
use vramd_proto::v1::Hello;
use vramd_tests::{
    Config, Daemon, MIB, RawSession, http,
    prometheus::{Prometheus, lint},
    rules,
    session::{hello, persistent, spec},
    wait::until,
};
use vramd_types::Reason;

use super::{address, measured, scrape, sum};

#[test]
fn a_scrape_matches_the_admin_service() {
    let daemon = Daemon::start(&Config { devices: vec!["1GiB".into(), "512MiB".into()], ..measured() });
    let mut session = daemon.open();
    daemon.set_quota(session.tenant(), "64MiB", "256MiB");
    session.allocate(spec(6 * MIB));
    session.refused(spec(400 * MIB)).is(Reason::QuotaLimit);
    let state = daemon.settled_state();
    let scrape = scrape(&daemon);
    let tenant = format!("vramd_tenant=\"{}\"", session.tenant());
    let of = |metric: &str| -> f64 {
        scrape
            .lines()
            .filter(|line| line.starts_with(&format!("{metric}{{")) && line.contains(&tenant))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    };
    assert_eq!(of("vramd_quota_usage_bytes"), state.charged_to(session.tenant()) as f64);
    assert_eq!(of("vramd_quota_guarantee_bytes"), (2 * 64 * MIB) as f64);
    assert_eq!(of("vramd_quota_limit_bytes"), (2 * 256 * MIB) as f64);
    assert_eq!(of("vramd_tenant_allocations"), 1.0);
    let capacity: u64 = state.devices.iter().map(|device| device.capacity_bytes).sum();
    assert_eq!(sum(&scrape, "vramd_memory_capacity_bytes{"), capacity as f64);
    assert_eq!(sum(&scrape, "vramd_allocations{vramd_allocation_state=\"open\"}"), 1.0);
    assert_eq!(sum(&scrape, "vramd_sessions{vramd_session_state=\"live\"}"), 1.0);
    let refused = "vramd_refusals_total{vramd_refusal_reason=\"QUOTA_LIMIT\",vramd_refusal_scope=\"call\"}";
    assert_eq!(sum(&scrape, refused), 1.0);
    let calls = "rpc_server_call_duration_seconds_count{rpc_method=\"vramd.v1.MemoryService/AllocateBatch\",\
                 rpc_response_status_code=";
    assert_eq!(sum(&scrape, &format!("{calls}\"OK\"")), 1.0, "{scrape}");
    assert_eq!(sum(&scrape, &format!("{calls}\"RESOURCE_EXHAUSTED\"")), 1.0);
}

#[test]
fn counters_begin_at_zero_and_tenants_have_series_of_their_own() {
    let daemon = Daemon::start(&measured());
    let first = scrape(&daemon);
    let refused = "vramd_refusals_total{vramd_refusal_reason=\"QUOTA_LIMIT\",vramd_refusal_scope=\"call\"}";
    let shows_zero = |text: &str, series: &str| text.lines().any(|line| line == format!("{series} 0"));
    for series in [refused, "vramd_invariant_violations_total", "vramd_pins_total", "vramd_pin_stalls_total"]
    {
        assert!(shows_zero(&first, series), "{series}: {first}");
    }
    assert!(sum(&first, "process_resident_memory_bytes") > 0.0, "{first}");
    assert!(first.contains("vramd_build_info{vramd_driver=\"sim\",vramd_version="), "{first}");

    let session = daemon.open();
    let tenant = session.tenant();
    let own = format!(
        "vramd_tenant_refusals_total{{vramd_refusal_reason=\"QUOTA_LIMIT\",vramd_tenant=\"{tenant}\"}}"
    );
    let before = scrape(&daemon);
    assert!(shows_zero(&before, &own), "{before}");
    assert_eq!(sum(&before, &format!("vramd_tenant_sessions{{vramd_tenant=\"{tenant}\"}}")), 1.0, "{before}");
    daemon.set_quota(tenant, "", "2MiB");
    session.refused(spec(4 * MIB)).is(Reason::QuotaLimit);
    let after = scrape(&daemon);
    assert_eq!((sum(&after, &own), sum(&after, refused)), (1.0, 1.0), "{after}");
}

#[test]
fn every_family_is_documented_and_none_overflows() {
    let daemon = Daemon::start(&measured());
    let mut session = daemon.open();
    let sealed = session.allocate(persistent("model", 4 * MIB));
    session.seal(sealed.allocation_id);
    until("the client has unmapped what was sealed", || {
        sum(&scrape(&daemon), "vramd_revocation_duration_seconds_count") >= 1.0
    });
    let scrape = scrape(&daemon);
    let known: Vec<_> = metrics::ALL.iter().map(|metric| metric.prometheus_name()).collect();
    for line in scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let family = line.split(' ').next().unwrap();
        assert!(family == "target_info" || known.iter().any(|name| name == family), "{family}");
    }
    assert!(scrape.contains("service_name=\"vramd\""), "{scrape}");
    assert!(!scrape.contains("overflow"), "{scrape}");
    let gauges: Vec<_> =
        scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge")).collect();
    let of_gauge = |line: &&str| gauges.iter().any(|gauge| line.starts_with(&format!("{gauge}{{")));
    let zero = scrape.lines().filter(of_gauge).filter(|line| line.ends_with(" 0"));
    // A level has a series at normal, too.
    let zero: Vec<_> = zero.filter(|line| !line.starts_with("vramd_pressure_level{")).collect();
    assert!(zero.is_empty(), "{zero:?}");
    assert_eq!(sum(&scrape, "vramd_invariant_violations_total"), 0.0);
}

/// One refusal of each scope: a channel, one item of a batch, and a call by a user without permission.
#[test]
fn refusals_are_counted_by_reason_and_scope() {
    let daemon = Daemon::start(&measured());
    let mut session = daemon.open();
    let hello = Hello { protocol_major: 99, ..hello() };
    RawSession::open_with(&daemon.sockets(), hello).expect_err("another version");
    assert!(session.free(77).error.is_some(), "there is no such allocation");
    session.refused(spec(0)).is(Reason::SizeInvalid);
    let scrape = scrape(&daemon);
    for (reason, scope) in
        [("PROTOCOL_VERSION", "channel"), ("ALLOCATION_NOT_FOUND", "item"), ("SIZE_INVALID", "call")]
    {
        let series = format!(
            "vramd_refusals_total{{vramd_refusal_reason=\"{reason}\",vramd_refusal_scope=\"{scope}\"}}"
        );
        assert_eq!(sum(&scrape, &series), 1.0, "{series}\n{scrape}");
    }
}

#[test]
fn the_linter_finds_no_problem() {
    let daemon = Daemon::start(&measured());
    let mut session = daemon.open();
    session.allocate(spec(4 * MIB));
    session.refused(spec(4096 * MIB)).is(Reason::DeviceFull);
    let said = lint(&scrape(&daemon));
    assert!(said.trim().is_empty(), "{said}");
}

#[test]
fn a_real_prometheus_scrapes_it() {
    let daemon = Daemon::start(&measured());
    let mut session = daemon.open();
    let prometheus = Prometheus::scraping(&[address(&daemon)]);
    let held = format!("sum(vramd_quota_usage_bytes{{vramd_tenant=\"{}\"}})", session.tenant());
    session.allocate(spec(6 * MIB));
    prometheus.until(&held, (6 * MIB) as f64);
    session.allocate(spec(2 * MIB));
    prometheus.until(&held, (8 * MIB) as f64);
    prometheus.until("up{job=\"vramd\"}", 1.0);
    prometheus.until("sum(vramd_sessions)", 1.0);
}

/// A node whose tenants have more series than fit.
fn many_tenants() -> Daemon {
    let config = Config { devices: vec!["256MiB".into(); 8], ..measured() };
    let daemon = Daemon::start(&config.telemetry("cardinality_max = 512"));
    for tenant in 0..150 {
        daemon.set_quota(&format!("team-{tenant:03}"), "1MiB", "10MiB");
    }
    daemon
}

/// All series are taken when the tenant comes, and those before it in the alphabet do nothing.
#[test]
fn a_tenant_at_its_limit_is_seen_among_more_than_have_series() {
    let daemon = many_tenants();
    let rules = rules::files();
    let prometheus = Prometheus::ruled(&[address(&daemon)], &rules.each_ref().map(PathBuf::as_path));
    prometheus.until("count(vramd_quota_limit_bytes{vramd_tenant=\"team-000\"})", 8.0);
    let mut session = daemon.open();
    let tenant = session.tenant().to_owned();
    daemon.set_quota(&tenant, "", "4MiB");
    session.allocate(spec(4 * MIB));
    let of_tenant = format!("vramd_tenant=\"{tenant}\"");
    prometheus.until(&format!("tenant_place:vramd_quota_fill:ratio{{{of_tenant}}} > 0"), 1.0);
    prometheus.until(
        &format!("vramd_tenant_refusals_total{{vramd_refusal_reason=\"QUOTA_LIMIT\",{of_tenant}}}"),
        0.0,
    );
    session.refused(spec(2 * MIB)).is(Reason::QuotaLimit);
    prometheus.until(&format!("ALERTS{{alertname=\"VramdTenantAtLimit\",{of_tenant}}}"), 1.0);
    assert!(scrape(&daemon).contains("vramd_tenant=\"_other\""));
}

#[test]
fn tenants_beyond_the_limit_are_summed() {
    let daemon = many_tenants();
    let scrape = scrape(&daemon);
    let named = scrape.lines().filter(|line| line.starts_with("vramd_quota_limit_bytes{")).count();
    // Beside eight devices with six states of memory each.
    let tenants = (512 - 8 * 6) / 8;
    assert_eq!(named, (tenants + 1) * 8, "one of them is all the others");
    assert_eq!(sum(&scrape, "vramd_quota_limit_bytes{"), (150 * 8 * 10 * MIB) as f64);
    assert!(scrape.contains("vramd_tenant=\"_other\""));
    assert!(!scrape.contains("overflow"), "{scrape}");
}

#[test]
fn the_daemon_serves_no_metrics_by_default() {
    let daemon = Daemon::new();
    assert!(!daemon.log().contains("metrics served"));
    let of_daemon = std::fs::read_to_string(format!("/proc/{}/comm", daemon.pid())).unwrap();
    assert_eq!(of_daemon.trim(), "vramd");
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names =
        threads.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    assert!(!names.into_iter().any(|name| name.trim() == "vramd-telemetry"));
    let metrics = http::try_get("127.0.0.1:9464".parse().unwrap(), "/metrics");
    assert!(metrics.is_err() || !metrics.unwrap().body.contains("vramd_"));
}
