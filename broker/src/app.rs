//! Assembles the daemon: takes its resources at the start, in order, and gives them back at the end.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf, absolute},
    sync::Arc,
    thread,
    time::Duration,
};

use broker_core::{Broker, Limits};
use broker_driver::{DeviceInfo, Driver, DriverError, ExtentKind, Sink, Submission};
use tokio::sync::{Notify, watch};
use vramd_types::DeviceIndex;

use crate::{
    channel::{self, Channels},
    config::{self, Config, ConfigError, HostTier, SimRevocation, TenantsFile},
    driver_choice,
    events::{EventLimits, Events},
    exit::Failure,
    grpc,
    harvest::Harvest,
    moves::Moves,
    node_report::{self, NodeReport, Started},
    platform::{
        descriptor_shares::DescriptorShares, descriptors, descriptors::Descriptors, paths,
        paths::Environment, process, sockets::Sockets, sockets::SocketsError, tenant_rules::Rule,
        tenant_rules::Rules,
    },
    reactor::{Clock, Copies, Executor, Files, Inbox, InboxLimits, Queue, Reactor, inbox},
    recorder::Recorder,
    service_manager,
    socket_keeper::{Listening, SocketKeeper},
    state::{State, Stored},
    surroundings::Warning,
    telemetry::{DaemonFacts, TelemetrySetup},
    tenants::{self, Node, Plan, TenantStore},
};

/// Requests of operators that may wait. They never wait behind those of clients.
const OPERATOR_REQUESTS_MAX: usize = 64;
/// Reads of the broker's state that may wait in its queue.
const READS_MAX: usize = 256;
/// How long the driver may take for its first survey of all devices, and how often the daemon checks whether it is
/// done.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(30);
const SURVEY_POLL: Duration = Duration::from_millis(5);
/// How long the driver may take to end. No task waits for its work then, and the next daemon deletes its files on disk.
const DRIVER_END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open calls may go on after the daemon stops.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Loads the named configuration, else the file at the default path if it exists, else the defaults.
pub fn configuration(named: Option<&Path>) -> Result<Config, Failure> {
    match named {
        Some(path) => Ok(config::load(path)?),
        None if Path::new(paths::CONFIG).exists() => Ok(config::load(Path::new(paths::CONFIG))?),
        None => Ok(Config::default()),
    }
}

/// Tries all that a start needs, and takes nothing. Returns which live daemon a start would fail for, and what it would
/// warn of.
pub fn check(config: &Config, mut telemetry: TelemetrySetup) -> Result<Vec<String>, Failure> {
    let Directories { sockets, sockets_chosen_by, state } = Directories::of(config)?;
    let file = tenants_file(config)?;
    process::check_proc()?;
    let mut notes = Vec::new();
    if Sockets::check(&sockets, config.daemon.admin_group.as_deref())? {
        let dir = sockets.display();
        notes.push(format!(
            "a live daemon uses {dir}, chosen by {sockets_chosen_by}: a start fails until it has ended"
        ));
    }
    let (is_taken, stored) = State::check(&state)?;
    if is_taken {
        notes.push(format!("a live daemon uses {}: a start fails until it has ended", state.display()));
    }
    // A live daemon has its address.
    if notes.is_empty() {
        telemetry.listen()?;
    }
    let (devices, host) = driver_choice::check(config, &sockets)?;
    let stored = with_file(stored, file.as_ref(), &node(config, host, &devices))?.0;
    let rules = tenants::rules_in_force(&stored, &configured_rules(config));
    rules.check_namespace()?;
    let warnings = Warning::all_of(config, &rules, &devices, host).into_iter().chain(State::warning(&state));
    notes.extend(warnings.map(|warning| warning.to_string()));
    Ok(notes)
}

/// The absolute directories of the daemon.
#[derive(Debug)]
struct Directories {
    sockets: PathBuf,
    sockets_chosen_by: &'static str,
    state: PathBuf,
}

impl Directories {
    fn of(config: &Config) -> Result<Self, Failure> {
        let environment = Environment::of_process();
        let state = environment.state_dir(config.daemon.state_dir.as_deref()).ok_or(Failure::NoStateDir)?;
        let configured = config.daemon.socket_dir.as_deref();
        Ok(Self {
            sockets: absolute_dir(environment.socket_dir(configured))?,
            sockets_chosen_by: environment.socket_dir_chooser(configured),
            state: absolute_dir(state)?,
        })
    }
}

