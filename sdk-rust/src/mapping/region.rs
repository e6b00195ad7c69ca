//! One allocation in this session: its addresses, its parts and their slots.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use vramd_proto::v1::{Access, HandleType, MapPart, PartRef, RevokeReason};
use vramd_types::{AllocationId, Bytes, PartIndex};

use super::{
    copy::Window,
    presence::Label,
    space::{Base, Space},
};
use crate::{
    cuda::{Context, Gpus, HANDLE_BYTES, Imported},
    pins::Words,
};

/// How the SDK handles an arriving part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It maps the part, and closes the descriptor.
    Map,
    /// It keeps the descriptor for the program, which maps it itself.
    HandOver,
}

/// A part as it arrived from the daemon, not mapped.
#[derive(Clone, Debug)]
pub struct RawPart {
    pub index: PartIndex,
    /// Its offset in the allocation.
    pub offset: Bytes,
    /// The size of the part: all of the descriptor's memory.
    pub size: Bytes,
    /// Whether the session may write. The kernel does not enforce it; the mapping program must.
    pub writable: bool,
    pub handle_type: HandleType,
    /// The index of the device in [`crate::Client::devices`].
    pub device: u32,
    /// The descriptor, which all handles of the allocation share; it is closed with the last reference. `None` for
    /// exports that are no descriptor, and in a later handle once every earlier reference is gone.
    pub fd: Option<Arc<OwnedFd>>,
    /// Present for [`HandleType::CudaIpc`] alone.
    pub legacy_handle: Option<[u8; HANDLE_BYTES]>,
}

#[derive(Debug, Default)]
pub(super) struct Region {
    space: Option<Space>,
    pub(super) parts: BTreeMap<u32, Part>,
    /// The slot of each part that ever arrived, mapped or not.
    pub(super) slots: BTreeMap<u32, u32>,
    /// The drop count of each part, as of its last arrival, if it is not zero.
    pub(super) drop_counts: BTreeMap<u32, u64>,
    /// Set once a slot has become another part's: anchors that know the slots must ask again.
    pub(super) slots_lost: Arc<AtomicBool>,
    /// Whether the handle pins each part, so that it stays mapped without a guard.
    pub(super) wants_handle_pins: bool,
    /// Whether parts are writable, as they last arrived or will arrive: a pin of a part that is away may be to write.
    pub(super) writes: bool,
    /// Why mapping a part failed.
    pub(super) failure: Option<String>,
    /// A part that will not arrive because its content is lost.
    pub(super) lost: Option<u32>,
    /// Why the daemon last revoked parts. Reset when parts arrive again.
    pub(super) revoked: Option<RevokeReason>,
    /// How errors name it.
    pub(super) label: Label,
    /// A handle owns it.
    pub(super) claimed: bool,
    /// No handle owns it any more: it goes with its last part.
    pub(super) forgotten: bool,
    /// The program has reported that it has unmapped all that was handed over to it.
    pub(super) yielded: bool,
}

#[derive(Debug)]
pub(super) struct Part {
    offset: usize,
    size: usize,
    pub(super) access: Access,
    pub(super) place: Place,
    /// Its slot, once it is mapped.
    pub(super) slot: Option<u32>,
    /// Whether the handle's own pin is in the word.
    pub(super) handle_pinned: bool,
    /// Why the daemon is revoking it; the revoke waits for pins to end.
    pub(super) revoking: Option<RevokeReason>,
}

#[derive(Debug)]
pub(super) enum Place {
    /// Mapped, but not usable before access is granted.
    Placed,
    Mapped,
    Waiting(RawPart),
    HandedOver(HandedOver),
}

/// A part that the program owns.
#[derive(Debug)]
pub(super) struct HandedOver {
    /// The part without its descriptor, which the program may close.
    part: RawPart,
    fd: Weak<OwnedFd>,
}

