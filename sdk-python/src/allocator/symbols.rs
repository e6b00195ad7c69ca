//! The C symbols of PyTorch's allocator: a pair for each pool that lives.
//!
//! PyTorch passes no context to them, and any thread may allocate from a pool. So the symbol itself says which pool is
//! meant. They take no GIL, call no Python, and do not panic: a failure is a null pointer, and its reason stays with the
//! pool (`Pool::take_refusal`). Ctrl-C ends them too (`watch`).

#![allow(unsafe_code, reason = "symbols of a C interface have names of their own")]

use std::{
    ffi::{c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    process, ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use pyo3::{PyResult, exceptions::PyRuntimeError};

use super::watch::heeding_signals;

/// The allocator behind a pair of symbols. It takes no GIL.
pub(super) trait Allocator: Send + Sync {
    /// Allocates a segment for work on a stream. `None` if that fails; the reason is kept.
    fn alloc(&self, size: isize, device: i32, stream: u64) -> Option<usize>;

    /// Frees a segment once the work of a stream is done.
    fn free(&self, address: usize, stream: u64);

    /// Whether it is closed and has no memory, so that nothing refers to its symbols any more.
    fn is_over(&self) -> bool;
}

/// The number of pools that can live at once.
const SLOT_COUNT: usize = 64;

static SLOTS: [Slot; SLOT_COUNT] =
    [const { Slot { pid: AtomicU32::new(0), pool: Mutex::new(None) } }; SLOT_COUNT];

struct Slot {
    /// The process that took it. A forked child does not touch a lock that a thread of its parent may have held.
    pid: AtomicU32,
    pool: Mutex<Option<Arc<dyn Allocator>>>,
}

/// Gives a pool its symbols, until it is closed and PyTorch has freed all of it. `None` if all are taken.
fn occupy(pool: Arc<dyn Allocator>) -> Option<usize> {
    SLOTS.iter().position(|slot| {
        if !matches!(slot.pid.load(Ordering::Acquire), pid if pid == 0 || pid == process::id()) {
            return false;
        }
        let Ok(mut taken) = slot.pool.try_lock() else { return false };
        let is_free = taken.as_ref().is_none_or(|pool| pool.is_over());
        if is_free {
            *taken = Some(Arc::clone(&pool));
            slot.pid.store(process::id(), Ordering::Release);
        }
        is_free
    })
}

pub(super) fn occupy_or_raise<A: Allocator + 'static>(pool: &Arc<A>) -> PyResult<usize> {
    let pool: Arc<dyn Allocator> = Arc::<A>::clone(pool);
    occupy(pool).ok_or_else(|| {
        PyRuntimeError::new_err(format!(
            "{SLOT_COUNT} pools live in this process, and there can be no more: close some"
        ))
    })
}

/// The names of a pool's symbols: to allocate and to free.
pub(super) fn names_of(slot: usize) -> (String, String) {
    (format!("vramd_alloc_{slot}"), format!("vramd_free_{slot}"))
}

/// Forgets the pool of these symbols if it is over, since it would keep its client.
pub(super) fn vacate(number: usize) {
    let Some(slot) = SLOTS.get(number).filter(|slot| slot.pid.load(Ordering::Acquire) == process::id())
    else {
        return;
    };
    let mut taken = slot.pool.lock().unwrap_or_else(PoisonError::into_inner);
    let over = if taken.as_ref().is_some_and(|pool| pool.is_over()) { taken.take() } else { None };
    // Dropped after the lock.
    drop(taken);
    drop(over);
}

fn pool_of(number: usize) -> Option<Arc<dyn Allocator>> {
    let slot = SLOTS.get(number).filter(|slot| slot.pid.load(Ordering::Acquire) == process::id())?;
    slot.pool.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn alloc(number: usize, size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let stream = stream.addr() as u64;
    let allocate = || pool_of(number)?.alloc(size, device, stream);
    let address = catch_unwind(|| heeding_signals(allocate)).ok().flatten();
    ptr::with_exposed_provenance_mut(address.unwrap_or(0))
}

fn free(number: usize, address: *mut c_void, stream: *mut c_void) {
    let freed = || {
        if let Some(pool) = pool_of(number) {
            pool.free(address.addr(), stream.addr() as u64);
            if pool.is_over() {
                vacate(number);
            }
        }
    };
    // A panic has been printed, and the memory stays with the pool.
    drop(catch_unwind(AssertUnwindSafe(freed)));
}

macro_rules! symbols {
    ($($number:literal $alloc:ident $free:ident;)*) => {
        $(
            // SAFETY: an unmangled name must be no other library's. The prefix is this project's own.
            #[unsafe(no_mangle)]
            extern "C" fn $alloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
                alloc($number, size, device, stream)
            }

            // SAFETY: as above.
            #[unsafe(no_mangle)]
            extern "C" fn $free(address: *mut c_void, _size: isize, _device: c_int, stream: *mut c_void) {
                free($number, address, stream);
            }
        )*
    };
}

symbols! {
    0 vramd_alloc_0 vramd_free_0;
    1 vramd_alloc_1 vramd_free_1;
    2 vramd_alloc_2 vramd_free_2;
    3 vramd_alloc_3 vramd_free_3;
    4 vramd_alloc_4 vramd_free_4;
    5 vramd_alloc_5 vramd_free_5;
    6 vramd_alloc_6 vramd_free_6;
    7 vramd_alloc_7 vramd_free_7;
    8 vramd_alloc_8 vramd_free_8;
    9 vramd_alloc_9 vramd_free_9;
    10 vramd_alloc_10 vramd_free_10;
    11 vramd_alloc_11 vramd_free_11;
    12 vramd_alloc_12 vramd_free_12;
    13 vramd_alloc_13 vramd_free_13;
    14 vramd_alloc_14 vramd_free_14;
    15 vramd_alloc_15 vramd_free_15;
    16 vramd_alloc_16 vramd_free_16;
    17 vramd_alloc_17 vramd_free_17;
    18 vramd_alloc_18 vramd_free_18;
    19 vramd_alloc_19 vramd_free_19;
    20 vramd_alloc_20 vramd_free_20;
    21 vramd_alloc_21 vramd_free_21;
    22 vramd_alloc_22 vramd_free_22;
    23 vramd_alloc_23 vramd_free_23;
    24 vramd_alloc_24 vramd_free_24;
    25 vramd_alloc_25 vramd_free_25;
    26 vramd_alloc_26 vramd_free_26;
    27 vramd_alloc_27 vramd_free_27;
    28 vramd_alloc_28 vramd_free_28;
    29 vramd_alloc_29 vramd_free_29;
    30 vramd_alloc_30 vramd_free_30;
    31 vramd_alloc_31 vramd_free_31;
    32 vramd_alloc_32 vramd_free_32;
    33 vramd_alloc_33 vramd_free_33;
    34 vramd_alloc_34 vramd_free_34;
    35 vramd_alloc_35 vramd_free_35;
    36 vramd_alloc_36 vramd_free_36;
    37 vramd_alloc_37 vramd_free_37;
    38 vramd_alloc_38 vramd_free_38;
    39 vramd_alloc_39 vramd_free_39;
    40 vramd_alloc_40 vramd_free_40;
    41 vramd_alloc_41 vramd_free_41;
    42 vramd_alloc_42 vramd_free_42;
    43 vramd_alloc_43 vramd_free_43;
    44 vramd_alloc_44 vramd_free_44;
    45 vramd_alloc_45 vramd_free_45;
    46 vramd_alloc_46 vramd_free_46;
    47 vramd_alloc_47 vramd_free_47;
    48 vramd_alloc_48 vramd_free_48;
    49 vramd_alloc_49 vramd_free_49;
    50 vramd_alloc_50 vramd_free_50;
    51 vramd_alloc_51 vramd_free_51;
    52 vramd_alloc_52 vramd_free_52;
    53 vramd_alloc_53 vramd_free_53;
    54 vramd_alloc_54 vramd_free_54;
    55 vramd_alloc_55 vramd_free_55;
    56 vramd_alloc_56 vramd_free_56;
    57 vramd_alloc_57 vramd_free_57;
    58 vramd_alloc_58 vramd_free_58;
    59 vramd_alloc_59 vramd_free_59;
    60 vramd_alloc_60 vramd_free_60;
    61 vramd_alloc_61 vramd_free_61;
    62 vramd_alloc_62 vramd_free_62;
    63 vramd_alloc_63 vramd_free_63;
}
