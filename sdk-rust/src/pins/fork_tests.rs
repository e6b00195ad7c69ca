//! Tests of pins in forked children, and of the system calls of pins: each needs a process of its own.

#![allow(unsafe_code, reason = "forks and a filter of system calls are C interfaces")]

use vramd_words::Access;

use super::tests::{allocate, start};
use crate::{channel::fake::part_ref, error::Error};

/// Forks by `fork`, runs `child` in the child, and returns its wait status.
fn child_of(fork: impl Fn() -> libc::c_long, child: impl FnOnce() -> bool) -> i32 {
    let pid = fork();
    if pid == 0 {
        let good = child();
        // SAFETY: needed to end the child before it comes back into the test.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert!(pid > 0);
    let mut status = -1;
    // SAFETY: needed to wait for a child of this test; the status lies where there is room for it.
    let waited = unsafe { libc::waitpid(libc::pid_t::try_from(pid).unwrap(), &raw mut status, 0) };
    assert_eq!(i64::from(waited), pid);
    status
}

fn fork() -> libc::c_long {
    // SAFETY: needed to fork. The children of this file touch little, and end at once.
    unsafe { libc::fork() }.into()
}

/// Forks without running fork handlers.
fn raw_clone() -> libc::c_long {
    // SAFETY: as above. Without flags but the signal it copies what `fork` copies.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
}

fn child_pins_nothing(fork: fn() -> libc::c_long) {
    let daemon = start();
    let allocation = allocate(&daemon, 7, 1, 1);
    let mut pinned = Some(allocation.pin(Access::Write).unwrap());
    let status = child_of(fork, || {
        let pin = allocation.pin(Access::Read).map(drop);
        let slice = pinned.as_ref().unwrap().as_slice().map(|_| ());
        drop(pinned.take());
        [pin, slice].iter().all(|outcome| matches!(outcome, Err(Error::Forked { .. })))
    });
    assert_eq!(status, 0);
    let two = vramd_words::State::Resident { pins: 2 };
    assert_eq!(daemon.word(part_ref(7, 0)).state(), Ok(two), "the parent's pins stand");
}

#[test]
fn forked_child_pins_nothing_and_its_drops_do_nothing() {
    child_pins_nothing(fork);
    // A raw clone also copies the locks of the memory allocator that threads of other tests hold, and its child would
    // wait for them for ever. So it is made in a process without such threads.
    let outcome = child_of(fork, || std::panic::catch_unwind(|| child_pins_nothing(raw_clone)).is_ok());
    assert_eq!(outcome, 0);
}

/// Lets the kernel kill the child at any system call but the one that ends it.
fn allow_exit_alone() {
    const fn op(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        #[expect(clippy::cast_possible_truncation, reason = "operations of the filter fit in 16 bits")]
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    let exit = u32::try_from(libc::SYS_exit_group).unwrap();
    let mut filter = [
        // The number of the call is the first word that the filter sees.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, exit, 0, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: needed to set a filter, which is read while the call lasts. It concerns this child alone.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0);
}

/// The daemon and the client are both in the child, which runs under the filter.
#[test]
fn pins_make_no_system_call() {
    let million = |pinned: bool| {
        move || {
            // The session is the child's own: it may not pin an inherited one.
            let daemon = start();
            let allocation = allocate(&daemon, 7, 1, 1);
            allow_exit_alone();
            for _ in 0..1_000_000 {
                drop(allocation.pin(Access::Write));
            }
            if !pinned {
                // Shows that the filter would have seen one.
                daemon.is_silent();
            }
            // SAFETY: A foreign call that ends the process. Nothing is dropped, since a drop would report to the daemon.
            unsafe { libc::_exit(0) }
        }
    };
    assert_eq!(child_of(fork, million(true)), 0);
    let killed = child_of(fork, million(false));
    assert_eq!((killed & 0x7f, libc::SIGSYS), (libc::SIGSYS, libc::SIGSYS), "status {killed:#x}");
}
