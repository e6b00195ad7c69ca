//! One device: its context, its memory figures, and the accounts of its memory.

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

/// The size of a context as seen on an H200, for lack of a measurement.
const USUAL_CONTEXT: Bytes = Bytes::mib(523);
/// Growth of the device's use within this range counts as the new context.
const PLAUSIBLE_CONTEXT: std::ops::Range<Bytes> = Bytes::mib(16)..Bytes::gib(4);

#[derive(Debug)]
pub(crate) struct Device {
    info: DeviceInfo,
    context_size: ContextSize,
    card: Option<Card>,
    rdma: bool,
    node: HostNode,
    /// Its PCI address.
    bus: Option<String>,
    /// CPUs of that node.
    near_cpus: Vec<usize>,
    accounts: Mutex<Accounts>,
    /// Memory of this process there beside its extents, as of the latest survey.
    overhead: Mutex<Bytes>,
    /// The memory of processes, as of the latest survey that NVML answered.
    process_use: Mutex<ProcessUse>,
    contexts: Mutex<Contexts>,
    /// Copies from the host that were requested and have not ended.
    inbound_copies: AtomicUsize,
    /// Bytes of host memory that are mapped there. The atomic orders nothing else.
    host_mapped: AtomicU64,
    /// While a process has one memory descriptor open, making another takes 20 us, else 570.
    _sentinel: (OwnedFd, Physical),
    /// After everything that needs it.
    context: Arc<Context>,
}

/// The memory of processes, by NVML's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcessUse {
    /// This process, if it is listed now. The value of an earlier survey belongs to other accounts.
    own_use: Option<Bytes>,
    /// Contexts of clients, and of all other processes.
    clients: Bytes,
    other_contexts: Bytes,
    /// Of clients.
    contexts: u32,
}

/// The result of a survey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survey {
    /// Memory that neither the driver's extents nor any context explains: awaited extents, and other programs.
    pub(crate) others: Bytes,
    /// Contexts of processes that are not clients.
    pub(crate) other_contexts: Bytes,
    /// Of clients.
    pub(crate) contexts: u32,
    /// The most that awaited extents can have in use, if the list of processes tells.
    pub(crate) held_max: Option<Bytes>,
}

