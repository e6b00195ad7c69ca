//! Every query of every dashboard, on a real Prometheus with the real rules that scrapes loaded daemons.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use vramd_tests::{
    dashboards::{
        ALL, Values,
        load::{LoadedNode, TENANT, quiet_node},
        record::answer,
    },
    prometheus::{Prometheus, Span, check_rules, test_rules},
    rules, wait,
};

/// How long the load may take until every panel has an answer. An idle machine takes a quarter of it.
const PATIENCE: Duration = Duration::from_secs(90);

/// The load needs root, as CI has it.
#[test]
fn every_query_of_every_panel_has_series_under_load() {
    if !vramd_tests::is_root() {
        eprintln!("skipped: each tenant of the load is a user of its own, which needs root");
        return;
    }
    let began = Instant::now();
    let mut node = LoadedNode::start();
    let (quiet, _session) = quiet_node();
    let targets = [node.daemon.metrics_address(), quiet.metrics_address()];
    let files = rules::files();
    let prometheus = Prometheus::ruled(&targets, &files.each_ref().map(PathBuf::as_path));
    let values = Values {
        instance: targets[0].to_string(),
        device: ".+".to_owned(),
        tenant: TENANT.to_owned(),
        rate_interval: "12s".to_owned(),
        range: "60s".to_owned(),
    };
    let mut open: Vec<_> = ALL
        .iter()
        .flat_map(|dashboard| dashboard.panels.iter().map(move |panel| (dashboard, panel)))
        .collect();
    let mut problems = Vec::new();
    let all_answered = wait::within(PATIENCE, || {
        node.assert_alive();
        let span = Span::last(began.elapsed().as_secs_f64());
        problems.clear();
        open.retain(|(dashboard, panel)| {
            let answer = answer(&prometheus, panel, &values, &span);
            let problem =
                answer.as_ref().err().map(|why| format!("{}: {}: {why:#}", dashboard.name, panel.title));
            problems.extend(problem);
            answer.is_err()
        });
        std::thread::sleep(Duration::from_secs(1));
        open.is_empty().then_some(())
    });
    assert!(all_answered.is_some(), "without series:\n{}", problems.join("\n"));

    // The choices of each variable.
    for variable in ALL.iter().flat_map(|dashboard| dashboard.variables) {
        let series = values.resolve(variable.series);
        let choices = prometheus
            .query(&format!("count by ({0}) ({series})", variable.label_of_series), variable.label_of_series);
        assert!(!choices.is_empty() && choices.iter().all(|(name, _)| !name.is_empty()), "{choices:?}");
    }

    // The rules that the same server has evaluated on these series.
    let mut seen = 0;
    for rule in prometheus.rule_groups().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
    {
        assert_eq!(rule["health"], "ok", "{rule}");
        seen += 1;
    }
    assert_eq!(seen, rules::RECORDED.len() + rules::ALERTS.len());
    for recorded in rules::RECORDED {
        let has_series = || {
            let series = prometheus.range(recorded.name, &Span::last(began.elapsed().as_secs_f64())).unwrap();
            (!series.is_empty()).then_some(())
        };
        // A rate needs two scrapes that its rule has seen.
        assert!(wait::within(PATIENCE, has_series).is_some(), "{} has no series", recorded.name);
    }
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    let said = check_rules(&rules::files());
    assert!(said.is_ok(), "{said:?}");
    let mut tests: Vec<_> =
        rules::folder().join("tests").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    tests.sort();
    assert!(tests.len() >= rules::ALERTS.len(), "{tests:?}");
    let said = test_rules(&tests);
    assert!(said.is_ok(), "{said:?}");
}
