//! From a handle to memory: one arm for each kind of handle that the daemon may send.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstat;
use vramd_proto::v1::{Access, HandleType, MapPart};

use super::reservation::Reservation;

/// Whether a descriptor travels with a part of this kind.
pub(crate) fn has_descriptor(handle_type: HandleType) -> bool {
    !matches!(handle_type, HandleType::CudaIpc)
}

/// Maps a part into its allocation's reservation; the descriptor is closed either way.
pub(crate) fn import(reservation: &Reservation, part: &MapPart, fd: Option<OwnedFd>) -> Result<(), String> {
    match part.handle_type() {
        HandleType::Memfd => map_memfd(reservation, part, &fd.ok_or("no descriptor came with the part")?),
        HandleType::VmmFd | HandleType::CudaIpc => Err("this build cannot map CUDA handles".to_owned()),
        HandleType::Unspecified => {
            Err(format!("handle type {} is not known to this build", part.handle_type))
        }
    }
}

fn map_memfd(reservation: &Reservation, part: &MapPart, fd: &OwnedFd) -> Result<(), String> {
    let writable = match part.access() {
        Access::ReadWrite => true,
        Access::ReadOnly => false,
        Access::Unspecified => return Err(format!("access {} is not known to this build", part.access)),
    };
    let (Ok(offset), Ok(size)) = (usize::try_from(part.offset_bytes), usize::try_from(part.size_bytes))
    else {
        return Err("the part does not fit into this process's addresses".to_owned());
    };
    let stat = fstat(fd).map_err(|error| format!("fstat: {error}"))?;
    // Touching what lies beyond a file's end kills the process.
    if u64::try_from(stat.st_size).is_ok_and(|there| there < part.size_bytes) {
        return Err(format!("the part has {} bytes, its memory {}", part.size_bytes, stat.st_size));
    }
    reservation.map(fd.as_fd(), offset, size, writable).map_err(|error| format!("mmap: {error}"))
}
