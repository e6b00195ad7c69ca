//! The life of the driver and its contexts in this process.

use std::{ffi::c_int, sync::Arc};

use super::memory::place;
use crate::{
    driver,
    session::{self, Device, Place, REFUSED, Session, lock},
    streams,
    table::Real,
    turns,
};

/// `cuInit`: the session begins with it, so that a program that the daemon does not serve ends at its start.
pub(crate) fn init(real: Real<'_>) -> u32 {
    let code = real.call();
    if code == 0 {
        if let Some(missing) = driver::missing() {
            let missing = missing.to_string_lossy();
            session::end(
                REFUSED,
                &format!("the driver that VRAMD_LIBCUDA or the loader finds has no {missing}"),
            );
        }
        session::get();
    }
    code
}

/// `cuCtxDestroy`: the driver's own memory ends with it.
pub(crate) fn destroyed(real: Real<'_>, context: u64) -> u32 {
    // Before the call: afterwards another context may get its handle.
    let session = session::existing();
    let charged = session.map_or_else(Vec::new, |session| session.heap.take_of_context(context));
    let streams = streams::take_of_context(context);
    let code = real.call();
    if code == 0 {
        streams::end(streams);
        return code;
    }
    streams::put_back(streams);
    if let Some(session) = session {
        for (address, block) in charged {
            session.heap.insert(address, block);
        }
    }
    code
}

/// `cuDevicePrimaryCtxReset`: all memory of the device ends. Afterwards the driver serves the device, and the daemon
/// charges it.
pub(crate) fn reset(real: Real<'_>, ordinal: c_int) -> u32 {
    let session = session::existing();
    let device = session.and_then(|session| session.device(ordinal));
    let context = device.and_then(|device| device.primary().ok().flatten());
    if let (Some(session), Some(device), Some(context)) = (session, device, context) {
        give_up(session, device, context);
    }
    let code = real.call();
    if let (Some(device), 0) = (device, code) {
        device.set_reset();
        if let Some(context) = context {
            streams::end(streams::take_of_context(context));
        }
    }
    code
}

/// Unmaps everything of a device before its context ends.
fn give_up(session: &'static Session, device: &'static Device, context: u64) {
    let kept = session.pools.take_on(device);
    let served = session.heap.take_served_on(device);
    let aside = session.heap.take_aside(device);
    let charged = session.heap.take_of_context(context);
    // In a lost context no work goes on.
    let _ = streams::wait(&[context]);
    drop((served, aside));
    for (block, event) in kept {
        drop(block);
        if let Some(event) = Arc::into_inner(event) {
            event.forget();
        }
    }
    device.trim_small();
    session.flush();
    // The driver frees this with the context.
    drop(charged);
}

/// `cuCtxEnablePeerAccess`: the current device accesses the memory of another, earlier and later.
pub(crate) fn peer_enabled(real: Real<'_>, peer: u64) -> u32 {
    let code = real.call();
    if code != 0 {
        return code;
    }
    let Some((session, Place::Primary(own) | Place::Other(own, _))) = place() else { return code };
    let is_peer = |device: &&Device| device.primary() == Ok(Some(peer));
    let Some(owner) = session.devices.iter().find(is_peer) else { return code };
    // A hand-over would map the memory again, for its own device alone.
    turns::keep("another device accesses its memory");
    // First for later allocations, so that none is left out.
    lock(&owner.peers).insert(own.ordinal);
    match session.heap.let_access(owner, own.ordinal) {
        Ok(()) => code,
        Err(failed) => failed,
    }
}
