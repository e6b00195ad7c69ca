//! Forked children, as a client's program may leave them behind.

#![allow(unsafe_code, reason = "forking a client is what is tested here")]

use std::{
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd},
    process, ptr,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// Forks a child that keeps what it inherited, for two minutes at most.
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

/// Forks a child that keeps what it inherited and, at SIGUSR1, receives the next packet on this socket. It keeps the
/// descriptors, for two minutes at most.
pub(super) fn heir(socket: BorrowedFd<'_>) -> Result<Value> {
    let socket = socket.as_raw_fd();
    // SAFETY: a signal set is plain data that these calls write, and it outlives them. Blocked before the fork, the
    // signal waits for the child however early it comes.
    let signals = unsafe {
        let mut signals = mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGUSR1);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, ptr::null_mut());
        signals
    };
    // SAFETY: as in `holder`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let (mut bytes, mut control) = ([0_u8; 4096], [0_u64; 512]);
        // SAFETY: system calls on buffers of this stack, whose true lengths the kernel is told; the child never
        // returns from here.
        unsafe {
            libc::alarm(120);
            libc::close(0);
            libc::close(1);
            let mut signal = 0;
            libc::sigwait(&raw const signals, &raw mut signal);
            let mut slice = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_iov = &raw mut slice;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = mem::size_of_val(&control);
            libc::recvmsg(socket, &raw mut message, 0);
            loop {
                libc::pause();
            }
        }
    }
    ensure!(pid > 0, "fork: {}", io::Error::last_os_error());
    Ok(json!({ "pid": pid }))
}

/// Forks a child that runs this and ends. Returns whether it succeeded.
pub(super) fn run(what: impl FnOnce() -> bool) -> Result<Value> {
    Ok(json!({ "status": run_by(fork, what)? }))
}

/// The same by either kind of fork. Returns how the child ended.
pub(super) fn run_by(fork: impl Fn() -> libc::c_long, what: impl FnOnce() -> bool) -> Result<i32> {
    let pid = fork();
    if pid == 0 {
        // SAFETY: needed so that a child that hangs ends, and the test with it.
        unsafe { libc::alarm(60) };
        let done = what();
        // SAFETY: needed to end the child without running the parent's destructors in it.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    ensure!(pid > 0, "fork: {}", io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waitpid writes to the integer that it is given, which lives on this stack.
    let waited = unsafe { libc::waitpid(libc::pid_t::try_from(pid)?, &raw mut status, 0) };
    ensure!(i64::from(waited) == pid, "waitpid of {}: {}", process::id(), io::Error::last_os_error());
    ensure!(libc::WIFEXITED(status), "the child ended by signal {}", libc::WTERMSIG(status));
    Ok(libc::WEXITSTATUS(status))
}

pub(super) fn fork() -> libc::c_long {
    // SAFETY: needed to fork. The child runs on its only thread and ends in `_exit`; what it does touches no lock but the
    // allocator's, which the C library resets at a fork.
    unsafe { libc::fork() }.into()
}

/// A fork that runs no handlers.
pub(super) fn raw_clone() -> libc::c_long {
    // SAFETY: as above; without flags but the signal it copies what `fork` copies. No other thread of this process uses the
    // allocator while it answers a command, so its lock is free in the child.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
}
