//! The addresses of one allocation: one variant for each kind of export that the daemon may send.
//!
//! Each kind is reserved and mapped by its own means; the rest of the SDK does not distinguish them.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use rustix::fs::fstat;
use vramd_proto::v1::{Access, HandleType, MapPart};

use super::{
    copy::{Place, Window},
    reservation::{Reservation, explain},
};
use crate::cuda::{Arena, Context, Gpus, HANDLE_BYTES, Imported, LegacyBlock};

#[derive(Debug)]
pub(crate) enum Space {
    Host(Reservation),
    Device(Arena),
    /// At an address of the driver's choice; one part, which is the whole.
    Fixed {
        context: Arc<Context>,
        span: usize,
        block: Option<LegacyBlock>,
    },
}

/// The address of an allocation, for as long as a handle claims it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) address: u64,
    /// Whether the address is a GPU's, which the CPU cannot access.
    pub(crate) is_device: bool,
}

/// Whether a descriptor travels with a part of this kind.
pub(super) fn has_descriptor(handle_type: HandleType) -> bool {
    !matches!(handle_type, HandleType::CudaIpc)
}

/// Whether mapping it needs CUDA.
pub(super) fn is_of_cuda(handle_type: HandleType) -> bool {
    matches!(handle_type, HandleType::VmmFd | HandleType::CudaIpc)
}

impl Space {
    /// Reserves addresses for a whole allocation, of the kind of its first part.
    pub(super) fn open(part: &MapPart, span: usize, gpus: &Gpus) -> Result<Self, String> {
        match part.handle_type() {
            HandleType::Memfd => Reservation::new(span).map(Self::Host).map_err(|error| {
                format!("reserving {span} bytes of address space failed: {}", explain(error))
            }),
            HandleType::VmmFd => Arena::reserve(gpus.context(part.device)?, span).map(Self::Device),
            HandleType::CudaIpc => Ok(Self::Fixed { context: gpus.context(part.device)?, span, block: None }),
            HandleType::Unspecified => {
                Err(format!("handle type {} is not known to this build", part.handle_type))
            }
        }
    }

    /// Maps a part. Device memory has no access yet; the import that it was mapped by is returned, to be dropped when
    /// there is time.
    pub(super) fn map(
        &mut self,
        part: &MapPart,
        offset: usize,
        size: usize,
        fd: Option<OwnedFd>,
    ) -> Result<Option<Imported>, String> {
        if matches!(part.access(), Access::Unspecified) {
            return Err(format!("access {} is not known to this build", part.access));
        }
        let fd = || fd.ok_or_else(|| "no descriptor arrived with the part".to_owned());
        match (self, part.handle_type()) {
            (Self::Host(reservation), HandleType::Memfd) => {
                map_memfd(reservation, &fd()?, offset, size, part.access() == Access::ReadWrite)?;
                Ok(None)
            }
            (Self::Device(arena), HandleType::VmmFd) => arena.map(fd()?, offset, size).map(Some),
            (Self::Fixed { context, span, block }, HandleType::CudaIpc) => {
                if offset != 0 || size != *span || block.is_some() {
                    return Err("fixed memory must arrive as one part".to_owned());
                }
                let handle: [u8; HANDLE_BYTES] =
                    part.cuda_ipc_handle.as_slice().try_into().map_err(|_| {
                        format!(
                            "a legacy handle has {} bytes, not {HANDLE_BYTES}",
                            part.cuda_ipc_handle.len()
                        )
                    })?;
                *block = Some(LegacyBlock::open(Arc::clone(context), handle)?);
                Ok(None)
            }
            _ => Err("the daemon changed the allocation's kind of export".to_owned()),
        }
    }

    /// Grants this process access to a range of whole mapped parts, if mapping alone does not.
    pub(super) fn set_access(&self, offset: usize, size: usize, writable: bool) -> Result<(), String> {
        match self {
            Self::Device(arena) => arena.set_access(offset, size, writable),
            Self::Host(_) | Self::Fixed { .. } => Ok(()),
        }
    }

    pub(super) fn unmap(&mut self, offset: usize, size: usize) -> Result<(), String> {
        match self {
            Self::Host(reservation) => {
                reservation.unmap(offset, size).map_err(|error| format!("munmap failed: {error}"))
            }
            Self::Device(arena) => arena.unmap(offset, size),
            Self::Fixed { block, .. } => block.take().map_or(Ok(()), LegacyBlock::close),
        }
    }

    /// `None` for fixed memory that is not mapped.
    pub(super) fn base(&self) -> Option<Base> {
        Some(match self {
            Self::Host(reservation) => {
                let address = reservation.base().as_ptr().expose_provenance() as u64;
                Base { address, is_device: false }
            }
            Self::Device(arena) => Base { address: arena.base(), is_device: true },
            Self::Fixed { block, .. } => Base { address: block.as_ref()?.address(), is_device: true },
        })
    }

    /// The window for copies, while all of it is mapped.
    pub(super) fn window(&self) -> Option<Window> {
        let Base { address, .. } = self.base()?;
        let place = match self {
            Self::Host(_) => Place::Host { address: usize::try_from(address).ok()? },
            Self::Device(arena) => Place::Device { address, context: Arc::clone(arena.context()) },
            Self::Fixed { context, .. } => Place::Device { address, context: Arc::clone(context) },
        };
        Some(Window::new(place, self.span()))
    }

    pub(super) fn context(&self) -> Option<Arc<Context>> {
        match self {
            Self::Host(_) => None,
            Self::Device(arena) => Some(Arc::clone(arena.context())),
            Self::Fixed { context, .. } => Some(Arc::clone(context)),
        }
    }

    pub(super) fn span(&self) -> usize {
        match self {
            Self::Host(reservation) => reservation.span(),
            Self::Device(arena) => arena.span(),
            Self::Fixed { span, .. } => *span,
        }
    }
}

fn map_memfd(
    reservation: &Reservation,
    fd: &OwnedFd,
    offset: usize,
    size: usize,
    writable: bool,
) -> Result<(), String> {
    let stat = fstat(fd).map_err(|error| format!("fstat failed: {error}"))?;
    // An access beyond a file's end kills the process.
    if usize::try_from(stat.st_size).is_ok_and(|there| there < size) {
        return Err(format!("the part has {size} bytes, but its memory only {}", stat.st_size));
    }
    reservation
        .map(fd.as_fd(), offset, size, writable)
        .map_err(|error| format!("mapping the part failed: {}", explain(error)))
}
