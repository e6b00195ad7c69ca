//! For tests: a thread that is refused a system call, as in a container, or waits for it, as for a disk that does nothing for a while.
#![allow(unsafe_code, reason = "a filter of system calls is installed, and answered, by foreign calls alone")]

use std::{
    io,
    mem::{offset_of, zeroed},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread,
    time::Duration,
};

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W, EPERM, POLLHUP, POLLIN,
    PR_SET_NO_NEW_PRIVS, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_IOCTL_NOTIF_RECV,
    SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF,
    SECCOMP_SET_MODE_FILTER, SECCOMP_USER_NOTIF_FLAG_CONTINUE, SYS_seccomp, c_int, c_long, c_ulong, c_void,
    ioctl, poll, pollfd, prctl, seccomp_data, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog,
    syscall,
};

/// From now on the calling thread is, and those that it starts are, for good.
pub(crate) fn refuse(number: c_long) {
    install(number, SECCOMP_RET_ERRNO | EPERM.unsigned_abs(), 0);
}

/// A system call that the calling thread, and those that it starts from now on, make only while this is open.
pub(crate) struct Gate {
    is_open: Arc<AtomicBool>,
}

impl Gate {
    /// It is open.
    pub(crate) fn before(number: c_long) -> Self {
        let (give, given) = channel();
        let gate = Self { is_open: Arc::new(AtomicBool::new(true)) };
        let is_open = Arc::clone(&gate.is_open);
        // Begun first: a thread under the filter would keep it for ever.
        thread::spawn(move || {
            let listener: OwnedFd = given.recv().unwrap();
            while let Some(waits) = waits(&listener) {
                match waits && is_open.load(Ordering::Relaxed) {
                    true => go_on(&listener),
                    false => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let listener = install(number, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
        // SAFETY: The call has made it for us.
        give.send(unsafe { OwnedFd::from_raw_fd(c_int::try_from(listener).unwrap()) }).unwrap();
        gate
    }

    /// Who comes now waits until it is opened.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

fn install(number: c_long, answer: u32, flags: c_ulong) -> c_long {
    let code = |parts: &[u32]| u16::try_from(parts.iter().sum::<u32>()).unwrap();
    let call = u32::try_from(offset_of!(seccomp_data, nr)).unwrap();
    let number = u32::try_from(number).unwrap();
    // SAFETY: These only fill in a structure.
    let mut filter: [sock_filter; 4] = unsafe {
        [
            BPF_STMT(code(&[BPF_LD, BPF_W, BPF_ABS]), call),
            BPF_JUMP(code(&[BPF_JMP, BPF_JEQ, BPF_K]), number, 0, 1),
            BPF_STMT(code(&[BPF_RET, BPF_K]), answer),
            BPF_STMT(code(&[BPF_RET, BPF_K]), SECCOMP_RET_ALLOW),
        ]
    };
    let program = sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: Foreign calls that concern the calling thread alone; the program is read before the second returns.
    let (promised, installed) = unsafe {
        (
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            syscall(SYS_seccomp, c_ulong::from(SECCOMP_SET_MODE_FILTER), flags, &raw const program),
        )
    };
    assert!(promised == 0 && installed >= 0, "{}", io::Error::last_os_error());
    installed
}

/// Whether a call waits to be answered; none does any more once all threads under the filter have ended.
fn waits(listener: &OwnedFd) -> Option<bool> {
    let mut asked = pollfd { fd: listener.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: A foreign call that writes one structure.
    unsafe { poll(&raw mut asked, 1, 10) };
    (asked.revents & POLLHUP == 0).then_some(asked.revents & POLLIN != 0)
}

/// The first that waits is made.
fn go_on(listener: &OwnedFd) {
    // SAFETY: All zeros are what the kernel wants to find in them.
    let (mut call, mut answer) = unsafe { (zeroed::<seccomp_notif>(), zeroed::<seccomp_notif_resp>()) };
    let ask = |what, with: *mut c_void| {
        // SAFETY: A foreign call on a structure of its kind.
        unsafe { ioctl(listener.as_raw_fd(), what, with) == 0 }
    };
    // Its thread may have ended meanwhile, and then nobody is to be answered.
    if ask(SECCOMP_IOCTL_NOTIF_RECV, (&raw mut call).cast()) {
        (answer.id, answer.flags) = (call.id, u32::try_from(SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap());
        let _ = ask(SECCOMP_IOCTL_NOTIF_SEND, (&raw mut answer).cast());
    }
}
