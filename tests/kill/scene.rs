//! A daemon with survivors, and a record of everything that exists while no victim runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use anyhow::{Context as _, Result, ensure};
use vramd_proto::v1::DrainRequest;
use vramd_tests::{
    Config, Daemon, MIB_2,
    config::Revocation,
    moves::disk_io_bytes,
    proc,
    victim::{Setting, Victim},
    wait::{soon, until},
};

use crate::{operator, plan::TENANTS, survivors::Survivors};

pub(crate) struct Scene {
    pub(crate) stage: Stage,
    pub(crate) survivors: Survivors,
    /// `tenant/name` of the allocation that victims attach.
    pub(crate) target: String,
    /// The state of the daemon with its survivors alone.
    before: Trace,
    /// The daemon's descriptors before the first client, by kind.
    fds_alone: BTreeMap<String, usize>,
    /// The number of files of the disk tier at that time.
    files_alone: usize,
}

/// The part of the scene that cases share.
pub(crate) struct Stage {
    pub(crate) daemon: Daemon,
    /// Whether memory moves all the time.
    pub(crate) moves: bool,
    /// The victim's program.
    pub(crate) victim: PathBuf,
    uuid: String,
    /// Held during a drain: one at a time.
    drains: Mutex<()>,
}

/// Keeps the node draining while it lives.
pub(crate) struct Draining<'a> {
    daemon: &'a Daemon,
    _one: MutexGuard<'a, ()>,
}

/// Everything that a client could leave behind.
#[derive(Clone, Debug, PartialEq)]
struct Trace {
    /// Charged, reserved and unreturned bytes by tenant, device and tier.
    charged: BTreeMap<(String, String, i32), [u64; 3]>,
    /// Charged, unreturned and unbrokered bytes; bytes that move in and out, and parts that are awaited.
    devices: Vec<[u64; 6]>,
    sessions: BTreeSet<u64>,
    allocations: BTreeSet<u64>,
    fds_in_flight: u32,
    /// Device memory that any process has open or maps, by name. Where memory moves names change, so only their number
    /// counts.
    memory: BTreeSet<String>,
    /// Host memory that processes other than the daemon have.
    host_elsewhere: BTreeSet<String>,
    /// The daemon's descriptors, by kind.
    fds: BTreeMap<String, usize>,
    /// The number of files in the disk tier's directory.
    files: usize,
}

impl Scene {
    /// A daemon with room for all, and these revocations all the time.
    pub(crate) fn with_room(revocations: Vec<Revocation>) -> Self {
        let mut config = Config::devices(&["32GiB"]);
        config.revocations = revocations;
        Self::start(config, Setting::Nothing)
    }

    /// A daemon whose device has no room for all, with a link on which a copy takes a few milliseconds. The host has
    /// room for the survivors, and the disk for all.
    pub(crate) fn moving() -> Self {
        let config = Config::devices(&["24MiB"]).link("1GiB").memory("host_size = \"16MiB\"").disk("256MiB");
        let config = config.memory("part_size = \"2MiB\"").memory("harvest_ms = 10");
        Self::start(config.telemetry("prometheus_listen = \"127.0.0.1:0\""), Setting::Moving)
    }

    fn start(config: Config, setting: Setting) -> Self {
        // Memory of survivors is fenced, too, and kept pinned past the fence.
        let mut config = config.limit("survey_interval_ms = 100").limit("revoke_answer_timeout_ms = 1000");
        for (uid, tenant) in TENANTS {
            config = config.tenant(uid, tenant);
        }
        let daemon = Daemon::start(&config);
        let moves = setting == Setting::Moving;
        until("the host tier is filled", || !moves || daemon.log().contains("is pinned ahead of need"));
        let victim = Victim::install(&daemon.sockets()).expect("the program can be copied");
        let state = daemon.state();
        let uuid = state.devices[0].device.clone().expect("a row has its device").uuid;
        let stage = Stage { daemon, moves, victim, uuid, drains: Mutex::default() };
        let (fds_alone, files_alone) = (stage.fds(), stage.files());
        let mut survivors =
            if moves { Survivors::unpinned(&stage.daemon) } else { Survivors::new(&stage.daemon) };
        // Objects that the first call of each kind creates are created now.
        survivors.run_until(&AtomicBool::new(true));
        let target = survivors.target().to_owned();
        stage.settle().expect("they have room");
        until("all packets are answered", || stage.daemon.state().node.fds_in_flight == 0);
        let before = Trace::take(&stage);
        Self { stage, survivors, target, before, fds_alone, files_alone }
    }

    pub(crate) fn split(&mut self) -> (&mut Survivors, &Stage) {
        (&mut self.survivors, &self.stage)
    }

    /// Checks that only the survivors have anything left.
    pub(crate) fn check_as_before(&self) -> Result<()> {
        self.stage.settle()?;
        self.before.await_again(&self.stage)
    }

