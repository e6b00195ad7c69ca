//! Writes structured logs to stderr, as text or JSON lines, and the same lines to a collector.

use std::{
    fmt::{self as std_fmt, Debug},
    io::{self, IsTerminal},
    time::Duration,
};

use opentelemetry::InstrumentationScope;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    logs::{LogProcessor, SdkLogRecord, SdkLoggerProvider},
};
use tracing::field::Field;
use tracing_subscriber::{
    Layer as _,
    field::MakeExt as _,
    filter::LevelFilter,
    fmt::{
        self,
        format::{Writer, debug_fn},
    },
    layer::SubscriberExt,
    registry,
    util::SubscriberInitExt,
};
use vramd_types::printable;

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
            let text = fmt::layer().fmt_fields(debug_fn(write_field).delimited(" "));
            let text = text.with_ansi(io::stderr().is_terminal()).with_target(false);
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

/// Writes the message, or a field with its value. A value whose end could not be told has quotes, as texts have.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> std_fmt::Result {
    let text = format!("{value:?}");
    match field.name() {
        "message" => writer.write_str(&printable(&text)),
        name if is_one_word(&text) || is_quoted(&text) => write!(writer, "{name}={text}"),
        name => write!(writer, "{name}={text:?}"),
    }
}

fn is_one_word(text: &str) -> bool {
    let ends = |c: char| c.is_whitespace() || c == '"';
    !text.is_empty() && !text.contains(ends) && printable(text) == text
}

/// Whether the text has quotes at both ends and no others, unless after a backslash.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    let mut is_escaped = false;
    for c in inner.chars() {
        if c == '"' && !is_escaped {
            return false;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    !is_escaped && printable(inner) == inner
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Lines that are kept.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_value_with_blanks_is_quoted_and_the_message_is_not() {
        let kept = Kept::default();
        let writer = kept.clone();
        let text = fmt::layer().fmt_fields(debug_fn(write_field).delimited(" ")).without_time();
        let text = text.with_ansi(false).with_target(false).with_writer(move || writer.clone());
        let (device, list) = ("discrete GPU", ["a", "b"]);
        tracing::subscriber::with_default(registry().with(text), || {
            tracing::info!(platform = %device, kind = device, count = 2, no = tracing::field::Empty, "node found");
            tracing::info!(at = %"/run/vramd", empty = %"", quoted = %"\"a\" b", list = ?list, "odd values");
            tracing::info!(name = %"a\u{1b}[31m", "a\u{1b}[31m client");
        });
        let lines = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = lines.lines().map(str::trim_start).collect();
        assert_eq!(
            lines,
            [
                r#"INFO node found platform="discrete GPU" kind="discrete GPU" count=2"#,
                r#"INFO odd values at=/run/vramd empty="" quoted="\"a\" b" list="[\"a\", \"b\"]""#,
                "INFO a\u{fffd}[31m client name=\"a\\u{1b}[31m\"",
            ]
        );
    }
}
