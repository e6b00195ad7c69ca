//! Allocations in the order of a stream: `cuMemAllocAsync`, `cuMemFreeAsync`, and the pools that they are of.
//!
//! The pools are the driver's; this library serves their memory and counts it. It cannot serve what a graph allocates, nor
//! pools that other processes or other devices use.

use std::ffi::{c_int, c_uint, c_void};

use super::{
    memory::{FOREIGN, UNMANAGED, charge, place},
    put, written,
};
use crate::{
    driver::{self, INVALID_VALUE, LEGACY_STREAM, OWN_STREAM},
    heap::{self, Block},
    session::{self, Device, Place, Session},
    streams,
    table::Real,
};

/// `CUmemPool_attribute`, of 64 bits each.
const THRESHOLD: c_uint = 4;
const RESERVED: c_uint = 5;
const RESERVED_HIGH: c_uint = 6;
const USED: c_uint = 7;
const USED_HIGH: c_uint = 8;

const ON_DEVICE: c_uint = 1;
const PINNED: c_uint = 1;

const OF_GRAPH: &str = "the stream is being captured";
const SHARED: &str = "the pool is shared with other processes";
const NOT_ON_DEVICE: &str = "the pool is not one of device memory";
const OF_PEERS: &str = "other devices access the pool";

/// The beginning of `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PoolProperties {
    kind: c_uint,
    handle_kinds: c_uint,
    location_kind: c_uint,
    location_id: c_int,
}

/// The stream that a number means where 0 is the calling thread's own.
pub(crate) fn own(stream: u64) -> u64 {
    if stream == 0 { OWN_STREAM } else { stream }
}

/// The stream that a number means where 0 is the default stream.
fn plain(stream: u64) -> u64 {
    if stream == 0 { LEGACY_STREAM } else { stream }
}