/// A daemon that has taken all its resources. After this it only serves.
#[derive(Debug)]
pub struct App {
    config: Config,
    sockets: Arc<SocketKeeper>,
    listening: Listening,
    state: Arc<State>,
    stored: Stored,
    boot_epoch: u64,
    driver: Arc<dyn Driver>,
    driver_ended: watch::Receiver<()>,
    driver_reason: String,
    host: HostTier,
    limits: broker_core::Limits,
    report: NodeReport,
    directories: Directories,
    revocations: Vec<SimRevocation>,
    inbox: Inbox,
    queue: Queue,
    clock: Clock,
    telemetry: TelemetrySetup,
}

impl App {
    /// Takes sockets, state and driver, in this order: a daemon that may not have the sockets changes nothing. With
    /// `reset_state` damaged state does not prevent the start.
    pub fn prepare(
        config: Config,
        mut telemetry: TelemetrySetup,
        reset_state: bool,
    ) -> Result<Self, Failure> {
        vramd_types::hide_counts();
        let file = tenants_file(&config)?;
        Rules::new(configured_rules(&config)).check_namespace()?;
        process::check_proc()?;
        descriptors::raise_limit();
        let clock = Clock::start();
        let directories = Directories::of(&config)?;
        let Directories { sockets: socket_dir, sockets_chosen_by, state: state_dir } = &directories;
        let bound = Sockets::bind(socket_dir, config.daemon.admin_group.as_deref());
        let (sockets, bound) = bound.map_err(|error| match error {
            SocketsError::InUse(dir) => Failure::SocketDirInUse { dir, chosen_by: sockets_chosen_by },
            error => error.into(),
        })?;
        telemetry.listen()?;
        let state = State::open(state_dir)?;
        let stored = state.tenants(reset_state)?;
        let (inbox, queue) = inbox(InboxLimits {
            client_requests_max: config.limits.pending_requests_max,
            operator_requests_max: OPERATOR_REQUESTS_MAX,
            reads_max: READS_MAX,
        });
        let (sink, driver_ended) = completion_sink(inbox.clone());
        let driver_choice::Chosen { driver, reason, revocations, host_use, host } =
            driver_choice::open(&config, socket_dir, sink)?;
        let before = stored.clone();
        let (stored, changes) = with_file(stored, file.as_ref(), &node(&config, host, driver.devices()))?;
        let rules = tenants::rules_in_force(&stored, &configured_rules(&config));
        rules.check_namespace()?;
        let boot_epoch = state.next_boot_epoch(reset_state)?;
        if stored != before {
            state
                .store_tenants(&stored)
                .map_err(|source| Failure::Io { action: "store what the tenants file changes", source })?;
        }
        if let Some(applied) = stored.applied.as_ref().filter(|_| file.is_some()) {
            tenants::log(&changes, &applied.source, None);
        }
        let descriptors = Descriptors::of_process();
        let kept = if host.each.is_zero() { 0 } else { descriptors.pieces_max() };
        let descriptors = descriptors.beside(kept);
        let limits = Limits { turns: config.turns.limits(), ..config.limits.core(descriptors) };
        let started = Started {
            config: &config,
            driver: &*driver,
            driver_reason: &reason,
            host,
            host_locked: host_use.locked,
            descriptors,
            limits: &limits,
        };
        let report = NodeReport::new(started);
        report.log(started, boot_epoch);
        let warnings = Warning::all_of(&config, &rules, driver.devices(), host);
        warnings.into_iter().chain(State::warning(state_dir)).for_each(|warning| warning.log());
        let (sockets, listening) = SocketKeeper::start(sockets, bound)
            .map_err(|source| Failure::Io { action: "start a thread", source })?;
        Ok(Self {
            config,
            sockets: Arc::new(sockets),
            listening,
            state: Arc::new(state),
            stored,
            boot_epoch,
            driver,
            driver_ended,
            driver_reason: reason,
            host,
            limits,
            report,
            directories,
            revocations,
            inbox,
            queue,
            clock,
            telemetry,
        })
    }

    /// Serves until `signalled` turns true or the driver is lost. Then ends channels and calls, and gives all resources
    /// back. Each notice of `reload` has it read the tenants file again.
    pub async fn run(self, signalled: watch::Receiver<bool>, reload: Arc<Notify>) -> Result<(), Failure> {
        let (driver, sockets, copies) =
            (Arc::clone(&self.driver), Arc::clone(&self.sockets), Copies::default());
        let driver_ended = self.driver_ended.clone();
        let served = self.serve(signalled, reload, copies.clone()).await;
        close_driver(driver, driver_ended, &copies).await;
        // The sockets stay until here, so that the next daemon finds no trace of this one.
        drop(sockets);
        if served.is_ok() {
            tracing::info!("vramd stopped");
        }
        served
    }

