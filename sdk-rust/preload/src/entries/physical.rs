//! Memory that a program maps itself (`cuMemCreate`): the driver serves it, and the daemon charges it.
//!
//! Its charge lasts until the driver has it back: once the program has released every handle of it and unmapped it
//! everywhere in this process.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_uint, c_void},
    sync::Mutex,
};

use super::{memory::UNMANAGED, written};
use crate::{
    driver,
    heap::Block,
    session::{self, lock},
    table::Real,
};

const ON_DEVICE: c_uint = 1;

/// The beginning of `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_kinds: c_uint,
    location_kind: c_uint,
    location_id: c_int,
}

#[derive(Debug, Default)]
pub(crate) struct Physical {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    objects: BTreeMap<u64, Object>,
    /// Which object each of the driver's handles means, and how many releases it needs. The driver may give a released
    /// one out again.
    handles: BTreeMap<u64, (u64, u64)>,
    /// The size and the object of each mapping, by its address.
    mappings: BTreeMap<u64, (u64, u64)>,
}

#[derive(Debug)]
struct Object {
    _charge: Block,
    handles: u64,
    mappings: u64,
}

/// `cuMemCreate`.
pub(crate) fn create(real: Real<'_>, handle: *mut u64, size: usize, properties: *const Properties) -> u32 {
    let Some(Properties { location_kind: ON_DEVICE, location_id, .. }) = written(properties) else {
        return real.call();
    };
    if handle.is_null() || size == 0 || !driver::is_usable() {
        return real.call();
    }
    let session = session::get();
    let Some(device) = session.device(location_id) else { return real.pass_on(UNMANAGED) };
    let charge = match Block::charge(session, device, 0, size as u64) {
        Ok(charge) => charge,
        Err(code) => return code,
    };
    let code = real.call();
    if code == 0
        && let Some(handle) = written(handle)
    {
        lock(&session.physical.state).add(handle, charge);
    }
    code
}

/// `cuMemRelease`.
pub(crate) fn release(real: Real<'_>, handle: u64) -> u32 {
    // Before the call: afterwards the driver may give the handle out again.
    let object = change(|state| state.take_handle(handle)).flatten();
    let code = real.call();
    let Some(object) = object else { return code };
    if code == 0 {
        drop(change(|state| state.end_handle(object)));
    } else {
        change(|state| state.put_handle(handle, object));
    }
    code
}

/// `cuMemRetainAllocationHandle`.
pub(crate) fn retain(real: Real<'_>, handle: *mut u64, address: *mut c_void) -> u32 {
    let code = real.call();
    if code == 0
        && let Some(handle) = written(handle)
    {
        change(|state| state.retain(handle, address.expose_provenance() as u64));
    }
    code
}

/// `cuMemMap`.
pub(crate) fn map(real: Real<'_>, address: u64, size: usize, handle: u64) -> u32 {
    let code = real.call();
    if code == 0 {
        change(|state| state.map(address, size as u64, handle));
    }
    code
}

/// `cuMemUnmap`.
pub(crate) fn unmap(real: Real<'_>, address: u64, size: usize) -> u32 {
    let code = real.call();
    if code == 0 {
        // After the lock: the end of a charge may have the daemon called.
        drop(change(|state| state.unmap(address, size as u64)));
    }
    code
}

/// Changes the state, if there is a session. The caller drops its result after the lock.
fn change<T>(change: impl FnOnce(&mut State) -> T) -> Option<T> {
    session::existing().map(|session| change(&mut lock(&session.physical.state)))
}

impl State {
    fn add(&mut self, handle: u64, charge: Block) {
        self.last += 1;
        self.objects.insert(self.last, Object { _charge: charge, handles: 1, mappings: 0 });
        self.put_handle(handle, self.last);
    }

    fn put_handle(&mut self, handle: u64, object: u64) {
        let known = self.handles.entry(handle).or_insert((object, 0));
        *known = (object, if known.0 == object { known.1 + 1 } else { 1 });
    }

    /// Takes one release off a handle, and returns its object.
    fn take_handle(&mut self, handle: u64) -> Option<u64> {
        let (object, releases) = self.handles.get_mut(&handle)?;
        let object = *object;
        *releases -= 1;
        if *releases == 0 {
            self.handles.remove(&handle);
        }
        Some(object)
    }

    fn retain(&mut self, handle: u64, address: u64) {
        let mapping = self.mappings.range(..=address).next_back();
        let Some(object) =
            mapping.filter(|(at, (size, _))| address - *at < *size).map(|(_, (_, object))| *object)
        else {
            return;
        };
        if let Some(known) = self.objects.get_mut(&object) {
            // One handle may be retained several times; each needs its release.
            known.handles += 1;
            self.put_handle(handle, object);
        }
    }

    /// Ends one handle of the object, and returns it if that was the last use.
    fn end_handle(&mut self, object: u64) -> Option<Object> {
        self.objects.get_mut(&object)?.handles -= 1;
        self.take_unused(object)
    }

    fn map(&mut self, address: u64, size: u64, handle: u64) {
        let Some((object, _)) = self.handles.get(&handle).copied() else { return };
        if let Some(known) = self.objects.get_mut(&object) {
            known.mappings += 1;
            self.mappings.insert(address, (size, object));
        }
    }

    fn unmap(&mut self, address: u64, size: u64) -> Vec<Object> {
        let range = address..address.saturating_add(size);
        let ended: Vec<_> = self.mappings.range(range).map(|(at, (_, object))| (*at, *object)).collect();
        let mut unused = Vec::new();
        for (at, object) in ended {
            self.mappings.remove(&at);
            if let Some(known) = self.objects.get_mut(&object) {
                known.mappings -= 1;
            }
            unused.extend(self.take_unused(object));
        }
        unused
    }

    fn take_unused(&mut self, object: u64) -> Option<Object> {
        let known = self.objects.get(&object)?;
        if known.handles == 0 && known.mappings == 0 { self.objects.remove(&object) } else { None }
    }
}
