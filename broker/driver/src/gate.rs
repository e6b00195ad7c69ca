//! For tests: makes a system call wait, like a disk that hangs for a while.
#![allow(unsafe_code, reason = "only foreign calls answer waiting system calls")]

use std::{
    mem::zeroed,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread,
    time::Duration,
};

use dev_kit::filter;
use libc::{
    POLLHUP, POLLIN, SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_USER_NOTIF_FLAG_CONTINUE,
    c_long, c_void, ioctl, poll, pollfd, seccomp_notif, seccomp_notif_resp,
};

/// Holds a system call of this thread, and of the threads that it starts from now on, while the gate is closed.
pub(crate) struct Gate {
    is_open: Arc<AtomicBool>,
}

impl Gate {
    /// An open gate.
    pub(crate) fn before(number: c_long) -> Self {
        let (give, given) = channel();
        let gate = Self { is_open: Arc::new(AtomicBool::new(true)) };
        let is_open = Arc::clone(&gate.is_open);
        // Started first: a thread under the filter would keep it forever.
        thread::spawn(move || {
            let listener: OwnedFd = given.recv().unwrap();
            while let Some(waits) = has_waiting_call(&listener) {
                match waits && is_open.load(Ordering::Relaxed) {
                    true => let_first_pass(&listener),
                    false => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        give.send(filter::ask(number).unwrap()).unwrap();
        gate
    }

    /// Later calls wait until the gate opens.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

/// Whether a call waits for an answer. None once all threads under the filter have ended.
fn has_waiting_call(listener: &OwnedFd) -> Option<bool> {
    let mut requested = pollfd { fd: listener.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: A foreign call that writes one structure.
    unsafe { poll(&raw mut requested, 1, 10) };
    (requested.revents & POLLHUP == 0).then_some(requested.revents & POLLIN != 0)
}

/// Lets the first waiting call continue.
fn let_first_pass(listener: &OwnedFd) {
    // SAFETY: All zeros are what the kernel wants to find in them.
    let (mut call, mut answer) = unsafe { (zeroed::<seccomp_notif>(), zeroed::<seccomp_notif_resp>()) };
    let ask = |what, with: *mut c_void| {
        // SAFETY: A foreign call on a structure of its kind.
        unsafe { ioctl(listener.as_raw_fd(), what, with) == 0 }
    };
    // The calling thread may have ended meanwhile; then there is nothing to answer.
    if ask(SECCOMP_IOCTL_NOTIF_RECV, (&raw mut call).cast()) {
        (answer.id, answer.flags) = (call.id, u32::try_from(SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap());
        let _ = ask(SECCOMP_IOCTL_NOTIF_SEND, (&raw mut answer).cast());
    }
}
