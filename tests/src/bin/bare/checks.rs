//! A check of each function of the table.

use std::{
    ffi::{c_int, c_uint, c_ulonglong, c_void},
    ptr,
};

use crate::{
    door::{Driver, cuda},
    pools::{
        Properties, ordered, pool_attributes, pool_created, pool_imported, pool_shared, pool_trimmed,
        properties, reused_in_order,
    },
};

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const DEVICE: c_int = 0;
/// The limit of the test's `vramctl run --limit`.
const LIMIT: usize = 200 * MIB;

type Check = fn(&Driver) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("cuInit", |_| Ok(())),
    ("cuGetProcAddress", proc_address),
    ("cuGetProcAddress_v2", proc_address),
    ("cuMemAlloc_v2", alloc),
    ("cuMemAllocPitch_v2", alloc_pitch),
    ("cuMemFree_v2", free),
    ("cuMemAllocManaged", alloc_managed),
    ("cuMemAllocAsync", |driver| ordered(driver, 0)),
    ("cuMemAllocAsync_ptsz", |driver| ordered(driver, 1)),
    ("cuMemAllocFromPoolAsync", |driver| ordered(driver, 2)),
    ("cuMemAllocFromPoolAsync_ptsz", |driver| ordered(driver, 3)),
    ("cuMemFreeAsync", reused_in_order),
    ("cuMemFreeAsync_ptsz", |driver| ordered(driver, 1)),
    ("cuMemPoolCreate", pool_created),
    ("cuMemPoolDestroy", pool_created),
    ("cuMemPoolTrimTo", pool_trimmed),
    ("cuMemPoolGetAttribute", pool_attributes),
    ("cuMemPoolSetAttribute", pool_attributes),
    ("cuMemPoolSetAccess", pool_shared),
    ("cuMemPoolImportFromShareableHandle", pool_imported),
    ("cuMemCreate", physical),
    ("cuMemRelease", physical),
    ("cuMemRetainAllocationHandle", physical),
    ("cuMemMap", physical),
    ("cuMemUnmap", physical),
    ("cuMemGetInfo_v2", get_info),
    ("cuDeviceTotalMem_v2", total_mem),
    ("cuMemGetAddressRange_v2", address_range),
    ("cuPointerGetAttribute", attributes),
    ("cuPointerGetAttributes", attributes),
    ("cuIpcGetMemHandle", no_export),
    ("cuMemPoolExportPointer", no_export),
    ("nvmlDeviceGetMemoryInfo", nvml),
    ("nvmlDeviceGetMemoryInfo_v2", nvml),
    ("cuStreamCreate", streams),
    ("cuStreamCreateWithPriority", streams),
    ("cuStreamDestroy_v2", streams),
    ("cuStreamDestroy", streams),
    ("cuGreenCtxStreamCreate", passed_on),
    ("cuCtxFromGreenCtx", passed_on),
    ("cuCtxDestroy_v2", |driver| own_context(driver, true)),
    ("cuCtxDestroy", |driver| own_context(driver, false)),
    ("cuCtxEnablePeerAccess", peer_access),
    ("cuArrayCreate_v2", passed_on),
    ("cuArray3DCreate_v2", passed_on),
    ("cuMipmappedArrayCreate", passed_on),
    ("cuGraphAddMemAllocNode", passed_on),
    ("cuGraphAddNode", passed_on),
    ("cuGraphAddNode_v2", passed_on),
    // These end the device's memory, so they are last.
    ("cuDevicePrimaryCtxReset_v2", |driver| reset(driver, true)),
    ("cuDevicePrimaryCtxReset", |driver| reset(driver, false)),
];

/// Writes what each check finds.
pub(crate) fn run(driver: &Driver) {
    begin(driver);
    for (name, check) in CHECKS {
        match check(driver) {
            Ok(()) => println!("{name} ok"),
            Err(problem) => println!("{name} {problem}"),
        }
    }
}

