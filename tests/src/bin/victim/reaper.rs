//! Ends the victim at its step.

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use vramd_tests::victim::{Death, Fate, Report, Step};

use crate::{say, stand_still};

#[derive(Debug)]
pub(crate) struct Reaper {
    pub(crate) fate: Fate,
    armed: AtomicBool,
    struck: AtomicBool,
    /// Whether the watcher knows that the victim has come to its step.
    told: AtomicBool,
}

/// The client's next action after a step.
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

    /// Arms the reaper: the part of the life begins that can end at the step.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Whether the victim has come to its step, and reported it.
    pub(crate) fn has_struck(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }

    /// Tells the reaper that the client has come to a step, for the first time or again.
    pub(crate) fn at(&self, step: Step) -> Verdict {
        let due = step == self.fate.step && self.armed.load(Ordering::SeqCst);
        if !due || self.struck.swap(true, Ordering::SeqCst) {
            return Verdict::GoOn;
        }
        say(&Report::Reached);
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

/// Limits the process to this many further descriptors, whatever it was started with.
fn limit_fds(spare: u64) {
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    let listed: Vec<_> = entries.map(|entry| entry.path()).collect();
    // The listing includes the descriptor that read the folder, which is closed by now.
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
