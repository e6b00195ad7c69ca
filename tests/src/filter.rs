//! Filters a system call of a daemon: the kernel refuses it, as in a container, or never answers, as for a hanging
//! disk.
#![allow(unsafe_code, reason = "the caller alone knows that code between fork and exec is sound")]

use std::{
    io,
    os::{fd::IntoRawFd as _, unix::process::CommandExt as _},
    process::Command,
};

use dev_kit::filter;
use libc::c_long;

/// The filter of one system call, for a program and its children, until they end.
#[derive(Clone, Copy, Debug)]
pub enum SyscallFilter {
    /// The call returns EPERM.
    Refused(c_long),
    /// The call returns when its process ends.
    Unanswered(c_long),
}

impl SyscallFilter {
    /// Installs the filter before the program starts.
    pub(crate) fn apply(self, command: &mut Command) {
        // SAFETY: between fork and exec the closure allocates nothing and takes no lock: it makes a few system calls.
        unsafe { command.pre_exec(move || self.install()) };
    }

    fn install(self) -> io::Result<()> {
        match self {
            Self::Refused(number) => filter::refuse(number),
            Self::Unanswered(number) => {
                let listener = filter::ask(number)?;
                // While a process has the listener open, the call waits for its answer. Only the copy outlives the
                // exec.
                let _ = rustix::io::dup(&listener)?.into_raw_fd();
                Ok(())
            }
        }
    }
}