/// Initialises the driver, and makes the primary context current.
pub(crate) fn begin(driver: &Driver) -> usize {
    let mut context = 0;
    assert_eq!(cuda!(driver, cuInit(0 => c_uint)), 0);
    let retain = driver.by_name("cuDevicePrimaryCtxRetain").expect("every driver has it");
    let push = driver.by_name("cuCtxPushCurrent_v2").expect("every driver has it");
    // SAFETY: needed to call them. The types are those of the functions in `cuda.h`.
    unsafe {
        let retain = std::mem::transmute::<*mut c_void, extern "C" fn(*mut usize, c_int) -> u32>(retain);
        let push = std::mem::transmute::<*mut c_void, extern "C" fn(usize) -> u32>(push);
        assert_eq!(retain(&raw mut context, DEVICE), 0);
        assert_eq!(push(context), 0);
    }
    context
}

/// How many blocks the driver itself has handed out.
pub(crate) fn blocks(driver: &Driver) -> usize {
    let count = driver.by_name("fakeBlocks").expect("the fake driver has it");
    // SAFETY: needed to call it. It takes nothing and returns a number.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(count)() }
}

pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

pub(crate) fn new_block(driver: &Driver, size: usize) -> Result<u64, u32> {
    let mut address = 0;
    match cuda!(driver, cuMemAlloc_v2(&raw mut address => *mut u64, size => usize)) {
        0 => Ok(address),
        code => Err(code),
    }
}

pub(crate) fn end_block(driver: &Driver, address: u64) -> Result<(), String> {
    expect("cuMemFree", cuda!(driver, cuMemFree_v2(address => u64)), 0)
}

/// Memory of the daemon: writable, aligned, and not the driver's own.
pub(crate) fn is_served(driver: &Driver, before: usize, address: u64, size: usize) -> Result<(), String> {
    expect("the driver's own blocks", blocks(driver), before)?;
    expect("alignment", address % 512, 0)?;
    // The fake driver maps memory where the CPU can write it.
    let memory: *mut u8 = ptr::with_exposed_provenance_mut(usize::try_from(address).expect("64 bits"));
    // SAFETY: needed to see that it is memory. It was just allocated for this process, with that size.
    unsafe {
        memory.write(1);
        memory.add(size - 1).write(2);
        expect("the written byte", memory.add(size - 1).read(), 2)
    }
}

fn proc_address(driver: &Driver) -> Result<(), String> {
    let replaced = driver.find("cuMemAlloc_v2");
    expect("the same function by name", replaced, driver.by_name("cuMemAlloc_v2"))?;
    let future = driver.by_proc_address("cuOfTheFuture", 13000, 0).ok_or("an unknown name is found too")?;
    expect("an unknown name is the driver's", Some(future), driver.by_name("cuOfTheFuture"))?;
    let later = driver.by_proc_address("cuMemPoolTrimTo", 99000, 0);
    expect("a later version is the same by each door", later, driver.by_name("cuMemPoolTrimTo_v2"))?;
    let known = driver.by_proc_address("cuMemPoolTrimTo", 13000, 0);
    expect("the known one is not", known, driver.by_name("cuMemPoolTrimTo"))?;
    let code = cuda!(driver.by_plain_name(), cuMemPoolTrimTo_v2(0 => usize, 0 => usize, 0 => c_uint));
    expect("the later version", code, 0)?;
    expect("a name that no driver has", driver.by_proc_address("cuNowhere", 13000, 0), None)?;
    let shared = driver.by_proc_address("cuMemAllocAsync", 13000, 0);
    let own = driver.by_proc_address("cuMemAllocAsync", 13000, 2);
    expect("streams of threads have a function of their own", own == shared, false)
}

