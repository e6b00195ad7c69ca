//! Finds the collector and creates its exporters.

use std::env;

use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, Protocol, SpanExporter, WithExportConfig,
};

use super::export_queue::EXPORT_TIMEOUT;
use crate::config::{Endpoint, OtlpProtocol, Signal, Telemetry};

/// The variable that OpenTelemetry's own libraries read.
const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collector {
    endpoint: Endpoint,
    protocol: OtlpProtocol,
    signals: Vec<Signal>,
}

impl Collector {
    /// Finds the collector: the configured one, else the one of the environment, else none.
    pub(super) fn of(config: &Telemetry) -> Result<Option<Self>, String> {
        let named = env::var(ENDPOINT_VARIABLE).ok().filter(|named| !named.is_empty());
        Self::named(config, named)
    }

    fn named(config: &Telemetry, by_environment: Option<String>) -> Result<Option<Self>, String> {
        let endpoint = match (&config.otlp_endpoint, by_environment) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Some(named)) => {
                Endpoint::try_from(named).map_err(|problem| format!("{ENDPOINT_VARIABLE}: {problem}"))?
            }
            (None, None) => return Ok(None),
        };
        let signals = config.otlp_signals.clone();
        Ok(Some(Self { endpoint, protocol: config.otlp_protocol, signals }))
    }

    pub(super) fn is_sent(&self, signal: Signal) -> bool {
        self.signals.contains(&signal)
    }

    /// The endpoint and the protocol, for the log.
    pub(super) fn describe(&self) -> String {
        format!("{} ({:?})", self.endpoint.as_str(), self.protocol)
    }

    pub(super) fn spans(&self) -> Result<SpanExporter, ExporterBuildError> {
        let builder = SpanExporter::builder();
        match self.protocol {
            OtlpProtocol::Grpc => self.at(builder.with_tonic(), Signal::Traces).build(),
            #[cfg(feature = "otlp-http")]
            OtlpProtocol::Http => self.at(builder.with_http(), Signal::Traces).build(),
        }
    }

    pub(super) fn logs(&self) -> Result<LogExporter, ExporterBuildError> {
        let builder = LogExporter::builder();
        match self.protocol {
            OtlpProtocol::Grpc => self.at(builder.with_tonic(), Signal::Logs).build(),
            #[cfg(feature = "otlp-http")]
            OtlpProtocol::Http => self.at(builder.with_http(), Signal::Logs).build(),
        }
    }

    pub(super) fn metrics(&self) -> Result<MetricExporter, ExporterBuildError> {
        let builder = MetricExporter::builder();
        match self.protocol {
            OtlpProtocol::Grpc => self.at(builder.with_tonic(), Signal::Metrics).build(),
            #[cfg(feature = "otlp-http")]
            OtlpProtocol::Http => self.at(builder.with_http(), Signal::Metrics).build(),
        }
    }

    #[cfg_attr(not(feature = "otlp-http"), allow(unused_variables, reason = "gRPC has one endpoint for all"))]
    fn at<B: WithExportConfig>(&self, builder: B, signal: Signal) -> B {
        let (protocol, endpoint) = match self.protocol {
            OtlpProtocol::Grpc => (Protocol::Grpc, self.endpoint.as_str().to_owned()),
            #[cfg(feature = "otlp-http")]
            OtlpProtocol::Http => {
                (Protocol::HttpBinary, format!("{}/v1/{}", self.endpoint.as_str(), signal.name()))
            }
        };
        builder.with_protocol(protocol).with_endpoint(endpoint).with_timeout(EXPORT_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_comes_before_the_environment_and_neither_means_none() {
        let config = Telemetry::default();
        assert_eq!(Collector::named(&config, None), Ok(None));
        let of_environment = Collector::named(&config, Some("http://env:4317".to_owned())).unwrap().unwrap();
        assert_eq!(of_environment.endpoint.as_str(), "http://env:4317");
        let endpoint = Endpoint::try_from("http://file:4317".to_owned()).ok();
        let config = Telemetry { otlp_endpoint: endpoint, ..config };
        let of_file = Collector::named(&config, Some("http://env:4317".to_owned())).unwrap().unwrap();
        assert_eq!(of_file.endpoint.as_str(), "http://file:4317");
    }

    #[test]
    fn a_mistake_in_the_environment_names_the_variable() {
        let problem = Collector::named(&Telemetry::default(), Some("collector".to_owned())).unwrap_err();
        assert!(problem.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: `collector`"), "{problem}");
    }
}
