//! Ctrl-C during an allocation that PyTorch makes.
//!
//! Such an allocation may not ask Python whether a signal came: PyTorch has a lock of its own meanwhile, and a thread
//! that has the GIL may wait for that lock to free a tensor. So Python's own handler in C says so, by the descriptor of
//! `signal.set_wakeup_fd`. The allocation then fails, and Python raises the `KeyboardInterrupt` as soon as it runs again.

#![allow(unsafe_code, reason = "a function of Python is called without the GIL")]

use std::{
    cell::{Cell, RefCell},
    ffi::{c_int, c_void},
    io::{self, Read as _},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    ptr,
    sync::Arc,
};

use pyo3::{ffi, prelude::*};
use vramd_client::interruptible;

/// The number of the signal of Ctrl-C, as Python writes it to the descriptor.
const SIGINT: u8 = 2;

thread_local! {
    /// The stream to which Python writes the signals that arrive while this thread, the main one, is in a block.
    static SIGNALS: RefCell<Option<Arc<UnixStream>>> = const { RefCell::new(None) };
    /// Whether Ctrl-C has ended an allocation, and Python has not run since. PyTorch tries such an allocation again.
    static IS_INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

/// Has Ctrl-C end the allocations that the main thread makes for PyTorch, from `begin` to `end`.
#[pyclass(frozen, module = "vramd._native", name = "_SignalWatch")]
#[derive(Debug)]
pub(crate) struct SignalWatch {
    /// Python's end.
    written: UnixStream,
    read: Arc<UnixStream>,
}

#[pymethods]
impl SignalWatch {
    #[new]
    fn new() -> io::Result<Self> {
        let (written, read) = UnixStream::pair()?;
        written.set_nonblocking(true)?;
        read.set_nonblocking(true)?;
        Ok(Self { written, read: Arc::new(read) })
    }

    /// For `signal.set_wakeup_fd`.
    fn fileno(&self) -> c_int {
        self.written.as_raw_fd()
    }

    fn begin(&self) {
        SIGNALS.set(Some(Arc::clone(&self.read)));
    }

    #[expect(clippy::unused_self, reason = "the counterpart of `begin`")]
    fn end(&self) {
        SIGNALS.set(None);
        IS_INTERRUPTED.set(false);
    }
}

/// Runs an allocation, which Ctrl-C ends if the thread is watched.
pub(super) fn heeding_signals<T>(work: impl FnOnce() -> T) -> T {
    if SIGNALS.with_borrow(Option::is_none) {
        return work();
    }
    if !IS_INTERRUPTED.get() {
        // Of signals that Python has handled before.
        let _ = take_signals();
    }
    interruptible(is_interrupted, work)
}

fn is_interrupted() -> bool {
    if !IS_INTERRUPTED.get() && take_signals() {
        IS_INTERRUPTED.set(true);
        // SAFETY: needed since nothing else says that Python runs again. Python allows the call without the GIL. The
        // function that it is given has the signature asked for, and uses no argument. If there is no room for it, `end`
        // does its work.
        unsafe { ffi::Py_AddPendingCall(Some(forget_interrupt), ptr::null_mut()) };
    }
    IS_INTERRUPTED.get()
}

/// Python calls it in the main thread, once that runs Python again.
extern "C" fn forget_interrupt(_argument: *mut c_void) -> c_int {
    IS_INTERRUPTED.set(false);
    0
}

/// Reads all that Python has written. Returns whether Ctrl-C was among it.
fn take_signals() -> bool {
    SIGNALS.with_borrow(|signals| {
        let Some(signals) = signals else { return false };
        let (mut some, mut found) = ([0; 64], false);
        while let Ok(count) = (&**signals).read(&mut some)
            && count > 0
        {
            found |= some.iter().take(count).any(|signal| *signal == SIGINT);
        }
        found
    })
}
