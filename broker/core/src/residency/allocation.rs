//! An allocation: the memory of one client request, divided into parts, with each session's mapping of each
//! part.

use std::{num::NonZeroU32, sync::Arc};

use smallvec::SmallVec;
use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, SessionId};

use super::{AllocationState, MapState};
use crate::{
    event::{Kind, Lifetime, Slot},
    tenancy::{OpId, TenantId},
};

/// Names of the tenants that may attach, beside the owner's own.
///
/// Mostly there are none, so an allocation has one word for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers(Option<Box<ReaderNames>>);

#[derive(Clone, Debug)]
struct ReaderNames(Box<[Box<str>]>);

impl Readers {
    pub(crate) const EVERYBODY: &'static str = "*";

    pub(crate) fn new(names: &[String]) -> Self {
        let boxed = || names.iter().map(|name| name.as_str().into()).collect();
        Self((!names.is_empty()).then(|| Box::new(ReaderNames(boxed()))))
    }

    pub(crate) fn admit(&self, tenant: &str) -> bool {
        self.iter().any(|name| name == tenant || name == Self::EVERYBODY)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|names| &names.0).map(|name| &**name)
    }
}

/// One session's mapping of one part. It takes two words, since there is one for each part of each session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) session: SessionId,
    /// The slot plus one, if the mapping has a slot.
    slot: Option<NonZeroU32>,
    pub(crate) state: MapState,
}

impl Mapping {
    pub(crate) fn new(session: SessionId, slot: Option<Slot>, state: MapState) -> Self {
        let slot = slot.and_then(|slot| NonZeroU32::new(slot.0.saturating_add(1)));
        Self { session, slot, state }
    }

    pub(crate) const fn in_state(self, state: MapState) -> Self {
        Self { state, ..self }
    }

    pub(crate) fn slot(&self) -> Option<Slot> {
        self.slot.map(|slot| Slot(slot.get().saturating_sub(1)))
    }
}

/// A fixed slice of an allocation. It is mapped whole.
#[derive(Debug)]
pub(crate) struct Part {
    /// The extent that the part lies in. It leaves the pool once it is released.
    pub(crate) extent: ExtentId,
    /// The mappings of sessions, at most one each, in the order of their ids.
    pub(crate) mappings: SmallVec<[Mapping; 1]>,
}

impl Part {
    pub(crate) fn map_state(&self, session: SessionId) -> Option<MapState> {
        self.mapping(session).map(|mapping| mapping.state)
    }

    pub(crate) fn mapping(&self, session: SessionId) -> Option<&Mapping> {
        self.mappings.get(self.find(session).ok()?)
    }

    /// The index of the session's mapping, or where it would be inserted.
    fn find(&self, session: SessionId) -> Result<usize, usize> {
        self.mappings.binary_search_by_key(&session, |mapping| mapping.session)
    }
}

/// A path behind one more pointer: few allocations have one.
#[derive(Debug)]
pub(crate) struct FilePath(pub(crate) Arc<str>);

/// One allocation. It lives until the last of its extents is released.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) tenant: TenantId,
    /// The session that allocated it; `None` once that session is gone.
    pub(crate) owner: Option<SessionId>,
    pub(crate) device: DeviceIndex,
    pub(crate) kind: Kind,
    pub(crate) lifetime: Lifetime,
    pub(crate) name: Option<Arc<str>>,
    /// Takes its name from another allocation when it is sealed.
    pub(crate) replace: bool,
    pub(crate) readers: Readers,
    pub(crate) size: Bytes,
    pub(crate) span: Bytes,
    pub(crate) part_size: Bytes,
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) state: AllocationState,
    pub(crate) digest: Option<Box<[u8; 32]>>,
    /// The driver is reading its extents, which must not be released.
    pub(crate) digesting: bool,
    /// It has no handle pin: its owner maps only the parts that it pins.
    pub(crate) unpinned: bool,
    /// Its parts are discardable: they leave their device without a copy.
    pub(crate) discardable: bool,
    /// Its parts in host memory are mapped there, and no pin fetches them.
    pub(crate) in_place: bool,
    /// Bytes of its parts in host memory.
    pub(crate) in_host: Bytes,
    /// The path of its file, if it is file-backed.
    pub(crate) file: Option<Box<FilePath>>,
    /// Extents that have not left the pool yet.
    pub(crate) extents_left: u32,
    /// The number of mappings of its parts.
    pub(crate) mapping_count: u32,
    /// Of its extents, those that are unreturned.
    pub(crate) extents_unreturned: u32,
    /// The operation that creates or seals it.
    pub(crate) op: Option<OpId>,
    /// Operations that wait until it is unmapped or released.
    pub(crate) waiting_ops: SmallVec<[OpId; 2]>,
}

