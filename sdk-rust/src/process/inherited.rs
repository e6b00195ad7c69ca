//! The addresses that a forked child does not inherit, and the words with which it dies there.
//!
//! A slice, an array or a pointer of the parent is still there in a child, and the memory is not: an access faults. No
//! library can turn that into an error. But the child's handler of the fault can say what happened before the
//! fault takes its course.

#![allow(unsafe_code, reason = "handlers of signals are a C interface")]

use std::{
    mem, ptr,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use super::Process;

/// How many reservations are known at once; a fault in any other dies without the words.
const RANGES_MAX: usize = 1024;
const WORDS: &[u8] = b"vramd: this process was forked, and has accessed memory of its parent's session, which a child does not \
inherit. Connect a client of its own in the child, and attach the memory there.\n";

/// A range of addresses of one process. `end` is 0 while it is free, and 1 while it is being written.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    process: AtomicU64,
}

static RANGES: [Range; RANGES_MAX] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), process: AtomicU64::new(0) } };
        RANGES_MAX];

/// The action before this module's, written before the handler is installed.
struct Earlier(std::cell::UnsafeCell<mem::MaybeUninit<libc::sigaction>>);

// SAFETY: needed for a static. Only a child that has just been forked writes it, and has no other thread then.
unsafe impl Sync for Earlier {}

static EARLIER: Earlier = Earlier(std::cell::UnsafeCell::new(mem::MaybeUninit::zeroed()));

/// Remembers a range of this process.
pub(crate) fn remember(start: usize, len: usize) {
    for range in &RANGES {
        if range.end.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            range.start.store(start, Ordering::Relaxed);
            range.process.store(Process::current().0, Ordering::Relaxed);
            range.end.store(start + len, Ordering::Release);
            return;
        }
    }
}

pub(crate) fn forget(start: usize, len: usize) {
    let of_this_process = |range: &&Range| {
        range.end.load(Ordering::Acquire) == start + len
            && range.start.load(Ordering::Relaxed) == start
            && range.process.load(Ordering::Relaxed) == Process::current().0
    };
    if let Some(range) = RANGES.iter().find(of_this_process) {
        range.end.store(0, Ordering::Release);
    }
}

/// Whether the address lies in a range of a parent of this process, and in none of its own.
fn is_of_a_parent(address: usize) -> bool {
    let here = Process::current().0;
    let mut of_parent = false;
    for range in &RANGES {
        let end = range.end.load(Ordering::Acquire);
        if end > address && range.start.load(Ordering::Relaxed) <= address {
            if range.process.load(Ordering::Relaxed) == here {
                return false;
            }
            of_parent = true;
        }
    }
    of_parent
}

/// Installs the handler in a child that has just been forked.
pub(super) fn watch() {
    if RANGES.iter().all(|range| range.end.load(Ordering::Relaxed) <= 1) {
        return;
    }
    // SAFETY: needed to install a handler. The structures are plain and zeroed first, and `sigaction` may be called
    // between fork and exec. The child has one thread, so nothing else accesses `EARLIER`.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let earlier = EARLIER.0.get().cast::<libc::sigaction>();
        let mut before: libc::sigaction = mem::zeroed();
        if libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) == 0
            && before.sa_sigaction != action.sa_sigaction
        {
            earlier.write(before);
            libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut());
        }
    }
}

/// Says what happened, and leaves the fault to the earlier action: the access is repeated and faults again.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: needed to read what the kernel passes, to write to standard error and to restore the action; all of it
    // is allowed in a handler.
    unsafe {
        let of_kernel = (*info).si_code > 0;
        if of_kernel && is_of_a_parent((*info).si_addr().addr()) {
            libc::write(libc::STDERR_FILENO, WORDS.as_ptr().cast(), WORDS.len());
        }
        libc::sigaction(signal, EARLIER.0.get().cast::<libc::sigaction>(), ptr::null_mut());
        if !of_kernel {
            // Another process has sent it, and no access repeats it.
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_parent_are_told_from_own_ones() {
        // No reservation lies that high.
        let (start, len) = (usize::MAX / 2, 4096);
        remember(start, len);
        assert!(!is_of_a_parent(start));
        // SAFETY: fork is only offered as an unsafe call. The child makes no other call but `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before =
                is_of_a_parent(start) && is_of_a_parent(start + len - 1) && !is_of_a_parent(start + len);
            remember(start, len);
            let right = before && !is_of_a_parent(start);
            // SAFETY: ends the child without running the parent's destructors in it.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: waitpid writes to the integer that it is given, which lives on this stack.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        forget(start, len);
        assert!(
            RANGES.iter().all(|range| range.start.load(Ordering::Relaxed) != start
                || range.end.load(Ordering::Relaxed) == 0)
        );
    }
}