fn alloc(driver: &Driver) -> Result<(), String> {
    let before = blocks(driver);
    for size in [1, 300, 4 << 10, 700 << 10, 2 * MIB, 7 * MIB] {
        let address = new_block(driver, size).map_err(|code| format!("{size} bytes: {code}"))?;
        is_served(driver, before, address, size)?;
        end_block(driver, address)?;
    }
    expect("too much", new_block(driver, LIMIT + 1), Err(2))?;
    expect(
        "all but one granule",
        new_block(driver, LIMIT - 2 * MIB).map(|at| end_block(driver, at)),
        Ok(Ok(())),
    )?;
    expect("no bytes", new_block(driver, 0).is_err(), true)
}

fn alloc_pitch(driver: &Driver) -> Result<(), String> {
    let (before, mut address, mut pitch) = (blocks(driver), 0, 0);
    let code = cuda!(driver, cuMemAllocPitch_v2(
        &raw mut address => *mut u64, &raw mut pitch => *mut usize, 1000 => usize, 3 => usize, 4 => c_uint));
    expect("code", code, 0)?;
    expect("pitch", pitch, 1024)?;
    is_served(driver, before, address, 3 * pitch)?;
    end_block(driver, address)
}

fn free(driver: &Driver) -> Result<(), String> {
    expect("nothing", cuda!(driver, cuMemFree_v2(0x1234 => u64)), 1)?;
    let free_before = settled_free(driver)?;
    let address = new_block(driver, 40 * MIB).map_err(|code| format!("40 MiB: {code}"))?;
    expect("less is free", memory_info(driver)?.0 <= free_before - 40 * MIB, true)?;
    end_block(driver, address)?;
    expect("as much is free as before", memory_info(driver)?.0, free_before)?;
    expect("a second time", cuda!(driver, cuMemFree_v2(address => u64)), 1)
}

fn alloc_managed(driver: &Driver) -> Result<(), String> {
    let free_before = settled_free(driver)?;
    let mut address = 0;
    let managed = |address: &mut u64, size: usize| {
        cuda!(driver, cuMemAllocManaged(
        ptr::from_mut(address) => *mut u64, size => usize, 1 => c_uint))
    };
    expect("code", managed(&mut address, 10 * MIB), 0)?;
    expect("it is charged", memory_info(driver)?.0, free_before - 10 * MIB)?;
    end_block(driver, address)?;
    expect("its charge ends", memory_info(driver)?.0, free_before)?;
    expect("beyond the limit", managed(&mut address, LIMIT + 2 * MIB), 2)
}

pub(crate) fn ordered_block(driver: &Driver, size: usize, stream: usize) -> Result<u64, String> {
    let mut address = 0;
    let code = cuda!(driver, cuMemAllocAsync(&raw mut address => *mut u64, size => usize, stream => usize));
    if code == 0 { Ok(address) } else { Err(format!("cuMemAllocAsync: {code}")) }
}

/// The charge of mapped memory lasts until every handle is released and it is unmapped, in any order.
fn physical(driver: &Driver) -> Result<(), String> {
    let size = 4 * MIB;
    let free_before = settled_free(driver)?;
    for order in [[0, 0, 1], [1, 0, 0], [0, 1, 0]] {
        let (mut handle, mut again, mut address, of) = (0, 0, 0, properties(1));
        let code = cuda!(driver, cuMemCreate(
            &raw mut handle => *mut u64, size => usize, &raw const of => *const Properties, 0 => c_ulonglong));
        expect("cuMemCreate", code, 0)?;
        let code = cuda!(driver.by_plain_name(), cuMemAddressReserve(
            &raw mut address => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => c_ulonglong));
        expect("cuMemAddressReserve", code, 0)?;
        let code = cuda!(driver, cuMemMap(
            address => u64, size => usize, 0 => usize, handle => u64, 0 => c_ulonglong));
        expect("cuMemMap", code, 0)?;
        let code = cuda!(driver, cuMemRetainAllocationHandle(&raw mut again => *mut u64, address => u64));
        expect("cuMemRetainAllocationHandle", (code, again), (0, handle))?;
        for step in order {
            expect("charged", memory_info(driver)?.0, free_before - size)?;
            let code = match step {
                0 => cuda!(driver, cuMemRelease(handle => u64)),
                _ => cuda!(driver, cuMemUnmap(address => u64, size => usize)),
            };
            expect("an end", code, 0)?;
        }
        expect("charged no more", memory_info(driver)?.0, free_before)?;
    }
    let (mut handle, of) = (0_u64, properties(1));
    let code = cuda!(driver, cuMemCreate(
        &raw mut handle => *mut u64, LIMIT + 2 * MIB => usize, &raw const of => *const Properties, 0 => c_ulonglong));
    expect("beyond the limit", code, 2)
}

