//! A node under load: three tenants whose programs need more than the device has, an operator who interferes, a program
//! beside the daemon that takes device memory, and a process that keeps released memory.

use std::{
    iter,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use vramd_client::{
    Access, Allocation, AllocationRequest, Bytes, Client, Error, Pinnable, PrefetchRequest, Reason,
};
use vramd_proto::v1::{
    Allocation as ListedAllocation, ListAllAllocationsRequest, MovePartsRequest, Tier,
    move_parts_request::Target,
};

use crate::{
    Admin, Config, Daemon, MIB, Probe, RawSession, daemon::quota, other_programs::take_device_memory,
    session::spec, wait::PATIENCE,
};

/// The tenant that the dashboard of tenants shows.
pub const TENANT: &str = "training";
/// Users of the load's programs, with their tenants.
const USERS: [(u32, &str); 3] = [(70_001, "serving"), (70_002, TENANT), (70_003, "notebooks")];
const PART: u64 = 2 * MIB;
/// Pause of the operator between two moves.
const OPERATOR_PAUSE: Duration = Duration::from_millis(700);
/// Steps by which another program takes memory of the second device.
const TAKEN_STEP: u64 = 4 * MIB;
const TAKEN_STEPS_MAX: usize = 6;

/// A daemon with clients that use it until this is dropped.
#[derive(Debug)]
pub struct LoadedNode {
    operator: Operator,
    clients: Vec<Probe>,
    /// Descriptors of released memory.
    _kept: Vec<OwnedFd>,
    _keeper: RawSession,
    pub daemon: Daemon,
}

impl LoadedNode {
    /// Starts the daemon and all its clients, each as a user of its own, which needs root.
    #[track_caller]
    pub fn start() -> Self {
        assert!(crate::is_root(), "the load needs root: each of its tenants is a user of its own");
        let daemon = Daemon::start(&config());
        for (_, tenant) in USERS {
            for (tier, guarantee, limit) in quotas(tenant) {
                let request = quota(tenant, "*", guarantee, limit);
                daemon
                    .admin
                    .set_quota(vramd_proto::v1::SetQuotaRequest { tier: tier.into(), ..request })
                    .ok();
            }
        }
        let mut keeper = daemon.open();
        let kept = release_and_keep(&mut keeper);
        let clients = USERS.map(|(uid, tenant)| {
            Probe::start_program("dashboards", &["load", tenant], &daemon.sockets(), Some(uid))
        });
        let operator = Operator::start(&daemon);
        Self { operator, clients: clients.into(), _kept: kept, _keeper: keeper, daemon }
    }

    /// Checks that every client still runs.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        for (client, (_, tenant)) in self.clients.iter_mut().zip(USERS) {
            assert!(!client.check_ended(), "the client of {tenant} ended; its error stands above");
        }
    }
}

impl Drop for LoadedNode {
    fn drop(&mut self) {
        self.operator.stop();
    }
}

/// A second node, with little to do.
#[track_caller]
pub fn quiet_node() -> (Daemon, RawSession) {
    let config = Config { devices: vec!["1GiB".into(), "1GiB".into()], ..measured(Config::default()) };
    let daemon = Daemon::start(&config);
    let mut session = daemon.open();
    session.allocate(spec(96 * MIB));
    (daemon, session)
}

fn measured(config: Config) -> Config {
    Config { log_level: "info", ..config }.telemetry("prometheus_listen = \"127.0.0.1:0\"")
}

/// Two devices whose tiers below have room for all that the clients own, and links that copies keep busy.
fn config() -> Config {
    let devices = vec!["128MiB".into(), "128MiB".into()];
    let tenants = USERS.map(|(uid, tenant)| (uid, tenant.to_owned())).into();
    measured(Config { devices, tenants, ..Config::default() })
        .memory("host_size = \"112MiB\"")
        .memory("part_size = \"2MiB\"")
        .memory("harvest_ms = 20")
        .disk("128MiB")
        .link("400MB")
        .pressure("cold_after_ms = 1500")
        .limit("survey_interval_ms = 2000")
        .limit("cached_bytes_per_tenant_max = \"8MiB\"")
        .limit("pin_stall_ms = 500")
        // Without optimization a scrape of more series takes seconds.
        .telemetry("cardinality_max = 512")
}

