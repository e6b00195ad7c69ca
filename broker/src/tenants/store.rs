//! Keeps what is stored of tenants, and applies tenants files.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use broker_core::{Event, OperatorRequest, Refusal, StoredQuotas};
use thiserror::Error;
use tokio::sync::OwnedMutexGuard;
use vramd_types::printable_within;

use super::{
    Change, Node, Plan,
    node::Capacities,
    plan::{self, Step},
};
use crate::{
    config::{ConfigError, ErrorLocation, TenantsFile},
    platform::tenant_rules::{Namespaced, Rule, Rules, SharedRules},
    reactor::{Inbox, QuotaWriter},
    state::{Applied, Stored},
    surroundings::Warning,
};

/// Maximum bytes of the source of a file that the daemon keeps.
const SOURCE_BYTES_MAX: usize = 256;

/// Writes what is stored to disk. Blocks.
type Write = dyn Fn(&Stored) -> Result<(), String> + Send + Sync;

/// The stored quotas, standings and rules, and the only way to change them. Clones are the same.
///
/// The core makes one change of a quota at a time, and has each stored before it applies. A tenants file is many such
/// changes. While they are made, no other change is; nothing is written until all are made, and then all at once. So a
/// daemon that ends meanwhile has the values of before.
#[derive(Clone)]
pub struct TenantStore(Arc<Shared>);

struct Shared {
    inbox: Inbox,
    node: Node,
    /// The rules of the configuration, which come after those of the file.
    configured: Vec<Rule>,
    rules: SharedRules,
    write: Box<Write>,
    turn: Arc<tokio::sync::Mutex<()>>,
    stored: Mutex<Stored>,
    /// A tenants file is being applied, so that nothing is written yet.
    is_held_back: AtomicBool,
    /// Why the file was refused that SIGHUP last had the daemon read.
    refused: RwLock<Option<String>>,
}

/// The right to change quotas and standings. One holder at a time.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// The tenants file that was applied last, and how far what is stored is from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    pub source: String,
    /// When it was applied, in seconds since 1970.
    pub applied_s: u64,
    /// Values that differ from the file, because an operator has set them since.
    pub differences: usize,
    /// Why a later content of the file was refused; empty if it was not.
    pub refused: String,
}

