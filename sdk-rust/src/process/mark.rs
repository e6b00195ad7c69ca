//! A mark that says whether this is still the process that made a value, without a system call.
//!
//! The kernel clears one page of the process in every child: after a fork, and after a raw `clone`, which runs no
//! handlers. A mark written there before is then gone in the child, and only there.

#![allow(unsafe_code, reason = "a page that a child does not inherit is made by mmap and madvise")]

use std::{
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
    rand::{GetRandomFlags, getrandom},
};

const PAGE: usize = 4096;

/// The mark of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMark {
    page: &'static AtomicU64,
    mark: u64,
}

impl ProcessMark {
    /// Returns the mark of this process.
    pub(crate) fn current() -> Result<Self, Errno> {
        let page = page()?;
        let fresh = mark()?;
        // The page holds zero in a process that has not asked before, even in a child of one that has.
        let mark = match page.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh,
            Err(there) => there,
        };
        Ok(Self { page, mark })
    }

    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.page.load(Ordering::Relaxed) == self.mark
    }
}

/// A random number, never zero.
fn mark() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) => return Ok(u64::from_ne_bytes(bytes) | 1),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn page() -> Result<&'static AtomicU64, Errno> {
    static WIPED: OnceLock<Result<&'static AtomicU64, Errno>> = OnceLock::new();
    *WIPED.get_or_init(|| {
        // SAFETY: there is no safe way to a page of its own. The kernel chooses an address where nothing is.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        // SAFETY: as above; the advice concerns the page that was just mapped, and nothing else lies in it.
        if let Err(error) = unsafe { madvise(start, PAGE, Advice::LinuxWipeOnFork) } {
            // SAFETY: the page is this function's alone, and no reference to it was made.
            let _ = unsafe { munmap(start, PAGE) };
            return Err(error);
        }
        // SAFETY: needed to name what lies in the page. It is mapped, zero, aligned, and never unmapped from here on;
        // it is reached through this atomic alone.
        Ok(unsafe { AtomicU64::from_ptr(start.cast()) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_has_a_mark_of_its_own() {
        let mark = ProcessMark::current().unwrap();
        assert!(mark.is_current());
        assert_eq!(ProcessMark::current().unwrap().mark, mark.mark);
        // SAFETY: fork is only offered as an unsafe call. The child makes system calls alone, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let own = ProcessMark::current();
            let right = !mark.is_current() && own.is_ok_and(|own| own.is_current() && own.mark != mark.mark);
            // SAFETY: ends the child without running the parent's destructors in it.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: waitpid writes to the integer that it is given, which lives on this stack.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert!(mark.is_current());
    }
}
