//! Parts as they come: descriptors, offsets and sizes, for programs that map them themselves.
//!
//! A raw session's parts count as mapped from the moment they arrive: nobody can see what the program does with them.
//! The program says that it has unmapped them by freeing, detaching, sealing or dropping its handle.

use vramd_proto::v1::Device;
use vramd_types::{AllocationId, SessionId};

use crate::{
    client::Client,
    error::{Error, Result},
    handles::{
        handle::Handle,
        info::{AllocationInfo, AllocationKind},
        request::{AllocationRequest, Target},
    },
    mapping::RawPart,
    session::{
        Released,
        call_style::{CallStyle, run_ready},
    },
};

/// A session that maps nothing by itself. Made by [`crate::ClientBuilder::connect_raw`].
#[derive(Clone, Debug)]
pub struct RawClient {
    client: Client,
}

/// An allocation as its parts.
#[derive(Debug)]
pub struct RawAllocation {
    // Dropped before the handle tells that they are gone.
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

    /// Allocates, and waits until all parts have come: writable.
    pub fn allocate(&self, request: AllocationRequest) -> Result<RawAllocation> {
        let mut handles = self.client.claim_new(vec![request])?;
        let handle = handles.pop().ok_or_else(|| Error::refused(vramd_types::Reason::Raced, &[]))?;
        RawAllocation::new(handle)
    }

    /// Attaches a sealed allocation, and waits until all parts have come: to be mapped read-only.
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

    /// In order of their offsets. The descriptors are the program's; they may be closed once mapped.
    pub fn parts(&self) -> &[RawPart] {
        &self.parts
    }

    /// In order of their offsets, for descriptors to be taken out.
    pub fn parts_mut(&mut self) -> &mut [RawPart] {
        &mut self.parts
    }

    /// Whether the daemon has asked for the memory back: freed by somebody else, or its session ended by an operator.
    /// The program should unmap it and drop the handle.
    pub fn is_revoked(&self) -> bool {
        self.handle.session().table().is_revoked(self.id())
    }

    /// Says that nothing of it is mapped any more, ends writing for ever, and waits for read-only parts. Those that
    /// are here are closed; if it fails, the allocation is freed.
    pub fn seal(mut self) -> Result<Self> {
        self.parts.clear();
        self.handle.session().table().set_yielded(self.id(), true);
        run_ready(self.handle.seal(CallStyle::Blocking))?;
        self.parts = self.handle.session().table().hand_over(self.id());
        Ok(self)
    }

    /// Says that nothing of it is mapped any more, and frees it.
    pub fn free(self) -> Result<Released> {
        let Self { parts, mut handle } = self;
        drop(parts);
        handle.session().table().set_yielded(handle.info().id, true);
        run_ready(handle.free(CallStyle::Blocking))
    }

    /// Says that nothing of it is mapped any more, and leaves it as it is.
    pub fn detach(self) -> Result<()> {
        let Self { parts, mut handle } = self;
        drop(parts);
        run_ready(handle.detach(CallStyle::Blocking))
    }
}
