//! A thread that is refused a system call, as in a container.
#![allow(unsafe_code, reason = "a filter of system calls is installed by foreign calls alone")]

use std::{io, mem::offset_of};

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W, EPERM, PR_SET_NO_NEW_PRIVS,
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, c_long, prctl, seccomp_data,
    sock_filter, sock_fprog,
};

/// From now on the calling thread is, and those that it starts are, for good.
pub(super) fn refuse(number: c_long) {
    let code = |parts: &[u32]| u16::try_from(parts.iter().sum::<u32>()).unwrap();
    let call = u32::try_from(offset_of!(seccomp_data, nr)).unwrap();
    let refused = u32::try_from(number).unwrap();
    let error = SECCOMP_RET_ERRNO | EPERM.unsigned_abs();
    // SAFETY: These only fill in a structure.
    let mut filter: [sock_filter; 4] = unsafe {
        [
            BPF_STMT(code(&[BPF_LD, BPF_W, BPF_ABS]), call),
            BPF_JUMP(code(&[BPF_JMP, BPF_JEQ, BPF_K]), refused, 0, 1),
            BPF_STMT(code(&[BPF_RET, BPF_K]), error),
            BPF_STMT(code(&[BPF_RET, BPF_K]), SECCOMP_RET_ALLOW),
        ]
    };
    let program = sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: Foreign calls that concern the calling thread alone; the program is read before the second returns.
    let (promised, installed) = unsafe {
        (
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program, 0, 0),
        )
    };
    assert_eq!((promised, installed), (0, 0), "{}", io::Error::last_os_error());
}