/// Bytes of the host are on their way to the device while this lives. The atomic orders nothing else.
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
    /// Makes the context, and measures its size.
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
        let node = numa::for_host_memory(nodes, numa::nearest(api, ordinal));
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
        // Finds memory that is in use already, for example by clients of an earlier daemon.
        let (mut accounts, survey) = device.survey(&[])?;
        accounts.apply_survey(Instant::now(), survey.others, survey.held_max);
        drop(accounts);
        Ok(device)
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The nearest host node.
    pub(crate) fn node(&self) -> HostNode {
        self.node
    }

    /// Its PCI address, if it has one.
    pub(crate) fn bus(&self) -> Option<&str> {
        self.bus.as_deref()
    }

    /// Keeps the calling thread on CPUs of that node, see [`numa::run_on`].
    pub(crate) fn run_near(&self) {
        numa::run_on(&self.near_cpus);
    }

    pub(crate) fn context_size(&self) -> ContextSize {
        self.context_size
    }

    pub(crate) fn has_nvml(&self) -> bool {
        self.card.as_ref().and_then(Card::used).is_some()
    }

    /// Clients with a context, as of the latest survey.
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

    /// Records that so much host memory is mapped there.
    pub(crate) fn add_host_mapping(&self, size: Bytes) {
        self.host_mapped.fetch_add(size.get(), Ordering::Relaxed);
    }

    /// Records that so much is unmapped.
    pub(crate) fn remove_host_mapping(&self, size: Bytes) {
        self.host_mapped.fetch_sub(size.get(), Ordering::Relaxed);
    }

    /// The device's page tables for host memory, which the list of processes does not show: an entry for each
    /// page of the CPU, 2 MiB a GiB on an H200.
    fn host_tables(&self) -> Bytes {
        const ENTRY: u64 = 8;
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
        Bytes::new(self.host_mapped.load(Ordering::Relaxed) / (page / ENTRY))
    }

    /// Creates physical memory, without entering it in the accounts.
    pub(crate) fn physical(&self, size: Bytes) -> Result<Physical, CudaError> {
        Physical::create(self.context.api(), self.context.device(), size, self.rdma)
    }

    /// Every change of the accounts is complete before any code could panic, so a poisoned lock is still good.
    ///
    /// A thread that creates memory holds this lock and enters the memory before unlocking. So no survey counts
    /// it as another program's.
    pub(crate) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device memory in use beside the driver's live extents.
    pub(crate) fn used_beside_live(&self, accounts: &Accounts) -> Result<Bytes, CudaError> {
        Ok(self.used()?.saturating_sub(accounts.live()))
    }

    fn used(&self) -> Result<Bytes, CudaError> {
        match self.card.as_ref().and_then(Card::used) {
            Some(used) => Ok(used),
            None => self.context.memory().map(|(free, total)| total.saturating_sub(free)),
        }
    }

    /// Surveys the device. Returns the accounts locked, as they were at that moment.
    pub(crate) fn survey(&self, clients: &[u32]) -> Result<(MutexGuard<'_, Accounts>, Survey), CudaError> {
        let before = self.accounts().revision();
        // Listing takes time, and must not delay the creation of extents.
        let processes = self.card.as_ref().map_or_else(Vec::new, Card::processes);
        let accounts = self.accounts();
        let is_unchanged = before.is_some() && accounts.revision() == before;
        let used = self.used()?;
        // Figures of different moments tell nothing about small extents.
        let unlisted = is_unchanged.then(|| self.unlisted(&processes, used)).flatten();
        let (process_use, held_max) = self.process_use(&processes, clients, (&accounts, unlisted));
        let mut overhead = self.overhead.lock().unwrap_or_else(PoisonError::into_inner);
        // The listed memory of this process is compared only with the accounts of the same moment.
        if let Some(own_use) = process_use.own_use.filter(|_| is_unchanged) {
            *overhead = own_use.saturating_sub(accounts.live()).saturating_sub(accounts.held_by_daemon());
        }
        let explained =
            sum([*overhead, self.host_tables(), process_use.clients, process_use.other_contexts].into_iter());
        let survey = Survey {
            others: used.saturating_sub(accounts.live()).saturating_sub(explained),
            other_contexts: process_use.other_contexts,
            contexts: process_use.contexts,
            held_max,
        };
        Ok((accounts, survey))
    }

    /// Learns how much memory processes have before an extent is released: a process that keeps it will have more.
    /// Takes 0.2 ms.
    pub(crate) fn learn_contexts(&self) {
        let before = self.accounts().revision();
        let processes = self.card.as_ref().map_or_else(Vec::new, Card::processes);
        let accounts = self.accounts();
        let is_known =
            before.is_some() && accounts.revision() == before && accounts.smallest_awaited().is_none();
        if let Some(unlisted) =
            self.used().ok().filter(|_| is_known).and_then(|used| self.unlisted(&processes, used))
        {
            self.contexts.lock().unwrap_or_else(PoisonError::into_inner).learn(&processes, unlisted);
        }
    }

    /// Use that neither a listed process nor a page table for host memory explains. `None` if the list does not have
    /// this process, and so may lack others.
    fn unlisted(&self, processes: &[(u32, Bytes)], used: Bytes) -> Option<Bytes> {
        own_use(processes)?;
        let listed = sum(processes.iter().map(|(_, used)| *used));
        Some(used.saturating_sub(listed).saturating_sub(self.host_tables()))
    }

    /// The size of the daemon's own context, which grows with use, as a client's does.
    fn context_max(&self) -> Bytes {
        let overhead = *self.overhead.lock().unwrap_or_else(PoisonError::into_inner);
        self.info.context.max(overhead.saturating_sub(GRANULARITY))
    }

    /// Also returns the most that awaited extents can have in use, if the list tells. `unlisted`: the use that the list
    /// does not explain, if it fits these accounts.
    fn process_use(
        &self,
        processes: &[(u32, Bytes)],
        clients: &[u32],
        (accounts, unlisted): (&Accounts, Option<Bytes>),
    ) -> (ProcessUse, Option<Bytes>) {
        // A list without this process, which has a context, is from another pid namespace, or empty. A list
        // that fails once must not make the contexts of clients look like memory that comes and goes.
        let mut latest = self.process_use.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own_use) = own_use(processes) else {
            return (ProcessUse { own_use: None, ..*latest }, None);
        };
        let mut process_use = ProcessUse { own_use: Some(own_use), ..ProcessUse::default() };
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let smallest = accounts.smallest_awaited();
        if let Some(unlisted) = unlisted.filter(|_| smallest.is_none()) {
            contexts.learn(processes, unlisted);
        }
        let others = || processes.iter().filter(|(pid, _)| *pid != process::id()).copied();
        let held_max = unlisted.and_then(|unlisted| contexts.held_max(others(), unlisted));
        let max = self.context_max();
        for entry in others() {
            let context = contexts.size_of(entry, max, smallest);
            if clients.contains(&entry.0) {
                process_use.clients = process_use.clients.saturating_add(context);
                process_use.contexts = process_use.contexts.saturating_add(1);
            } else {
                process_use.other_contexts = process_use.other_contexts.saturating_add(context);
            }
        }
        *latest = process_use;
        (process_use, held_max)
    }
}

fn own_use(processes: &[(u32, Bytes)]) -> Option<Bytes> {
    processes.iter().find(|(pid, _)| *pid == process::id()).map(|(_, used)| *used)
}
