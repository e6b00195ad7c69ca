//! Forked children, as a client's program may leave them behind.

#![allow(unsafe_code, reason = "forking a client is what is tested here")]

use std::{io, process};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// A child that does nothing but hold what it inherited, for two minutes at most.
pub(super) fn holder() -> Result<Value> {
    // SAFETY: fork is only offered as an unsafe call. The child makes system calls alone until it ends, so no
    // lock that another thread held at the fork is touched.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above; none of these returns into code of the parent.
        unsafe {
            libc::alarm(120);
            // The pipes to the test would otherwise stay open with the child.
            libc::close(0);
            libc::close(1);
            loop {
                libc::pause();
            }
        }
    }
    ensure!(pid > 0, "fork: {}", io::Error::last_os_error());
    Ok(json!({ "pid": pid }))
}

/// A child that does this and ends.
pub(super) fn run(what: impl FnOnce() -> bool) -> Result<Value> {
    // SAFETY: fork is only offered as an unsafe call. The child runs on its only thread and ends in `_exit`;
    // `what` makes a system call and touches no lock but the allocator's, which the C library resets at a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = what();
        // SAFETY: ends the child without running the parent's destructors in it.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    ensure!(pid > 0, "fork: {}", io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waitpid writes to the integer that it is given, which lives on this stack.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    ensure!(waited == pid, "waitpid of {}: {}", process::id(), io::Error::last_os_error());
    Ok(json!({ "status": libc::WEXITSTATUS(status) }))
}