    async fn serve(
        self,
        signalled: watch::Receiver<bool>,
        reload: Arc<Notify>,
        copies: Copies,
    ) -> Result<(), Failure> {
        let (end, stop) = watch::channel(false);
        let end = Arc::new(end);
        let on_signal = Arc::clone(&end);
        tokio::spawn(async move {
            stop_requested(signalled).await;
            on_signal.send_replace(true);
        });
        let channels = Arc::new(Channels::default());
        let harvest = self.harvest(&channels)?;
        let core_config = self.core_config();
        // The descriptors have been counted before.
        let shares = self.config.shares.percents();
        for submission in self.host_to_pin().into_iter().chain([Submission::SetShares { shares }]) {
            self.driver.submit(submission);
        }
        let uuids: Vec<_> = core_config.devices.iter().map(|device| device.uuid.clone()).collect();
        let moves = Moves::new(&self.driver, self.clock, copies.clone());
        let (telemetry, telemetry_running) = self.telemetry.start(
            self.inbox.clone(),
            self.clock,
            DaemonFacts {
                driver: self.driver.name(),
                boot_epoch: self.boot_epoch,
                devices: &uuids,
                links: &self.driver,
                moves: &moves,
                unreachable: self.listening.unreachable.clone(),
            },
        )?;
        let node = Node::new(&core_config.devices, &self.config.quota.default);
        let broker = Broker::new(core_config, self.stored.quotas.clone(), self.clock.now());
        let state = self.state;
        let tenants = TenantStore::new(
            self.inbox.clone(),
            node,
            configured_rules(&self.config),
            self.stored,
            move |stored| state.store_tenants(stored).map_err(|error| error.to_string()),
        );
        let writer = tenants.writer();
        let events = Events::new(self.clock, self.boot_epoch, uuids, event_limits(&self.config));
        let recorder = Recorder::new(self.clock, self.config.limits.trace_records_max);
        let files = Files::default();
        let executor = Executor::new(
            self.inbox.clone(),
            Arc::clone(&self.driver),
            Arc::clone(&channels),
            writer,
            events.clone(),
        )
        .with_telemetry(telemetry.clone())
        .with_moves(moves.clone(), copies)
        .with_files(files.clone())
        .with_harvest(harvest)
        .with_recorder(recorder.clone())
        .with_revocations(self.revocations);
        let mut reactor = tokio::spawn(Reactor::new(broker, self.queue, executor, self.clock).run());
        let devices_surveyed = devices_surveyed(&self.inbox);
        tokio::select! {
            in_time = tokio::time::timeout(SURVEY_TIMEOUT, devices_surveyed) => if in_time.is_err() {
                let problem = format!("the driver did not survey all devices within {} s", SURVEY_TIMEOUT.as_secs());
                return Err(Failure::Driver(DriverError::Failed(problem)));
            },
            // The daemon must stop: both servers see it and end at once.
            () = stop_requested(stop.clone()) => {}
        }
        node_report::log_serving(&self.directories.sockets, &self.directories.state);
        let file = self.config.daemon.tenants_file.clone();
        tokio::spawn(read_again(reload, file, tenants.clone(), stop_requested(stop.clone())));
        let serving =
            format!("serves {} devices by the driver {}", self.driver.devices().len(), self.driver.name());
        tokio::spawn(service_manager::report(self.inbox.clone(), serving, stop.clone()));

        let descriptor_shares = DescriptorShares::default();
        let calls = grpc::serve(
            grpc::Listeners {
                memory: self.listening.memory,
                admin: self.listening.admin,
                unreachable: self.listening.unreachable,
            },
            self.inbox.clone(),
            events.clone(),
            grpc::GrpcOptions {
                operators: operators(&self.config),
                call_timeout: self.config.limits.request_timeout,
                stop_grace: STOP_GRACE,
                connections_per_uid_max: self.config.limits.connections_per_uid_max,
                held_bytes_per_uid_max: usize::try_from(self.config.limits.held_bytes_per_uid_max.get())
                    .unwrap_or(usize::MAX),
                request_read_timeout: self.config.limits.request_read_timeout,
                descriptors: descriptor_shares.clone(),
                batch_items_max: self.config.limits.batch_items_max,
                readers_max: self.config.limits.readers_max,
                telemetry: telemetry.clone(),
                moves,
                recorder,
                files: grpc::Loading::new(
                    files,
                    &self.config.files.immutable_paths,
                    self.config.files.are_loaded(),
                ),
                facts: grpc::NodeFacts {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    driver: self.driver.name().to_owned(),
                    driver_reason: self.driver_reason,
                    started_at: self.clock.started_at(),
                    report: self.report,
                },
                channels: Arc::clone(&channels),
                tenants: tenants.clone(),
            },
            stop_requested(stop.clone()),
        );
        let sessions = channel::serve(
            self.listening.channel,
            channels,
            self.inbox.clone(),
            channel::ChannelOptions {
                rules: tenants.rules(),
                hello_timeout: self.config.limits.hello_timeout,
                greeting_max: self.config.limits.greeting_max,
                greeting_per_uid_max: self.config.limits.greeting_per_uid_max,
                word_slots: self.config.limits.words_per_session_max,
                telemetry,
                descriptors: descriptor_shares,
            },
            stop_requested(stop),
        );
        let sessions = async {
            sessions.await.map_err(|source| Failure::Io { action: "listen on channel.sock", source })
        };
        let serve = async { tokio::try_join!(async { Ok(calls.await?) }, sessions) };
        let mut serve = std::pin::pin!(serve);
        tokio::select! {
            served = &mut serve => served.map(|_| ())?,
            ended = &mut reactor => {
                events.end("the driver is lost, or the daemon has a bug");
                // Health reports it first, and waiting calls get their answer.
                end.send_replace(true);
                serve.await?;
                telemetry_running.stop().await;
                ended.map_err(|_| Failure::ReactorEnded)??;
                return Err(Failure::ReactorEnded);
            }
        }
        telemetry_running.stop().await;
        self.inbox.stop();
        Ok(reactor.await.map_err(|_| Failure::ReactorEnded)??)
    }

