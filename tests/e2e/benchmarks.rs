//! Benchmarks whose figures need a GPU: that their questions can be answered shows without one.

use std::{fs, process::Command};

use serde_json::Value;
use vramd_tests::programs::program;

use crate::has_other_users;

#[test]
fn every_question_of_residency_is_answered_on_the_simulated_driver() {
    // It lies beside the suite, which starts it.
    program("vramd");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("residency.json");
    let mut suite = Command::new(env!("CARGO_BIN_EXE_gpu-suite"));
    suite.args(["residency", "--driver", "sim", "--quick", "--json"]).arg(&file);
    let output = suite.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let figures = [
        "one_way_out",
        "one_way_in",
        "pin_in",
        "duplex",
        "duplex_within_limit",
        "neighbour_slowdown",
        "evict_clean_unmapped_ms",
        "evict_clean_settled_ms",
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
