//! `vramd`: the daemon that owns a node's GPU memory.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Parser as _;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use vramd::{
    app::{self, App},
    args::Args,
    driver_choice,
    exit::Failure,
    telemetry::{TelemetrySetup, logs},
};

/// How long blocking work may take to end. A disk that takes longer hangs.
const BLOCKING_END_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if tracing::dispatcher::has_been_set() {
                tracing::error!(exit_status = failure.exit() as u8, "{failure}");
            } else {
                eprintln!("vramd: {failure}");
            }
            ExitCode::from(failure.exit() as u8)
        }
    }
}

/// Reads the configuration, takes sockets, state and driver, and serves until a signal.
fn run(args: &Args) -> Result<(), Failure> {
    let config = app::configuration(args.config.as_deref())?;
    let telemetry = TelemetrySetup::new(&config.telemetry)?;
    if args.check {
        driver_choice::check(&config)?;
        return writeln!(io::stdout(), "ok")
            .map_err(|source| Failure::Io { action: "write to stdout", source });
    }
    logs::start(config.daemon.log_format, config.daemon.log_level, &telemetry);
    // All slow work has threads of its own; further threads here would only have colder caches.
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_name("vramd-io")
        .build()
        .map_err(|source| Failure::Io { action: "start the runtime", source })?;
    // This comes first, so that a signal during the start gives everything back too.
    let stop = runtime
        .block_on(async { stop_on_signals() })
        .map_err(|source| Failure::Io { action: "handle signals", source })?;
    let app = App::prepare(config, telemetry)?;
    let ended = runtime.block_on(app.run(stop));
    runtime.shutdown_timeout(BLOCKING_END_TIMEOUT);
    ended
}

/// Returns a receiver that turns true at the first SIGTERM or SIGINT.
fn stop_on_signals() -> io::Result<watch::Receiver<bool>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping");
        stop.send_replace(true);
        // The handlers stay, so that a second signal does not kill the daemon during its stop.
        std::future::pending::<()>().await;
    });
    Ok(stopped)
}
