//! The SDK inside of a Python process that uses PyTorch: a library with four C functions, for `ctypes`.
//!
//! PyTorch uses a device's primary context, and so does the SDK: memory that the SDK has mapped is memory that PyTorch's
//! kernels reach, and no second context takes its half GiB. `tests/gpu/torch_share.py` is the program that shows it.
//! The process has one session and one allocation. Errors go to standard error.

#![allow(unsafe_code, reason = "functions with C's calling convention, for another language")]

use std::{
    error::Error,
    ffi::{CStr, c_char, c_int},
    io::{self, Write as _},
    slice,
    sync::{Mutex, MutexGuard, PoisonError},
};

use vramd_client::{Allocation, AllocationRequest, Bytes, Client};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Fields are dropped in this order: the memory before its session.
struct Share {
    memory: Option<Allocation>,
    client: Client,
    device: String,
}

static SHARE: Mutex<Option<Share>> = Mutex::new(None);

/// Opens a session that sees the one device. 0 if that went well.
///
/// # Safety
/// `device` is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn share_open(device: *const c_char) -> c_int {
    // SAFETY: needed to read a text of C's. The caller says that it is one.
    let device = unsafe { CStr::from_ptr(device) };
    told(open(device), 1, |()| 0)
}

/// Allocates and maps: the address on the device, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn share_allocate(size_bytes: u64) -> u64 {
    told(allocate(size_bytes), 0, |address| address)
}

/// Copies out of it, as the SDK does. 0 if that went well.
///
/// # Safety
/// `to` is memory of the caller's, of `len` bytes, which are initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn share_read(offset_bytes: u64, to: *mut u8, len: usize) -> c_int {
    // SAFETY: needed to write to a buffer of C's. The caller guarantees that it is one, and that no other code uses it meanwhile.
    let to = unsafe { slice::from_raw_parts_mut(to, len) };
    told(read(offset_bytes, to), 1, |()| 0)
}

/// Frees it and ends the session. 0 if that went well.
#[unsafe(no_mangle)]
pub extern "C" fn share_close() -> c_int {
    told(close(), 1, |()| 0)
}

fn open(device: &CStr) -> Result<()> {
    let device = device.to_str()?.to_owned();
    let client = Client::builder().devices([&device]).connect()?;
    *share() = Some(Share { memory: None, client, device });
    Ok(())
}

fn allocate(size_bytes: u64) -> Result<u64> {
    let mut share = share();
    let share = share.as_mut().ok_or("no session is open")?;
    let request = AllocationRequest::new(Bytes::new(size_bytes)).device(&share.device);
    let memory = share.memory.insert(share.client.allocate(request)?);
    if memory.is_device_memory() { Ok(memory.as_device_ptr()) } else { Err("it is simulated".into()) }
}

fn read(offset_bytes: u64, to: &mut [u8]) -> Result<()> {
    let share = share();
    let memory = share.as_ref().and_then(|share| share.memory.as_ref()).ok_or("nothing is allocated")?;
    Ok(memory.copy_to_host(offset_bytes, to)?)
}

fn close() -> Result<()> {
    let share = share().take().ok_or("no session is open")?;
    match share.memory {
        Some(memory) => Ok(memory.free().map(|_| ())?),
        None => Ok(()),
    }
}

fn share() -> MutexGuard<'static, Option<Share>> {
    SHARE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn told<T, C>(result: Result<T>, bad: C, good: impl FnOnce(T) -> C) -> C {
    match result {
        Ok(value) => good(value),
        Err(error) => {
            // If standard error has no reader, nothing is left to do.
            let _ = writeln!(io::stderr(), "torch_share: {error}");
            bad
        }
    }
}
