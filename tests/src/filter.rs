//! What the kernel does of a system call of a daemon: refuses it, as in a container, or never answers, as for a disk that hangs.
#![allow(unsafe_code, reason = "what is done between fork and exec is the caller's word alone")]

use std::{
    io,
    os::{fd::IntoRawFd as _, unix::process::CommandExt as _},
    process::Command,
};

use dev_kit::filter;
use libc::c_long;

/// One system call of a program and of all that it starts, for good.
#[derive(Clone, Copy, Debug)]
pub enum Filter {
    /// It answers EPERM.
    Refused(c_long),
    /// It returns when its process ends.
    Unanswered(c_long),
}

impl Filter {
    /// From its beginning on.
    pub(crate) fn apply(self, command: &mut Command) {
        // SAFETY: What is done between fork and exec allocates nothing and takes no lock: some system calls.
        unsafe { command.pre_exec(move || self.install()) };
    }

    fn install(self) -> io::Result<()> {
        match self {
            Self::Refused(number) => filter::refuse(number),
            Self::Unanswered(number) => {
                let listener = filter::ask(number)?;
                // While somebody has it open who could answer, the call waits for that. Only the copy outlives the exec.
                let _ = rustix::io::dup(&listener)?.into_raw_fd();
                Ok(())
            }
        }
    }
}
