//! The simulated driver keeps the contract: every case, on real memory mapped by real other processes. The
//! program `contract-sim` runs the same and writes a report.

#[path = "../contract-sim/harness.rs"]
mod harness;
mod importer;

use std::{fs, process::Command};

use broker_driver::{
    contract::{self, Verdict},
    contract_tests,
};
use serde_json::Value;

use self::harness::SimHarness;

contract_tests!(SimHarness::new(), judge);

/// Reasons that only concern CUDA.
const NOT_SIMULATED: [Verdict; 2] = [
    Verdict::NotApplicable("this driver makes no fixed extents"),
    Verdict::NotApplicable("importers of this machine take no memory of their own"),
];

fn judge(verdict: Verdict) {
    assert!(verdict == Verdict::Passed || NOT_SIMULATED.contains(&verdict), "{verdict:?}");
}

/// All cases run above; these few need other processes, which the program must start itself.
#[test]
fn the_program_runs_the_named_cases_and_writes_them_down() {
    const NAMED: &str = "lifetime::a_";
    let file = std::env::temp_dir().join(format!("vramd-contract-sim-{}.json", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_contract-sim"))
        .args([NAMED.as_ref(), "--json".as_ref(), file.as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    fs::remove_file(file).unwrap();
    assert_eq!((&report["driver"]["name"], &report["failed"]), (&Value::from("sim"), &Value::from(0)));
    let names: Vec<_> = report["cases"].as_array().unwrap().iter().map(|row| row["case"].as_str()).collect();
    let named = contract::cases().iter().map(|(name, _)| *name).filter(|name| name.contains(NAMED));
    assert_eq!(names, named.map(Some).collect::<Vec<_>>());
    assert!(names.len() > 2, "{names:?}");
    let refused = Command::new(env!("CARGO_BIN_EXE_contract-sim")).arg("--bogus").output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