    /// Starts the harvest if parts can move.
    fn harvest(&self, channels: &Arc<Channels>) -> Result<Option<Harvest>, Failure> {
        let memory = &self.config.memory;
        let files = self.config.files.are_loaded();
        if self.host.each.is_zero() && self.config.disk.directory.is_none() && !files {
            return Ok(None);
        }
        Harvest::start(Arc::clone(channels), self.inbox.clone(), memory.harvest)
            .map(Some)
            .map_err(|source| Failure::Io { action: "start a thread", source })
    }

    /// Lists the host memory that the driver pins ahead of need.
    fn host_to_pin(&self) -> Vec<Submission> {
        let near =
            (0..).map(DeviceIndex).zip(self.driver.devices()).map(|(index, _)| self.driver.host_node(index));
        config::pin_host(
            self.host,
            self.config.memory.part_size,
            near,
            Descriptors::of_process().pieces_max(),
        )
    }

    fn core_config(&self) -> broker_core::Config {
        let config = &self.config;
        broker_core::Config {
            boot_epoch: self.boot_epoch,
            devices: config::core_devices(
                &config.memory,
                self.host,
                &config.disk,
                self.driver.devices(),
                self.driver.supports(ExtentKind::Fixed),
                self.driver.can_map_host(),
            ),
            part_size: config.memory.part_size,
            sessions_reserved: config.memory.sessions_reserved,
            eviction: config.memory.eviction_policy,
            victim_script: Vec::new(),
            check_clean_backings: config.memory.check_shadows,
            files: config.files.are_loaded(),
            pressure: config.pressure.bounds(),
            shares: config.shares.percents(),
            default_limit: config.quota.default.limit,
            default_host_limit: config.quota.default.host_limit,
            default_disk_limit: config.quota.default.disk_limit,
            tenants: config::standings(&config.tenants),
            limits: self.limits.clone(),
        }
    }
}

/// Creates the sink of a driver's completions, and a receiver that fails once the driver has ended: the sink is the
/// last thing that the driver drops.
fn completion_sink(completions: Inbox) -> (Sink, watch::Receiver<()>) {
    let (ends, ended) = watch::channel(());
    let sink = move |completion| {
        let _until_it_ends = &ends;
        completions.completion(completion);
    };
    (Arc::new(sink), ended)
}

/// Has the driver release its memory and its files on disk. A thread of its own waits for work in progress.
async fn close_driver(driver: Arc<dyn Driver>, mut ended: watch::Receiver<()>, copies: &Copies) {
    for copy in copies.under_way() {
        driver.submit(Submission::CancelCopy { copy });
    }
    thread::spawn(move || drop(driver));
    // The last reference may be in a call that is being cut off.
    let gone = async move { while ended.changed().await.is_ok() {} };
    if tokio::time::timeout(DRIVER_END_TIMEOUT, gone).await.is_err() {
        tracing::warn!(
            waited_s = DRIVER_END_TIMEOUT.as_secs(),
            "the driver has not ended; the next start deletes its files on disk"
        );
    }
}