/// Guarantee and limit of a tenant in each tier.
fn quotas(tenant: &str) -> [(Tier, &'static str, &'static str); 3] {
    match tenant {
        "serving" => {
            [(Tier::Device, "32MiB", "96MiB"), (Tier::Host, "32MiB", "96MiB"), (Tier::Disk, "16MiB", "96MiB")]
        }
        "notebooks" => {
            [(Tier::Device, "8MiB", "24MiB"), (Tier::Host, "8MiB", "32MiB"), (Tier::Disk, "8MiB", "32MiB")]
        }
        _ => {
            [(Tier::Device, "24MiB", "88MiB"), (Tier::Host, "16MiB", "56MiB"), (Tier::Disk, "16MiB", "96MiB")]
        }
    }
}

/// Frees memory whose descriptors this process keeps, so that it stays unreturned.
#[track_caller]
fn release_and_keep(session: &mut RawSession) -> Vec<OwnedFd> {
    let id = session.reserve(spec(2 * PART)).allocation_id;
    let mut kept = Vec::new();
    while !session.is_mapped(id) {
        let parcel = session.receive_map();
        kept.extend(parcel.iter().map(|(_, fd)| fd.try_clone().expect("a descriptor can be copied")));
        session.accept(parcel);
    }
    session.free(id);
    kept
}

/// Moves allocations of the second device to the host again and again, while another program takes memory there.
#[derive(Debug)]
struct Operator {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Operator {
    fn start(daemon: &Daemon) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (admin, told) = (daemon.admin.clone(), Arc::clone(&stop));
        let second = daemon.state().devices[1].device.clone().unwrap_or_default().uuid;
        let thread = thread::spawn(move || {
            let mut taken = Vec::new();
            while !told.load(Ordering::Relaxed) {
                if taken.len() < TAKEN_STEPS_MAX {
                    taken.push(take_device_memory(&second, TAKEN_STEP));
                }
                for allocation in movable(&admin) {
                    let target = Some(Target::AllocationId(allocation.allocation_id));
                    let request = MovePartsRequest { target, tier: Tier::Host.into(), ..Default::default() };
                    // Pinned parts stay, and an allocation may be freed meanwhile: both are everyday answers.
                    let _ = admin.move_parts(request).wait();
                }
                thread::sleep(OPERATOR_PAUSE);
            }
        });
        Self { stop, thread: Some(thread) }
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed, and this may run during another one.
            let _ = thread.join();
        }
    }
}

/// The allocations that the operator moves.
fn movable(admin: &Admin) -> Vec<ListedAllocation> {
    let request = ListAllAllocationsRequest { page_size: Some(1000), ..Default::default() };
    let mut listed = admin.list_all_allocations(request).wait().map(|it| it.allocations).unwrap_or_default();
    listed.retain(|it| it.name.ends_with(TABLE));
    listed
}

/// The name of the allocation on the second device.
const TABLE: &str = "table";

/// The program of one tenant: uses the daemon until it is killed.
pub fn run(tenant: &str) -> Result<()> {
    let client = Client::builder().name(tenant).request_timeout(PATIENCE).connect()?;
    match tenant {
        "serving" => serve(&client),
        "notebooks" => calculate(&client),
        TENANT => train(&client),
        other => bail!("there is no load {other:?}"),
    }
}

