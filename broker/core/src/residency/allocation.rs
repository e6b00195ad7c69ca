//! What a client asked for, cut into parts.

use std::sync::Arc;

use vramd_types::{AllocationId, Bytes, DeviceIndex, ExtentId, PartIndex, SessionId};

use super::{AllocationState, MapState};
use crate::{
    collections::Few,
    event::{Kind, Lifetime},
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

/// A fixed slice of an allocation, mapped whole.
#[derive(Debug)]
pub(crate) struct Part {
    /// Gone from the pool once given back.
    pub(crate) extent: ExtentId,
    /// Who maps it or is about to, at most once each, in the order of their ids.
    pub(crate) mappers: Few<(SessionId, MapState)>,
}

impl Part {
    pub(crate) fn map_state(&self, session: SessionId) -> Option<MapState> {
        let at = self.find(session).ok()?;
        self.mappers.get(at).map(|(_, state)| *state)
    }

    /// Where the session is among the mappers, or would be.
    fn find(&self, session: SessionId) -> Result<usize, usize> {
        self.mappers.binary_search_by_key(&session, |(mapper, _)| *mapper)
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
    /// Extents that are not gone from the pool yet.
    pub(crate) extents_left: usize,
    /// How many entries the mapper sets of its parts have.
    pub(crate) map_entries: usize,
    /// Of these, let go and not given back yet.
    pub(crate) extents_unreturned: usize,
    /// The operation that makes or seals it.
    pub(crate) op: Option<OpId>,
    /// Operations that wait for it to be unmapped or given back.
    pub(crate) watchers: Few<OpId>,
}

impl Allocation {
    pub(crate) fn part(&self, index: PartIndex) -> Option<&Part> {
        self.parts.get(usize::try_from(index.0).ok()?)
    }

    /// Sets, adds or removes what a session holds of a part.
    pub(crate) fn set_map_state(&mut self, index: PartIndex, session: SessionId, state: Option<MapState>) {
        let Some(part) = usize::try_from(index.0).ok().and_then(|at| self.parts.get_mut(at)) else { return };
        match (part.find(session), state) {
            (Ok(at), Some(state)) => {
                if let Some(entry) = part.mappers.get_mut(at) {
                    entry.1 = state;
                }
            }
            (Err(at), Some(state)) => {
                part.mappers.insert(at, (session, state));
                self.map_entries = self.map_entries.saturating_add(1);
            }
            (Ok(at), None) => {
                part.mappers.remove(at);
                self.map_entries = self.map_entries.saturating_sub(1);
            }
            (Err(_), None) => {}
        }
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
    pub(crate) fn asked_of(&self, index: PartIndex) -> Bytes {
        self.size.saturating_sub(self.offset_of(index)).min(self.part_size)
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
    part.mappers.iter().filter(|(_, state)| *state != MapState::Queued).map(|(session, _)| *session)
}

/// The allocation and its id, for those who hand both on.
pub(crate) type Entry<'a> = (AllocationId, &'a Allocation);
