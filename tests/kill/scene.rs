//! A daemon with survivors, and what there is while nobody else is.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use anyhow::{Context as _, Result, ensure};
use vramd_proto::v1::DrainRequest;
use vramd_tests::{
    Config, Daemon,
    config::Revocation,
    proc,
    victim::Victim,
    wait::{soon, until},
};

use crate::{plan::TENANTS, survivors::Survivors};

pub(crate) struct Scene {
    pub(crate) stage: Stage,
    pub(crate) survivors: Survivors,
    /// `tenant/name` of what victims attach.
    pub(crate) target: String,
    /// Of the daemon with the survivors.
    before: Trace,
    /// The daemon's descriptors before anybody came, by kind.
    fds_alone: BTreeMap<String, usize>,
}

/// What cases share.
pub(crate) struct Stage {
    pub(crate) daemon: Daemon,
    /// The program.
    pub(crate) victim: PathBuf,
    uuid: String,
    /// One drain at a time.
    drains: Mutex<()>,
}

/// The node is drained as long as it lives.
pub(crate) struct Draining<'a> {
    daemon: &'a Daemon,
    _one: MutexGuard<'a, ()>,
}

/// All that somebody could leave behind.
#[derive(Clone, Debug, PartialEq)]
struct Trace {
    /// Held, reserved and unreturned by tenant, device and tier.
    charged: BTreeMap<(String, String, i32), [u64; 3]>,
    /// Held, unreturned and unbrokered.
    devices: Vec<[u64; 3]>,
    sessions: BTreeSet<u64>,
    allocations: BTreeSet<u64>,
    fds_in_flight: u32,
    /// Device memory that any process has open or maps.
    memory: BTreeSet<String>,
    /// The daemon's, by kind.
    fds: BTreeMap<String, usize>,
}

impl Scene {
    /// With that going on all the time.
    pub(crate) fn new(revocations: Vec<Revocation>) -> Self {
        // What survivors hold is fenced too, and held on to.
        let mut config = Config::devices(&["32GiB"])
            .limit("survey_interval_ms = 100")
            .limit("revoke_answer_timeout_ms = 1000");
        config.revocations = revocations;
        for (uid, tenant) in TENANTS {
            config = config.tenant(uid, tenant);
        }
        let daemon = Daemon::start(&config);
        let victim = Victim::install(&daemon.sockets()).expect("the program can be copied");
        let books = daemon.books();
        let uuid = books.devices[0].device.clone().expect("a row has its device").uuid;
        let stage = Stage { daemon, victim, uuid, drains: Mutex::default() };
        let fds_alone = proc::fds_by_kind(stage.daemon.pid());
        let mut survivors = Survivors::new(&stage.daemon);
        // What is made once, by the first call of each, is made now.
        survivors.live_until(&AtomicBool::new(true));
        let target = survivors.target().to_owned();
        until("all packets are answered", || stage.daemon.books().node.fds_in_flight == 0);
        let before = Trace::take(&stage);
        Self { stage, survivors, target, before, fds_alone }
    }

    pub(crate) fn split(&mut self) -> (&mut Survivors, &Stage) {
        (&mut self.survivors, &self.stage)
    }

    /// Whether nothing is left of anybody but the survivors.
    pub(crate) fn is_as_before(&self) -> Result<()> {
        self.before.comes_again(&self.stage)
    }

    /// The survivors leave, and then there is nothing, and no descriptor more than before they came.
    pub(crate) fn end(self) -> Result<()> {
        let Self { stage, survivors, fds_alone, .. } = self;
        survivors.leave();
        let nothing = Trace {
            charged: BTreeMap::new(),
            devices: vec![[0; 3]],
            sessions: BTreeSet::new(),
            allocations: BTreeSet::new(),
            fds_in_flight: 0,
            memory: BTreeSet::new(),
            fds: fds_alone,
        };
        nothing.comes_again(&stage)
    }
}

impl Stage {
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
        let books = stage.daemon.books();
        let quotas = books.quotas.iter().map(|row| {
            let key = (row.tenant.clone(), row.device.clone(), row.tier);
            (key, [row.held_bytes, row.reserved_bytes, row.unreturned_bytes])
        });
        let devices = books.devices.iter();
        Self {
            charged: quotas.filter(|(_, bytes)| *bytes != [0; 3]).collect(),
            devices: devices
                .map(|row| [row.held_bytes, row.unreturned_bytes, row.unbrokered_bytes])
                .collect(),
            sessions: books.sessions.iter().map(|row| row.session_id).collect(),
            allocations: books.allocations.iter().map(|row| row.allocation_id).collect(),
            fds_in_flight: books.node.fds_in_flight,
            memory: proc::memory_of(&stage.uuid),
            fds: proc::fds_by_kind(stage.daemon.pid()),
        }
    }

    /// Connections end a moment after their sessions, so it is looked at again and again. Fewer descriptors are fine.
    fn comes_again(&self, stage: &Stage) -> Result<()> {
        let mut now = Self::take(stage);
        let came = soon("it is as it was", || {
            now = Self::take(stage);
            let alike = Self { fds: self.fds.clone(), ..now.clone() } == *self;
            alike && now.fds.iter().all(|(kind, count)| Some(count) <= self.fds.get(kind))
        });
        came.with_context(|| format!("something is left\n  before: {self:?}\n  now: {now:?}"))?;
        let violations = stage.daemon.books().node.invariant_violations;
        ensure!(violations == 0, "{violations} invariants are broken");
        Ok(())
    }
}
