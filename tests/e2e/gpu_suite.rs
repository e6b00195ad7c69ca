//! Runs benchmarks and cases of the GPU suite on the simulated driver, to show without a GPU that they work.

use std::{fs, process::Command};

use serde_json::Value;
use vramd_tests::programs::program;

use crate::has_other_users;

/// Runs a stage of the GPU suite here, and returns its results. The stage must succeed.
#[track_caller]
fn suite(stage: &str) -> Value {
    // The suite starts this program, which lies beside it.
    program("vramd");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let mut suite = Command::new(env!("CARGO_BIN_EXE_gpu-suite"));
    suite.args([stage, "--driver", "sim", "--quick", "--json"]).arg(&file);
    let output = suite.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(&file).unwrap()).unwrap()
}

#[test]
fn the_residency_benchmark_runs_on_the_simulated_driver() {
    let report = suite("residency");
    let figures = [
        "one_way_out",
        "one_way_in",
        "pin_in",
        "duplex",
        "duplex_within_limit",
        "neighbour_slowdown",
        "evict_clean_unmapped_ms",
        "evict_clean_settled_ms",
        "give_back_plainly_ms",
    ];
    for key in figures {
        assert!(report[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {report:#}");
    }
    assert!(report["pin_overhead_ms"].is_f64(), "{report:#}");
    for question in
        ["one_way_out", "one_way_in", "pin_in", "duplex", "duplex_within_limit", "pin_overhead_ms"]
    {
        let pairs = report["samples"][question]["pairs"].as_u64();
        assert!(pairs.is_some_and(|pairs| pairs >= 7), "{question} in {report:#}");
    }
    if has_other_users("residency across tenants") {
        assert!(report["duplex_across"].is_f64(), "{report:#}");
    }
}

#[test]
fn the_tiers_benchmark_runs_on_the_simulated_driver() {
    let report = suite("tiers");
    for key in ["disk_read", "disk_write", "cascade", "demand_under_load"] {
        assert!(report[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {report:#}");
    }
    let samples = &report["samples"];
    let disk = &samples["disk"];
    for sample in [&disk["read"], &disk["write"], &samples["cascade"], &samples["demand_under_load"]] {
        assert!(sample["pairs"].as_u64().is_some_and(|pairs| pairs >= 7), "{sample} in {report:#}");
    }
    for side in ["plain_read_ms", "plain_write_ms"] {
        let times = samples["cascade"][side].as_array();
        assert!(times.is_some_and(|times| times.len() >= 7), "{side} in {report:#}");
    }
    assert!(samples["cascade"]["plain_both_at_once_ms"].is_array(), "{report:#}");
    let in_place = &samples["in_place"];
    for reads in ["0.1", "0.5", "1", "2", "4", "8"] {
        let sample = &in_place[format!("reads_{reads}")];
        assert!(sample["pairs"].as_u64().is_some_and(|pairs| pairs >= 7), "{reads} in {report:#}");
    }
    assert_eq!(report["in_place"], in_place["crossover_reads"], "{report:#}");
}

#[test]
fn the_three_tenants_case_runs_on_the_simulated_driver() {
    let report = suite("e2e");
    for (times, name) in
        [(4, "three tenants, four times the device"), (10, "three tenants, ten times the device")]
    {
        let case = &report["cases"][name];
        assert_eq!(case["passed"], true, "{report:#}");
        let seen = &case["seen"];
        assert!(seen["killed"].as_u64().is_some_and(|killed| killed > 0), "{seen}");
        let clients = seen["clients"].as_array().unwrap();
        let compared = clients.iter().filter_map(|client| client["compared_bytes"].as_u64()).sum::<u64>();
        assert!(clients.iter().all(|client| client["pins"].as_u64().is_some_and(|pins| pins > 0)), "{seen}");
        assert_eq!(Some(compared), seen["capacity_bytes"].as_u64().map(|bytes| bytes * times), "{seen}");
        let tenants = if has_other_users("three tenants in the GPU suite") { 3 } else { 1 };
        assert_eq!(seen["tenants"], tenants, "{seen}");
    }
}
