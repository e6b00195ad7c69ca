//! Reads from `/proc/PID/stat` whether a process is ending, and whether it has executed a program since.
//!
//! An `execve` keeps the pid and the pidfd, and takes every mapping and every descriptor that closes on exec. No event
//! reports it, so the daemon compares what the kernel shows of the program. The file takes no lock that the process
//! could hold, so a read never waits for it.

use std::{fmt, fs, io};

use thiserror::Error;

/// `PF_EXITING`: the process has begun to end.
const EXITING: u64 = 0x4;
/// `PF_FORKNOEXEC`: the process was forked and has executed nothing since.
const FORKED: u64 = 0x40;

/// `/proc` shows the processes of another pid namespace: what it says of a client's pid is about another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "/proc is that of another pid namespace: this process is {own} there, and {pid} to itself. Mount /proc in the daemon's own pid namespace"
)]
pub struct ForeignProc {
    own: u32,
    pid: u32,
}

/// Checks that `/proc` numbers processes as the kernel does for the daemon.
pub fn check_proc() -> Result<(), ForeignProc> {
    let pid = std::process::id();
    let own = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
    match own {
        Some(own) if own != pid => Err(ForeignProc { own, pid }),
        _ => Ok(()),
    }
}

/// Reads a field of `/proc/PID/status`, without the blanks around it. The pid may be `self`.
pub fn status_field(pid: impl fmt::Display, name: &str) -> io::Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    find_field(&status, name).map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn find_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The state of a process, as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub is_ending: bool,
    pub image: Image,
}

/// The running program of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    is_forked: bool,
    /// Where its code and its stack begin: the kernel draws both anew at each `execve`. `None` if the daemon may not see
    /// them, and once the address space is gone.
    addresses: Option<(u64, u64)>,
}

impl Process {
    /// Reads the process with that pid, which the caller knows to be alive afterwards.
    pub fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Image {
    /// Whether the process has executed a program between `before` and `self`. Without a random layout of addresses, a
    /// program that executes itself anew looks the same.
    pub fn follows(&self, before: &Self) -> bool {
        let moved = match (before.addresses, self.addresses) {
            (Some(before), Some(now)) => before != now,
            _ => false,
        };
        moved || (before.is_forked && !self.is_forked)
    }
}

/// The second field is the name in parentheses, and may itself contain any character.
fn parse(text: &str) -> Option<Process> {
    let (_, rest) = text.rsplit_once(')')?;
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let (flags, code, stack) = (field(9)?, field(26)?, field(28)?);
    let is_ending = flags & EXITING != 0;
    let image = Image {
        is_forked: flags & FORKED != 0,
        // The stack is 0 if the daemon may not see it.
        addresses: (stack != 0 && !is_ending).then_some((code, stack)),
    };
    Some(Process { is_ending, image })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn names_with_parentheses_and_spaces_are_read_over() {
        let rest = "S 1 1 1 0 -1 4194368 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 94 0 140 0 0";
        let process = parse(&format!("7 (a) b) {rest}")).unwrap();
        assert!(!process.is_ending && process.image.is_forked);
        assert_eq!(process.image.addresses, Some((94, 140)));
        assert_eq!(parse("7 (a) S 1 1"), None);
        let hidden = parse(&format!("7 (a) {}", rest.replace(" 140 ", " 0 "))).unwrap().image;
        assert!(!hidden.follows(&process.image) && !process.image.follows(&hidden));
    }

    #[test]
    fn a_process_that_executes_itself_anew_is_noticed() {
        let script = "echo ready; read line; exec sh -c 'echo again; read line'";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (pid, mut input) = (child.id(), child.stdin.take().unwrap());
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let image = || Process::read(pid).unwrap().image;
        assert_eq!(output.next().unwrap().unwrap(), "ready");
        let first = image();
        assert!(!image().follows(&first));
        input.write_all(b"\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "again");
        assert!(image().follows(&first), "{first:?} {:?}", image());
        drop(input);
        child.wait().unwrap();
    }
}
