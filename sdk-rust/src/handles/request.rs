//! What a program asks for.

use std::time::Duration;

use vramd_proto::v1;
use vramd_types::{AllocationId, Bytes};

use crate::rpc::request_id::RequestId;

/// One allocation to be made: of a size, and by default movable, unnamed, ending with its session, on the first
/// device that the session sees.
#[derive(Clone, Debug)]
pub struct AllocationRequest {
    pub(crate) spec: v1::AllocationSpec,
    pub(crate) request_id: Option<RequestId>,
    pub(crate) wait: Duration,
}

impl AllocationRequest {
    pub fn new(size: Bytes) -> Self {
        let spec = v1::AllocationSpec {
            size_bytes: size.get(),
            kind: v1::AllocationKind::Movable.into(),
            lifetime: v1::Lifetime::Session.into(),
            ..Default::default()
        };
        Self { spec, request_id: None, wait: Duration::ZERO }
    }

    /// Without the tenant: it is the session's.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.spec.name = name.into();
        self
    }

    /// Once sealed it stays with its tenant until it is freed. Needs a name.
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.spec.lifetime = v1::Lifetime::Persistent.into();
        self
    }

    /// Never moves, and is shared by a legacy handle with every session of the tenant, for writing and from the start
    /// ([`crate::Client::attach_fixed`]). It cannot be sealed, and ends with its session. For GPUs alone.
    #[must_use]
    pub fn fixed(mut self) -> Self {
        self.spec.kind = v1::AllocationKind::Fixed.into();
        self
    }

    /// One more tenant that may attach it once it is sealed; `*` is everybody.
    #[must_use]
    pub fn reader(mut self, tenant: impl Into<String>) -> Self {
        self.spec.readers.push(tenant.into());
        self
    }

    /// UUID or index.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.spec.device = device.into();
        self
    }

    /// A multiple of 2 MiB; the daemon's own is 256 MiB unless configured.
    #[must_use]
    pub fn part_size(mut self, size: Bytes) -> Self {
        self.spec.part_size_bytes = size.get();
        self
    }

    /// Takes the name from the sealed allocation that bears it, at the moment this one is sealed.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.spec.replace = replace;
        self
    }

    /// It may begin with what the tenant's own freed memory held, and is then made at once where the daemon has kept some
    /// of the same size. Else it begins as zeros.
    #[must_use]
    pub fn uninitialized(mut self) -> Self {
        self.spec.uninitialized = true;
        self
    }

    /// Nothing of it is mapped until it is pinned, so the call returns as soon as the daemon has answered; its handle begins as
    /// one that has let go ([`crate::Allocation::unpin`]). What finds no room on its device begins in the tier below: it may
    /// be larger than the device. Where the program itself maps, all of it comes at once.
    #[must_use]
    pub fn unpinned(mut self) -> Self {
        self.spec.unheld = true;
        self
    }

    /// What can be made again: where somebody needs the room, a part of it that nobody pins is dropped, not copied, and needs no
    /// bytes in the tier below. Who pins it then gets new memory, and sees that by [`crate::Pinned::drop_count`]. It can't be
    /// sealed, and as long as its handle holds it nothing of it is dropped ([`crate::Allocation::unpin`]).
    #[must_use]
    pub fn discardable(mut self) -> Self {
        self.spec.discardable = true;
        self
    }

    /// Where there is no room for it, waits so long for some, in the order of asking; then it is refused as it would have been
    /// at once. The call may take that much longer than the client's request timeout. In a batch the longest counts for the
    /// whole. The daemon refuses what is not shorter than it lets any call take.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// A name for the request itself: after [`crate::Error::Deadline`], the same request with the same id returns what
    /// the first one made. In a batch the first item's counts for the whole.
    #[must_use]
    pub fn request_id(mut self, id: RequestId) -> Self {
        self.request_id = Some(id);
        self
    }
}

/// One allocation that is there already: by id, by `name`, or by `tenant/name`.
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