impl Place {
    fn hand_over(&mut self) -> Option<RawPart> {
        match self {
            Self::Placed | Self::Mapped => None,
            Self::HandedOver(HandedOver { part, fd }) => Some(RawPart { fd: fd.upgrade(), ..part.clone() }),
            Self::Waiting(part) => {
                let handed = part.clone();
                let fd = part.fd.take().as_ref().map(Arc::downgrade).unwrap_or_default();
                *self = Self::HandedOver(HandedOver { part: RawPart { fd: None, ..handed.clone() }, fd });
                Some(handed)
            }
        }
    }
}

impl Region {
    pub(super) fn with_handle_pins(wants_handle_pins: bool) -> Self {
        Self { wants_handle_pins, ..Self::default() }
    }

    /// Accepts a part that the daemon has sent. It becomes usable by [`Self::grant`].
    pub(super) fn accept(
        &mut self,
        mode: Mode,
        gpus: &Gpus,
        words: &mut Words,
        part: &MapPart,
        fd: Option<OwnedFd>,
    ) -> Result<Option<Imported>, String> {
        let PartRef { allocation_id, part_index: index } = part.part.unwrap_or_default();
        let id = AllocationId::from_raw(allocation_id);
        let slot = match mode {
            Mode::Map => Some(self.slot((id, index), part.slot, words)?),
            Mode::HandOver => None,
        };
        if part.losses > 0 {
            self.drop_counts.insert(index, part.losses);
        }
        let number = |bytes: u64| {
            usize::try_from(bytes).map_err(|_| "the part does not fit in this process's address space")
        };
        let (offset, size) = (number(part.offset_bytes)?, number(part.size_bytes)?);
        let mut imported = None;
        let place = match mode {
            Mode::Map => {
                imported = self.space(part, number(part.span_bytes)?, gpus)?.map(part, offset, size, fd)?;
                Place::Placed
            }
            Mode::HandOver => Place::Waiting(RawPart {
                index: PartIndex(index),
                offset: Bytes::new(part.offset_bytes),
                size: Bytes::new(part.size_bytes),
                writable: part.access() == Access::ReadWrite,
                handle_type: part.handle_type(),
                device: part.device,
                fd: fd.map(Arc::new),
                legacy_handle: part.cuda_ipc_handle.as_slice().try_into().ok(),
            }),
        };
        self.revoked = None;
        self.yielded = false;
        self.writes = part.access() == Access::ReadWrite;
        let part =
            Part { offset, size, access: part.access(), place, slot, handle_pinned: false, revoking: None };
        self.parts.insert(index, part);
        Ok(imported)
    }

    /// Grants access to parts that were mapped since the last call, by one driver call for each run of neighbours.
    /// Parts that fail are unmapped again, and returned.
    pub(super) fn grant(&mut self) -> Vec<(u32, String)> {
        let placed = |(index, part): (&u32, &Part)| {
            matches!(part.place, Place::Placed).then_some((part.offset, part.size, part.access, *index))
        };
        let mut placed: Vec<_> = self.parts.iter().filter_map(placed).collect();
        placed.sort_unstable_by_key(|(offset, ..)| *offset);
        let runs = placed.chunk_by(|(offset, size, access, _), (next, _, next_access, _)| {
            offset + size == *next && access == next_access
        });
        let mut refused = Vec::new();
        for run in runs {
            let [(offset, _, access, _), ..] = run else { continue };
            let size = run.iter().map(|(_, size, ..)| size).sum();
            let granted = self
                .space
                .as_ref()
                .map_or(Ok(()), |space| space.set_access(*offset, size, *access == Access::ReadWrite));
            for (offset, size, _, index) in run {
                match &granted {
                    Ok(()) => {
                        if let Some(part) = self.parts.get_mut(index) {
                            part.place = Place::Mapped;
                        }
                    }
                    Err(problem) => {
                        self.parts.remove(index);
                        let also = self.unmap(*offset, *size).err();
                        let also = also
                            .map(|problem| format!("; then unmapping failed: {problem}"))
                            .unwrap_or_default();
                        refused.push((*index, format!("{problem}{also}")));
                    }
                }
            }
        }
        refused
    }

    /// How many parts are mapped with that access; with any access, if none is named.
    pub(super) fn mapped_count(&self, access: Option<Access>) -> usize {
        self.parts.values().filter(|part| access.is_none_or(|access| part.access == access)).count()
    }

