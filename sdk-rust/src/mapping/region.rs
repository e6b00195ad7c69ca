//! One allocation as this session holds it: its address and its parts.

use std::{collections::BTreeMap, os::fd::OwnedFd, ptr::NonNull};

use rustix::io::Errno;
use vramd_proto::v1::{Access, HandleType, MapPart, RevokeReason};
use vramd_types::{Bytes, PartIndex};

use super::{import::import, reservation::Reservation};

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
}

#[derive(Debug, Default)]
pub(super) struct Region {
    reservation: Option<Reservation>,
    parts: BTreeMap<u32, Part>,
    /// Why a part could not be mapped.
    pub(super) failure: Option<String>,
    /// Why the daemon last took parts back. Forgotten when parts come again.
    pub(super) revoked: Option<RevokeReason>,
    /// Some handle answers for it.
    pub(super) claimed: bool,
    /// The program has said that it has unmapped all that was handed over to it.
    pub(super) yielded: bool,
}

#[derive(Debug)]
struct Part {
    offset: usize,
    size: usize,
    access: Access,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Mapped,
    Waiting(RawPart),
    HandedOver,
}

impl Region {
    /// Takes a part that the daemon has sent.
    pub(super) fn accept(&mut self, mode: Mode, part: &MapPart, fd: Option<OwnedFd>) -> Result<(), String> {
        let index = part.part.as_ref().map_or(0, |part| part.part_index);
        let number =
            |bytes: u64| usize::try_from(bytes).map_err(|_| "it is larger than this process's addresses");
        let (offset, size) = (number(part.offset_bytes)?, number(part.size_bytes)?);
        let place = match mode {
            Mode::Map => {
                import(self.reserve(number(part.span_bytes)?)?, part, fd)?;
                Place::Mapped
            }
            Mode::HandOver => Place::Waiting(RawPart {
                index: PartIndex(index),
                offset: Bytes::new(part.offset_bytes),
                size: Bytes::new(part.size_bytes),
                writable: part.access() == Access::ReadWrite,
                handle_type: part.handle_type(),
                device: part.device,
                fd,
            }),
        };
        self.revoked = None;
        self.yielded = false;
        self.parts.insert(index, Part { offset, size, access: part.access(), place });
        Ok(())
    }

    /// Lets go of one part that the daemon wants back. True if it is to be told so now.
    pub(super) fn revoke(&mut self, index: u32, reason: RevokeReason) -> Result<bool, Errno> {
        let Some(part) = self.parts.get(&index) else { return Ok(false) };
        self.revoked = Some(reason);
        match part.place {
            Place::HandedOver if !self.yielded => return Ok(false),
            Place::Mapped => self.unmap(part.offset, part.size)?,
            Place::HandedOver | Place::Waiting(_) => {}
        }
        self.parts.remove(&index);
        Ok(true)
    }

    /// Lets go of all parts, and says which they were.
    pub(super) fn let_go(&mut self) -> Result<Vec<u32>, Errno> {
        for part in self.parts.values() {
            if matches!(part.place, Place::Mapped) {
                self.unmap(part.offset, part.size)?;
            }
        }
        Ok(std::mem::take(&mut self.parts).into_keys().collect())
    }

    /// How many parts are here with that access; with any, if none is named.
    pub(super) fn held(&self, access: Option<Access>) -> usize {
        self.parts.values().filter(|part| access.is_none_or(|access| part.access == access)).count()
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        self.parts.keys().copied()
    }

    pub(super) fn base(&self) -> Option<NonNull<u8>> {
        self.reservation.as_ref().map(Reservation::base)
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

    fn reserve(&mut self, span: usize) -> Result<&Reservation, String> {
        let reservation = match self.reservation.take() {
            Some(reservation) if reservation.span() == span => reservation,
            Some(other) => {
                let problem = format!("its span changed from {} to {span} bytes", other.span());
                self.reservation = Some(other);
                return Err(problem);
            }
            None => Reservation::new(span)
                .map_err(|error| format!("reserving {span} bytes of addresses: {error}"))?,
        };
        Ok(self.reservation.insert(reservation))
    }

    fn unmap(&self, offset: usize, size: usize) -> Result<(), Errno> {
        self.reservation.as_ref().map_or(Ok(()), |reservation| reservation.unmap(offset, size))
    }
}
