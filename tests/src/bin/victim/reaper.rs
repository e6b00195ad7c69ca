//! Who makes the victim's end come at its step.

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use vramd_tests::victim::{Death, Fate, Step, Word};

use crate::{say, stand_still};

#[derive(Debug)]
pub(crate) struct Reaper {
    pub(crate) fate: Fate,
    armed: AtomicBool,
    struck: AtomicBool,
    /// Who watches knows.
    told: AtomicBool,
}

/// What the client does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    /// Its channel is to be closed.
    Close,
}

impl Reaper {
    pub(crate) fn new(fate: Fate) -> Self {
        Self {
            fate,
            armed: AtomicBool::new(false),
            struck: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }
    }

    /// What comes now is the part of its life that it can end in.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Whether it has come to its step, and said so.
    pub(crate) fn has_struck(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }

    /// The client has come to a step, for the first time or again.
    pub(crate) fn at(&self, step: Step) -> Verdict {
        let due = step == self.fate.step && self.armed.load(Ordering::SeqCst);
        if !due || self.struck.swap(true, Ordering::SeqCst) {
            return Verdict::GoOn;
        }
        say(&Word::Reached);
        self.told.store(true, Ordering::SeqCst);
        match self.fate.death {
            Death::Kill => stand_still(),
            Death::Stop => {
                kill_process(getpid(), Signal::STOP).expect("a process can stop itself");
                stand_still()
            }
            Death::Race => Verdict::GoOn,
            Death::NoFds => {
                limit_fds(self.fate.spare_fds);
                Verdict::GoOn
            }
            Death::Close => Verdict::Close,
        }
    }
}

/// So many descriptors can still be opened, whatever this process was started with.
fn limit_fds(spare: u64) {
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    let listed: Vec<_> = entries.map(|entry| entry.path()).collect();
    // The one that the folder was read by is listed, and closed by now.
    let open: BTreeSet<u64> = listed
        .iter()
        .filter(|path| path.symlink_metadata().is_ok())
        .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
        .collect();
    let spare = usize::try_from(spare).expect("a few");
    let current = (0..).filter(|number| !open.contains(number)).nth(spare);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a limit can be lowered");
}
