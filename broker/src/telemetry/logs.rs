//! Writes structured logs to stderr, as text or JSON lines, and the same lines to a collector.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use opentelemetry::InstrumentationScope;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    logs::{LogProcessor, SdkLogRecord, SdkLoggerProvider},
};
use tracing_subscriber::{
    Layer as _, filter::LevelFilter, fmt, layer::SubscriberExt, registry, util::SubscriberInitExt,
};

use super::{TelemetrySetup, export_queue::Queue, lines::Lines};
use crate::config::{LogFormat, LogLevel};

/// The target whose lines are not sent. Lines about sending would cause further lines without end.
const NOT_SENT: &str = "vramd::telemetry";

/// Starts logging, and returns the queue of lines. A second call changes nothing.
pub fn start(format: LogFormat, level: LogLevel, telemetry: &TelemetrySetup) -> io::Result<Lines> {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Lines of libraries are logged only at level `trace`. One filter leaves out all other lines: with a second filter
    // below it, each call site would be evaluated again and again if lines are also sent.
    let logged = tracing_subscriber::filter::filter_fn(move |metadata| {
        *metadata.level() <= level && (metadata.target().starts_with("vramd") || level == LevelFilter::TRACE)
    })
    .with_max_level_hint(level);
    let lines = Lines::start(io::stderr(), telemetry.counters())?;
    let (text, json) = match format {
        LogFormat::Text => {
            let text = fmt::layer().with_ansi(io::stderr().is_terminal()).with_target(false);
            (Some(text.with_writer(lines.clone())), None)
        }
        LogFormat::Json => (None, Some(fmt::layer().json().flatten_event(true).with_writer(lines.clone()))),
    };
    let sent = telemetry.log_provider().map(|provider| {
        // The sending libraries would log a line for each line sent.
        let own = tracing_subscriber::filter::filter_fn(|metadata| {
            metadata.target().starts_with("vramd") && !metadata.target().starts_with(NOT_SENT)
        });
        OpenTelemetryTracingBridge::new(provider).with_filter(own)
    });
    let logs = registry().with(text).with(json).with(sent).with(logged);
    // Fails if there already is a subscriber, for example in a test.
    let _ = logs.try_init();
    Ok(lines)
}

/// A log record and its scope.
pub(super) type Record = (SdkLogRecord, InstrumentationScope);

pub(super) fn provider(queue: Queue<Record>) -> SdkLoggerProvider {
    SdkLoggerProvider::builder().with_log_processor(Processor(queue)).build()
}

/// Queues log records for sending.
#[derive(Debug)]
struct Processor(Queue<Record>);

impl LogProcessor for Processor {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        self.0.put((record.clone(), scope.clone()));
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
