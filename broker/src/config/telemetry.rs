//! `[telemetry]`: where metrics are served, and what is sent to a collector. Without it the daemon neither serves nor
//! sends any.

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Deserializer, de};
use tonic::codegen::http::{Uri, uri::Scheme};

use super::limits::millis;

/// Series that do not depend on tenants need at least as many.
const CARDINALITY_MIN: usize = 512;
const CARDINALITY_MAX: usize = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// The address of `/metrics`, `/livez`, `/readyz` and the page. `None` means that they are not served.
    pub prometheus_listen: Option<SocketAddr>,
    /// Whether a page for people is served there.
    pub web_page: bool,
    /// The collector. `None` means the one that the environment names, if any.
    pub otlp_endpoint: Option<Endpoint>,
    pub otlp_protocol: OtlpProtocol,
    /// The signals to send.
    pub otlp_signals: Vec<Signal>,
    /// The share of calls to trace, among calls whose callers do not decide it.
    pub traces_sample_ratio: SampleRatio,
    #[serde(rename = "export_interval_ms", deserialize_with = "millis")]
    pub export_interval: Duration,
    /// Maximum series of one metric. Tenants that do not fit are summed up.
    #[serde(deserialize_with = "cardinality")]
    pub cardinality_max: usize,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            prometheus_listen: None,
            web_page: true,
            otlp_endpoint: None,
            otlp_protocol: OtlpProtocol::Grpc,
            otlp_signals: Signal::ALL.to_vec(),
            traces_sample_ratio: SampleRatio(0.01),
            export_interval: Duration::from_secs(10),
            cardinality_max: 2_000,
        }
    }
}

/// The address of a collector: `http://host:port`, optionally with a path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Endpoint(String);

impl Endpoint {
    /// The address without a final `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let uri: Uri =
            text.parse().map_err(|error| format!("`{}` is not a URL: {error}", text.escape_default()))?;
        match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => {}
            Some(scheme) if *scheme == Scheme::HTTPS => {
                return Err(
                    "vramd cannot use TLS to a collector: name a collector on this node with `http://`"
                        .to_owned(),
                );
            }
            _ => return Err(format!("`{text}` does not begin with `http://`")),
        }
        if uri.query().is_some() {
            return Err(format!("`{text}` has a query, which a collector's address may not have"));
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ProtocolText")]
pub enum OtlpProtocol {
    Grpc,
    #[cfg(feature = "otlp-http")]
    Http,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProtocolText {
    Grpc,
    Http,
}

impl TryFrom<ProtocolText> for OtlpProtocol {
    type Error = &'static str;

    fn try_from(text: ProtocolText) -> Result<Self, &'static str> {
        match text {
            ProtocolText::Grpc => Ok(Self::Grpc),
            #[cfg(feature = "otlp-http")]
            ProtocolText::Http => Ok(Self::Http),
            #[cfg(not(feature = "otlp-http"))]
            ProtocolText::Http => Err("this vramd is built without its feature `otlp-http`"),
        }
    }
}

/// A kind of telemetry that can be sent to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    Metrics,
    Traces,
    Logs,
}

impl Signal {
    pub const ALL: [Self; 3] = [Self::Metrics, Self::Traces, Self::Logs];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Traces => "traces",
            Self::Logs => "logs",
        }
    }
}

/// A ratio from 0 to 1, both included.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct SampleRatio(f64);

/// The ratio is never NaN.
impl Eq for SampleRatio {}

impl SampleRatio {
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for SampleRatio {
    type Error = String;

    fn try_from(ratio: f64) -> Result<Self, String> {
        match ratio {
            0.0..=1.0 => Ok(Self(ratio)),
            _ => Err(format!("{ratio} is not between 0 (trace no call) and 1 (trace every call)")),
        }
    }
}

fn cardinality<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let max = usize::deserialize(deserializer)?;
    if (CARDINALITY_MIN..=CARDINALITY_MAX).contains(&max) {
        return Ok(max);
    }
    Err(de::Error::custom(format!("{max} is not between {CARDINALITY_MIN} and {CARDINALITY_MAX}")))
}
