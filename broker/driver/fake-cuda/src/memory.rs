//! This process's device memory: handles, addresses, contexts.
#![allow(unsafe_code, reason = "memory is mapped and copied by address")]

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::{CString, c_int, c_void},
    fs::File,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use crate::{holders, script::script};

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;

pub(crate) struct Piece {
    pub(crate) file: File,
    pub(crate) size: usize,
    pub(crate) device: usize,
}

/// A mapped address range.
pub(crate) struct Range {
    pub(crate) size: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The memory of a `cuMemAlloc` block.
    pub(crate) block: Option<Piece>,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) handles: HashMap<u64, Piece>,
    pub(crate) next: u64,
    pub(crate) ranges: BTreeMap<u64, Range>,
    /// Managed memory, with its size.
    pub(crate) managed: BTreeMap<u64, usize>,
    /// By `cuMemHostRegister`.
    pub(crate) registered: HashMap<usize, usize>,
    /// For each device: how often its context is retained, and the context's memory.
    pub(crate) contexts: HashMap<usize, (usize, Piece)>,
    /// Contexts that are not primary, by their handles.
    pub(crate) own_contexts: BTreeSet<usize>,
    /// Streams that the default stream waits for.
    pub(crate) blocking: BTreeSet<usize>,
    /// Streams that are being captured.
    pub(crate) capturing: BTreeSet<usize>,
    /// How many more releases a handle needs.
    pub(crate) retained: HashMap<u64, u64>,
    /// The handle of each mapping, by its address.
    pub(crate) mapped: BTreeMap<u64, u64>,
}

thread_local! {
    /// The handles less one of the contexts that are current in this thread, the latest last.
    pub(crate) static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn world() -> MutexGuard<'static, World> {
    static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Piece {
    /// Allocates memory, if there is room.
    pub(crate) fn new(device: usize, size: usize) -> Result<Self, u32> {
        let capacity = if device == holders::HOST { "host_mib" } else { "memory_mib" };
        if holders::used(device).saturating_add(size) > script().bytes(capacity, 1024) {
            return Err(OUT_OF_MEMORY);
        }
        let name = CString::new(holders::name(device)).map_err(|_| INVALID_VALUE)?;
        // SAFETY: A foreign call, which reads a terminated text and makes a descriptor.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: The descriptor was made above, for us alone.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(size as u64).map_err(|_| OUT_OF_MEMORY)?;
        if script().is_set("dirty") {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&[0x5a; 4096], 0).map_err(|_| OUT_OF_MEMORY)?;
        }
        Ok(Self { file, size, device })
    }
}

/// Reserves an address range without memory.
pub(crate) fn reserve(size: usize) -> Option<u64> {
    map(std::ptr::null_mut(), size, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

/// Maps memory at reserved addresses.
pub(crate) fn attach(at: u64, piece: &Piece, protection: c_int) -> bool {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    map(pointer(at), piece.size, protection, flags, piece.file.as_raw_fd()).is_some()
}

/// Unmaps memory; the addresses stay reserved.
pub(crate) fn detach(at: u64, size: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    map(pointer(at), size, libc::PROT_NONE, flags, -1).is_some()
}

pub(crate) fn protect(at: u64, size: usize, protection: c_int) -> bool {
    // SAFETY: A foreign call on addresses that were mapped for the caller of the driver.
    unsafe { libc::mprotect(pointer(at), size, protection) == 0 }
}

pub(crate) fn give_back(at: u64, size: usize) -> bool {
    // SAFETY: A foreign call on addresses that were reserved for the caller of the driver.
    unsafe { libc::munmap(pointer(at), size) == 0 }
}

fn map(at: *mut c_void, size: usize, protection: c_int, flags: c_int, fd: c_int) -> Option<u64> {
    // SAFETY: A foreign call. A fixed address is one of a reservation that the caller of the driver made.
    let mapped = unsafe { libc::mmap(at, size, protection, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { None } else { Some(mapped as u64) }
}

pub(crate) fn pointer(at: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(0))
}

impl World {
    /// Whether such a copy is allowed.
    pub(crate) fn reaches(&self, at: u64, length: usize, writes: bool) -> bool {
        let Some((start, range)) = self.ranges.range(..=at).next_back() else { return false };
        let inside = at - start + length as u64 <= range.size as u64;
        inside && range.readable && (range.writable || !writes)
    }
}

pub(crate) fn copy(from: *const c_void, to: *mut c_void, length: usize) {
    // SAFETY: The device's side was checked by `reaches`; the host's side is the caller's word, as with CUDA.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), length) };
}

pub(crate) fn fill(at: u64, byte: u8, length: usize) {
    // SAFETY: The range was checked by `reaches`.
    unsafe { pointer(at).cast::<u8>().write_bytes(byte, length) };
}

/// Writes a result to the caller's address.
pub(crate) fn put<T>(to: *mut T, value: T) -> u32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: The caller of the driver says where, as with CUDA.
    unsafe { to.write(value) };
    0
}

/// Reads from the caller's address.
pub(crate) fn get<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: The caller of the driver says where, as with CUDA.
    (!from.is_null()).then(|| unsafe { from.read() })
}
