//! `vramd`: the daemon that owns a node's GPU memory.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Parser as _;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::{Notify, watch},
};
use vramd::{
    app::{self, App},
    args::Args,
    exit::Failure,
    telemetry::{TelemetrySetup, lines::Lines, logs},
};

/// Signals that ask the daemon to stop.
const STOPS: [(&str, i32); 9] = [
    ("SIGTERM", libc::SIGTERM),
    ("SIGINT", libc::SIGINT),
    ("SIGQUIT", libc::SIGQUIT),
    ("SIGALRM", libc::SIGALRM),
    ("SIGVTALRM", libc::SIGVTALRM),
    ("SIGPROF", libc::SIGPROF),
    ("SIGIO", libc::SIGIO),
    ("SIGPWR", libc::SIGPWR),
    ("SIGSTKFLT", libc::SIGSTKFLT),
];
/// Signals by which other daemons open their log again.
const IGNORED: [(&str, i32); 2] = [("SIGUSR1", libc::SIGUSR1), ("SIGUSR2", libc::SIGUSR2)];

/// How long the last lines may take to be written.
const LINES_END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long blocking work may take to end. A disk that takes longer hangs.
const BLOCKING_END_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let mut lines = None;
    let status = match run(&Args::parse(), &mut lines) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if tracing::dispatcher::has_been_set() {
                tracing::error!(exit_status = failure.exit() as u8, "{failure}");
            } else {
                eprintln!("vramd: {failure}");
            }
            ExitCode::from(failure.exit() as u8)
        }
    };
    if let Some(lines) = lines {
        lines.flush_within(LINES_END_TIMEOUT);
    }
    status
}

/// Reads the configuration, takes sockets, state and driver, and serves until a signal.
fn run(args: &Args, lines: &mut Option<Lines>) -> Result<(), Failure> {
    let config = app::configuration(args.config.as_deref())?;
    let telemetry = TelemetrySetup::new(&config.telemetry)?;
    if args.check {
        if let Some(missing) = config.files.missing_paths().next() {
            return Err(Failure::NoImmutablePath(missing.to_owned()));
        }
        for (path, target) in config.files.paths_with_links_out() {
            eprintln!("vramd: files.immutable_paths: {}", links_out(path, &target));
        }
        let notes = app::check(&config, telemetry)?;
        notes.iter().for_each(|note| eprintln!("vramd: {note}"));
        return writeln!(io::stdout(), "ok")
            .map_err(|source| Failure::Io { action: "write to stdout", source });
    }
    let started = logs::start(config.daemon.log_format, config.daemon.log_level, &telemetry);
    *lines = Some(started.map_err(|source| Failure::Io { action: "start the log", source })?);
    for path in config.files.missing_paths() {
        tracing::warn!(path = %path.display(), "an immutable path does not exist: no file is loaded from there");
    }
    for (path, target) in config.files.paths_with_links_out() {
        tracing::warn!("files.immutable_paths: {}", links_out(path, &target));
    }
    // All slow work has threads of its own; further threads here would only have colder caches.
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_name("vramd-io")
        .build()
        .map_err(|source| Failure::Io { action: "start the runtime", source })?;
    // This comes first, so that a signal during the start gives everything back too.
    let (stop, reload) = runtime
        .block_on(async { Ok((stop_on_signals()?, reload_on_hangup()?)) })
        .map_err(|source| Failure::Io { action: "handle signals", source })?;
    let app = App::prepare(config, telemetry, args.reset_state)?;
    let ended = runtime.block_on(app.run(stop, reload));
    runtime.shutdown_timeout(BLOCKING_END_TIMEOUT);
    ended
}

/// Explains why files behind the links of an immutable path are copied.
fn links_out(path: &Path, target: &Path) -> String {
    format!(
        "links below {} lead to {}, which is not listed. A file counts by its own place, so these files are copied: list \
         that folder too",
        path.display(),
        target.display()
    )
}

/// Returns what is notified at each SIGHUP.
fn reload_on_hangup() -> io::Result<Arc<Notify>> {
    let (mut received, reload) = (signal(SignalKind::hangup())?, Arc::new(Notify::new()));
    let noted = Arc::clone(&reload);
    tokio::spawn(async move {
        while received.recv().await.is_some() {
            noted.notify_one();
        }
    });
    Ok(reload)
}

/// Returns a receiver that turns true at the first signal that asks for a stop.
///
/// By default many signals end a process at once, and would leave the sockets. So each of them asks for a stop here, or
/// is ignored with a line. The handlers stay: a second signal does not kill the daemon during its stop.
fn stop_on_signals() -> io::Result<watch::Receiver<bool>> {
    let (stop, stopped) = watch::channel(false);
    for (name, number) in STOPS {
        let (mut received, stop) = (signal(SignalKind::from_raw(number))?, stop.clone());
        tokio::spawn(async move {
            while received.recv().await.is_some() {
                if !stop.send_replace(true) {
                    tracing::info!(signal = name, "stopping");
                }
            }
        });
    }
    for (name, number) in IGNORED {
        let mut received = signal(SignalKind::from_raw(number))?;
        tokio::spawn(async move {
            while received.recv().await.is_some() {
                tracing::info!(signal = name, "ignored: the configuration is read at the start only");
            }
        });
    }
    Ok(stopped)
}
