//! Checks of allocations in the order of a stream, and of pools.

use std::{
    ffi::{c_int, c_uint, c_ulonglong, c_void},
    ptr,
};

use crate::{
    checks::{DEVICE, MIB, blocks, end_block, expect, is_served, ordered_block},
    door::{Driver, cuda},
};

fn own_pool(driver: &Driver) -> usize {
    let mut pool = 0;
    cuda!(driver.by_plain_name(), cuDeviceGetDefaultMemPool(&raw mut pool => *mut usize, DEVICE => c_int));
    pool
}

pub(crate) fn ordered(driver: &Driver, variant: u32) -> Result<(), String> {
    let (before, mut address, pool) = (blocks(driver), 0, own_pool(driver));
    let to = &raw mut address;
    let code = match variant {
        0 => cuda!(driver, cuMemAllocAsync(to => *mut u64, MIB => usize, 0 => usize)),
        1 => cuda!(driver, cuMemAllocAsync_ptsz(to => *mut u64, MIB => usize, 0 => usize)),
        2 => cuda!(driver, cuMemAllocFromPoolAsync(to => *mut u64, MIB => usize, pool => usize, 0 => usize)),
        _ => {
            cuda!(driver, cuMemAllocFromPoolAsync_ptsz(to => *mut u64, MIB => usize, pool => usize, 0 => usize))
        }
    };
    expect("code", code, 0)?;
    is_served(driver, before, address, MIB)?;
    let code = match variant {
        1 | 3 => cuda!(driver, cuMemFreeAsync_ptsz(address => u64, 0 => usize)),
        _ => cuda!(driver, cuMemFreeAsync(address => u64, 0 => usize)),
    };
    expect("free", code, 0)
}

pub(crate) fn reused_in_order(driver: &Driver) -> Result<(), String> {
    let mut again = 0;
    for size in [100, 700, MIB, 3 * MIB, 6 * MIB] {
        let first = ordered_block(driver, size, 0)?;
        expect("free", cuda!(driver, cuMemFreeAsync(first => u64, 0 => usize)), 0)?;
        again = ordered_block(driver, size, 0)?;
        expect("the same memory", again, first)?;
        if size != 6 * MIB {
            expect("free", cuda!(driver, cuMemFreeAsync(again => u64, 0 => usize)), 0)?;
        }
    }
    // Also by the other function.
    end_block(driver, again)?;
    expect("a second time", cuda!(driver, cuMemFreeAsync(again => u64, 0 => usize)), 1)
}

/// The beginning of `CUmemPoolProps` and of `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_uint,
    handles: c_uint,
    location: c_uint,
    id: c_int,
    rest: [u64; 10],
}

pub(crate) fn properties(handles: c_uint) -> Properties {
    Properties { kind: 1, handles, location: 1, id: DEVICE, rest: [0; 10] }
}

pub(crate) fn new_pool(driver: &Driver, handles: c_uint) -> Result<usize, String> {
    let (mut pool, of) = (0, properties(handles));
    let code =
        cuda!(driver, cuMemPoolCreate(&raw mut pool => *mut usize, &raw const of => *const Properties));
    expect("cuMemPoolCreate", code, 0).map(|()| pool)
}

pub(crate) fn from_pool(driver: &Driver, pool: usize, size: usize) -> Result<u64, String> {
    let mut address = 0;
    let code = cuda!(driver, cuMemAllocFromPoolAsync(
        &raw mut address => *mut u64, size => usize, pool => usize, 0 => usize));
    expect("cuMemAllocFromPoolAsync", code, 0).map(|()| address)
}

pub(crate) fn end_pool(driver: &Driver, pool: usize) -> Result<(), String> {
    expect("cuMemPoolDestroy", cuda!(driver, cuMemPoolDestroy(pool => usize)), 0)
}

