//! A Prometheus of the Debian archive, its series, and its checker of rules and metrics. For OTLP, VictoriaMetrics, which
//! answers the same queries.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::{http, tools::tool, wait::eventually};

/// A time that a query covers, in seconds since 1970, with a value each second.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub start: f64,
    pub end: f64,
}

impl Span {
    /// The last seconds.
    pub fn last(seconds: f64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let end = since.expect("the clock is set").as_secs_f64();
        Self { start: end - seconds, end }
    }
}

#[derive(Debug)]
pub struct Prometheus {
    folder: TempDir,
    address: SocketAddr,
    child: Child,
}

impl Prometheus {
    /// Scrapes these addresses every second.
    #[track_caller]
    pub fn scraping(targets: &[SocketAddr]) -> Self {
        Self::start(&format!("global:\n  scrape_interval: 1s\n{}", scrape_config(targets)))
    }

    /// Scrapes these addresses every three seconds, and evaluates the rules of these files as often. A loaded daemon
    /// without optimization takes a second for a scrape.
    #[track_caller]
    pub fn ruled(targets: &[SocketAddr], rules: &[&Path]) -> Self {
        let mut config =
            "global:\n  scrape_interval: 3s\n  scrape_timeout: 3s\n  evaluation_interval: 3s\nrule_files:\n"
                .to_owned();
        for file in rules {
            writeln!(config, "  - {}", file.display()).expect("a String takes everything");
        }
        Self::start(&(config + &scrape_config(targets)))
    }

    /// Receives OTLP over HTTP, at [`Self::otlp_endpoint`].
    #[track_caller]
    pub fn receiving() -> Self {
        Self::start_with(|folder, address| {
            let mut command = Command::new(tool("bin/victoria-metrics"));
            command
                .arg(format!("-storageDataPath={}", folder.join("data").display()))
                .arg(format!("-httpListenAddr={address}"))
                // Series have Prometheus's names, and are found at once.
                .args([
                    "-opentelemetry.usePrometheusNaming",
                    "-search.latencyOffset=0s",
                    "-search.disableCache",
                ]);
            command
        })
    }

    #[track_caller]
    fn start(config: &str) -> Self {
        Self::start_with(|folder, address| {
            let file = folder.join("prometheus.yml");
            fs::write(&file, config).expect("the folder is ours");
            let mut command = Command::new(tool("bin/prometheus"));
            command
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .arg("--enable-feature=exemplar-storage");
            command
        })
    }

    /// Starts the server of this command, which is given a folder and an address.
    #[track_caller]
    fn start_with(command: impl FnOnce(&Path, SocketAddr) -> Command) -> Self {
        let folder =
            tempfile::Builder::new().prefix("vramd-prometheus-").tempdir().expect("/tmp is writable");
        let log = File::create(folder.path().join("log")).expect("the folder is ours");
        let address = http::free_address();
        let child = command(folder.path(), address)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("prometheus starts");
        let mut prometheus = Self { folder, address, child };
        eventually("Prometheus is ready", || {
            if let Some(status) = prometheus.child.try_wait().expect("a child can be asked") {
                panic!("prometheus ended with {status}: {}", prometheus.log());
            }
            http::try_get(address, "/-/ready").ok().filter(|answer| answer.status == 200)
        });
        prometheus
    }

    pub fn otlp_endpoint(&self) -> String {
        format!("http://{}/opentelemetry", self.address)
    }

    /// The value of each series of an expression, by one of its labels.
    pub fn query(&self, expression: &str, label: &str) -> Vec<(String, f64)> {
        query(self.address, expression, label)
    }

    /// Waits until an expression has one series of that value.
    #[track_caller]
    pub fn until(&self, expression: &str, value: f64) {
        let mut seen = Vec::new();
        let found = crate::wait::within(Duration::from_secs(60), || {
            seen = self.query(expression, "__name__");
            matches!(&*seen, [(_, is)] if (is - value).abs() < 1e-9).then_some(())
        });
        assert!(found.is_some(), "{expression} is {seen:?} and not {value}\n{}", self.log());
    }

    /// The series of an expression over a time: each has the labels `metric` and the pairs `values`. An error is what
    /// Prometheus says about the expression.
    pub fn range(&self, expression: &str, span: &Span) -> Result<Vec<Value>> {
        let Span { start, end } = span;
        let expression = percent_encoded(expression);
        let path = format!("/api/v1/query_range?query={expression}&start={start}&end={end}&step=1");
        let answer = self.ask(&path)?;
        Ok(answer["result"].as_array().cloned().unwrap_or_default())
    }

    /// The stored exemplars of an expression, by series.
    pub fn exemplars(&self, expression: &str) -> Result<Vec<Value>> {
        let Span { start, end } = Span::last(600.0);
        let expression = percent_encoded(expression);
        let found =
            self.ask(&format!("/api/v1/query_exemplars?query={expression}&start={start}&end={end}"))?;
        Ok(found.as_array().cloned().unwrap_or_default())
    }

    /// The groups of rules, with what each evaluation said.
    pub fn rule_groups(&self) -> Result<Vec<Value>> {
        let answer = self.ask("/api/v1/rules")?;
        Ok(answer["groups"].as_array().cloned().unwrap_or_default())
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let answer = http::try_get(self.address, path)?;
        let mut said: Value = serde_json::from_str(&answer.body).with_context(|| answer.body.clone())?;
        if said["status"] != "success" {
            bail!("Prometheus: {}", said["error"]);
        }
        Ok(said["data"].take())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of each series of an expression, by one of its labels, in the Prometheus at this address.
pub fn query(server: SocketAddr, expression: &str, label: &str) -> Vec<(String, f64)> {
    let path = format!("/api/v1/query?query={}", percent_encoded(expression));
    let Some(answer) = http::try_json(server, &path) else { return Vec::new() };
    let series = answer["data"]["result"].as_array().cloned().unwrap_or_default();
    let of = |series: &serde_json::Value| {
        let value = series["value"][1].as_str()?.parse().ok()?;
        Some((series["metric"][label].as_str().unwrap_or_default().to_owned(), value))
    };
    series.iter().filter_map(of).collect()
}

fn scrape_config(targets: &[SocketAddr]) -> String {
    let targets: Vec<_> = targets.iter().map(|target| format!("\"{target}\"")).collect();
    let targets = targets.join(", ");
    format!("scrape_configs:\n  - job_name: vramd\n    static_configs:\n      - targets: [{targets}]\n")
}

/// Checks files of rules. An error is what `promtool` says.
pub fn check_rules(files: &[PathBuf]) -> Result<()> {
    promtool("check", files)
}

/// Runs files of tests of rules. An error is what `promtool` says.
pub fn test_rules(files: &[PathBuf]) -> Result<()> {
    promtool("test", files)
}

fn promtool(action: &str, files: &[PathBuf]) -> Result<()> {
    let output = Command::new(tool("bin/promtool")).args([action, "rules"]).args(files).output()?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        bail!("promtool {action} rules: {}\n{}", output.status, said.concat());
    }
    Ok(())
}

/// The report of Prometheus's linter on a scrape: empty if it is good.
pub fn lint(scrape: &str) -> String {
    let mut child = Command::new(tool("bin/promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the linter starts");
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(scrape.as_bytes()).expect("the linter reads");
    drop(stdin);
    let output = child.wait_with_output().expect("the linter ends");
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said += &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        said += &format!("{}", output.status);
    }
    said
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
