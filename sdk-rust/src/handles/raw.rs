//! Parts as they arrive: descriptors, offsets and sizes, for programs that map them themselves.
//!
//! A raw session's parts count as mapped from the moment they arrive, since the SDK cannot see what the program does
//! with them. The program reports that it has unmapped them by freeing, detaching, sealing or dropping its last handle
//! of the allocation.

use vramd_proto::v1::Device;
use vramd_types::{AllocationId, Reason, SessionId};

use crate::{
    client::Client,
    error::{Error, Result},
    handles::{
        allocation::FreeFailed,
        handle::Handle,
        info::{AllocationInfo, AllocationKind, AllocationState},
        quota::OwnQuota,
        request::{AllocationRequest, Target},
    },
    mapping::RawPart,
    pins::private,
    session::{
        Released,
        call_style::{CallStyle, run_ready},
    },
};

/// A session whose SDK maps nothing by itself. Made by [`crate::ClientBuilder::connect_raw`].
#[derive(Clone, Debug)]
pub struct RawClient {
    client: Client,
}

/// An allocation as a list of parts that the program maps. Several handles of one session share the descriptors, and the
/// last of them releases the allocation.
#[derive(Debug)]
pub struct RawAllocation {
    parts: Box<Parts>,
    handle: Box<Handle>,
}

/// Behind one pointer, like the handle, so that the error of a failed free stays small.
#[derive(Debug, Default)]
struct Parts(Vec<RawPart>);

impl RawClient {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub fn session_id(&self) -> SessionId {
        self.client.session_id()
    }

    pub fn devices(&self) -> &[Device] {
        self.client.devices()
    }

    pub fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// See [`Client::tenant`].
    pub fn tenant(&self) -> &str {
        self.client.tenant()
    }

    /// See [`Client::takes_turns`].
    pub fn takes_turns(&self) -> bool {
        self.client.takes_turns()
    }

    /// See [`Client::quota`].
    pub fn quota(&self) -> Result<Vec<OwnQuota>> {
        self.client.quota()
    }

    /// See [`Client::list`].
    pub fn list(&self, name_prefix: &str) -> Result<Vec<AllocationInfo>> {
        self.client.list(name_prefix)
    }

    /// See [`Client::describe`].
    pub fn describe(&self, target: impl Into<Target>) -> Result<AllocationInfo> {
        self.client.describe(target)
    }

    /// See [`Client::free`].
    pub fn free(&self, id: AllocationId) -> Result<Released> {
        self.client.free(id)
    }

    /// Allocates, and waits until all parts have arrived; they are writable.
    pub fn allocate(&self, request: AllocationRequest) -> Result<RawAllocation> {
        let mut handles = self.client.claim_new(vec![request])?;
        let handle = handles.pop().ok_or_else(|| Error::refused(Reason::Raced, &[]))?;
        Ok(RawAllocation::new(handle))
    }

    /// Attaches a sealed allocation, and waits until all parts have arrived; the program must map them read-only. If
    /// this session has attached or sealed it already, the new handle has the same descriptors. A descriptor that the
    /// program has closed does not come back: the program uses the mapping that it made with it.
    pub fn attach(&self, target: impl Into<Target>) -> Result<RawAllocation> {
        self.client.claim_attached(target.into(), AllocationKind::Movable, false).map(RawAllocation::new)
    }
}

impl RawAllocation {
    fn new(handle: Handle) -> Self {
        let parts = handle.session().table().hand_over(handle.info().id);
        Self { parts: Box::new(Parts(parts)), handle: Box::new(handle) }
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// The parts, in order of their offsets. The descriptors are the program's; it may drop them once it has mapped
    /// them.
    pub fn parts(&self) -> &[RawPart] {
        &self.parts.0
    }

    /// The parts, in order of their offsets, so that the program can take descriptors out.
    pub fn parts_mut(&mut self) -> &mut [RawPart] {
        &mut self.parts.0
    }

    /// Whether the daemon has revoked the memory: another session freed it, or an operator ended its session. The
    /// program should unmap it and drop the handle.
    pub fn is_revoked(&self) -> bool {
        self.handle.session().table().is_revoked(self.id())
    }

    /// Reports that the program maps nothing of it any more, ends writing for ever, and waits for read-only parts.
    /// Descriptors that are still here are closed. If sealing fails, the allocation is freed.
    pub fn seal(mut self) -> Result<Self> {
        if self.info().state == AllocationState::Sealed {
            return Err(Error::refused(Reason::AlreadySealed, &[("allocation", &self.id())]));
        }
        self.close_descriptors();
        self.handle.session().table().set_yielded(self.id(), true);
        run_ready(self.handle.seal(CallStyle::Blocking))?;
        self.parts.0 = self.handle.session().table().hand_over(self.id());
        Ok(self)
    }

    /// Reports that the program maps nothing of it any more, and frees it. While this session has other handles of it,
    /// the call does nothing and returns the handle, with [`Error::Pinned`].
    pub fn free(mut self) -> Result<Released, FreeFailed<Self>> {
        let outcome = self.handle.close_if_alone().and_then(|()| {
            self.close_descriptors();
            self.handle.session().table().set_yielded(self.id(), true);
            run_ready(self.handle.free(CallStyle::Blocking))
        });
        outcome.map_err(|error| FreeFailed { handle: self, error })
    }

    /// Reports that the program maps nothing of it any more, and leaves the allocation as it is. While this session has
    /// other handles of it, only this handle ends.
    pub fn detach(mut self) -> Result<()> {
        if self.handle.leave()? {
            return Ok(());
        }
        self.close_descriptors();
        run_ready(self.handle.detach(CallStyle::Blocking))
    }

    fn close_descriptors(&mut self) {
        self.parts.0.clear();
    }
}

impl Drop for RawAllocation {
    fn drop(&mut self) {
        // In this order: no other handle may begin with descriptors that are about to be closed, and the last handle
        // reports the memory as unmapped once they are.
        self.handle.begin_drop();
        self.close_descriptors();
    }
}

impl private::Sealed for RawAllocation {
    fn handle(&self) -> private::Handle<'_> {
        private::Handle(&self.handle)
    }
}
