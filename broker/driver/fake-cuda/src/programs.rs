//! Functions that programs call and this project's drivers do not, for the tests of the library that replaces them:
//! contexts of a program's own, pools, attributes of pointers, and `cuGetProcAddress`.
//!
//! Pools, arrays and nodes of graphs are only names. A pool's allocation is one of `cuMemAlloc`.
#![allow(unsafe_code, reason = "symbols are exported under their own names")]
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    ptr,
};

use crate::{
    cuda::{self, DEVICES_MAX, INVALID_CONTEXT, current, status_of},
    echo, managed,
    memory::{CURRENT, INVALID_VALUE, get, put, world},
    script::script,
    transfers::{self, new_name, new_stream},
};

/// The handle of a device's own pool, less its number.
const OWN_POOLS: usize = 0x9000;
const PER_THREAD: c_ulonglong = 2;
const NOT_FOUND: u32 = 500;
/// A version of CUDA that has later versions of known functions.
const FUTURE: c_int = 99000;

/// The blocks that this process has from `cuMemAlloc` and its like, for tests.
#[unsafe(no_mangle)]
extern "C" fn fakeBlocks() -> usize {
    world().ranges.values().filter(|range| range.block.is_some()).count()
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut usize) -> u32 {
    put(context, CURRENT.with_borrow(|current| current.last().map_or(0, |context| context + 1)))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> u32 {
    CURRENT.with_borrow_mut(|current| {
        current.pop();
        if context != 0 {
            current.push(context - 1);
        }
    });
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: *mut c_int) -> u32 {
    current().map_or(INVALID_CONTEXT, |current| put(device, c_int::try_from(current).unwrap_or(0)))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: *mut usize, _flags: c_uint, device: c_int) -> u32 {
    begin!("cuCtxCreate_v2");
    let mut world = world();
    let handle = (world.own_contexts.len() + 1) * DEVICES_MAX + usize::try_from(device).unwrap_or(0) + 1;
    world.own_contexts.insert(handle);
    drop(world);
    CURRENT.with_borrow_mut(|current| current.push(handle - 1));
    put(context, handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: usize) -> u32 {
    begin!("cuCtxDestroy_v2");
    CURRENT.with_borrow_mut(|current| current.retain(|other| other + 1 != context));
    status_of(world().own_contexts.remove(&context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy(context: usize) -> u32 {
    begin!("cuCtxDestroy");
    cuCtxDestroy_v2(context)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) -> u32 {
    let is_active = usize::try_from(device).is_ok_and(|device| world().contexts.contains_key(&device));
    put(flags, 0);
    put(active, c_int::from(is_active))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset(_device: c_int) -> u32 {
    begin!("cuDevicePrimaryCtxReset");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(_device: c_int) -> u32 {
    begin!("cuDevicePrimaryCtxReset_v2");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(_peer: usize, _flags: c_uint) -> u32 {
    begin!("cuCtxEnablePeerAccess");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocPitch_v2(
    address: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _element: c_uint,
) -> u32 {
    begin!("cuMemAllocPitch_v2");
    put(pitch, width);
    cuda::cuMemAlloc_v2(address, width * height)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) -> u32 {
    put(pool, OWN_POOLS + usize::try_from(device).unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(pool: *mut usize, device: c_int) -> u32 {
    cuDeviceGetDefaultMemPool(pool, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: *mut u64, size: usize, _stream: usize) -> u32 {
    begin!("cuMemAllocAsync");
    cuda::cuMemAlloc_v2(address, size)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync_ptsz(address: *mut u64, size: usize, _stream: usize) -> u32 {
    begin!("cuMemAllocAsync_ptsz");
    cuda::cuMemAlloc_v2(address, size)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(address: *mut u64, size: usize, _pool: usize, _stream: usize) -> u32 {
    begin!("cuMemAllocFromPoolAsync");
    cuda::cuMemAlloc_v2(address, size)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    address: *mut u64,
    size: usize,
    _pool: usize,
    _stream: usize,
) -> u32 {
    begin!("cuMemAllocFromPoolAsync_ptsz");
    cuda::cuMemAlloc_v2(address, size)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, _stream: usize) -> u32 {
    begin!("cuMemFreeAsync");
    cuda::cuMemFree_v2(address)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync_ptsz(address: u64, _stream: usize) -> u32 {
    begin!("cuMemFreeAsync_ptsz");
    cuda::cuMemFree_v2(address)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolCreate(pool: *mut usize, _properties: *const c_void) -> u32 {
    begin!("cuMemPoolCreate");
    new_name(pool)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolImportFromShareableHandle(
    pool: *mut usize,
    _handle: *mut c_void,
    _kind: c_uint,
    _flags: c_ulonglong,
) -> u32 {
    begin!("cuMemPoolImportFromShareableHandle");
    new_name(pool)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(_pool: usize) -> u32 {
    begin!("cuMemPoolDestroy");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(_pool: usize, _kept: usize) -> u32 {
    begin!("cuMemPoolTrimTo");
    0
}

/// Attributes from the fourth on have 64 bits.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(_pool: usize, attribute: c_uint, value: *mut c_void) -> u32 {
    begin!("cuMemPoolGetAttribute");
    if attribute < 4 { put(value.cast::<c_int>(), 1) } else { put(value.cast::<u64>(), 0) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(_pool: usize, _attribute: c_uint, _value: *mut c_void) -> u32 {
    begin!("cuMemPoolSetAttribute");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAccess(_pool: usize, _access: *const c_void, _count: usize) -> u32 {
    begin!("cuMemPoolSetAccess");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolExportPointer(_data: *mut c_void, _address: u64) -> u32 {
    begin!("cuMemPoolExportPointer");
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(handle: *mut u64, address: u64) -> u32 {
    begin!("cuMemRetainAllocationHandle");
    let mut world = world();
    let Some(known) = world.mapped.range(..=address).next_back().map(|(_, known)| *known) else {
        return INVALID_VALUE;
    };
    *world.retained.entry(known).or_default() += 1;
    put(handle, known)
}

/// Kinds of memory and ordinals have 32 bits; everything else 64.
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, _address: u64) -> u32 {
    begin!("cuPointerGetAttribute");
    match attribute {
        2 | 6 | 8 | 9 | 10 | 13 => put(value.cast::<c_uint>(), 2),
        _ => put(value.cast::<u64>(), 0),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_uint,
    values: *const *mut c_void,
    address: u64,
) -> u32 {
    begin!("cuPointerGetAttributes");
    for at in 0..count as usize {
        let (Some(attribute), Some(value)) = (get(attributes.wrapping_add(at)), get(values.wrapping_add(at)))
        else {
            return INVALID_VALUE;
        };
        cuPointerGetAttribute(value, attribute, address);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, _priority: c_int) -> u32 {
    begin!("cuStreamCreateWithPriority");
    new_stream(stream, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuGreenCtxStreamCreate(
    stream: *mut usize,
    _context: usize,
    flags: c_uint,
    _priority: c_int,
) -> u32 {
    begin!("cuGreenCtxStreamCreate");
    new_stream(stream, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxFromGreenCtx(context: *mut usize, _green: usize) -> u32 {
    begin!("cuCtxFromGreenCtx");
    new_name(context)
}

#[unsafe(no_mangle)]
extern "C" fn cuArrayCreate_v2(array: *mut usize, _description: *const c_void) -> u32 {
    begin!("cuArrayCreate_v2");
    new_name(array)
}

#[unsafe(no_mangle)]
extern "C" fn cuArray3DCreate_v2(array: *mut usize, _description: *const c_void) -> u32 {
    begin!("cuArray3DCreate_v2");
    new_name(array)
}

#[unsafe(no_mangle)]
extern "C" fn cuMipmappedArrayCreate(array: *mut usize, _description: *const c_void, _levels: c_uint) -> u32 {
    begin!("cuMipmappedArrayCreate");
    new_name(array)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddMemAllocNode(
    node: *mut usize,
    _graph: usize,
    _needs: *const usize,
    _count: usize,
    _parameters: *mut c_void,
) -> u32 {
    begin!("cuGraphAddMemAllocNode");
    new_name(node)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddNode(
    node: *mut usize,
    _graph: usize,
    _needs: *const usize,
    _count: usize,
    _parameters: *const c_void,
) -> u32 {
    begin!("cuGraphAddNode");
    new_name(node)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddNode_v2(
    node: *mut usize,
    _graph: usize,
    _needs: *const usize,
    _edges: *const c_void,
    _count: usize,
    _parameters: *const c_void,
) -> u32 {
    begin!("cuGraphAddNode_v2");
    new_name(node)
}

/// A later version of a known function, with another argument.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo_v2(_pool: usize, _kept: usize, _flags: c_uint) -> u32 {
    begin!("cuMemPoolTrimTo_v2");
    0
}

/// A function that no library replaces.
#[unsafe(no_mangle)]
extern "C" fn cuOfTheFuture(value: *mut c_uint) -> u32 {
    put(value, 17)
}

macro_rules! found_by {
    ($name:expr, $per_thread:expr, { $($base:literal => $function:path $(, $own:path)?;)* }) => {
        match $name {
            $($base => {
                let mut found = $function as *mut c_void;
                $(if $per_thread { found = $own as *mut c_void; })?
                let _ = &mut found;
                found
            })*
            _ => ptr::null_mut(),
        }
    };
}

fn address_of(name: &[u8], version: c_int, per_thread: bool) -> *mut c_void {
    if name == b"cuMemPoolTrimTo" && version >= FUTURE {
        return cuMemPoolTrimTo_v2 as *mut c_void;
    }
    if name == b"cuLaunchKernel" && version >= FUTURE {
        return echo::cuLaunchKernel_v2 as *mut c_void;
    }
    if name == b"cuGraphAddNode" && version >= 12020 {
        let old = cuGraphAddNode as *mut c_void;
        return if version < 12030 { old } else { cuGraphAddNode_v2 as *mut c_void };
    }
    if name == b"cuGetProcAddress" {
        let old = cuGetProcAddress as *mut c_void;
        return if version < 12000 { old } else { cuGetProcAddress_v2 as *mut c_void };
    }
    let gated = echo::find(name, version, per_thread);
    if !gated.is_null() {
        return gated;
    }
    found_by!(name, per_thread, {
        b"cuInit" => cuda::cuInit;
        b"cuMemAlloc" => cuda::cuMemAlloc_v2;
        b"cuMemAllocPitch" => cuMemAllocPitch_v2;
        b"cuMemFree" => cuda::cuMemFree_v2;
        b"cuMemAllocManaged" => managed::cuMemAllocManaged;
        b"cuMemAllocAsync" => cuMemAllocAsync, cuMemAllocAsync_ptsz;
        b"cuMemAllocFromPoolAsync" => cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz;
        b"cuMemFreeAsync" => cuMemFreeAsync, cuMemFreeAsync_ptsz;
        b"cuMemPoolCreate" => cuMemPoolCreate;
        b"cuMemPoolDestroy" => cuMemPoolDestroy;
        b"cuMemPoolTrimTo" => cuMemPoolTrimTo;
        b"cuMemPoolGetAttribute" => cuMemPoolGetAttribute;
        b"cuMemPoolSetAttribute" => cuMemPoolSetAttribute;
        b"cuMemPoolSetAccess" => cuMemPoolSetAccess;
        b"cuMemPoolImportFromShareableHandle" => cuMemPoolImportFromShareableHandle;
        b"cuMemPoolExportPointer" => cuMemPoolExportPointer;
        b"cuMemCreate" => cuda::cuMemCreate;
        b"cuMemRelease" => cuda::cuMemRelease;
        b"cuMemRetainAllocationHandle" => cuMemRetainAllocationHandle;
        b"cuMemMap" => cuda::cuMemMap;
        b"cuMemUnmap" => cuda::cuMemUnmap;
        b"cuMemGetInfo" => cuda::cuMemGetInfo_v2;
        b"cuDeviceTotalMem" => cuda::cuDeviceTotalMem_v2;
        b"cuMemGetAddressRange" => cuda::cuMemGetAddressRange_v2;
        b"cuPointerGetAttribute" => cuPointerGetAttribute;
        b"cuPointerGetAttributes" => cuPointerGetAttributes;
        b"cuIpcGetMemHandle" => cuda::cuIpcGetMemHandle;
        b"cuStreamCreate" => transfers::cuStreamCreate;
        b"cuStreamCreateWithPriority" => cuStreamCreateWithPriority;
        b"cuGreenCtxStreamCreate" => cuGreenCtxStreamCreate;
        b"cuCtxFromGreenCtx" => cuCtxFromGreenCtx;
        b"cuStreamDestroy" => transfers::cuStreamDestroy_v2;
        b"cuCtxDestroy" => cuCtxDestroy_v2;
        b"cuDevicePrimaryCtxReset" => cuDevicePrimaryCtxReset_v2;
        b"cuCtxEnablePeerAccess" => cuCtxEnablePeerAccess;
        b"cuArrayCreate" => cuArrayCreate_v2;
        b"cuArray3DCreate" => cuArray3DCreate_v2;
        b"cuMipmappedArrayCreate" => cuMipmappedArrayCreate;
        b"cuGraphAddMemAllocNode" => cuGraphAddMemAllocNode;
        b"cuOfTheFuture" => cuOfTheFuture;
        b"cuLaunchOfTheFuture" => echo::cuLaunchOfTheFuture;
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> u32 {
    script().note("cuGetProcAddress");
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: The caller's text, terminated, as CUDA asks for.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let address = address_of(name, version, flags & PER_THREAD != 0);
    put(found, address);
    if address.is_null() { NOT_FOUND } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_uint,
) -> u32 {
    let code = cuGetProcAddress(name, found, version, flags);
    if !status.is_null() {
        put(status, c_uint::from(code != 0));
    }
    code
}
