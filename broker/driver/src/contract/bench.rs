//! A driver under test: submits orders and waits for answers.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use vramd_types::{Bytes, CopyId, DeviceIndex, ExtentId, HostNode};

use super::{Access, Harness, Importer};
use crate::{
    Completion, CopyClass, CopyError, DiskConfig, DiskFacts, Driver, DriverError, Export, ExtentKind,
    FreePinnedFacts, PinPace, Submission, sim::Fault,
};

/// No case takes long; this only turns a hang into a failure.
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) const FIRST: DeviceIndex = DeviceIndex(0);
pub(super) const SECOND: DeviceIndex = DeviceIndex(1);
pub(super) const SMALL: Bytes = Bytes::mib(2);

pub(super) struct Bench<'a> {
    harness: &'a dyn Harness,
    driver: Arc<dyn Driver>,
    completions: Receiver<Completion>,
    /// Completions that came before the awaited one.
    early: VecDeque<Completion>,
}

pub(super) struct Extent {
    pub(super) id: ExtentId,
    pub(super) device: DeviceIndex,
    pub(super) size: Bytes,
    pub(super) export: Export,
}

/// Ids are never reused by any driver of this process.
pub(super) fn new_id() -> ExtentId {
    static LAST: AtomicU64 = AtomicU64::new(0);
    ExtentId::from_raw(LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Bytes that differ from one seed to another and don't repeat at any power of two.
pub(super) fn pattern(seed: u8, length: usize) -> Vec<u8> {
    let once: Vec<_> = (0..251_u8).map(|byte| byte ^ seed).collect();
    // In a build for tests a byte at a time would be most of the suite's time.
    let mut bytes = once.repeat(length.div_ceil(once.len()));
    bytes.truncate(length);
    bytes
}

impl<'a> Bench<'a> {
    pub(super) fn new(harness: &'a dyn Harness) -> Self {
        Self::with_faults(harness, Vec::new())
    }

    pub(super) fn with_faults(harness: &'a dyn Harness, faults: Vec<Fault>) -> Self {
        let (driver, completions) = harness.open(faults);
        Self { harness, driver, completions, early: VecDeque::new() }
    }

    /// With extents on disk in that folder.
    pub(super) fn with_disk(harness: &'a dyn Harness, disk: DiskConfig, faults: Vec<Fault>) -> Self {
        Self::with_files(harness, Some(disk), faults)
    }

    /// With ranges of files, and a directory if one is given.
    pub(super) fn with_files(harness: &'a dyn Harness, disk: Option<DiskConfig>, faults: Vec<Fault>) -> Self {
        let opened = harness.open_with_disk(disk, faults);
        let (driver, completions) = opened.unwrap_or_else(|error| panic!("open with a disk: {error}"));
        Self { harness, driver, completions, early: VecDeque::new() }
    }

    pub(super) fn disk(&self) -> Option<&DiskFacts> {
        self.driver.disk()
    }

    /// Ends the driver, and fails if there are completions that no case waited for.
    pub(super) fn finish(self) {
        let harness = self.harness;
        let mut left = self.end();
        harness.quiet();
        left.retain(|completion| !matches!(completion, Completion::Returned { .. }));
        assert!(left.is_empty(), "unexpected: {left:?}");
    }

    /// Ends the driver, and returns all completions that were not waited for.
    pub(super) fn end(self) -> Vec<Completion> {
        drop(self.driver);
        // The channel ends when the driver has dropped the sink.
        self.early.into_iter().chain(self.completions).collect()
    }

    pub(super) fn total(&self, device: DeviceIndex) -> Bytes {
        self.driver.devices()[usize::from(device.0)].total
    }

    pub(super) fn submit(&self, submission: Submission) {
        self.driver.submit(submission);
    }

    pub(super) fn wait<T>(&mut self, pick: impl Fn(&Completion) -> Option<T>) -> T {
        if let Some(at) = self.early.iter().position(|completion| pick(completion).is_some()) {
            let picked = self.early.remove(at).and_then(|completion| pick(&completion));
            return picked.expect("it was there a line ago");
        }
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.completions.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(completion) => match pick(&completion) {
                    Some(picked) => return picked,
                    None => self.early.push_back(completion),
                },
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no answer in {DEADLINE:?}; others: {:?}", self.early)
                }
                Err(RecvTimeoutError::Disconnected) => panic!("the driver has dropped its sink"),
            }
        }
    }

    pub(super) fn supports(&self, kind: ExtentKind) -> bool {
        self.driver.supports(kind)
    }

    pub(super) fn create(&mut self, device: DeviceIndex, size: Bytes) -> Result<Extent, DriverError> {
        self.create_kind(device, size, ExtentKind::Movable)
    }

    pub(super) fn create_kind(
        &mut self,
        device: DeviceIndex,
        size: Bytes,
        kind: ExtentKind,
    ) -> Result<Extent, DriverError> {
        let id = new_id();
        self.submit(Submission::Create { extent: id, device, size, kind });
        self.created(id).map(|export| Extent { id, device, size, export })
    }

    pub(super) fn created(&mut self, id: ExtentId) -> Result<Export, DriverError> {
        self.wait(|completion| match completion {
            Completion::Created { extent, result } if *extent == id => Some(result.clone()),
            _ => None,
        })
    }

    pub(super) fn create_disk(&mut self, size: Bytes) -> Result<ExtentId, DriverError> {
        let id = new_id();
        self.submit(Submission::CreateDisk { extent: id, size });
        self.created_on_disk(id).map(|()| id)
    }

    pub(super) fn created_on_disk(&mut self, id: ExtentId) -> Result<(), DriverError> {
        self.wait(|completion| match completion {
            Completion::DiskCreated { extent, result } if *extent == id => Some(result.clone()),
            _ => None,
        })
    }

    /// A small extent on the first device.
    pub(super) fn make(&mut self) -> Extent {
        self.create(FIRST, SMALL).expect("there is room for 2 MiB")
    }

    pub(super) fn host_node(&self) -> HostNode {
        self.driver.host_node(FIRST)
    }

    /// In the host, on the node nearest to the first device, through which importers access it.
    pub(super) fn create_host(&mut self, size: Bytes) -> Result<Extent, DriverError> {
        self.create_host_as(size, true)
    }

    pub(super) fn create_host_as(&mut self, size: Bytes, zeroed: bool) -> Result<Extent, DriverError> {
        let id = new_id();
        self.submit(Submission::CreateHost { extent: id, node: self.host_node(), size, zeroed });
        self.created(id).map(|export| Extent { id, device: FIRST, size, export })
    }

    pub(super) fn make_host(&mut self) -> Extent {
        self.create_host(SMALL).expect("there is room for 2 MiB")
    }

    /// The free memory once nothing is left to pin, or the problem.
    pub(super) fn pin_ahead(
        &mut self,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
        pace: PinPace,
    ) -> (Bytes, Option<DriverError>) {
        self.submit(Submission::PinAhead { node: self.host_node(), size, piece, pieces_max, pace });
        self.wait(|completion| match completion {
            Completion::PinnedAhead { free, problem, .. } => Some((*free, problem.clone())),
            _ => None,
        })
    }

    /// Waits until the free memory is as expected. The driver reports no background work.
    pub(super) fn free_pinned_until(
        &self,
        what: &str,
        is_right: impl Fn(&FreePinnedFacts) -> bool,
    ) -> FreePinnedFacts {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let of_node = |it: &FreePinnedFacts| it.node == self.host_node();
            let free_pinned =
                self.driver.free_pinned().into_iter().find(of_node).expect("the node pins memory ahead");
            if is_right(&free_pinned) {
                return free_pinned;
            }
            assert!(Instant::now() < deadline, "{what}: {free_pinned:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Another process that maps the extent and has closed its descriptor.
    pub(super) fn mapped(&self, extent: &Extent, access: Access) -> Box<dyn Importer> {
        let mut importer = self.importer();
        importer.import(&extent.export, extent.device, extent.size);
        importer.map(access);
        importer.close();
        importer
    }

    pub(super) fn importer(&self) -> Box<dyn Importer> {
        self.harness.importer()
    }

    /// Releases the extent, and returns whether its memory returned at once. If not, the reason is no process
    /// that was just starting.
    pub(super) fn release(&mut self, extent: Extent) -> bool {
        let Extent { id, export, .. } = extent;
        drop(export);
        let returned = self.release_id(id);
        self.harness.quiet();
        returned
    }

    pub(super) fn release_id(&mut self, id: ExtentId) -> bool {
        self.submit(Submission::Release { extent: id });
        self.released(id)
    }

    pub(super) fn released(&mut self, id: ExtentId) -> bool {
        self.wait(|completion| match completion {
            Completion::Released { extent, returned } if *extent == id => Some(*returned),
            _ => None,
        })
    }

    /// Releases the extent, and waits until its memory has returned.
    pub(super) fn free(&mut self, extent: Extent) {
        let id = extent.id;
        if !self.release(extent) {
            self.await_return(id);
        }
    }

    /// Surveys until a released extent has returned.
    pub(super) fn await_return(&mut self, id: ExtentId) {
        let deadline = Instant::now() + DEADLINE;
        while !self.check_returned(id) {
            assert!(Instant::now() < deadline, "{id} has not come back in {DEADLINE:?}");
        }
    }

    /// Surveys, and returns whether the extent has been reported as returned by then.
    pub(super) fn check_returned(&mut self, id: ExtentId) -> bool {
        self.survey(FIRST);
        let reported = |it: &Completion| matches!(it, Completion::Returned { extent } if *extent == id);
        let at = self.early.iter().position(reported);
        at.and_then(|at| self.early.remove(at)).is_some()
    }

    /// Surveys, and returns the unbrokered memory.
    pub(super) fn survey(&mut self, of: DeviceIndex) -> Bytes {
        self.survey_beside(of, &[]).0
    }

    /// Surveys until the unbrokered memory is as expected, for a while at most. The memory of a process returns
    /// soon after its end, not at once.
    pub(super) fn survey_until(&mut self, of: DeviceIndex, is_right: impl Fn(&Self, Bytes) -> bool) -> Bytes {
        const SOON: Duration = Duration::from_secs(5);
        let deadline = Instant::now() + SOON;
        loop {
            let unbrokered = self.survey(of);
            if is_right(self, unbrokered) || Instant::now() > deadline {
                return unbrokered;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Surveys, and returns the unbrokered memory and how many of these clients have a context.
    pub(super) fn survey_beside(&mut self, of: DeviceIndex, clients: &[u32]) -> (Bytes, u32) {
        self.submit(Submission::Survey { device: of, clients: clients.to_vec() });
        self.wait(|completion| match completion {
            Completion::Surveyed { device, unbrokered, contexts, .. } if *device == of => {
                Some((*unbrokered, *contexts))
            }
            _ => None,
        })
    }

    /// The size of a context of another process; zero if there are no contexts.
    pub(super) fn context(&self) -> Bytes {
        self.driver.devices()[0].context
    }

    /// Whether others hold so much more than before. If other programs use the device too, or its figures
    /// include contexts, at least that much is enough.
    pub(super) fn is_more_by(&self, before: Bytes, now: Bytes, more: Bytes) -> bool {
        let grown = now.saturating_sub(before);
        if self.harness.facts().exact_capacity { grown == more } else { grown >= more }
    }

    pub(super) fn digest(&mut self, spans: &[(ExtentId, Bytes)]) -> Result<[u8; 32], CopyError> {
        let of = new_id().get();
        self.submit(Submission::Digest { ticket: of, spans: spans.to_vec() });
        self.wait(|completion| match completion {
            Completion::Digested { ticket, result } if *ticket == of => Some(result.clone()),
            _ => None,
        })
    }

    pub(super) fn begin_by_id(&self, from: ExtentId, to: ExtentId, size: Bytes) -> CopyId {
        self.begin_as(CopyClass::Demand, (from, to), size)
    }

    pub(super) fn begin_as(&self, class: CopyClass, (from, to): (ExtentId, ExtentId), size: Bytes) -> CopyId {
        let copy = CopyId::from_raw(new_id().get());
        self.submit(Submission::Copy { copy, from, to, size, class });
        copy
    }

    pub(super) fn begin(&self, from: &Extent, to: &Extent, size: Bytes) -> CopyId {
        self.begin_by_id(from.id, to.id, size)
    }

    pub(super) fn copy_by_id(&mut self, from: ExtentId, to: ExtentId, size: Bytes) -> Result<(), CopyError> {
        let copy = self.begin_by_id(from, to, size);
        self.copied(copy)
    }

    pub(super) fn copied(&mut self, of: CopyId) -> Result<(), CopyError> {
        self.wait(|completion| match completion {
            Completion::Copied { copy, result } if *copy == of => Some(result.clone()),
            _ => None,
        })
    }

    /// The next copy that is reported as done.
    pub(super) fn next_copied(&mut self) -> CopyId {
        self.wait(|completion| match completion {
            Completion::Copied { copy, result: Ok(()) } => Some(*copy),
            _ => None,
        })
    }

    pub(super) fn copy(&mut self, from: &Extent, to: &Extent, size: Bytes) -> Result<(), CopyError> {
        let copy = self.begin(from, to, size);
        self.copied(copy)
    }

    pub(super) fn copied_bytes(&self, copy: CopyId) -> Option<Bytes> {
        self.driver.copied_bytes(copy)
    }
}