/// `cuMemAllocAsync`: from the pool that the device has now.
pub(crate) fn alloc(real: Real<'_>, address: *mut u64, size: usize, stream: u64) -> u32 {
    alloc_from(real, address, size, None, plain(stream))
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn alloc_from_pool(real: Real<'_>, address: *mut u64, size: usize, pool: u64, stream: u64) -> u32 {
    alloc_from(real, address, size, Some(pool), plain(stream))
}

fn alloc_from(real: Real<'_>, address: *mut u64, size: usize, pool: Option<u64>, stream: u64) -> u32 {
    if address.is_null() || size == 0 {
        return real.call();
    }
    let (session, device, context) = match place() {
        Some((session, Place::Primary(device))) => match device.primary() {
            Ok(Some(context)) => (session, device, context),
            _ => return real.call(),
        },
        Some((session, Place::Other(device, context))) => {
            return charge(real, (session, device, context), address, size as u64, FOREIGN);
        }
        Some((_, Place::Unmanaged)) => return real.pass_on(UNMANAGED),
        Some((_, Place::Nowhere)) | None => return real.call(),
    };
    if driver::is_capturing(stream) != Ok(false) {
        // The memory is the graph's, and lives as long as its launches.
        return real.pass_on(OF_GRAPH);
    }
    let pool = match pool.map_or_else(|| driver::current_pool(device.ordinal), Ok) {
        Ok(pool) => pool,
        Err(_) => return real.call(),
    };
    if let Some(reason) = session.pools.state_of(pool).refusal {
        return charge(real, (session, device, context), address, size as u64, reason);
    }
    let Some(device) = device_of(session, pool) else { return real.pass_on(UNMANAGED) };
    match serve(session, device, pool, (context, stream), size as u64) {
        Ok(at) => {
            put(address, at);
            0
        }
        Err(code) => code,
    }
}

/// The device of a pool: as the program made it, or else the one whose own pool it is.
fn device_of(session: &'static Session, pool: u64) -> Option<&'static Device> {
    match session.pools.state_of(pool).device {
        Some(ordinal) => session.device(ordinal),
        None => session.devices.iter().find(|device| {
            driver::default_pool(device.ordinal) == Ok(pool)
                || driver::current_pool(device.ordinal) == Ok(pool)
        }),
    }
}

fn serve(
    session: &'static Session,
    device: &'static Device,
    pool: u64,
    stream: (u64, u64),
    size: u64,
) -> Result<u64, u32> {
    let kept = session.pools.take(device, pool, stream, size);
    let is_new = kept.is_none();
    let mut block = match kept {
        Some(block) => block,
        None => heap::allocate(session, device, device.primary()?.unwrap_or(0), size)?,
    };
    block.pool = pool;
    session.pools.count_used(&block, is_new);
    heap::publish(session, block)
}

/// `cuMemFreeAsync`.
pub(crate) fn free(real: Real<'_>, address: u64, stream: u64) -> u32 {
    let stream = plain(stream);
    let Some(session) = session::existing() else { return real.call() };
    let Some(block) = session.heap.take(address) else { return real.call() };
    if block.is_of_driver() {
        let code = real.call();
        if code != 0 {
            session.heap.insert(address, block);
        }
        return code;
    }
    match keep(session, block, stream) {
        Ok(()) => 0,
        Err((block, code)) => {
            session.heap.insert(address, *block);
            code
        }
    }
}

/// Keeps a block that the program frees in the order of a stream. A graph can free only what a graph has allocated.
fn keep(session: &'static Session, block: Block, stream: u64) -> Result<(), (Box<Block>, u32)> {
    let Ok(Some((context, _))) = driver::current() else { return Err((Box::new(block), INVALID_VALUE)) };
    if !session.devices.iter().any(|device| device.primary() == Ok(Some(context))) {
        // An event in it would end with it.
        return end_at_once(session, context, block);
    }
    match streams::record(context, stream) {
        Ok(Some(event)) => {
            // Each thread has an own stream of that number.
            let stream = (stream != OWN_STREAM).then_some(stream);
            session.pools.keep(block, stream.map(|stream| (context, stream)), event);
            Ok(())
        }
        Ok(None) => Err((Box::new(block), INVALID_VALUE)),
        Err(code) => Err((Box::new(block), code)),
    }
}

/// Frees a block as `cuMemFree` does, which waits for more than the one stream.
fn end_at_once(session: &'static Session, context: u64, block: Block) -> Result<(), (Box<Block>, u32)> {
    match streams::wait(&[context]) {
        Ok(true) => {}
        Ok(false) => return Err((Box::new(block), INVALID_VALUE)),
        Err(code) => return Err((Box::new(block), code)),
    }
    session.pools.count_gone(&block);
    let device = block.device;
    // An error is that of a lost context. The block is put aside then.
    let _ = heap::end(session, device, vec![block]);
    Ok(())
}

/// `cuMemPoolCreate`.
pub(crate) fn create_pool(real: Real<'_>, pool: *mut u64, properties: *const c_void) -> u32 {
    let code = real.call();
    if code != 0 {
        return code;
    }
    if let (Some(pool), Some(properties)) = (written(pool), written(properties.cast::<PoolProperties>())) {
        let PoolProperties { kind, handle_kinds, location_kind, location_id } = properties;
        let refusal = if kind != PINNED || location_kind != ON_DEVICE {
            Some(NOT_ON_DEVICE)
        } else {
            (handle_kinds != 0).then_some(SHARED)
        };
        session::get().pools.change(pool, |state| {
            (state.device, state.refusal) = (Some(location_id), refusal);
        });
    }
    code
}

/// `cuMemPoolImportFromShareableHandle`.
pub(crate) fn import_pool(real: Real<'_>, pool: *mut u64) -> u32 {
    let code = real.call();
    if code == 0
        && let Some(pool) = written(pool)
    {
        session::get().pools.change(pool, |state| state.refusal = Some(SHARED));
    }
    code
}

/// `cuMemPoolDestroy`.
pub(crate) fn destroy_pool(real: Real<'_>, pool: u64) -> u32 {
    let code = real.call();
    if code == 0
        && let Some(session) = session::existing()
    {
        session.pools.trim(pool, 0);
        session.pools.remove(pool);
    }
    code
}

/// `cuMemPoolTrimTo`.
pub(crate) fn trim(real: Real<'_>, pool: u64, kept: usize) -> u32 {
    let code = real.call();
    if code == 0
        && let Some(session) = session::existing()
    {
        session.pools.trim(pool, kept as u64);
    }
    code
}

/// `cuMemPoolSetAccess`: served memory is not mapped for further devices later on.
pub(crate) fn set_access(real: Real<'_>, pool: u64, _access: *const c_void, _count: usize) -> u32 {
    let code = real.call();
    if code == 0 {
        session::get().pools.change(pool, |state| state.refusal = Some(OF_PEERS));
    }
    code
}

/// `cuMemPoolGetAttribute`: the driver's figures, and those of the memory that is served for the pool.
pub(crate) fn attribute(real: Real<'_>, pool: u64, attribute: c_uint, value: *mut c_void) -> u32 {
    let code = real.call();
    let Some(session) = session::existing().filter(|_| code == 0) else { return code };
    let state = session.pools.state_of(pool);
    let served = match attribute {
        RESERVED => state.reserved,
        RESERVED_HIGH => state.reserved_high,
        USED => state.used,
        USED_HIGH => state.used_high,
        // The others have 32 bits, or are the program's own settings.
        _ => return code,
    };
    let value = value.cast::<u64>();
    if let Some(own) = written(value) {
        put(value, own.saturating_add(served));
    }
    code
}

/// `cuMemPoolSetAttribute`: the threshold, or the highest figures since.
pub(crate) fn set_attribute(real: Real<'_>, pool: u64, attribute: c_uint, value: *mut c_void) -> u32 {
    let code = real.call();
    if code != 0 {
        return code;
    }
    let pools = &session::get().pools;
    match attribute {
        THRESHOLD => {
            if let Some(bytes) = written(value.cast::<u64>()) {
                pools.change(pool, |state| state.threshold = bytes);
            }
        }
        RESERVED_HIGH => pools.change(pool, |state| state.reserved_high = state.reserved),
        USED_HIGH => pools.change(pool, |state| state.used_high = state.used),
        _ => {}
    }
    code
}
