//! What a client asked for, cut into parts.

use std::{num::NonZeroU32, sync::Arc};

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, SessionId};

use super::{AllocationState, MapState};
use crate::{
    collections::Few,
    event::{Kind, Lifetime, Slot},
    tenancy::{OpId, TenantId},
};

/// Names of tenants that may attach, beside the own one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers(Box<[Box<str>]>);

impl Readers {
    pub(crate) const EVERYBODY: &'static str = "*";

    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(String::into_boxed_str).collect())
    }

    pub(crate) fn admit(&self, tenant: &str) -> bool {
        self.0.iter().any(|name| **name == *tenant || **name == *Self::EVERYBODY)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }
}

/// What one session has of one part. As large as two words: there is one for each part of each session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) session: SessionId,
    /// One more than its slot, if it has one.
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

/// A fixed slice of an allocation, mapped whole.
#[derive(Debug)]
pub(crate) struct Part {
    /// Gone from the pool once given back.
    pub(crate) extent: ExtentId,
    /// Who maps it, is about to or may again, at most once each, in the order of their ids.
    pub(crate) mappings: Few<Mapping>,
}

impl Part {
    pub(crate) fn map_state(&self, session: SessionId) -> Option<MapState> {
        self.mapping(session).map(|mapping| mapping.state)
    }

    pub(crate) fn mapping(&self, session: SessionId) -> Option<&Mapping> {
        self.mappings.get(self.find(session).ok()?)
    }

    /// Where the session is among the holds, or would be.
    fn find(&self, session: SessionId) -> Result<usize, usize> {
        self.mappings.binary_search_by_key(&session, |mapping| mapping.session)
    }
}

/// One allocation, until the last of its extents is given back.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) tenant: TenantId,
    /// The session that allocated it; `None` once that is gone.
    pub(crate) owner: Option<SessionId>,
    pub(crate) device: DeviceIndex,
    pub(crate) kind: Kind,
    pub(crate) lifetime: Lifetime,
    pub(crate) name: Option<Arc<str>>,
    /// Takes its name from another one when sealed.
    pub(crate) replace: bool,
    pub(crate) readers: Readers,
    pub(crate) size: Bytes,
    pub(crate) span: Bytes,
    pub(crate) part_size: Bytes,
    pub(crate) parts: Few<Part>,
    pub(crate) state: AllocationState,
    pub(crate) digest: Option<Box<[u8; 32]>>,
    /// The driver is reading its extents: they must not be released.
    pub(crate) digesting: bool,
    /// Its owner maps what it pins, and nothing before.
    pub(crate) unpinned: bool,
    /// Its parts leave their device without being copied.
    pub(crate) discardable: bool,
    /// What of it lies in the host's memory is mapped there, and does not come to its device for who pins it.
    pub(crate) in_place: bool,
    /// Bytes of its parts that lie in the host's memory.
    pub(crate) in_host: Bytes,
    /// Its path, if its bytes are those of a file.
    pub(crate) file: Option<Arc<str>>,
    /// Extents that are not gone from the pool yet.
    pub(crate) extents_left: u32,
    /// How many holds there are on its parts.
    pub(crate) mapping_count: usize,
    /// Of these, let go and not given back yet.
    pub(crate) extents_unreturned: u32,
    /// The operation that makes or seals it.
    pub(crate) op: Option<OpId>,
    /// Operations that wait for it to be unmapped or given back.
    pub(crate) waiting_ops: Few<OpId>,
}

impl Allocation {
    pub(crate) fn part(&self, index: PartIndex) -> Option<&Part> {
        self.parts.get(usize::try_from(index.0).ok()?)
    }

    /// Puts a part into another extent, and says which it was in.
    pub(crate) fn set_extent(&mut self, index: PartIndex, extent: ExtentId) -> Option<ExtentId> {
        self.part_mut(index).map(|part| std::mem::replace(&mut part.extent, extent))
    }

    /// Adds or changes what a session holds of a part. A hold keeps its slot for life.
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

    pub(crate) fn indices(&self) -> impl Iterator<Item = PartIndex> + use<> {
        (0..u32::try_from(self.parts.len()).unwrap_or(u32::MAX)).map(PartIndex)
    }

    pub(crate) fn offset_of(&self, index: PartIndex) -> Bytes {
        Bytes::new(u64::from(index.0).saturating_mul(self.part_size.get()))
    }

    /// How long the part is: the last one is the remainder.
    pub(crate) fn size_of(&self, index: PartIndex) -> Bytes {
        self.span.saturating_sub(self.offset_of(index)).min(self.part_size)
    }

    /// Asked bytes in the part, without the rounding.
    pub(crate) fn requested_of(&self, index: PartIndex) -> Bytes {
        self.size.saturating_sub(self.offset_of(index)).min(self.part_size)
    }

    /// What its parts have beyond what was asked for.
    pub(crate) fn rounding(&self) -> Bytes {
        self.span.saturating_sub(self.size)
    }

    /// Only its owner may write, and only until it is sealed; a legacy handle is always writable.
    pub(crate) fn is_writable_by(&self, session: SessionId) -> bool {
        let open = matches!(self.state, AllocationState::Creating | AllocationState::Open);
        self.kind == Kind::Fixed || (self.owner == Some(session) && open)
    }

    /// How many sessions map any part.
    pub(crate) fn mapper_count(&self) -> usize {
        match &*self.parts {
            // A session stands at most once among the mappers of a part.
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

/// Sessions that map a part or were offered it.
pub(crate) fn mappers_of(part: &Part) -> impl Iterator<Item = SessionId> {
    part.mappings.iter().filter(|mapping| mapping.state.is_mapper()).map(|mapping| mapping.session)
}

/// The allocation and its id, for those who hand both on.
pub(crate) type Entry<'a> = (AllocationId, &'a Allocation);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_small_and_keeps_its_slot() {
        assert_eq!((size_of::<Mapping>(), size_of::<Part>()), (16, 32));
        let session = SessionId::from_raw(1);
        for slot in [None, Some(Slot(0)), Some(Slot(65_535))] {
            assert_eq!(Mapping::new(session, slot, MapState::Queued).slot(), slot);
        }
    }
}
