//! A benchmark's report: its results with machine, time and commit.

use std::{
    env, fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use dev_kit::{machine, output_of};
use serde_json::{Map, Value, json};

/// The results of a benchmark.
#[derive(Debug)]
pub(crate) struct Results {
    /// The figures that have targets, which lie at the top of the report.
    pub(crate) keys: Vec<(&'static str, f64)>,
    /// The benchmark's name, under which all other results lie.
    pub(crate) name: &'static str,
    pub(crate) details: Value,
}

/// Puts results into a report. Results of other benchmarks in it stay.
pub(crate) fn write(path: &Path, results: Results) -> Result<()> {
    let mut report = match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("read {}", path.display()))?,
        Err(_) => Map::new(),
    };
    for (key, value) in results.keys {
        report.insert(key.to_owned(), json!(value));
    }
    let mut details = results.details;
    details["run"] = run()?;
    report.insert(results.name.to_owned(), details);
    let text = serde_json::to_string_pretty(&report)? + "\n";
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn run() -> Result<Value> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let words: Vec<String> = env::args().skip(1).collect();
    Ok(json!({
        "command": format!("bench-rpc {}", words.join(" ")),
        "at_unix_seconds": now,
        // A binary that was built elsewhere does not know its commit.
        "commit": output_of("git", &["rev-parse", "HEAD"]),
        "changed_since": output_of("git", &["status", "--porcelain", "--untracked-files=no"])
            .map(|text| !text.is_empty()),
        "rustc": output_of("rustc", &["--version"]),
        "machine": machine(),
        "driver": "sim",
        "configuration": "the default one, and log_level debug",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latest.json");
        fs::write(&path, r#"{"other": 1, "key": 2, "name": {"old": true}}"#).unwrap();
        let results = Results { keys: vec![("key", 3.5)], name: "name", details: json!({"new": 1}) };
        write(&path, results).unwrap();
        let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!((&report["other"], &report["key"]), (&json!(1), &json!(3.5)));
        assert_eq!((&report["name"]["new"], &report["name"]["old"]), (&json!(1), &Value::Null));
        assert!(report["name"]["run"]["commit"].as_str().is_some_and(|commit| commit.len() == 40));
    }

    #[test]
    fn a_report_that_cannot_be_read_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latest.json");
        fs::write(&path, "[1, 2").unwrap();
        assert!(write(&path, Results { keys: vec![], name: "name", details: json!({}) }).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1, 2");
    }
}