    /// The number of migrations by direction and cause. Empty if memory does not move.
    pub(crate) fn moves(&self) -> Vec<(String, u64)> {
        let ways = ["in", "out"].into_iter().flat_map(|way| ["demand", "operator"].map(|cause| (way, cause)));
        let ways = ways.chain([("out", "write_back")]).filter(|_| self.stage.moves);
        let metrics = if self.stage.moves { self.stage.daemon.metrics() } else { String::new() };
        let count = |(way, cause): (&str, &str)| {
            let is_one = |line: &&str| {
                let says = |value: &str| line.contains(&format!("=\"{value}\""));
                line.starts_with("vramd_migrations_total{")
                    && says(way)
                    && says(cause)
                    && (says("moved") || says("clean"))
            };
            let values = metrics
                .lines()
                .filter(is_one)
                .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
            (format!("{way} on {cause}"), values.sum())
        };
        let disk = if self.stage.moves { disk_io_bytes(&self.stage.daemon).to_vec() } else { Vec::new() };
        let disk = ["to disk", "from disk"].into_iter().zip(disk);
        ways.map(count).chain(disk.map(|(way, bytes)| (way.to_owned(), bytes / MIB_2))).collect()
    }

    /// The survivors leave. Then nothing is left, and no descriptor more than before they came.
    pub(crate) fn end(self) -> Result<()> {
        let Self { stage, survivors, fds_alone, files_alone, .. } = self;
        survivors.leave();
        let nothing = Trace {
            charged: BTreeMap::new(),
            devices: vec![[0; 6]],
            sessions: BTreeSet::new(),
            allocations: BTreeSet::new(),
            fds_in_flight: 0,
            memory: BTreeSet::new(),
            host_elsewhere: BTreeSet::new(),
            fds: fds_alone,
            files: files_alone,
        };
        nothing.await_again(&stage)
    }
}

impl Stage {
    /// Where memory moves, brings all of it to where it was at the beginning.
    fn settle(&self) -> Result<()> {
        if !self.moves {
            return Ok(());
        }
        operator::evict_and_fetch_all(&self.daemon.admin)?;
        soon("the driver has returned all memory that left", || {
            let state = self.daemon.state();
            state.charged() == state.allocations.iter().map(|row| row.resident_bytes).sum::<u64>()
        })
    }

    /// The daemon's descriptors, by kind. Each memfd has a name of its own.
    fn fds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        let disk = self.disk().display().to_string();
        for (kind, count) in proc::fds_by_kind(self.daemon.pid()) {
            let kind = match kind.strip_prefix("/memfd:vramd-sim:") {
                Some(name) if self.moves => {
                    if name.contains(":host-") { "host" } else { "device" }.to_owned()
                }
                _ if kind.starts_with(&disk) => "disk".to_owned(),
                _ => kind,
            };
            *kinds.entry(kind).or_default() += count;
        }
        kinds
    }

    fn disk(&self) -> PathBuf {
        self.daemon.home().path().join("disk")
    }

    fn files(&self) -> usize {
        // Without a disk tier there is no directory.
        fs::read_dir(self.disk()).map_or(0, Iterator::count)
    }

    pub(crate) fn drain(&self) -> Draining<'_> {
        let one = self.drains.lock().unwrap_or_else(PoisonError::into_inner);
        self.daemon.admin.drain(DrainRequest::default()).ok();
        Draining { daemon: &self.daemon, _one: one }
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.daemon.admin.drain(DrainRequest { cancel: true, ..Default::default() }).ok();
    }
}

impl Trace {
    fn take(stage: &Stage) -> Self {
        let state = stage.daemon.state();
        let quotas = state.quotas.iter().map(|row| {
            let key = (row.tenant.clone(), row.device.clone(), row.tier);
            (key, [row.held_bytes, row.reserved_bytes, row.unreturned_bytes])
        });
        let devices = state.devices.iter();
        Self {
            charged: quotas.filter(|(_, bytes)| *bytes != [0; 3]).collect(),
            devices: devices
                .map(|row| {
                    let [moving_in, moving_out] = [row.moving_in_bytes, row.moving_out_bytes];
                    let [held, unreturned] = [row.held_bytes, row.unreturned_bytes];
                    let awaited = u64::from(row.awaited_part_count);
                    [held, unreturned, row.unbrokered_bytes, moving_in, moving_out, awaited]
                })
                .collect(),
            sessions: state.sessions.iter().map(|row| row.session_id).collect(),
            allocations: state.allocations.iter().map(|row| row.allocation_id).collect(),
            fds_in_flight: state.node.fds_in_flight,
            memory: match proc::memory_of(&stage.uuid) {
                named if stage.moves => (0..named.len()).map(|number| number.to_string()).collect(),
                named => named,
            },
            host_elsewhere: proc::host_memory_of(&stage.uuid)
                .into_iter()
                .filter(|(_, who)| !who.iter().eq([&stage.daemon.pid()]))
                .map(|(name, who)| format!("{name} {who:?}"))
                .collect(),
            fds: stage.fds(),
            files: stage.files(),
        }
    }

    /// Polls until this state comes again, since connections end a moment after their sessions. Fewer descriptors are
    /// fine.
    fn await_again(&self, stage: &Stage) -> Result<()> {
        let mut now = Self::take(stage);
        let came = soon("it is as it was", || {
            now = Self::take(stage);
            let alike = Self { fds: self.fds.clone(), ..now.clone() } == *self;
            alike && now.fds.iter().all(|(kind, count)| Some(count) <= self.fds.get(kind))
        });
        came.with_context(|| format!("something is left\n  before: {self:?}\n  now: {now:?}"))?;
        let violations = stage.daemon.state().node.invariant_violations;
        ensure!(violations == 0, "{violations} invariants are broken");
        Ok(())
    }
}