/// Reads layers in order, each asked for while the one before is in use, and a table in order without asking.
fn serve(client: &Client) -> Result<()> {
    let layers: Result<Vec<_>> = (0..9).map(|seed| written(client, 4, seed, request(4))).collect();
    let layers = layers?;
    let table = written(client, 12, 99, request(12).device("1").name(TABLE))?;
    let order = (0..layers.len()).cycle();
    for (step, at) in (0_u32..).zip(order) {
        let next = &layers[(at + 1) % layers.len()];
        // Some come too late, and some are given up.
        let ask = PrefetchRequest::new().all(next);
        let ask = if step % 5 == 0 { ask.within(Duration::from_millis(1)) } else { ask.within(PATIENCE) };
        let prefetch = allowed(client.prefetch(ask))?;
        if step % 9 == 0
            && let Some(prefetch) = &prefetch
        {
            allowed(prefetch.cancel())?;
        }
        if let Some(_pinned) = allowed(layers[at].pin(Access::Read))? {
            thread::sleep(Duration::from_millis(25));
        }
        let part = step % 12;
        drop(allowed(table.pin_parts(part..part + 1, Access::Read))?);
    }
    Ok(())
}

/// Writes three shards at a time, of more than fit beside the layers.
fn train(client: &Client) -> Result<()> {
    let shards: Result<Vec<_>> = (0..9).map(|seed| written(client, 4, 40 + seed, request(4))).collect();
    let shards = shards?;
    for step in 0_usize.. {
        let chosen = [step, step + 3, step + 7].map(|at| &shards[at % shards.len()]);
        let set = chosen.map(|shard| (shard as &dyn Pinnable, Access::Write));
        if let Some(_pinned) = allowed(client.pin_set_timeout(&set, Duration::from_secs(5)))? {
            thread::sleep(Duration::from_millis(60));
        }
        if step % 7 == 0 {
            // More than its limit, which a program learns by asking.
            drop(allowed(client.allocate(request(64)))?);
        }
        if step % 4 == 0 {
            let scratch = request(2).discardable().wait(Duration::from_secs(1));
            if let Some(scratch) = allowed(client.allocate(scratch))? {
                thread::sleep(Duration::from_millis(20));
                scratch.free().map_err(|failed| failed.error).context("free")?;
            }
        }
    }
    Ok(())
}

/// Allocates odd sizes up to the limit of its tenant and beyond, and frees them again.
fn calculate(client: &Client) -> Result<()> {
    loop {
        let odd = || AllocationRequest::new(Bytes::new(5 * MIB + 1));
        let mut all: Vec<Allocation> = Vec::new();
        for _ in 0..6 {
            all.extend(allowed(client.allocate(odd()))?);
        }
        allowed(client.allocate(AllocationRequest::new(Bytes::ZERO)))?;
        thread::sleep(Duration::from_millis(600));
        for allocation in all {
            allocation.free().map_err(|failed| failed.error).context("free")?;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The bytes of an allocation that does not quite fill its last part.
fn bytes(parts: u64) -> u64 {
    parts * PART - MIB / 2
}

fn request(parts: u64) -> AllocationRequest {
    AllocationRequest::new(Bytes::new(bytes(parts))).part_size(Bytes::new(PART)).unpinned()
}

fn written(client: &Client, parts: u64, seed: u8, request: AllocationRequest) -> Result<Allocation> {
    let mut allocation = client.allocate(request.wait(Duration::from_secs(20)))?;
    let content: Vec<u8> = iter::repeat_n(seed, usize::try_from(bytes(parts))?).collect();
    allocation.copy_from_host(0, &content)?;
    Ok(allocation)
}

/// The answer to a request, or `None` for a refusal that this load provokes.
fn allowed<T>(answer: Result<T, Error>) -> Result<Option<T>> {
    let refused = match answer {
        Ok(answer) => return Ok(Some(answer)),
        Err(refused) => refused,
    };
    match refused.reason() {
        Some(
            Reason::QuotaLimit
            | Reason::DeviceFull
            | Reason::Deadline
            | Reason::SizeInvalid
            | Reason::PinStalled
            | Reason::PrefetchNotFound,
        ) => {
            // A program that asks again at once would measure how fast it is refused.
            thread::sleep(Duration::from_millis(20));
            Ok(None)
        }
        _ => Err(refused.into()),
    }
}
