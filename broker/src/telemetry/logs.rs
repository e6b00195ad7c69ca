//! Structured logs on stderr, as text or JSON lines.

use std::io::IsTerminal;

use tracing_subscriber::{filter::LevelFilter, fmt, layer::SubscriberExt, registry, util::SubscriberInitExt};

use crate::config::{LogFormat, LogLevel};

/// From here on everything is logged. Called once; a second call changes nothing.
pub fn start(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // What the libraries below say is for those who ask for everything.
    let libraries = tracing_subscriber::filter::filter_fn(move |metadata| {
        metadata.target().starts_with("vramd") || level == LevelFilter::TRACE
    });
    let writer = std::io::stderr;
    let (text, json) = match format {
        LogFormat::Text => {
            let text = fmt::layer().with_ansi(writer().is_terminal()).with_target(false).with_writer(writer);
            (Some(text), None)
        }
        LogFormat::Json => (None, Some(fmt::layer().json().flatten_event(true).with_writer(writer))),
    };
    let logs = registry().with(text).with(json).with(libraries).with(level);
    // Fails if there is a subscriber already, as in a test that sets its own.
    let _ = logs.try_init();
}