/// Loads the tenants file, if the configuration names one.
fn tenants_file(config: &Config) -> Result<Option<(PathBuf, TenantsFile)>, Failure> {
    let load = |path: &PathBuf| Ok((path.clone(), TenantsFile::load(path)?));
    config.daemon.tenants_file.as_ref().map(load).transpose()
}

/// Returns what is stored once the tenants file is applied, and what that changes.
fn with_file(
    stored: Stored,
    file: Option<&(PathBuf, TenantsFile)>,
    node: &Node,
) -> Result<(Stored, Vec<tenants::Change>), Failure> {
    let Some((path, file)) = file else { return Ok((stored, Vec::new())) };
    let plan = Plan::at_start(file, path.display().to_string(), &stored, node)
        .map_err(|location| ConfigError::Wrong { path: path.clone(), location })?;
    if plan.is_nothing() {
        return Ok((stored, Vec::new()));
    }
    let changes = plan.changes.clone();
    Ok((plan.stored(stored, tenants::now_s()), changes))
}

fn node(config: &Config, host: HostTier, devices: &[DeviceInfo]) -> Node {
    let devices = config::core_devices(&config.memory, host, &config.disk, devices, false, false);
    Node::new(&devices, &config.quota.default)
}

fn configured_rules(config: &Config) -> Vec<Rule> {
    config.tenants.iter().filter_map(|tenant| tenant.rule.clone()).collect()
}

/// Reads the tenants file again at each notice, until `stop` is done. Notices that come meanwhile count once.
async fn read_again(
    reload: Arc<Notify>,
    file: Option<PathBuf>,
    tenants: TenantStore,
    stop: impl Future<Output = ()>,
) {
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = reload.notified() => {}
            () = &mut stop => return,
        }
        match &file {
            Some(path) => tenants.reload(path).await,
            None => tracing::info!(
                signal = "SIGHUP",
                "ignored: the configuration is read at the start only, and daemon.tenants_file is not set"
            ),
        }
    }
}

fn event_limits(config: &Config) -> EventLimits {
    EventLimits { watches_max: config.limits.watches_max, events_max: config.limits.watch_events_max }
}

/// The uids that may call `AdminService`: as configured, else root and the user that the daemon runs as.
fn operators(config: &Config) -> BTreeSet<u32> {
    let default = || vec![0, rustix::process::geteuid().as_raw()];
    config.daemon.operators.clone().unwrap_or_else(default).into_iter().collect()
}

/// Returns once every device was surveyed, or the reactor has ended. A request admitted before could get memory that
/// clients of an earlier daemon still have.
async fn devices_surveyed(inbox: &Inbox) {
    while inbox.read(Broker::is_surveyed).await == Some(false) {
        tokio::time::sleep(SURVEY_POLL).await;
    }
}

async fn stop_requested(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Makes a path absolute, so that a device's UUID, which is made from it, does not depend on the working directory.
fn absolute_dir(dir: PathBuf) -> Result<PathBuf, Failure> {
    absolute(&dir).map_err(|_| Failure::NoWorkingDir(dir))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Instant,
    };

    use super::*;
    use crate::reactor::tests::Silent;

    /// A driver that takes time to end.
    struct Slow {
        ended: Arc<AtomicBool>,
        _sink: Sink,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(300));
            self.ended.store(true, Ordering::Release);
        }
    }

    impl std::fmt::Debug for Slow {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Slow")
        }
    }

    #[tokio::test]
    async fn closing_waits_for_the_driver_even_when_another_thread_drops_it() {
        let (inbox, _queue) =
            inbox(InboxLimits { client_requests_max: 1, operator_requests_max: 1, reads_max: 1 });
        let (sink, ended) = completion_sink(inbox);
        let is_over = Arc::new(AtomicBool::new(false));
        let (asked, _) = tokio::sync::mpsc::unbounded_channel();
        let keeps = Slow { ended: Arc::clone(&is_over), _sink: sink };
        let driver: Arc<dyn Driver> = Arc::new(Silent { asked, _keeps: keeps });
        let last = Arc::clone(&driver);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(last);
        });
        let began = Instant::now();
        close_driver(driver, ended, &Copies::default()).await;
        assert!(is_over.load(Ordering::Acquire), "after {:?}", began.elapsed());
        assert!(began.elapsed() < DRIVER_END_TIMEOUT);
    }
}