pub(crate) fn memory_info(driver: &Driver) -> Result<(usize, usize), String> {
    let (mut free, mut total) = (0, 0);
    let code = cuda!(driver, cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize));
    expect("cuMemGetInfo", code, 0).map(|()| (free, total))
}

/// The free bytes once nothing is kept for later calls: a refusal has all of that given back.
pub(crate) fn settled_free(driver: &Driver) -> Result<usize, String> {
    expect("far too much", new_block(driver, 1 << 50), Err(2))?;
    memory_info(driver).map(|(free, _)| free)
}

fn get_info(driver: &Driver) -> Result<(), String> {
    let (free, total) = memory_info(driver)?;
    expect("total", total, LIMIT)?;
    expect("free is not more", free <= total, true)
}

fn total_mem(driver: &Driver) -> Result<(), String> {
    let mut total = 0;
    let code = cuda!(driver, cuDeviceTotalMem_v2(&raw mut total => *mut usize, DEVICE => c_int));
    expect("total", (code, total), (0, LIMIT))
}

fn address_range(driver: &Driver) -> Result<(), String> {
    for size in [5000, 3 * MIB] {
        let address = new_block(driver, size).map_err(|code| format!("{size} bytes: {code}"))?;
        let (mut base, mut whole) = (0, 0);
        let code = cuda!(driver, cuMemGetAddressRange_v2(
            &raw mut base => *mut u64, &raw mut whole => *mut usize, address + 4000 => u64));
        expect("range", (code, base, whole), (0, address, size))?;
        end_block(driver, address)?;
    }
    Ok(())
}

/// Attributes of 64 bits are the block's; those of 32 bits are the driver's, and nothing behind them is written.
fn attributes(driver: &Driver) -> Result<(), String> {
    const CONTEXT: c_uint = 1;
    const MEMORY_KIND: c_uint = 2;
    const START: c_uint = 11;
    const SIZE: c_uint = 12;
    let address = new_block(driver, 5000).map_err(|code| format!("5000 bytes: {code}"))?;
    let mut start = 0_u64;
    let code = cuda!(driver, cuPointerGetAttribute(
        &raw mut start => *mut u64, START => c_uint, address + 100 => u64));
    expect("start", (code, start), (0, address))?;
    let mut kind = [7_u32; 2];
    let code = cuda!(driver, cuPointerGetAttribute(
        &raw mut kind[0] => *mut u32, MEMORY_KIND => c_uint, address => u64));
    expect("kind", (code, kind), (0, [2, 7]))?;
    let (mut context, mut kind, mut size) = (0_u64, [7_u32; 2], 0_u64);
    let asked = [CONTEXT, MEMORY_KIND, SIZE];
    let values: [*mut c_void; 3] =
        [(&raw mut context).cast(), (&raw mut kind[0]).cast(), (&raw mut size).cast()];
    let code = cuda!(driver, cuPointerGetAttributes(
        3 => c_uint, asked.as_ptr() => *const c_uint, values.as_ptr() => *const *mut c_void, address => u64));
    expect("all", (code, context, kind, size), (0, 1, [2, 7], 5000))?;
    end_block(driver, address)
}

