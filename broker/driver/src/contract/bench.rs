//! A driver on the bench: submits and waits for the answer.

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
    FreePinnedFacts, Submission, sim::Fault,
};

/// Nothing here takes long; this only turns a hang into a failure.
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) const FIRST: DeviceIndex = DeviceIndex(0);
pub(super) const SECOND: DeviceIndex = DeviceIndex(1);
pub(super) const SMALL: Bytes = Bytes::mib(2);

pub(super) struct Bench<'a> {
    harness: &'a dyn Harness,
    driver: Arc<dyn Driver>,
    completions: Receiver<Completion>,
    /// Those that came before the one that was waited for.
    early: VecDeque<Completion>,
}

pub(super) struct Extent {
    pub(super) id: ExtentId,
    pub(super) device: DeviceIndex,
    pub(super) size: Bytes,
    pub(super) export: Export,
}

/// Ids are never used again, by no driver of this process.
pub(super) fn new_id() -> ExtentId {
    static LAST: AtomicU64 = AtomicU64::new(0);
    ExtentId::from_raw(LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Bytes that differ from one seed to another and don't repeat at any power of two.
pub(super) fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..251_u8).map(|byte| byte ^ seed).cycle().take(length).collect()
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

    /// With pieces of files, and a directory if one is given.
    pub(super) fn with_files(harness: &'a dyn Harness, disk: Option<DiskConfig>, faults: Vec<Fault>) -> Self {
        let opened = harness.open_with_disk(disk, faults);
        let (driver, completions) = opened.unwrap_or_else(|error| panic!("open with a disk: {error}"));
        Self { harness, driver, completions, early: VecDeque::new() }
    }

    pub(super) fn disk(&self) -> Option<&DiskFacts> {
        self.driver.disk()
    }

    /// Ends the driver, and fails if it has said anything that nobody waited for.
    pub(super) fn finish(self) {
        let harness = self.harness;
        let mut left = self.end();
        harness.quiet();
        left.retain(|completion| !matches!(completion, Completion::Returned { .. }));
        assert!(left.is_empty(), "unexpected: {left:?}");
    }

    /// Ends the driver; all that was not waited for.
    pub(super) fn end(self) -> Vec<Completion> {
        drop(self.driver);
        // It ends when the driver has dropped the sink.
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

    /// In the host, where it is nearest to the first device, through which others reach it.
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

    /// How much is kept once nothing more is to be pinned, or what stood in the way.
    pub(super) fn pin_ahead(
        &mut self,
        size: Bytes,
        piece: Bytes,
        pieces_max: usize,
    ) -> (Bytes, Option<DriverError>) {
        self.submit(Submission::PinAhead { node: self.host_node(), size, piece, pieces_max });
        self.wait(|completion| match completion {
            Completion::PinnedAhead { free, problem, .. } => Some((*free, problem.clone())),
            _ => None,
        })
    }

    /// What is kept once it is as it should be. What a driver does while nobody waits it does not tell.
    pub(super) fn free_pinned_until(
        &self,
        what: &str,
        is_right: impl Fn(&FreePinnedFacts) -> bool,
    ) -> FreePinnedFacts {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let of_node = |it: &FreePinnedFacts| it.node == self.host_node();
            let kept =
                self.driver.free_pinned().into_iter().find(of_node).expect("memory of the node is kept");
            if is_right(&kept) {
                return kept;
            }
            assert!(Instant::now() < deadline, "{what}: {kept:?}");
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

    /// Whether it came back at once. If not, no process that was only just starting is why it stays away.
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

    /// Until it has come back.
    pub(super) fn free(&mut self, extent: Extent) {
        let id = extent.id;
        if !self.release(extent) {
            self.await_return(id);
        }
    }

    /// Surveys until a released extent has come back.
    pub(super) fn await_return(&mut self, id: ExtentId) {
        let deadline = Instant::now() + DEADLINE;
        while !self.check_returned(id) {
            assert!(Instant::now() < deadline, "{id} has not come back in {DEADLINE:?}");
        }
    }

    /// Whether a survey tells, or something before it has told, of its return.
    pub(super) fn check_returned(&mut self, id: ExtentId) -> bool {
        self.survey(FIRST);
        let reported = |it: &Completion| matches!(it, Completion::Returned { extent } if *extent == id);
        let at = self.early.iter().position(reported);
        at.and_then(|at| self.early.remove(at)).is_some()
    }

    /// The unbrokered memory.
    pub(super) fn survey(&mut self, of: DeviceIndex) -> Bytes {
        self.survey_beside(of, &[]).0
    }

    /// The unbrokered memory, once it is as it should be, or else after a while. What a process had does not come back
    /// at the moment of its end, but soon after.
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

    /// The unbrokered memory, and how many of these clients have a context.
    pub(super) fn survey_beside(&mut self, of: DeviceIndex, clients: &[u32]) -> (Bytes, u32) {
        self.submit(Submission::Survey { device: of, clients: clients.to_vec() });
        self.wait(|completion| match completion {
            Completion::Surveyed { device, unbrokered, contexts, .. } if *device == of => {
                Some((*unbrokered, *contexts))
            }
            _ => None,
        })
    }

    /// What a context of another process takes, on a device that has such.
    pub(super) fn context(&self) -> Bytes {
        self.driver.devices()[0].context
    }

    /// Whether others hold so much more than they did. Of a device that others use too, or whose figures have contexts
    /// in them, it is only asked for at least that much.
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

    /// Whichever is told next to have gone well.
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
