//! Descriptions of allocations, from the daemon's messages.

use vramd_proto::v1;
use vramd_types::{AllocationId, Bytes, SessionId};

use super::advice::AdvisedParts;

pub use vramd_proto::v1::{AllocationKind, AllocationState, Lifetime, Tier};

/// One allocation as its tenant sees it. Requested, charged and resident bytes are three different numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocationInfo {
    pub id: AllocationId,
    /// `tenant/name`.
    pub name: Option<String>,
    /// The tenant that is charged.
    pub tenant: String,
    /// UUID.
    pub device: String,
    pub kind: AllocationKind,
    pub lifetime: Lifetime,
    pub state: AllocationState,
    /// Whether the device accesses parts in host memory in place: see [`crate::Advice`].
    pub accessed_by_device: bool,
    /// The parts that leave their device earlier or later than others. Empty in lists.
    pub advised_parts: Vec<AdvisedParts>,
    /// The requested bytes.
    pub size: Bytes,
    pub charged: Bytes,
    /// The bytes that lie on the device now.
    pub resident: Bytes,
    /// The file that is the allocation's backing, if it was loaded from one that never changes.
    pub file: Option<String>,
    /// Why [`crate::Client::load`] copied the file instead, as the daemon said at that time.
    pub copied_because: Option<String>,
    /// The bytes that lie in that file alone now, where no tenant is charged for them.
    pub in_file: Bytes,
    /// Freed bytes that a process outside the daemon's reach still has open.
    pub unreturned: Bytes,
    /// Where managed memory was ordered.
    pub managed: Option<ManagedPlace>,
    /// `blake3:` and 64 hexadecimal digits over the requested bytes, once it is sealed.
    pub digest: Option<String>,
    pub readers: Vec<String>,
    pub owner_session: Option<SessionId>,
    /// Empty in lists.
    pub parts: Vec<PartInfo>,
    pub mapper_count: u32,
}

/// Where managed memory was ordered. Only the driver of its process knows where its pages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedPlace {
    /// Where the last order that its client executed sent it: the device or the host. `None` if there was none, if it
    /// failed, or if a later one calls the memory back from the host.
    pub ordered: Option<Tier>,
    /// Where the last order sends it that the client has not answered.
    pub under_way: Option<Tier>,
}

/// A fixed slice of an allocation, mapped whole.
#[derive(Clone, Debug, PartialEq)]
pub struct PartInfo {
    pub index: u32,
    pub offset: Bytes,
    pub size: Bytes,
    pub tier: Tier,
    /// For operators only.
    pub mappers: Vec<SessionId>,
}

impl From<v1::Allocation> for AllocationInfo {
    fn from(wire: v1::Allocation) -> Self {
        let (kind, lifetime, state) = (wire.kind(), wire.lifetime(), wire.state());
        Self {
            id: AllocationId::from_raw(wire.allocation_id),
            name: Some(wire.name).filter(|name| !name.is_empty()),
            tenant: wire.tenant,
            device: wire.device,
            kind,
            lifetime,
            state,
            accessed_by_device: wire.accessed_by_device,
            advised_parts: wire.advised_parts.into_iter().map(Into::into).collect(),
            size: Bytes::new(wire.size_bytes),
            charged: Bytes::new(wire.charged_bytes),
            resident: Bytes::new(wire.resident_bytes),
            file: Some(wire.file).filter(|file| !file.is_empty()),
            copied_because: None,
            in_file: Bytes::new(wire.file_bytes),
            unreturned: Bytes::new(wire.unreturned_bytes),
            managed: wire.managed.map(ManagedPlace::from),
            digest: Some(wire.digest).filter(|digest| !digest.is_empty()),
            readers: wire.readers,
            owner_session: Some(wire.owner_session_id).filter(|id| *id != 0).map(SessionId::from_raw),
            parts: wire.parts.into_iter().map(PartInfo::from).collect(),
            mapper_count: wire.mapper_count,
        }
    }
}

impl From<v1::ManagedPlace> for ManagedPlace {
    fn from(wire: v1::ManagedPlace) -> Self {
        let given = |tier| Some(tier).filter(|tier| *tier != Tier::Unspecified);
        Self { ordered: given(wire.ordered()), under_way: given(wire.under_way()) }
    }
}

impl From<v1::Part> for PartInfo {
    fn from(wire: v1::Part) -> Self {
        Self {
            index: wire.index,
            offset: Bytes::new(wire.offset_bytes),
            size: Bytes::new(wire.size_bytes),
            tier: wire.tier(),
            mappers: wire.mapper_session_ids.into_iter().map(SessionId::from_raw).collect(),
        }
    }
}