    /// Takes the addresses, unless a part lies there.
    pub(super) fn take_space(&mut self) -> Option<Space> {
        if self.parts.is_empty() { self.space.take() } else { None }
    }

    /// Has the parts arrive at these addresses, unless it has some.
    pub(super) fn put_space(&mut self, space: Space) {
        self.space.get_or_insert(space);
    }

    pub(super) fn base(&self) -> Option<Base> {
        self.space.as_ref()?.base()
    }

    /// The window for copies, while the parts that they touch are pinned.
    pub(super) fn window(&self) -> Option<Window> {
        self.space.as_ref()?.window()
    }

    /// The context for events; `None` for memory that is no GPU's.
    pub(super) fn context(&self) -> Option<Arc<Context>> {
        self.space.as_ref()?.context()
    }

    /// The parts for one more handle of the program, which owns them from now on. Descriptors that it has closed do
    /// not come back.
    pub(super) fn hand_over(&mut self) -> Vec<RawPart> {
        self.parts.values_mut().filter_map(|part| part.place.hand_over()).collect()
    }

    /// The slot of a part. It stays the same until the part is unmapped for good, or for a seal.
    fn slot(&mut self, part: (AllocationId, u32), sent_slot: u32, words: &mut Words) -> Result<u32, String> {
        let (_, index) = part;
        let before = self.slots.get(&index).copied();
        match before {
            Some(slot) if !words.is_shared() || (slot == sent_slot && words.belongs_to(slot, part)) => {
                return Ok(slot);
            }
            Some(slot) if self.parts.contains_key(&index) => {
                return Err(format!(
                    "the daemon moved the part from slot {slot} to {sent_slot} while it was mapped"
                ));
            }
            // Anchors that know the old slot must ask again; later questions get the new one.
            Some(_) => std::mem::take(&mut self.slots_lost).store(true, Ordering::Release),
            None => {}
        }
        let slot = words.slot(part, sent_slot, before)?;
        self.slots.insert(index, slot);
        Ok(slot)
    }

    /// Forgets the slots of parts that are away; anchors that know them must ask again.
    pub(super) fn forget_slots(&mut self, id: AllocationId, words: &mut Words) {
        let away = |(index, slot): (&u32, &u32)| (!self.parts.contains_key(index)).then_some((*index, *slot));
        let away: Vec<_> = self.slots.iter().filter_map(away).collect();
        if !away.is_empty() {
            std::mem::take(&mut self.slots_lost).store(true, Ordering::Release);
        }
        for (index, slot) in away {
            self.slots.remove(&index);
            words.disown(slot, (id, index));
        }
    }

    fn space(&mut self, part: &MapPart, span: usize, gpus: &Gpus) -> Result<&mut Space, String> {
        let space = match self.space.take() {
            None => Space::open(part, span, gpus)?,
            Some(space) if space.span() == span => space,
            Some(other) => {
                let problem =
                    format!("the daemon changed the allocation's span from {} to {span} bytes", other.span());
                self.space = Some(other);
                return Err(problem);
            }
        };
        Ok(self.space.insert(space))
    }

    /// Unmaps parts, by one call for each run of neighbours; the caller forgets the parts.
    pub(super) fn unmap_parts(&mut self, indexes: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut mapped: Vec<_> = indexes
            .filter_map(|index| self.parts.get(&index))
            .filter(|part| matches!(part.place, Place::Mapped | Place::Placed))
            .map(|part| (part.offset, part.size))
            .collect();
        mapped.sort_unstable();
        for run in mapped.chunk_by(|(offset, size), (next, _)| offset + size == *next) {
            let [(offset, _), ..] = run else { continue };
            self.unmap(*offset, run.iter().map(|(_, size)| size).sum())?;
        }
        Ok(())
    }

    fn unmap(&mut self, offset: usize, size: usize) -> Result<(), String> {
        self.space.as_mut().map_or(Ok(()), |space| space.unmap(offset, size))
    }
}