fn no_export(driver: &Driver) -> Result<(), String> {
    let mut handle = [0_u64; 8];
    let address = new_block(driver, 3 * MIB).map_err(|code| format!("3 MiB: {code}"))?;
    let to = handle.as_mut_ptr();
    expect("a handle", cuda!(driver, cuIpcGetMemHandle(to => *mut u64, address => u64)), 801)?;
    expect("an export", cuda!(driver, cuMemPoolExportPointer(to => *mut u64, address => u64)), 801)?;
    expect("of other memory", cuda!(driver, cuMemPoolExportPointer(to => *mut u64, 1 => u64)), 0)?;
    end_block(driver, address)
}

pub(crate) fn nvml(driver: &Driver) -> Result<(), String> {
    let mut device = 0_usize;
    expect(
        "NVML",
        cuda!(driver.by_plain_name(), nvmlDeviceGetHandleByIndex_v2(0 => c_uint, &raw mut device => *mut usize)),
        0,
    )?;
    // `nvmlMemory_t`, and a number behind it.
    let mut memory = [7_u64; 4];
    let code = cuda!(driver, nvmlDeviceGetMemoryInfo(device => usize, &raw mut memory => *mut [u64; 4]));
    expect("code", code, 0)?;
    expect("total", memory[0], LIMIT as u64)?;
    expect("the sum", (memory[1] + memory[2], memory[3]), (LIMIT as u64, 7))?;
    // `nvmlMemory_v2_t`: a version, total, reserved, free, used.
    let mut memory = [7_u64; 6];
    let code = cuda!(driver, nvmlDeviceGetMemoryInfo_v2(device => usize, &raw mut memory => *mut [u64; 6]));
    expect("code", code, 0)?;
    expect("total", memory[1], LIMIT as u64)?;
    expect("the sum", (memory[2] + memory[3] + memory[4], memory[5]), (LIMIT as u64, 7))
}

pub(crate) fn new_stream(driver: &Driver, flags: c_uint) -> Result<usize, String> {
    let mut stream = 0;
    let code = cuda!(driver, cuStreamCreate(&raw mut stream => *mut usize, flags => c_uint));
    expect("cuStreamCreate", code, 0).map(|()| stream)
}

/// Memory that was freed on one stream is another's only when its work is done.
fn streams(driver: &Driver) -> Result<(), String> {
    let (first, mut second) = (new_stream(driver, 1)?, 0);
    let code = cuda!(driver, cuStreamCreateWithPriority(
        &raw mut second => *mut usize, 1 => c_uint, 0 => c_int));
    expect("cuStreamCreateWithPriority", code, 0)?;
    let address = ordered_block(driver, 10 * MIB, first)?;
    expect("free", cuda!(driver, cuMemFreeAsync(address => u64, first => usize)), 0)?;
    // The fake driver's events pass at the second look.
    let other = ordered_block(driver, 10 * MIB, second)?;
    expect("other memory", other == address, false)?;
    expect("free", cuda!(driver, cuMemFreeAsync(other => u64, second => usize)), 0)?;
    expect("destroy", cuda!(driver, cuStreamDestroy_v2(first => usize)), 0)?;
    expect("destroy", cuda!(driver, cuStreamDestroy(second => usize)), 0)
}

/// In a context of the program's own the driver serves, and the daemon charges until the context ends.
fn own_context(driver: &Driver, is_newest: bool) -> Result<(), String> {
    let (before, free_before, mut context) = (blocks(driver), settled_free(driver)?, 0_u64);
    let code = cuda!(driver.by_plain_name(), cuCtxCreate_v2(
        &raw mut context => *mut u64, 0 => c_uint, DEVICE => c_int));
    expect("cuCtxCreate", code, 0)?;
    let first = new_block(driver, 4 * MIB).map_err(|code| format!("4 MiB: {code}"))?;
    new_block(driver, 6 * MIB).map_err(|code| format!("6 MiB: {code}"))?;
    expect("the driver's own blocks", blocks(driver), before + 2)?;
    expect("charged", memory_info(driver)?.0, free_before - 10 * MIB)?;
    end_block(driver, first)?;
    expect("charged after a free", memory_info(driver)?.0, free_before - 6 * MIB)?;
    let code = match is_newest {
        true => cuda!(driver, cuCtxDestroy_v2(context => u64)),
        false => cuda!(driver, cuCtxDestroy(context => u64)),
    };
    expect("cuCtxDestroy", code, 0)?;
    expect("the charge ends with the context", memory_info(driver)?.0, free_before)
}

