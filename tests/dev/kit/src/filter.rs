//! System call filters for tests: the kernel refuses a call, as in a container, or lets it wait, as for a disk that hangs.
#![allow(unsafe_code, reason = "a filter of system calls is installed by foreign calls alone")]

use std::{
    io,
    mem::offset_of,
    os::fd::{FromRawFd as _, OwnedFd},
};

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W, EPERM, PR_SET_NO_NEW_PRIVS,
    SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF,
    SECCOMP_SET_MODE_FILTER, SYS_seccomp, c_int, c_long, c_uint, c_ulong, prctl, seccomp_data, sock_filter,
    sock_fprog, syscall,
};

/// Makes the kernel answer EPERM to that system call of the calling thread and of threads that it starts, for good. Allocates nothing.
pub fn refuse(number: c_long) -> io::Result<()> {
    install(number, SECCOMP_RET_ERRNO | EPERM.unsigned_abs(), 0).map(drop)
}

/// Makes that system call of the calling thread, and of threads that it starts, wait for an answer through the returned descriptor.
/// Once no process has the descriptor open, the call gets ENOSYS. Allocates nothing.
pub fn ask(number: c_long) -> io::Result<OwnedFd> {
    let listener = install(number, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    let listener = c_int::try_from(listener).map_err(io::Error::other)?;
    // SAFETY: The call has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

fn install(number: c_long, answer: c_uint, flags: c_ulong) -> io::Result<c_long> {
    let number = u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut filter = program(number, answer);
    let program = sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: A foreign call that changes the calling thread only.
    answered(c_long::from(unsafe { prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }))?;
    // SAFETY: The same. The kernel reads the program before the call returns, and `filter` lives until then.
    answered(unsafe {
        syscall(SYS_seccomp, c_ulong::from(SECCOMP_SET_MODE_FILTER), flags, &raw const program)
    })
}

fn answered(answer: c_long) -> io::Result<c_long> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Builds the filter that gives `answer` to call `number` and allows every other call.
fn program(number: c_uint, answer: c_uint) -> [sock_filter; 4] {
    let code = |parts: [c_uint; 3]| u16::try_from(parts.iter().sum::<c_uint>()).unwrap_or(0);
    let at = u32::try_from(offset_of!(seccomp_data, nr)).unwrap_or(0);
    // SAFETY: These only fill in a structure.
    unsafe {
        [
            BPF_STMT(code([BPF_LD, BPF_W, BPF_ABS]), at),
            BPF_JUMP(code([BPF_JMP, BPF_JEQ, BPF_K]), number, 0, 1),
            BPF_STMT(code([BPF_RET, BPF_K, 0]), answer),
            BPF_STMT(code([BPF_RET, BPF_K, 0]), SECCOMP_RET_ALLOW),
        ]
    }
}
