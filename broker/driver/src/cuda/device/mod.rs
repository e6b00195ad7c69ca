//! One device: its context, its figures, and who has what of it.

pub(crate) mod accounts;
pub(crate) mod contexts;
pub(crate) mod memory;
pub(crate) mod numa;
pub(crate) mod nvml;

use std::{
    os::fd::OwnedFd,
    path::Path,
    process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use vramd_types::{Bytes, GRANULARITY, HostNode};

use crate::DeviceInfo;
use crate::cuda::{
    api::{Api, Context, CudaError, Ordinal, Physical},
    device::{
        accounts::{Accounts, sum},
        contexts::Contexts,
        nvml::Card,
    },
    start::{facts::ContextSize, probe},
};

/// What a context was seen to take on an H200, for want of a measurement.
const USUAL_CONTEXT: Bytes = Bytes::mib(523);
/// Between these a growth of the device's use is taken for our new context.
const PLAUSIBLE_CONTEXT: std::ops::Range<Bytes> = Bytes::mib(16)..Bytes::gib(4);

#[derive(Debug)]
pub(crate) struct Device {
    info: DeviceInfo,
    context_size: ContextSize,
    card: Option<Card>,
    rdma: bool,
    node: HostNode,
    /// Its place on the bus.
    bus: Option<String>,
    /// CPUs of that node.
    near_cpus: Vec<usize>,
    accounts: Mutex<Accounts>,
    /// What this process has there beside its extents, as of the latest look.
    overhead: Mutex<Bytes>,
    /// Who had what at the latest look that NVML answered.
    process_use: Mutex<ProcessUse>,
    contexts: Mutex<Contexts>,
    /// Copies from the host that were asked for and have not ended.
    inbound_copies: AtomicUsize,
    /// Bytes of the host that are mapped there. It orders nothing.
    host_mapped: AtomicU64,
    /// While one descriptor of memory is open in a process, making another takes 20 us, else 570.
    _sentinel: (OwnedFd, Physical),
    /// After all that needs it.
    context: Arc<Context>,
}

/// Who has what, by NVML's list of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcessUse {
    /// This process, if it is listed now: of an earlier look it is of other books.
    own_use: Option<Bytes>,
    /// What contexts take: of clients, and of all others.
    clients: Bytes,
    other_contexts: Bytes,
    /// Of clients.
    contexts: u32,
}

/// A look's result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survey {
    /// What neither our extents nor anybody's context explains: awaited extents and outsiders' memory.
    pub(crate) others: Bytes,
    /// Contexts of processes that are no clients.
    pub(crate) other_contexts: Bytes,
    /// Of clients.
    pub(crate) contexts: u32,
}

/// While it lives bytes of the host are on their way to the device. It orders nothing.
#[derive(Debug)]
pub(crate) struct InboundCopy(Arc<Device>);

impl InboundCopy {
    pub(crate) fn at(device: &Arc<Device>) -> Self {
        device.inbound_copies.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(device))
    }
}

