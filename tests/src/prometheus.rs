//! Prometheus's own scraper, receiver and query engine (`tests/dev/go/prometheus`), and the series that they have.

use std::{
    fs::{self, File},
    io::Write as _,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use crate::{http, tools::tool, wait::eventually};

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
        let targets: Vec<_> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        Self::start(&format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: vramd\n    static_configs:\n      - targets: [{}]\n",
            targets.join(", ")
        ))
    }

    /// Receives OTLP over HTTP, at [`Self::otlp_endpoint`].
    #[track_caller]
    pub fn receiving() -> Self {
        Self::start("otlp:\n  promote_resource_attributes: [service.name, service.instance.id]\n")
    }

    #[track_caller]
    fn start(config: &str) -> Self {
        let folder =
            tempfile::Builder::new().prefix("vramd-prometheus-").tempdir().expect("/tmp is writable");
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).expect("the folder is ours");
        let log = File::create(folder.path().join("log")).expect("the folder is ours");
        let address = http::free_address();
        let child = Command::new(tool("bin/prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
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
        format!("http://{}/api/v1/otlp", self.address)
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

/// The report of Prometheus's linter on a scrape: empty if it is good.
pub fn lint(scrape: &str) -> String {
    let mut child = Command::new(tool("bin/promlint"))
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
