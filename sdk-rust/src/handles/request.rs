//! Requests: what a program allocates or attaches.

use std::time::Duration;

use vramd_proto::v1;
use vramd_types::{AllocationId, Bytes, Reason};

use crate::{
    error::{Error, Result},
    rpc::request_id::RequestId,
};

/// A request for one allocation: by default movable, unnamed, ending with its session, on the first device that the
/// session sees.
#[derive(Clone, Debug)]
pub struct AllocationRequest {
    pub(crate) spec: v1::AllocationSpec,
    pub(crate) request_id: Option<RequestId>,
    pub(crate) wait: Duration,
    /// As many bytes as the file has.
    is_whole_file: bool,
    /// A file that may change is refused instead of copied.
    pub(crate) is_in_place_only: bool,
}

impl AllocationRequest {
    pub fn new(size: Bytes) -> Self {
        let spec = v1::AllocationSpec {
            size_bytes: size.get(),
            kind: v1::AllocationKind::Movable.into(),
            lifetime: v1::Lifetime::Session.into(),
            ..Default::default()
        };
        Self { spec, request_id: None, wait: Duration::ZERO, is_whole_file: false, is_in_place_only: false }
    }

    /// A request for [`crate::Client::load`]: all bytes of the file, from the offset on.
    pub fn whole_file() -> Self {
        Self { is_whole_file: true, ..Self::new(Bytes::ZERO) }
    }

    /// For [`crate::Client::load`]: a file that may change is not copied but refused, with
    /// [`crate::Error::FileMutable`].
    #[must_use]
    pub fn in_place_only(mut self) -> Self {
        self.is_in_place_only = true;
        self
    }

    /// The bytes of a file that it asks for; none for all of them.
    pub(crate) fn file_size(&self) -> Option<u64> {
        (!self.is_whole_file).then_some(self.spec.size_bytes)
    }

    /// Refuses an empty text before a file is opened or read for it.
    pub(crate) fn check(&self) -> Result<()> {
        let is_empty = |text: &Option<String>| text.as_deref() == Some("");
        let is_persistent = self.spec.lifetime() == v1::Lifetime::Persistent;
        let (reason, field, advice) = match &self.spec {
            spec if is_empty(&spec.name) && is_persistent => {
                (Reason::NameInvalid, "name", "Give a name: a persistent allocation needs one")
            }
            spec if is_empty(&spec.name) => (Reason::NameInvalid, "name", "Give a name, or none"),
            spec if is_empty(&spec.device) => {
                (Reason::DeviceUnknown, "device", "Give a UUID or index, or none")
            }
            _ => return Ok(()),
        };
        let message = format!("{field}: it is empty. {advice}");
        Err(Error::refused_because(reason, message, &[("field", &field), (field, &"")]))
    }

    /// The name, without the tenant: that is the session's. An empty one is refused.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.spec.name = Some(name.into());
        self
    }

    /// Keeps the allocation with its tenant once it is sealed, until it is freed or the daemon ends. Needs a name.
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.spec.lifetime = v1::Lifetime::Persistent.into();
        self
    }

    /// Makes it fixed: it never moves, and every session of the tenant may write it from the start, by a legacy CUDA
    /// handle ([`crate::Client::attach_fixed`]). It cannot be sealed, and ends with its session. For GPUs alone.
    #[must_use]
    pub fn fixed(mut self) -> Self {
        self.spec.kind = v1::AllocationKind::Fixed.into();
        self
    }

    /// Adds a tenant that may attach it once it is sealed; `*` means every tenant.
    #[must_use]
    pub fn reader(mut self, tenant: impl Into<String>) -> Self {
        self.spec.readers.push(tenant.into());
        self
    }

    /// UUID or index. An empty one is refused.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.spec.device = Some(device.into());
        self
    }

    /// The size of its parts, a multiple of 2 MiB. The daemon's default is 256 MiB unless configured.
    #[must_use]
    pub fn part_size(mut self, size: Bytes) -> Self {
        self.spec.part_size_bytes = Some(size.get());
        self
    }

    /// Takes the name from the sealed allocation that bears it, at the moment this one is sealed.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.spec.replace = replace;
        self
    }

    /// Allows the memory to begin with bytes of the tenant's own freed memory; otherwise it begins as zeros. The
    /// daemon can then reuse a cached extent of the same size at once.
    #[must_use]
    pub fn uninitialized(mut self) -> Self {
        self.spec.uninitialized = true;
        self
    }

    /// Maps nothing until the program pins: the call returns as soon as the daemon has answered, and the handle
    /// begins without its handle pin ([`crate::Allocation::unpin`]). Parts that find no room on the device begin in
    /// the tier below, so the allocation may be larger than the device. For a [`crate::RawClient`] this has no
    /// effect: all parts arrive at once.
    #[must_use]
    pub fn unpinned(mut self) -> Self {
        self.spec.unheld = true;
        self
    }

    /// Marks content that the program can recompute. When the room is needed, the daemon drops an unpinned part
    /// instead of copying it, so the part needs no backing. The next pin gets new memory, and
    /// [`crate::Pinned::drop_count`] shows it. Discardable memory cannot be sealed, and nothing of it is dropped
    /// while its handle has the handle pin ([`crate::Allocation::unpin`]).
    #[must_use]
    pub fn discardable(mut self) -> Self {
        self.spec.discardable = true;
        self
    }

    /// How long the daemon may let the request wait for room, in order of arrival; after that it is refused as it
    /// would have been at once. The call may take that much longer than the client's request timeout. In a batch the
    /// longest wait counts for the whole. The daemon refuses a wait that is not shorter than its own limit for calls.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// An id for the request itself: after [`crate::Error::Deadline`], repeating the request with the same id returns
    /// what the first one made. In a batch the first item's id counts for the whole.
    #[must_use]
    pub fn request_id(mut self, id: RequestId) -> Self {
        self.request_id = Some(id);
        self
    }
}

/// An existing allocation: by id, by `name`, or by `tenant/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Id(AllocationId),
    Name(String),
}

impl From<AllocationId> for Target {
    fn from(id: AllocationId) -> Self {
        Self::Id(id)
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for Target {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}