/// Why a tenants file was not applied. The values of before are in force, but for `HalfRestored`.
#[derive(Debug, Error)]
pub enum ApplyError {
    #[error("{path}:{location}", path = .0, location = .1)]
    Wrong(String, ErrorLocation),
    #[error(transparent)]
    File(#[from] ConfigError),
    #[error(transparent)]
    Rules(#[from] Namespaced),
    #[error("{0}")]
    Refused(Refusal),
    #[error("{refusal}. The values of before could not be restored for {lost}")]
    HalfRestored { refusal: Refusal, lost: String },
    #[error("the daemon is stopping")]
    Stopping,
}

impl TenantStore {
    pub fn new(
        inbox: Inbox,
        node: Node,
        configured: Vec<Rule>,
        stored: Stored,
        write: impl Fn(&Stored) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let rules = SharedRules::new(rules_in_force(&stored, &configured));
        Self(Arc::new(Shared {
            inbox,
            node,
            configured,
            rules,
            write: Box::new(write),
            turn: Arc::default(),
            stored: Mutex::new(stored),
            is_held_back: AtomicBool::new(false),
            refused: RwLock::default(),
        }))
    }

    /// The rules that name the tenant of a new session.
    pub fn rules(&self) -> SharedRules {
        self.0.rules.clone()
    }

    /// Stores what the core has decided.
    pub fn writer(&self) -> QuotaWriter {
        let this = self.clone();
        Arc::new(move |quotas: &StoredQuotas| {
            let stored = Stored { quotas: quotas.clone(), ..this.stored().clone() };
            if !this.0.is_held_back.load(Ordering::SeqCst) {
                (this.0.write)(&stored)?;
            }
            this.stored().quotas = stored.quotas;
            Ok(())
        })
    }

    /// Waits until no other change is under way.
    pub(crate) async fn turn(&self) -> Turn {
        Arc::clone(&self.0.turn).lock_owned().await
    }

    /// Returns the last applied file; `None` if there never was one.
    pub fn drift(&self) -> Option<Drift> {
        // While a file is applied, the values of before are the ones on disk, and the others are about to be.
        let stored = self.stored().clone();
        let differences = plan::drift(&stored).len();
        let refused = self.0.refused.read().unwrap_or_else(PoisonError::into_inner).clone();
        let applied = stored.applied?;
        let refused = refused.unwrap_or_default();
        Some(Drift { source: applied.source, applied_s: applied.at_s, differences, refused })
    }

    /// Reads the tenants file of the configuration again, and applies it.
    pub async fn reload(&self, path: &Path) {
        let source = path.display().to_string();
        let read = path.to_owned();
        let file = tokio::task::spawn_blocking(move || TenantsFile::load(&read)).await;
        let applied = match file {
            Ok(Ok(file)) => {
                self.apply_file(file, source.clone(), rustix::process::geteuid().as_raw(), false).await
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ApplyError::Stopping),
        };
        match applied {
            Ok(changes) => {
                self.record_refused(None);
                tracing::info!(source, changes = changes.len(), "tenants file read again");
            }
            Err(ApplyError::Stopping) => {}
            Err(error) => {
                let problem = error.to_string();
                tracing::warn!(source, problem, "tenants file refused: the values of before stay in force");
                self.record_refused(Some(problem));
            }
        }
    }

    /// Records why a later content of the file was refused; `None` once one is applied.
    fn record_refused(&self, problem: Option<String>) {
        *self.0.refused.write().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Applies the content of a tenants file, or says what it would change. `uid` is the operator's.
    pub async fn apply(
        &self,
        content: Vec<u8>,
        source: &str,
        uid: u32,
        dry_run: bool,
    ) -> Result<Vec<Change>, ApplyError> {
        let source = match printable_within(source, SOURCE_BYTES_MAX) {
            source if source.is_empty() => format!("a request of uid {uid}"),
            source => source,
        };
        let parsed = tokio::task::spawn_blocking(move || TenantsFile::parse_bytes(&content)).await;
        let file = parsed.map_err(|_| ApplyError::Stopping)?;
        let file = file.map_err(|location| ApplyError::Wrong(source.clone(), location))?;
        let changes = self.apply_file(file, source, uid, dry_run).await?;
        if !dry_run {
            self.record_refused(None);
        }
        Ok(changes)
    }

    async fn apply_file(
        &self,
        file: TenantsFile,
        source: String,
        uid: u32,
        dry_run: bool,
    ) -> Result<Vec<Change>, ApplyError> {
        let this = self.clone();
        // In a task of its own: a caller that leaves does not end it half-way.
        let work = tokio::spawn(async move { this.apply_in_turn(&file, source, uid, dry_run).await });
        work.await.unwrap_or(Err(ApplyError::Stopping))
    }

    async fn apply_in_turn(
        &self,
        file: &TenantsFile,
        source: String,
        uid: u32,
        dry_run: bool,
    ) -> Result<Vec<Change>, ApplyError> {
        let _turn = self.turn().await;
        let capacities = self.0.inbox.read(Capacities::now).await.ok_or(ApplyError::Stopping)?;
        let stored = self.stored().clone();
        let plan = Plan::new(file, source.clone(), &stored, &self.0.node, &capacities)
            .map_err(|location| ApplyError::Wrong(source, location))?;
        let rules = all_rules(&plan.applied.rules, &self.0.configured);
        rules.check_namespace()?;
        if dry_run || plan.is_nothing() {
            return Ok(plan.changes);
        }
        self.0.is_held_back.store(true, Ordering::SeqCst);
        let carried_out = self.carry_out(&plan, uid).await;
        self.0.is_held_back.store(false, Ordering::SeqCst);
        carried_out?;
        log(&plan.changes, &plan.applied.source, Some(uid));
        Warning::of_rules(&rules).iter().for_each(Warning::log);
        self.0.rules.replace(rules);
        Ok(plan.changes)
    }

    /// Makes the changes of a plan one by one, and writes the result. If the core refuses one, or the write fails, takes
    /// back the others.
    async fn carry_out(&self, plan: &Plan, uid: u32) -> Result<(), ApplyError> {
        let mut done: Vec<Step> = Vec::new();
        let mut refusal = None;
        for step in plan.steps(&self.0.node) {
            match self.submit(step.request(), uid).await? {
                Ok(()) => done.push(step),
                Err(why) => {
                    refusal = Some(why);
                    break;
                }
            }
        }
        if refusal.is_none() {
            let applied = Some(Applied { at_s: now_s(), ..plan.applied.clone() });
            let stored = Stored { quotas: self.stored().quotas.clone(), applied };
            match self.write(stored.clone()).await {
                Ok(()) => *self.stored() = stored,
                Err(problem) => refusal = Some(Refusal::StoreFailed { problem }),
            }
        }
        let Some(refusal) = refusal else { return Ok(()) };
        let mut lost = Vec::new();
        for step in done.iter().rev().map(|step| plan.reverse(step)) {
            if let Err(why) = self.submit(step.request(), uid).await? {
                tracing::error!(%step, %why, "a value of before could not be restored");
                lost.push(step.to_string());
            }
        }
        if lost.is_empty() {
            return Err(ApplyError::Refused(refusal));
        }
        let stored = self.stored().clone();
        if let Err(problem) = self.write(stored).await {
            tracing::error!(problem, "the quotas in force are not on disk");
        }
        Err(ApplyError::HalfRestored { refusal, lost: lost.join(", ") })
    }

    /// Has the core make one change.
    async fn submit(&self, request: OperatorRequest, uid: u32) -> Result<Result<(), Refusal>, ApplyError> {
        let asked = self.0.inbox.operator_request(|call| Event::Operator { call, uid, key: None, request });
        let answer = match asked {
            Ok(answer) => answer.await.map_err(|_| ApplyError::Stopping)?,
            Err(refusal) => Err(refusal),
        };
        Ok(answer.map(drop))
    }

    async fn write(&self, stored: Stored) -> Result<(), String> {
        let this = self.clone();
        let written = tokio::task::spawn_blocking(move || (this.0.write)(&stored)).await;
        written.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.0.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TenantStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantStore").field("stored", &self.stored()).finish_non_exhaustive()
    }
}

/// Logs the changes of an applied file. Without an operator the daemon applied it at its start.
pub fn log(changes: &[Change], source: &str, uid: Option<u32>) {
    for Change { tenant, field, place, before, after } in changes {
        let (tier, device) = place.as_ref().map(|(tier, device)| (tier.name(), device.as_str())).unzip();
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".to_owned());
        let (before, after) = (value(before), value(after));
        tracing::info!(tenant, field, tier, device, before, after, "a tenants file changes a value");
    }
    tracing::info!(source, uid, changes = changes.len(), "tenants file applied");
}

/// The rules of the tenants file that was applied last, and after them those of the configuration.
pub fn rules_in_force(stored: &Stored, configured: &[Rule]) -> Rules {
    all_rules(stored.applied.as_ref().map_or(&[], |applied| &applied.rules), configured)
}

fn all_rules(of_file: &[Rule], configured: &[Rule]) -> Rules {
    Rules::new([of_file, configured].concat())
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