impl Allocation {
    pub(crate) fn part(&self, index: PartIndex) -> Option<&Part> {
        self.parts.get(usize::try_from(index.0).ok()?)
    }

    /// Moves a part to another extent, and returns the one that it was in.
    pub(crate) fn set_extent(&mut self, index: PartIndex, extent: ExtentId) -> Option<ExtentId> {
        self.part_mut(index).map(|part| std::mem::replace(&mut part.extent, extent))
    }

    /// Adds or changes a session's mapping of a part. A mapping keeps its slot for life.
    pub(crate) fn set_mapping(&mut self, index: PartIndex, new: Mapping) {
        let Some(part) = self.part_mut(index) else { return };
        match part.find(new.session) {
            Ok(at) => {
                if let Some(mapping) = part.mappings.get_mut(at) {
                    mapping.state = new.state;
                }
            }
            Err(at) => {
                part.mappings.insert(at, new);
                self.mapping_count = self.mapping_count.saturating_add(1);
            }
        }
    }

    pub(crate) fn remove_mapping(&mut self, index: PartIndex, session: SessionId) {
        let Some(part) = self.part_mut(index) else { return };
        if let Ok(at) = part.find(session) {
            part.mappings.remove(at);
            self.mapping_count = self.mapping_count.saturating_sub(1);
        }
    }

    fn part_mut(&mut self, index: PartIndex) -> Option<&mut Part> {
        self.parts.get_mut(usize::try_from(index.0).ok()?)
    }

    pub(crate) fn part_count(&self) -> u32 {
        u32::try_from(self.parts.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = PartIndex> + use<> {
        (0..self.part_count()).map(PartIndex)
    }

    pub(crate) fn offset_of(&self, index: PartIndex) -> Bytes {
        Bytes::new(u64::from(index.0).saturating_mul(self.part_size.get()))
    }

    /// The size of the part. The last part is the remainder.
    pub(crate) fn size_of(&self, index: PartIndex) -> Bytes {
        self.span.saturating_sub(self.offset_of(index)).min(self.part_size)
    }

    /// The requested bytes in the part, without the rounding.
    pub(crate) fn requested_of(&self, index: PartIndex) -> Bytes {
        self.size.saturating_sub(self.offset_of(index)).min(self.part_size)
    }

    /// The bytes of its parts beyond what was requested.
    pub(crate) fn rounding(&self) -> Bytes {
        self.span.saturating_sub(self.size)
    }

    /// Whether the session may write: only the owner, and only until the seal. A legacy CUDA export is always
    /// writable.
    pub(crate) fn is_writable_by(&self, session: SessionId) -> bool {
        let open = matches!(self.state, AllocationState::Creating | AllocationState::Open);
        self.kind == Kind::Fixed || (self.owner == Some(session) && open)
    }

    /// The number of sessions that map any part.
    pub(crate) fn mapper_count(&self) -> usize {
        match &*self.parts {
            // A session is at most once among the mappers of a part.
            [only] => mappers_of(only).count(),
            _ => self.mappers().len(),
        }
    }

    /// Sessions that map any part, in the order of their ids.
    pub(crate) fn mappers(&self) -> Vec<SessionId> {
        let mut mappers: Vec<_> = self.parts.iter().flat_map(mappers_of).collect();
        mappers.sort_unstable();
        mappers.dedup();
        mappers
    }
}

/// Sessions that map a part or were sent it.
pub(crate) fn mappers_of(part: &Part) -> impl Iterator<Item = SessionId> {
    part.mappings.iter().filter(|mapping| mapping.state.is_mapper()).map(|mapping| mapping.session)
}

/// An allocation with its id.
pub(crate) type Entry<'a> = (AllocationId, &'a Allocation);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_small() {
        assert_eq!((size_of::<Mapping>(), size_of::<Part>()), (16, 32));
        assert_eq!(size_of::<Allocation>(), 192);
    }

    #[test]
    fn mapping_keeps_its_slot() {
        let session = SessionId::from_raw(1);
        for slot in [None, Some(Slot(0)), Some(Slot(65_535))] {
            assert_eq!(Mapping::new(session, slot, MapState::Queued).slot(), slot);
        }
    }
}
