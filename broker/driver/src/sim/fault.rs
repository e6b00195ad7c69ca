//! Scheduled faults: which submission, counted by its kind, meets which effect.

use std::{path::PathBuf, time::Duration};

use vramd_types::Bytes;

use crate::{DiskLimit, DriverError, Submission};

/// From the `nth` submission of a kind on, `count` submissions in a row meet the effect. Overlapping faults all
/// apply: delays add up, the first failure is the answer, and the last file holds the submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub on: Operation,
    /// Counted from 1, for each driver, in the order of submission.
    pub nth: u64,
    pub count: u64,
    pub effect: Effect,
}

/// The kinds of submissions that can meet faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    CreateHost,
    CreateDisk,
    Release,
    Digest,
    Copy,
}

/// The effect of a fault. A release can only be delayed or held: its completion cannot report a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The device or host has no memory left; for an extent on disk, the file system is full.
    OutOfMemory,
    /// The submission fails with that problem. A copy from disk or to it fails in the middle with EIO.
    Fail(String),
    /// The submission begins this much later. Others are not held up: later copies overtake it.
    Delay(Duration),
    /// The submission begins once this file exists, and its delays are over. Others are not held up.
    Hold(PathBuf),
    /// A copy stops halfway, and says so.
    Short,
    /// A copy silently changes one byte. A copy to disk changes it in the file, so that reading reports it; a
    /// copy from disk changes the file before it is read.
    Corrupt,
}

/// All effects on one submission.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) delay: Duration,
    pub(super) held_until: Option<PathBuf>,
    pub(super) failure: Option<DriverError>,
    pub(super) flaw: Option<CopyFlaw>,
}

/// The fault of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyFlaw {
    Short,
    Corrupt,
    /// An error of the disk.
    Io,
}

/// The faults, and the number of submissions of each kind.
#[derive(Debug)]
pub(super) struct Schedule {
    faults: Vec<Fault>,
    creates: u64,
    host_creates: u64,
    disk_creates: u64,
    releases: u64,
    digests: u64,
    copies: u64,
}

impl Schedule {
    pub(super) fn new(faults: Vec<Fault>) -> Result<Self, DriverError> {
        for fault in &faults {
            if fault.nth == 0 {
                return Err(DriverError::Failed("the nth of a fault counts from 1, it is 0".to_owned()));
            }
            if fault.on == Operation::Release && !matches!(fault.effect, Effect::Delay(_) | Effect::Hold(_)) {
                return Err(DriverError::Failed(
                    "a release can be delayed or held, but it cannot fail".to_owned(),
                ));
            }
            if fault.on != Operation::Copy && matches!(fault.effect, Effect::Short | Effect::Corrupt) {
                return Err(DriverError::Failed("only a copy can be short or corrupt".to_owned()));
            }
        }
        Ok(Self { faults, creates: 0, host_creates: 0, disk_creates: 0, releases: 0, digests: 0, copies: 0 })
    }

    /// Counts the submission and returns its effects.
    pub(super) fn next_fate(&mut self, submission: &Submission) -> Fate {
        let (operation, counter) = match submission {
            Submission::Create { .. } => (Operation::Create, &mut self.creates),
            Submission::CreateHost { .. } => (Operation::CreateHost, &mut self.host_creates),
            Submission::CreateDisk { .. } => (Operation::CreateDisk, &mut self.disk_creates),
            Submission::Release { .. } => (Operation::Release, &mut self.releases),
            Submission::Digest { .. } => (Operation::Digest, &mut self.digests),
            Submission::Copy { .. } => (Operation::Copy, &mut self.copies),
            Submission::CancelCopy { .. }
            | Submission::HastenCopy { .. }
            | Submission::SetShares { .. }
            | Submission::ReleaseNow { .. }
            | Submission::OpenFile { .. }
            | Submission::Survey { .. }
            | Submission::PinAhead { .. } => {
                return Fate::default();
            }
        };
        *counter += 1;
        let nth = *counter;
        let mut fate = Fate::default();
        for fault in self.faults.iter().filter(|fault| fault.strikes(operation, nth)) {
            match &fault.effect {
                Effect::Delay(delay) => fate.delay = fate.delay.saturating_add(*delay),
                Effect::Hold(file) => fate.held_until = Some(file.clone()),
                Effect::OutOfMemory if operation == Operation::CreateDisk => {
                    fate.fail(DriverError::OutOfDisk(DiskLimit::Free(Bytes::ZERO)));
                }
                Effect::OutOfMemory => fate.fail(DriverError::OutOfMemory),
                Effect::Fail(problem) => fate.fail(DriverError::Failed(problem.clone())),
                Effect::Short => fate.flaw = Some(CopyFlaw::Short),
                Effect::Corrupt => fate.flaw = Some(CopyFlaw::Corrupt),
            }
        }
        fate
    }
}

impl Fault {
    fn strikes(&self, operation: Operation, nth: u64) -> bool {
        self.on == operation && nth.checked_sub(self.nth).is_some_and(|since| since < self.count)
    }
}

impl Fate {
    fn fail(&mut self, error: DriverError) {
        self.failure.get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    use vramd_types::{DeviceIndex, ExtentId, GRANULARITY};

    use super::*;
    use crate::ExtentKind;

    const CREATE: Submission = Submission::Create {
        extent: ExtentId::from_raw(1),
        device: DeviceIndex(0),
        size: GRANULARITY,
        kind: ExtentKind::Movable,
    };
    const RELEASE: Submission = Submission::Release { extent: ExtentId::from_raw(1) };

    #[test]
    fn a_fault_strikes_the_nth_submission_and_the_following() {
        let fault = Fault { on: Operation::Create, nth: 2, count: 2, effect: Effect::OutOfMemory };
        let mut schedule = Schedule::new(vec![fault]).unwrap();
        let mut met = Vec::new();
        for _ in 0..4 {
            assert_eq!(schedule.next_fate(&RELEASE), Fate::default(), "each kind has its own count");
            met.push(schedule.next_fate(&CREATE).failure);
        }
        assert_eq!(met, [None, Some(DriverError::OutOfMemory), Some(DriverError::OutOfMemory), None]);
    }

    #[test]
    fn delays_add_and_the_first_failure_wins() {
        let fault = |effect| Fault { on: Operation::Create, nth: 1, count: u64::MAX, effect };
        let mut schedule = Schedule::new(vec![
            fault(Effect::Delay(Duration::from_secs(1))),
            fault(Effect::Fail("first".to_owned())),
            fault(Effect::OutOfMemory),
            fault(Effect::Delay(Duration::from_secs(2))),
        ])
        .unwrap();
        let failure = Some(DriverError::Failed("first".to_owned()));
        let delay = Duration::from_secs(3);
        assert_eq!(schedule.next_fate(&CREATE), Fate { delay, failure, ..Fate::default() });
    }

    #[test]
    fn impossible_faults_are_refused() {
        let fault = |on, nth, effect| Schedule::new(vec![Fault { on, nth, count: 1, effect }]);
        assert!(fault(Operation::Release, 1, Effect::OutOfMemory).is_err());
        assert!(fault(Operation::Release, 1, Effect::Delay(Duration::ZERO)).is_ok());
        assert!(fault(Operation::Release, 1, Effect::Hold("/tmp/go-on".into())).is_ok());
        assert!(fault(Operation::Create, 0, Effect::OutOfMemory).is_err());
        assert!(fault(Operation::Digest, 1, Effect::Corrupt).is_err());
        assert!(fault(Operation::Copy, 1, Effect::Corrupt).is_ok());
    }
}