/// A pool of the program's own is served, and one that can be exported is not.
pub(crate) fn pool_created(driver: &Driver) -> Result<(), String> {
    let (before, pool) = (blocks(driver), new_pool(driver, 0)?);
    let address = from_pool(driver, pool, MIB)?;
    is_served(driver, before, address, MIB)?;
    end_block(driver, address)?;
    end_pool(driver, pool)?;
    let pool = new_pool(driver, 1)?;
    let address = from_pool(driver, pool, MIB)?;
    expect("the driver's own blocks", blocks(driver), before + 1)?;
    expect("free", cuda!(driver, cuMemFreeAsync(address => u64, 0 => usize)), 0)?;
    expect("blocks after that", blocks(driver), before)?;
    end_pool(driver, pool)
}

fn pool_bytes(driver: &Driver, pool: usize, attribute: c_uint) -> u64 {
    let mut value = 0_u64;
    cuda!(driver, cuMemPoolGetAttribute(pool => usize, attribute => c_uint, &raw mut value => *mut u64));
    value
}

pub(crate) fn pool_trimmed(driver: &Driver) -> Result<(), String> {
    let pool = new_pool(driver, 0)?;
    let address = from_pool(driver, pool, 4 * MIB)?;
    expect("free", cuda!(driver, cuMemFreeAsync(address => u64, 0 => usize)), 0)?;
    expect("kept", pool_bytes(driver, pool, 5), 4 << 20)?;
    // The fake driver's events pass at the second look.
    for _ in 0..3 {
        expect("cuMemPoolTrimTo", cuda!(driver, cuMemPoolTrimTo(pool => usize, 0 => usize)), 0)?;
    }
    expect("kept after that", pool_bytes(driver, pool, 5), 0)?;
    end_pool(driver, pool)
}

pub(crate) fn pool_attributes(driver: &Driver) -> Result<(), String> {
    let pool = new_pool(driver, 0)?;
    let mut threshold = 64_u64 << 20;
    let set = |attribute: c_uint, value: *mut u64| {
        cuda!(driver, cuMemPoolSetAttribute(
        pool => usize, attribute => c_uint, value => *mut u64))
    };
    expect("cuMemPoolSetAttribute", set(4, &raw mut threshold), 0)?;
    let address = from_pool(driver, pool, 4 * MIB)?;
    expect("used", pool_bytes(driver, pool, 7), 4 << 20)?;
    expect("free", cuda!(driver, cuMemFreeAsync(address => u64, 0 => usize)), 0)?;
    expect("used after that", pool_bytes(driver, pool, 7), 0)?;
    expect("the most used", pool_bytes(driver, pool, 8), 4 << 20)?;
    let mut none = 0_u64;
    expect("reset", set(8, &raw mut none), 0)?;
    expect("the most used since", pool_bytes(driver, pool, 8), 0)?;
    expect("reserved", pool_bytes(driver, pool, 5), 4 << 20)?;
    let mut guarded = [7_i32; 2];
    let code =
        cuda!(driver, cuMemPoolGetAttribute(pool => usize, 1 => c_uint, &raw mut guarded[0] => *mut i32));
    expect("an attribute of 32 bits", (code, guarded), (0, [1, 7]))?;
    end_pool(driver, pool)
}

pub(crate) fn pool_shared(driver: &Driver) -> Result<(), String> {
    let (before, pool) = (blocks(driver), new_pool(driver, 0)?);
    let code = cuda!(driver, cuMemPoolSetAccess(pool => usize, ptr::null() => *const c_void, 1 => usize));
    expect("cuMemPoolSetAccess", code, 0)?;
    let address = from_pool(driver, pool, MIB)?;
    expect("the driver's own blocks", blocks(driver), before + 1)?;
    end_block(driver, address)
}

pub(crate) fn pool_imported(driver: &Driver) -> Result<(), String> {
    let (before, mut pool) = (blocks(driver), 0);
    let code = cuda!(driver, cuMemPoolImportFromShareableHandle(
        &raw mut pool => *mut usize, ptr::null_mut() => *mut c_void, 1 => c_uint, 0 => c_ulonglong));
    expect("cuMemPoolImportFromShareableHandle", code, 0)?;
    let mut address = 0;
    let code = cuda!(driver, cuMemAllocFromPoolAsync(
        &raw mut address => *mut u64, MIB => usize, pool => usize, 0 => usize));
    expect("cuMemAllocFromPoolAsync", code, 0)?;
    expect("the driver's own blocks", blocks(driver), before + 1)?;
    end_block(driver, address)
}
