//! Foreign clients: Python's grpcio on the Unix sockets, with nothing but reflection.

use std::process::Stdio;

use serde_json::Value;
use vramd_tests::{Daemon, MIB, programs::repository, tools::python};

#[test]
fn python_speaks_to_both_sockets() {
    let daemon = Daemon::new();
    let mut command = python();
    command.arg(repository().join("tests/e2e/sdk/other_languages.py")).arg(daemon.sockets());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen["health"], "SERVING");
    assert_eq!(seen["driver"], "sim");
    let services = seen["services"].as_array().unwrap();
    assert!(services.iter().any(|service| service == "vramd.v1.AdminService"), "{services:?}");
    assert_eq!(seen["limit_bytes"], (24 * MIB).to_string());
    let refused = &seen["refused"];
    assert_eq!(
        (refused["code"].as_str(), refused["reason"].as_str()),
        (Some("INVALID_ARGUMENT"), Some("QUANTITY_INVALID"))
    );
    assert_eq!(refused["facts"]["quantity"], "24gib");
    let memory = &seen["memory"];
    assert_eq!(
        (memory["code"].as_str(), memory["reason"].as_str()),
        (Some("FAILED_PRECONDITION"), Some("SESSION_MISSING"))
    );
}
