//! Runs the suite's cases one after the other, and reports to people on the standard output and as JSON.

use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
    time::Instant,
};

use broker_driver::contract::{self, Harness, Verdict};
use serde_json::{Value, json};

/// Runs the cases whose names have one of these parts, or all. Returns how many failed. `driver` describes the
/// driver in the report.
pub(crate) fn run(
    harness: &dyn Harness,
    driver: &Value,
    name_parts: &[String],
    file: Option<&Path>,
) -> Result<usize, String> {
    let mut results = Vec::new();
    let wanted = |name: &str| name_parts.is_empty() || name_parts.iter().any(|part| name.contains(part));
    for (name, case) in contract::cases().iter().filter(|(name, _)| wanted(name)) {
        let begun = Instant::now();
        let result = panic::catch_unwind(AssertUnwindSafe(|| case(harness)));
        let seconds = begun.elapsed().as_secs_f64();
        let (result, detail) = match result {
            Ok(Verdict::Passed) => ("ok", String::new()),
            Ok(Verdict::NotApplicable(why)) => ("not applicable", why.to_owned()),
            Err(panic) => ("FAILED", message_of(panic.as_ref())),
        };
        println!("{name} ... {result} ({seconds:.2} s){}{detail}", if detail.is_empty() { "" } else { ": " });
        results.push(json!({ "case": name, "result": result, "seconds": seconds, "detail": detail }));
    }
    let failed = results.iter().filter(|it| it["result"] == "FAILED").count();
    println!("{} cases, {failed} failed", results.len());
    let report = json!({ "driver": driver, "failed": failed, "cases": Value::Array(results) });
    if let Some(path) = file {
        fs::write(path, format!("{report:#}\n"))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(failed)
}

/// The message of a panic.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
