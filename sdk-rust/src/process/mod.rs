//! The identity of the process, without a system call for each question.
//!
//! The number lies in a page that the kernel clears in every child that gets a copy of this process's memory, whether
//! `fork` made it or a raw `clone`, which runs no handlers. So a child finds out by one load, which is cheap enough
//! for every pin.

#![allow(unsafe_code, reason = "a page that the kernel clears in children has no safe interface")]

pub(crate) mod fork;
pub(crate) mod inherited;
pub(crate) mod mark;

use std::{
    process, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap},
    param::page_size,
};

/// The number of a process, different from those of all processes that it was forked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

/// The page of the number: 0 in a child before the first question. `None` if the kernel has no such pages.
static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
/// Copied into children, so that each child takes a number unlike those of its ancestors.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Process {
    #[inline]
    pub(crate) fn current() -> Self {
        let Some(number) = PAGE.get_or_init(cleared_in_children) else { return Self(process::id().into()) };
        match number.load(Ordering::Relaxed) {
            0 => Self::number(number),
            number => Self(number),
        }
    }

    #[cold]
    fn number(number: &AtomicU64) -> Self {
        let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let found = number.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        Self(found.err().unwrap_or(new))
    }
}

/// Never unmapped.
fn cleared_in_children() -> Option<&'static AtomicU64> {
    let size = page_size();
    // SAFETY: there is no safe interface. Without MAP_FIXED the kernel chooses addresses that nothing else uses.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let page = page.ok()?;
    // SAFETY: there is no safe interface. The advice concerns forked children only, and the page is ours.
    if unsafe { madvise(page, size, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: the page was mapped above, and no reference to it exists.
        let _ = unsafe { munmap(page, size) };
        return None;
    }
    // SAFETY: needed to read it. It is a page of zeros, aligned, mapped for good, and used as this atomic alone.
    Some(unsafe { AtomicU64::from_ptr(page.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks by `fork`; the exit code of the child is 0 if it takes itself for another process.
    fn child_of(fork: impl Fn() -> libc::c_long) -> i32 {
        let parent = Process::current();
        let child = fork();
        if child == 0 {
            let is_other = Process::current() != parent && Process::current() == Process::current();
            // SAFETY: needed to end the child before it comes back into the test.
            unsafe { libc::_exit(i32::from(!is_other)) };
        }
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: needed to wait for a child of this test; the status lies where there is room for it.
        let waited = unsafe { libc::waitpid(libc::pid_t::try_from(child).unwrap(), &raw mut status, 0) };
        assert_eq!(i64::from(waited), child);
        assert_eq!(Process::current(), parent);
        status
    }

    #[test]
    fn child_of_fork_or_clone_is_another_process() {
        // SAFETY: needed to fork. The child allocates nothing, and ends at once.
        assert_eq!(child_of(|| unsafe { libc::fork() }.into()), 0);
        // SAFETY: as above: without flags but the signal this is a fork that runs no handlers.
        assert_eq!(child_of(|| unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }), 0);
    }

    #[test]
    fn threads_share_one_process_number() {
        let here = Process::current();
        assert_eq!(std::thread::spawn(Process::current).join().unwrap(), here);
    }
}