impl Drop for InboundCopy {
    fn drop(&mut self) {
        self.0.inbound_copies.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Device {
    /// Makes the context, and measures what one takes.
    pub(crate) fn open(
        api: &Arc<Api>,
        ordinal: Ordinal,
        found: DeviceInfo,
        card: Option<Card>,
        nodes: &Path,
    ) -> Result<Self, CudaError> {
        let before = card.as_ref().and_then(Card::used);
        let context = Arc::new(Context::retain(api, ordinal)?);
        let after = card.as_ref().and_then(Card::used);
        let listed = card.as_ref().and_then(|card| own_use(&card.processes()));
        let grown = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        let (context_size, overhead) = match (listed, grown) {
            (Some(own_use), _) if !own_use.is_zero() => (ContextSize::Listed, own_use),
            (_, Some(grown)) if PLAUSIBLE_CONTEXT.contains(&grown) => (ContextSize::Grown, grown),
            _ => (ContextSize::Assumed, USUAL_CONTEXT),
        };
        let (_, total) = context.memory()?;
        let rdma = probe::rdma(api, ordinal);
        let sentinel = Physical::create(api, ordinal, GRANULARITY, rdma)?;
        let sentinel = (sentinel.export()?, sentinel);
        let node = numa::nearest(api, ordinal);
        let device = Self {
            info: DeviceInfo { total, context: overhead, ..found },
            context_size,
            card,
            rdma,
            node,
            bus: numa::bus(api, ordinal),
            near_cpus: numa::cpus_of(nodes, node),
            accounts: Mutex::default(),
            overhead: Mutex::new(overhead.saturating_add(GRANULARITY)),
            process_use: Mutex::default(),
            contexts: Mutex::default(),
            inbound_copies: AtomicUsize::new(0),
            host_mapped: AtomicU64::new(0),
            _sentinel: sentinel,
            context,
        };
        // Who is there already: what an earlier daemon's clients hold, say.
        let (mut accounts, survey) = device.survey(&[])?;
        accounts.apply_survey(Instant::now(), survey.others);
        drop(accounts);
        Ok(device)
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The piece of the host's memory that is nearest.
    pub(crate) fn node(&self) -> HostNode {
        self.node
    }

    /// Its place on the bus, if it has one.
    pub(crate) fn bus(&self) -> Option<&str> {
        self.bus.as_deref()
    }

    /// Keeps the calling thread there, see [`numa::stay_on`].
    pub(crate) fn run_near(&self) {
        numa::run_on(&self.near_cpus);
    }

    pub(crate) fn context_size(&self) -> ContextSize {
        self.context_size
    }

    pub(crate) fn has_nvml(&self) -> bool {
        self.card.as_ref().and_then(Card::used).is_some()
    }

    /// Clients that had a context at the latest look.
    pub(crate) fn contexts(&self) -> u32 {
        self.process_use.lock().unwrap_or_else(PoisonError::into_inner).contexts
    }

    pub(crate) fn lists_processes(&self) -> bool {
        self.card.as_ref().and_then(|card| own_use(&card.processes())).is_some()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether bytes of the host are on their way there.
    pub(crate) fn is_receiving(&self) -> bool {
        self.inbound_copies.load(Ordering::Relaxed) > 0
    }

    /// So much memory of the host is mapped there too.
    pub(crate) fn add_host_mapping(&self, size: Bytes) {
        self.host_mapped.fetch_add(size.get(), Ordering::Relaxed);
    }

    /// So much is no longer.
    pub(crate) fn remove_host_mapping(&self, size: Bytes) {
        self.host_mapped.fetch_sub(size.get(), Ordering::Relaxed);
    }

    /// What the device's page tables take for memory of the host, which the list of processes has nowhere: an entry a page
    /// of the CPU, 2 MiB a GiB on an H200.
    fn host_tables(&self) -> Bytes {
        const ENTRY: u64 = 8;
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
        Bytes::new(self.host_mapped.load(Ordering::Relaxed) / (page / ENTRY))
    }

    /// New physical memory, not entered anywhere.
    pub(crate) fn physical(&self, size: Bytes) -> Result<Physical, CudaError> {
        Physical::create(self.context.api(), self.context.device(), size, self.rdma)
    }

    /// Every change of the accounts is whole before anything could panic, so a poisoned lock is a good one.
    ///
    /// Who makes memory does so with this locked, and enters it before unlocking: so that a look never takes it for
    /// somebody else's.
    pub(crate) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is taken of the device beside our live extents.
    pub(crate) fn used_beside_live(&self, accounts: &Accounts) -> Result<Bytes, CudaError> {
        Ok(self.used()?.saturating_sub(accounts.live()))
    }

    fn used(&self) -> Result<Bytes, CudaError> {
        match self.card.as_ref().and_then(Card::used) {
            Some(used) => Ok(used),
            None => self.context.memory().map(|(free, total)| total.saturating_sub(free)),
        }
    }

    /// Looks around. The accounts are handed on as they were at that moment.
    pub(crate) fn survey(&self, clients: &[u32]) -> Result<(MutexGuard<'_, Accounts>, Survey), CudaError> {
        let before = self.accounts().revision();
        // Listing takes its time, and nobody should wait for it who makes extents.
        let processes = self.card.as_ref().map_or_else(Vec::new, Card::processes);
        let accounts = self.accounts();
        let is_unchanged = before.is_some() && accounts.revision() == before;
        let process_use = self.process_use(&processes, clients, (&accounts, is_unchanged));
        let mut overhead = self.overhead.lock().unwrap_or_else(PoisonError::into_inner);
        // What the list says of this process is compared with the books that it is of, and with no others.
        if let Some(own_use) = process_use.own_use.filter(|_| is_unchanged) {
            *overhead = own_use.saturating_sub(accounts.live()).saturating_sub(accounts.held_by_daemon());
        }
        let explained =
            sum([*overhead, self.host_tables(), process_use.clients, process_use.other_contexts].into_iter());
        let survey = Survey {
            others: self.used_beside_live(&accounts)?.saturating_sub(explained),
            other_contexts: process_use.other_contexts,
            contexts: process_use.contexts,
        };
        Ok((accounts, survey))
    }

    /// As much as ours takes, which grows by what is done there, as that of a client does.
    fn context_max(&self) -> Bytes {
        let overhead = *self.overhead.lock().unwrap_or_else(PoisonError::into_inner);
        self.info.context.max(overhead.saturating_sub(GRANULARITY))
    }

    /// `is_still`: the list is of the same books.
    fn process_use(
        &self,
        processes: &[(u32, Bytes)],
        clients: &[u32],
        (accounts, is_unchanged): (&Accounts, bool),
    ) -> ProcessUse {
        // A list without this process, which has a context, is one of another pid namespace, or none at all. One that fails
        // once must not make the contexts of clients look like memory that comes and goes.
        let mut latest = self.process_use.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own_use) = own_use(processes) else { return ProcessUse { own_use: None, ..*latest } };
        let mut process_use = ProcessUse { own_use: Some(own_use), ..ProcessUse::default() };
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let smallest = accounts.smallest_awaited();
        if smallest.is_none() && is_unchanged {
            contexts.learn(processes);
        }
        let max = self.context_max();
        for entry in processes.iter().filter(|(pid, _)| *pid != process::id()) {
            let context = contexts.size_of(*entry, max, smallest);
            if clients.contains(&entry.0) {
                process_use.clients = process_use.clients.saturating_add(context);
                process_use.contexts = process_use.contexts.saturating_add(1);
            } else {
                process_use.other_contexts = process_use.other_contexts.saturating_add(context);
            }
        }
        *latest = process_use;
        process_use
    }
}

fn own_use(processes: &[(u32, Bytes)]) -> Option<Bytes> {
    processes.iter().find(|(pid, _)| *pid == process::id()).map(|(_, used)| *used)
}
