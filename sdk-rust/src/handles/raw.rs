//! Parts as they arrive: descriptors, offsets and sizes, for programs that map them themselves.
//!
//! A raw session's parts count as mapped from the moment they arrive, since the SDK cannot see what the program does
//! with them. The program reports that it has unmapped them by freeing, detaching, sealing or dropping its handle.

use vramd_proto::v1::Device;
use vramd_types::{AllocationId, SessionId};

use crate::{
    client::Client,
    error::{Error, Result},
    handles::{
        handle::Handle,
        info::{AllocationInfo, AllocationKind},
        quota::OwnQuota,
        request::{AllocationRequest, Target},
    },
    mapping::RawPart,
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

/// An allocation as a list of parts that the program maps.
#[derive(Debug)]
pub struct RawAllocation {
    // Dropped before the handle reports that they are gone.
    parts: Vec<RawPart>,
    handle: Handle,
}

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
        let handle = handles.pop().ok_or_else(|| Error::refused(vramd_types::Reason::Raced, &[]))?;
        RawAllocation::new(handle)
    }

    /// Attaches a sealed allocation, and waits until all parts have arrived; the program must map them read-only.
    pub fn attach(&self, target: impl Into<Target>) -> Result<RawAllocation> {
        RawAllocation::new(self.client.claim_attached(target.into(), AllocationKind::Movable, false)?)
    }
}

impl RawAllocation {
    fn new(handle: Handle) -> Result<Self> {
        let parts = handle.session().table().hand_over(handle.info().id);
        Ok(Self { parts, handle })
    }

    pub fn id(&self) -> AllocationId {
        self.handle.info().id
    }

    pub fn info(&self) -> &AllocationInfo {
        self.handle.info()
    }

    /// The parts, in order of their offsets. The descriptors are the program's; it may close them once it has mapped
    /// them.
    pub fn parts(&self) -> &[RawPart] {
        &self.parts
    }

    /// The parts, in order of their offsets, so that the program can take descriptors out.
    pub fn parts_mut(&mut self) -> &mut [RawPart] {
        &mut self.parts
    }

    /// Whether the daemon has revoked the memory: another session freed it, or an operator ended its session. The
    /// program should unmap it and drop the handle.
    pub fn is_revoked(&self) -> bool {
        self.handle.session().table().is_revoked(self.id())
    }

    /// Reports that the program maps nothing of it any more, ends writing for ever, and waits for read-only parts.
    /// Descriptors that are still here are closed. If sealing fails, the allocation is freed.
    pub fn seal(mut self) -> Result<Self> {
        self.parts.clear();
        self.handle.session().table().set_yielded(self.id(), true);
        run_ready(self.handle.seal(CallStyle::Blocking))?;
        self.parts = self.handle.session().table().hand_over(self.id());
        Ok(self)
    }

    /// Reports that the program maps nothing of it any more, and frees it.
    pub fn free(self) -> Result<Released> {
        let Self { parts, mut handle } = self;
        drop(parts);
        handle.session().table().set_yielded(handle.info().id, true);
        run_ready(handle.free(CallStyle::Blocking))
    }

    /// Reports that the program maps nothing of it any more, and leaves the allocation as it is.
    pub fn detach(self) -> Result<()> {
        let Self { parts, mut handle } = self;
        drop(parts);
        run_ready(handle.detach(CallStyle::Blocking))
    }
}
