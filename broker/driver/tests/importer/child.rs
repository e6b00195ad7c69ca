//! The started process: maps and accesses memory by orders from the test.
#![allow(unsafe_code, reason = "memory of another process is mapped and touched by address")]

use std::{
    ffi::c_void,
    io::{Read, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    os::unix::net::UnixStream,
    slice,
};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use super::wire::{self, Order, Verb};

/// Serves until the test ends or kills the process.
pub(super) fn serve() {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut held = Held::default();
    while let Some((order, fd)) = wire::receive(&socket).unwrap() {
        let (done, bytes) = held.obey(order, fd, &socket);
        wire::send_answer(&socket, done, &bytes).unwrap();
    }
}

#[derive(Default)]
struct Held {
    fd: Option<OwnedFd>,
    length: usize,
    mapped: Option<*mut c_void>,
}

impl Held {
    fn obey(&mut self, order: Order, fd: Option<OwnedFd>, mut socket: &UnixStream) -> (bool, Vec<u8>) {
        let length = usize::try_from(order.length).unwrap();
        match order.verb {
            Verb::Import => {
                (self.fd, self.length) = (fd, length);
                (self.fd.is_some(), Vec::new())
            }
            Verb::MapReadOnly => (self.map(ProtFlags::READ), Vec::new()),
            Verb::MapReadWrite => (self.map(ProtFlags::READ | ProtFlags::WRITE), Vec::new()),
            Verb::Close => (self.fd.take().is_some(), Vec::new()),
            Verb::Unmap => (self.unmap(), Vec::new()),
            Verb::Read => (true, self.read(order.offset, length)),
            Verb::Write => {
                let mut bytes = vec![0; length];
                socket.read_exact(&mut bytes).unwrap();
                (self.write(order.offset, &bytes), Vec::new())
            }
            Verb::ImportBlock | Verb::Allocate | Verb::ImportFile => unreachable!("these are CUDA's"),
        }
    }

    fn map(&mut self, access: ProtFlags) -> bool {
        let fd = self.fd.as_ref().unwrap();
        // SAFETY: Mapping needs an unsafe call. The kernel chooses the address, so nothing else is replaced.
        let mapped = unsafe { mmap(std::ptr::null_mut(), self.length, access, MapFlags::SHARED, fd, 0) };
        self.mapped = mapped.ok();
        self.mapped.is_some()
    }

    fn unmap(&mut self) -> bool {
        // SAFETY: Unmapping needs an unsafe call. The range is the one that was mapped, and no reference to it is
        // kept between orders.
        self.mapped.take().is_some_and(|mapped| unsafe { munmap(mapped, self.length) }.is_ok())
    }

    fn at(&self, offset: u64, length: usize) -> *mut c_void {
        let offset = usize::try_from(offset).unwrap();
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        self.mapped.unwrap().wrapping_byte_add(offset)
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0_u8; length];
        // SAFETY: The bytes are reached by address alone. `at` has checked that they are inside the mapping,
        // whose file cannot shrink. They are copied, not borrowed, and the vector is memory of this process's
        // own.
        unsafe { self.at(offset, length).cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    /// Through a pipe: if the access of the mapping forbids it, the kernel returns an error, and this process
    /// lives on.
    fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let (read_end, mut write_end) = std::io::pipe().unwrap();
        let mut offset = offset;
        for piece in bytes.chunks(4096) {
            write_end.write_all(piece).unwrap();
            let at = self.at(offset, piece.len()).cast::<MaybeUninit<u8>>();
            // SAFETY: The kernel needs the address to write to. `at` has checked that the range is inside the
            // mapping, and no other reference to it exists. The kernel does not write to it if the access
            // forbids that.
            let target = unsafe { slice::from_raw_parts_mut(at, piece.len()) };
            match rustix::io::read(&read_end, target) {
                Ok((written, _)) => assert_eq!(written.len(), piece.len()),
                Err(error) => {
                    assert_eq!(error, Errno::FAULT);
                    return false;
                }
            }
            offset += piece.len() as u64;
        }
        true
    }
}
