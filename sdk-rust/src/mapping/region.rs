//! One allocation as this session holds it: its address and its parts.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use vramd_proto::v1::{Access, HandleType, MapPart, PartRef, RevokeReason};
use vramd_types::{AllocationId, Bytes, PartIndex};

use super::{
    copy::Window,
    space::{Base, Space},
};
use crate::{
    cuda::{Context, Gpus, HANDLE_BYTES, Imported},
    pins::Words,
};

/// What becomes of a part's handle when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is mapped, and the descriptor closed.
    Map,
    /// It waits for the program to take it, which maps it as it likes.
    HandOver,
}

/// A part as it came from the daemon: nothing is mapped yet.
#[derive(Debug)]
pub struct RawPart {
    pub index: PartIndex,
    /// Where in the allocation it lies.
    pub offset: Bytes,
    /// How much of the descriptor's memory is the part's: all of it.
    pub size: Bytes,
    /// Whether the session may write. The kernel does not enforce it: who maps chooses.
    pub writable: bool,
    pub handle_type: HandleType,
    /// Index of the device in [`crate::Client::devices`].
    pub device: u32,
    /// `None` for kinds of handles that are none.
    pub fd: Option<OwnedFd>,
    /// For [`HandleType::CudaIpc`] alone.
    pub legacy_handle: Option<[u8; HANDLE_BYTES]>,
}

#[derive(Debug, Default)]
pub(super) struct Region {
    space: Option<Space>,
    pub(super) parts: BTreeMap<u32, Part>,
    /// Where the words of each part are that ever came: it keeps them, mapped or not.
    pub(super) slots: BTreeMap<u32, u32>,
    /// How often the content of parts was given up, by the time they came last; of those where it was.
    pub(super) drop_counts: BTreeMap<u32, u64>,
    /// Set once a word of one of them has become another part's: who knows where they were knows it no more.
    pub(super) slots_lost: Arc<AtomicBool>,
    /// Each part is to have a pin of the handle's own: what it maps stays, whoever else pins.
    pub(super) wants_handle_pins: bool,
    /// As the parts last came, or are to come: whoever pins a part that is not here may be pinning it for writing.
    pub(super) writes: bool,
    /// Why a part could not be mapped.
    pub(super) failure: Option<String>,
    /// A part that was to come and does not, since what it held is lost.
    pub(super) lost: Option<u32>,
    /// Why the daemon last took parts back. Forgotten when parts come again.
    pub(super) revoked: Option<RevokeReason>,
    /// Some handle answers for it.
    pub(super) claimed: bool,
    /// Nobody answers for it any more: it goes with its last part.
    pub(super) forgotten: bool,
    /// The program has said that it has unmapped all that was handed over to it.
    pub(super) yielded: bool,
}

#[derive(Debug)]
pub(super) struct Part {
    offset: usize,
    size: usize,
    pub(super) access: Access,
    pub(super) place: Place,
    /// Where its words are, once it is mapped.
    pub(super) slot: Option<u32>,
    /// The handle's own pin is there.
    pub(super) handle_pinned: bool,
    /// The daemon wants it back, and waits for pins to end.
    pub(super) revoking: Option<RevokeReason>,
}

#[derive(Debug)]
pub(super) enum Place {
    /// Not usable before access is granted.
    Placed,
    Mapped,
    Waiting(RawPart),
    HandedOver,
}

impl Region {
    pub(super) fn with_handle_pins(wants_handle_pins: bool) -> Self {
        Self { wants_handle_pins, ..Self::default() }
    }

    /// Takes a part that the daemon has sent. What is mapped becomes usable by [`Self::grant`].
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
        let number =
            |bytes: u64| usize::try_from(bytes).map_err(|_| "it is larger than this process's addresses");
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
                fd,
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

    /// Opens what was mapped since the last time, by one call for each run of neighbours. Parts that cannot be opened
    /// are unmapped again, and told.
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
                        let also = also.map(|problem| format!("; then {problem}")).unwrap_or_default();
                        refused.push((*index, format!("{problem}{also}")));
                    }
                }
            }
        }
        refused
    }

    /// How many parts are here with that access; with any, if none is named.
    pub(super) fn mapped_count(&self, access: Option<Access>) -> usize {
        self.parts.values().filter(|part| access.is_none_or(|access| part.access == access)).count()
    }

    pub(super) fn base(&self) -> Option<Base> {
        self.space.as_ref()?.base()
    }

    /// For copies, while what they touch is pinned.
    pub(super) fn window(&self) -> Option<Window> {
        self.space.as_ref()?.window()
    }

    /// Where its events are recorded; `None` for memory that is none of a GPU's.
    pub(super) fn context(&self) -> Option<Arc<Context>> {
        self.space.as_ref()?.context()
    }

    /// The parts that wait to be taken; they are the program's from now on.
    pub(super) fn hand_over(&mut self) -> Vec<RawPart> {
        let mut taken = Vec::new();
        for part in self.parts.values_mut() {
            match std::mem::replace(&mut part.place, Place::HandedOver) {
                Place::Waiting(raw) => taken.push(raw),
                other => part.place = other,
            }
        }
        taken
    }

    /// Where a part's words are. They stay there until the part is let go of for good, as it is to be sealed.
    fn slot(&mut self, part: (AllocationId, u32), sent_slot: u32, words: &mut Words) -> Result<u32, String> {
        let (_, index) = part;
        let before = self.slots.get(&index).copied();
        match before {
            Some(slot) if !words.is_shared() || (slot == sent_slot && words.belongs_to(slot, part)) => {
                return Ok(slot);
            }
            Some(slot) if self.parts.contains_key(&index) => {
                return Err(format!("its words moved from slot {slot} to {sent_slot}"));
            }
            // Who has asked where they were knows it no more; who asks from now on does.
            Some(_) => std::mem::take(&mut self.slots_lost).store(true, Ordering::Release),
            None => {}
        }
        let slot = words.slot(part, sent_slot, before)?;
        self.slots.insert(index, slot);
        Ok(slot)
    }

    /// Of parts that are not here. Who has asked where they were knows it no more.
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
                let problem = format!("its span changed from {} to {span} bytes", other.span());
                self.space = Some(other);
                return Err(problem);
            }
        };
        Ok(self.space.insert(space))
    }

    /// What lies there goes, by one call for each run of neighbours; the parts are forgotten by the caller.
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