/// Other devices get access to what is there and to what comes.
fn peer_access(driver: &Driver) -> Result<(), String> {
    let early = new_block(driver, 3 * MIB).map_err(|code| format!("3 MiB: {code}"))?;
    let mut current = 0_u64;
    cuda!(driver.by_plain_name(), cuCtxGetCurrent(&raw mut current => *mut u64));
    let code = cuda!(driver, cuCtxEnablePeerAccess(current => u64, 0 => c_uint));
    expect("cuCtxEnablePeerAccess", code, 0)?;
    let late = new_block(driver, 5000).map_err(|code| format!("5000 bytes: {code}"))?;
    end_block(driver, early)?;
    end_block(driver, late)
}

fn passed_on(driver: &Driver) -> Result<(), String> {
    let (mut name, nothing) = (0_usize, ptr::null::<c_void>());
    let to = &raw mut name;
    let code = cuda!(driver, cuGreenCtxStreamCreate(to => *mut usize, 0 => usize, 1 => c_uint, 0 => c_int));
    expect("a stream", code, 0)?;
    expect("context", cuda!(driver, cuCtxFromGreenCtx(to => *mut usize, 0 => usize)), 0)?;
    expect("array", cuda!(driver, cuArrayCreate_v2(to => *mut usize, nothing => *const c_void)), 0)?;
    expect("array", cuda!(driver, cuArray3DCreate_v2(to => *mut usize, nothing => *const c_void)), 0)?;
    let code = cuda!(driver, cuMipmappedArrayCreate(to => *mut usize, nothing => *const c_void, 1 => c_uint));
    expect("array", code, 0)?;
    let code = cuda!(driver, cuGraphAddMemAllocNode(
        to => *mut usize, 0 => usize, nothing => *const c_void, 0 => usize, nothing => *const c_void));
    expect("node", code, 0)?;
    // `CUgraphNodeParams`: of a kernel, which is no memory, and of an allocation.
    for parameters in [[0_u32; 64], [10; 64]] {
        let parameters = parameters.as_ptr();
        let code = cuda!(driver, cuGraphAddNode(
            to => *mut usize, 0 => usize, nothing => *const c_void, 0 => usize, parameters => *const u32));
        expect("node", code, 0)?;
        let code = cuda!(driver, cuGraphAddNode_v2(
            to => *mut usize, 0 => usize, nothing => *const c_void, nothing => *const c_void, 0 => usize,
            parameters => *const u32));
        expect("node", code, 0)?;
    }
    Ok(())
}

/// After a reset the driver serves, and the daemon charges.
fn reset(driver: &Driver, is_newest: bool) -> Result<(), String> {
    let before = blocks(driver);
    if is_newest {
        new_block(driver, 3 * MIB).map_err(|code| format!("3 MiB: {code}"))?;
        expect("reset", cuda!(driver, cuDevicePrimaryCtxReset_v2(DEVICE => c_int)), 0)?;
        expect("all is given back", memory_info(driver)?.0 > LIMIT - 10 * MIB, true)?;
    } else {
        expect("reset", cuda!(driver, cuDevicePrimaryCtxReset(DEVICE => c_int)), 0)?;
    }
    let free_before = settled_free(driver)?;
    let address = new_block(driver, 4 * MIB).map_err(|code| format!("4 MiB: {code}"))?;
    expect("the driver's own blocks", blocks(driver), before + 1)?;
    expect("charged", memory_info(driver)?.0, free_before - 4 * MIB)?;
    end_block(driver, address)
}
