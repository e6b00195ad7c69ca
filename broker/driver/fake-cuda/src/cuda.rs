//! The functions of `libcuda.so.1` that this project's drivers use.
#![allow(unsafe_code, reason = "symbols are exported under their own names")]
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::{
    ffi::{c_char, c_int, c_uint, c_ulonglong},
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd},
};

use crate::{
    holders, managed,
    memory::{
        self, CURRENT, INVALID_VALUE, Piece, Range, World, attach, copy, detach, get, give_back, protect,
        put, reserve, world,
    },
    script::{is_triggered, script},
};

pub(crate) const INVALID_CONTEXT: u32 = 201;
/// The handle of a primary context is its device's number plus one; that of another context is larger by a multiple of this.
pub(crate) const DEVICES_MAX: usize = 0x100;
pub(crate) const PAGE: usize = 2 << 20;

pub(crate) fn status_of(done: bool) -> u32 {
    if done { 0 } else { INVALID_VALUE }
}

fn devices() -> usize {
    script().number("devices", 1)
}

/// The UUID of a device, or of a MIG instance of the first device.
pub(crate) fn uuid(device: usize, instance: Option<usize>) -> [u8; 16] {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    let mut bytes = [0; 16];
    for byte in script().text("node", "fake").bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    bytes[..8].copy_from_slice(&state.to_le_bytes());
    bytes[14] = u8::try_from(instance.map_or(0, |instance| instance + 1)).unwrap_or(u8::MAX);
    bytes[15] = u8::try_from(device).unwrap_or(u8::MAX);
    bytes
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuInit(_flags: c_uint) -> u32 {
    script().number("init", 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    put(version, script().number("version", 13000))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    let known = match code {
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        34 => c"CUDA_ERROR_STUB_LIBRARY",
        100 => c"CUDA_ERROR_NO_DEVICE",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => return INVALID_VALUE,
    };
    put(name, known.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    put(count, script().number("devices", 1))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    put(device, ordinal)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> u32 {
    let text = format!("Fake GPU {device}\0");
    if text.len() > usize::try_from(length).unwrap_or(0) {
        return INVALID_VALUE;
    }
    copy(text.as_ptr().cast(), name.cast(), text.len());
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: c_int) -> u32 {
    let device = usize::try_from(device).unwrap_or(usize::MAX);
    let instance = (device == 0 && script().is_set("mig")).then_some(0);
    put(to, uuid(device, instance))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> u32 {
    const COMPUTE_MODE: c_uint = 20;
    const HOST_NUMA_ID: c_uint = 134;
    let of_all = match attribute {
        COMPUTE_MODE => script().number("compute_mode", 0),
        HOST_NUMA_ID => script().number("attribute.134", 0),
        // A discrete device, whose memory no page table of the host maps.
        other @ (18 | 88 | 100 | 101) => script().number(&format!("attribute.{other}"), 0),
        other => script().number(&format!("attribute.{other}"), 1),
    };
    put(value, script().number(&format!("attribute.{attribute}.{device}"), of_all))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceTotalMem_v2(total: *mut usize, _device: c_int) -> u32 {
    put(total, script().bytes("memory_mib", 1024))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> u32 {
    begin!("cuDevicePrimaryCtxRetain");
    let device = usize::try_from(device).unwrap_or(usize::MAX);
    let mut world = world();
    if let Some((times, _)) = world.contexts.get_mut(&device) {
        *times += 1;
    } else {
        match Piece::new(device, script().bytes("context_mib", 8)) {
            Ok(piece) => drop(world.contexts.insert(device, (1, piece))),
            Err(code) => return code,
        }
    }
    put(context, device + 1)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    let device = usize::try_from(device).unwrap_or(usize::MAX);
    let mut world = world();
    let Some((times, _)) = world.contexts.get_mut(&device) else { return INVALID_CONTEXT };
    *times -= 1;
    if *times == 0 {
        world.contexts.remove(&device);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> u32 {
    let is_live =
        |world: &World| world.contexts.contains_key(&(context - 1)) || world.own_contexts.contains(&context);
    if context == 0 || !is_live(&world()) {
        return INVALID_CONTEXT;
    }
    CURRENT.with_borrow_mut(|current| current.push(context - 1));
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> u32 {
    let popped = CURRENT.with_borrow_mut(Vec::pop);
    popped.map_or(INVALID_CONTEXT, |device| put(context, device + 1))
}

/// The device whose context is current.
pub(crate) fn current() -> Option<usize> {
    CURRENT.with_borrow(|current| current.last().map(|context| context % DEVICES_MAX))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    let Some(device) = current() else { return INVALID_CONTEXT };
    let all = script().bytes("memory_mib", 1024);
    put(free, all.saturating_sub(holders::used(device)));
    put(total, all)
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

const ON_DEVICE: u32 = 1;
const IN_HOST: u32 = 3;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: c_int,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(
    size: *mut usize,
    _of: *const Properties,
    _option: c_uint,
) -> u32 {
    put(size, PAGE)
}

fn enter(world: &mut World, piece: Piece) -> u64 {
    world.next += 1;
    let handle = world.next;
    world.handles.insert(handle, piece);
    handle
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemCreate(
    handle: *mut u64,
    size: usize,
    of: *const Properties,
    _flags: c_ulonglong,
) -> u32 {
    begin!("cuMemCreate");
    let Some(properties) = get(of) else { return INVALID_VALUE };
    if size == 0 || !size.is_multiple_of(PAGE) || properties.handle_types != 1 {
        return INVALID_VALUE;
    }
    let device = match properties.location.kind {
        IN_HOST => holders::HOST,
        _ => usize::try_from(properties.location.id).unwrap_or(usize::MAX),
    };
    if device == holders::HOST {
        begin!("cuMemCreate(host)");
        script().note(&format!("cuMemCreate(host:{})", properties.location.id));
    } else if device >= devices() {
        return 101;
    }
    match Piece::new(device, size) {
        Ok(piece) => put(handle, enter(&mut world(), piece)),
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemRelease(handle: u64) -> u32 {
    begin!("cuMemRelease");
    if is_triggered() {
        holders::set_tables(script().bytes("tables_mib", 0));
    }
    let mut world = world();
    if let Some(times) = world.retained.get_mut(&handle).filter(|times| **times > 0) {
        *times -= 1;
        return 0;
    }
    status_of(world.handles.remove(&handle).is_some())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemExportToShareableHandle(
    to: *mut c_int,
    handle: u64,
    _kind: c_uint,
    _flags: c_ulonglong,
) -> u32 {
    begin!("cuMemExportToShareableHandle");
    match world().handles.get(&handle).map(|piece| piece.file.as_fd().try_clone_to_owned()) {
        Some(Ok(fd)) => put(to, fd.into_raw_fd()),
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemImportFromShareableHandle(handle: *mut u64, fd: usize, _kind: c_uint) -> u32 {
    begin!("cuMemImportFromShareableHandle");
    let Ok(fd) = c_int::try_from(fd) else { return INVALID_VALUE };
    // SAFETY: The caller has the descriptor open, as with CUDA; it is duplicated at once.
    let Ok(file) = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned() else { return INVALID_VALUE };
    let file = File::from(file);
    let Ok(size) = file.metadata().map(|file| usize::try_from(file.len()).unwrap_or(0)) else {
        return INVALID_VALUE;
    };
    let Some(device) = holders::device_of(file.as_fd()) else { return INVALID_VALUE };
    put(handle, enter(&mut world(), Piece { file, size, device }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationPropertiesFromHandle(to: *mut Properties, handle: u64) -> u32 {
    begin!("cuMemGetAllocationPropertiesFromHandle");
    let world = world();
    let Some(piece) = world.handles.get(&handle) else { return INVALID_VALUE };
    let location = match c_int::try_from(piece.device) {
        Ok(id) => Location { kind: ON_DEVICE, id },
        Err(_) => Location { kind: IN_HOST, id: script().number("attribute.134", 0) },
    };
    put(to, Properties { kind: 1, handle_types: 1, location, ..Properties::default() })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    size: usize,
    _alignment: usize,
    _wanted: u64,
    _flags: c_ulonglong,
) -> u32 {
    begin!("cuMemAddressReserve");
    reserve(size).map_or(memory::OUT_OF_MEMORY, |at| put(address, at))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: u64, size: usize) -> u32 {
    if world().ranges.contains_key(&address) {
        return INVALID_VALUE;
    }
    status_of(give_back(address, size))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemMap(
    address: u64,
    size: usize,
    offset: usize,
    handle: u64,
    _flags: c_ulonglong,
) -> u32 {
    begin!("cuMemMap");
    let mut world = world();
    let Some(piece) = world.handles.get(&handle) else { return INVALID_VALUE };
    if offset != 0 || size != piece.size || !attach(address, piece, libc::PROT_NONE) {
        return INVALID_VALUE;
    }
    world.ranges.insert(address, Range { size, readable: false, writable: false, block: None });
    world.mapped.insert(address, handle);
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemUnmap(address: u64, size: usize) -> u32 {
    begin!("cuMemUnmap");
    let mut world = world();
    let inside: Vec<(u64, usize)> = world
        .ranges
        .range(address..address.saturating_add(size as u64))
        .map(|(at, range)| (*at, range.size))
        .collect();
    if inside.iter().map(|(_, size)| size).sum::<usize>() != size {
        return INVALID_VALUE;
    }
    status_of(inside.into_iter().all(|(at, size)| {
        world.ranges.remove(&at);
        detach(at, size)
    }))
}

#[derive(Clone, Copy)]
#[repr(C)]
struct AccessDescription {
    location: Location,
    flags: u32,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(
    address: u64,
    size: usize,
    access: *const AccessDescription,
    count: usize,
) -> u32 {
    begin!("cuMemSetAccess");
    // All have the same access, so the first stands for all.
    let Some(access) = get(access).filter(|_| count > 0) else { return INVALID_VALUE };
    script().note(&format!("cuMemSetAccess({})", access.location.id));
    let (readable, writable) = (access.flags & 1 != 0, access.flags == 3);
    let mut world = world();
    let mut covered = 0;
    for (_, range) in world.ranges.range_mut(address..address.saturating_add(size as u64)) {
        (range.readable, range.writable) = (readable, writable);
        covered += range.size;
    }
    let protection = match (readable, writable) {
        (true, true) => libc::PROT_READ | libc::PROT_WRITE,
        (true, false) => libc::PROT_READ,
        _ => libc::PROT_NONE,
    };
    status_of(covered == size && protect(address, size, protection))
}

fn map_block(world: &mut World, piece: Piece) -> Result<u64, u32> {
    let at = reserve(piece.size).ok_or(memory::OUT_OF_MEMORY)?;
    if !attach(at, &piece, libc::PROT_READ | libc::PROT_WRITE) {
        return Err(memory::OUT_OF_MEMORY);
    }
    let range = Range { size: piece.size, readable: true, writable: true, block: Some(piece) };
    world.ranges.insert(at, range);
    Ok(at)
}

fn unmap_block(address: u64) -> u32 {
    let mut world = world();
    let Some(range) = world.ranges.remove(&address).filter(|range| range.block.is_some()) else {
        return INVALID_VALUE;
    };
    status_of(give_back(address, range.size))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAlloc_v2(address: *mut u64, size: usize) -> u32 {
    begin!("cuMemAlloc_v2");
    let Some(device) = current() else { return INVALID_CONTEXT };
    let size = size.next_multiple_of(PAGE);
    let placed = Piece::new(device, size).and_then(|piece| map_block(&mut world(), piece));
    placed.map_or_else(|code| code, |at| put(address, at))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    begin!("cuMemFree_v2");
    if let Some(code) = managed::free(address) {
        return code;
    }
    unmap_block(address)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) -> u32 {
    begin!("cuMemGetAddressRange_v2");
    let world = world();
    let Some((at, range)) = world.ranges.range(..=address).next_back() else { return INVALID_VALUE };
    put(base, *at);
    put(size, if script().is_set("cut") { range.size + PAGE } else { range.size })
}

/// The 64 bytes of a legacy handle: the process and number of a descriptor, and its size.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Legacy {
    pid: u32,
    fd: c_int,
    size: u64,
    device: u64,
    _unused: [u64; 5],
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuIpcGetMemHandle(handle: *mut Legacy, address: u64) -> u32 {
    begin!("cuIpcGetMemHandle");
    let world = world();
    let Some(block) = world.ranges.get(&address).and_then(|range| range.block.as_ref()) else {
        return INVALID_VALUE;
    };
    put(
        handle,
        Legacy {
            pid: std::process::id(),
            fd: block.file.as_raw_fd(),
            size: block.size as u64,
            device: block.device as u64,
            _unused: [0; 5],
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: Legacy, _flags: c_uint) -> u32 {
    begin!("cuIpcOpenMemHandle_v2");
    let path = format!("/proc/{}/fd/{}", handle.pid, handle.fd);
    let Ok(file) = File::options().read(true).write(true).open(path) else { return INVALID_VALUE };
    let whole = |number| usize::try_from(number).unwrap_or(usize::MAX);
    let piece = Piece { file, size: whole(handle.size), device: whole(handle.device) };
    map_block(&mut world(), piece).map_or_else(|code| code, |at| put(address, at))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(address: u64) -> u32 {
    unmap_block(address)
}
