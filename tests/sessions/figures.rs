//! Figures that could grow, and whether they did.

use std::fmt;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vramd_tests::{NodeState, proc};

/// All figures at rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// The number of sessions so far.
    sessions: u64,
    daemon: Process,
    client: Process,
    /// Charged, unreturned and unbrokered bytes on all devices.
    charged_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    fds: usize,
    memory_bytes: u64,
}

/// The first figures and the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    daemon: Process,
    client: Process,
    charged_bytes: u64,
}

/// The lowest of this many samples counts at either end: memory that an allocator caches for a while is no growth.
const LOWEST_OF: usize = 3;

impl Figures {
    pub(crate) fn take(daemon: u32, client: u32, state: &NodeState, sessions: u64) -> Self {
        let charged_bytes = state.charged() + state.unreturned() + state.unbrokered();
        Self { sessions, daemon: Process::look(daemon), client: Process::look(client), charged_bytes }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "sessions": self.sessions, "charged_bytes": self.charged_bytes,
            "daemon": self.daemon.json(), "client": self.client.json(),
        })
    }
}

impl Process {
    fn look(pid: u32) -> Self {
        Self { fds: proc::fd_count(pid), memory_bytes: proc::anonymous_bytes(pid) }
    }

    fn json(&self) -> Value {
        json!({ "fds": self.fds, "memory_bytes": self.memory_bytes })
    }

    fn lowest(samples: impl Iterator<Item = Self>) -> Self {
        let least = |a: Self, b: Self| Self {
            fds: a.fds.min(b.fds),
            memory_bytes: a.memory_bytes.min(b.memory_bytes),
        };
        samples.reduce(least).expect("there are samples")
    }

    fn growth(before: Self, after: Self) -> Self {
        Self {
            fds: after.fds.saturating_sub(before.fds),
            memory_bytes: after.memory_bytes.saturating_sub(before.memory_bytes),
        }
    }
}

impl Growth {
    pub(crate) fn of(samples: &[Figures]) -> Self {
        let ends = LOWEST_OF.min(samples.len());
        let (first, last) = (&samples[..ends], &samples[samples.len() - ends..]);
        let growth = |process: fn(&Figures) -> Process| {
            Process::growth(
                Process::lowest(first.iter().map(process)),
                Process::lowest(last.iter().map(process)),
            )
        };
        Self {
            daemon: growth(|sample| sample.daemon),
            client: growth(|sample| sample.client),
            // None may ever be left.
            charged_bytes: samples.iter().map(|sample| sample.charged_bytes).max().unwrap_or_default(),
        }
    }

    /// Whether either process has more descriptors than at first.
    pub(crate) const fn has_descriptors(&self) -> bool {
        self.daemon.fds > 0 || self.client.fds > 0
    }

    pub(crate) fn check(&self, memory_tolerance_bytes: u64) -> Result<()> {
        ensure!(self.charged_bytes == 0, "{} bytes stay charged", self.charged_bytes);
        for (who, process) in [("the daemon", self.daemon), ("the client", self.client)] {
            ensure!(process.fds == 0, "{who} has {} more descriptors open", process.fds);
            let grown = process.memory_bytes;
            ensure!(grown <= memory_tolerance_bytes, "{who} has grown by {grown} bytes");
        }
        Ok(())
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "daemon": self.daemon.json(), "client": self.client.json(), "charged_bytes": self.charged_bytes,
        })
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { daemon, client, charged_bytes } = self;
        write!(
            f,
            "daemon {} descriptors and {} bytes more, client {} and {}, {charged_bytes} bytes charged",
            daemon.fds, daemon.memory_bytes, client.fds, client.memory_bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(grown: impl Fn(u64) -> (usize, u64, u64)) -> Vec<Figures> {
        let sample = |sessions| {
            let (fds, memory_bytes, charged_bytes) = grown(sessions);
            let still = Process { fds: 10, memory_bytes: 1 << 20 };
            Figures { sessions, daemon: Process { fds, memory_bytes }, client: still, charged_bytes }
        };
        (0..20).map(sample).collect()
    }

    #[test]
    fn any_growth_is_found() {
        let check = |samples: &[Figures]| Growth::of(samples).check(100);
        check(&samples(|_| (10, 5000, 0))).unwrap();
        // A peak in the middle, and one at an end.
        check(&samples(|n| (10, if n == 10 || n == 19 { 9000 } else { 5000 }, 0))).unwrap();
        check(&samples(|n| (10 + usize::try_from(n / 10).unwrap(), 5000, 0))).unwrap_err();
        check(&samples(|n| (10, 5000 + 10 * n, 0))).unwrap_err();
        check(&samples(|n| (10, 5000, u64::from(n == 7)))).unwrap_err();
    }
}
