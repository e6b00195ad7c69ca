//! Scheduled faults strike the right submission and leave the driver usable.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use vramd_types::Bytes;

use super::{
    Access, Bench, Harness, Verdict,
    bench::{FIRST, SMALL, new_id, pattern},
    copies::{Text, assert_has, fill, free_all, on_device},
    folder::Folder,
};
use crate::{
    CopyError, DiskFlaw, DiskLimit, DriverError, ExtentKind, Submission,
    sim::{Effect, Fault, Operation},
};

const NO_FAULTS: Verdict = Verdict::NotApplicable("this driver's faults can't be scheduled");

pub fn memory_runs_out_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let fault = Fault { on: Operation::Create, nth: 2, count: 2, effect: Effect::OutOfMemory };
    let mut bench = Bench::with_faults(harness, vec![fault]);
    let met: Vec<_> = (0..4).map(|_| bench.create(FIRST, SMALL).map(drop)).collect();
    assert_eq!(met, [Ok(()), Err(DriverError::OutOfMemory), Err(DriverError::OutOfMemory), Ok(())]);
    bench.finish();
    Verdict::Passed
}

pub fn a_driver_fails_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let effect = Effect::Fail("the card fell off the bus".to_owned());
    let fault = |on| Fault { on, nth: 1, count: 1, effect: effect.clone() };
    let mut bench = Bench::with_faults(harness, vec![fault(Operation::Create), fault(Operation::Digest)]);
    let failure = DriverError::Failed("the card fell off the bus".to_owned());
    assert_eq!(bench.create(FIRST, SMALL).map(drop), Err(failure.clone()));
    let extent = bench.make();
    assert_eq!(bench.digest(&[(extent.id, SMALL)]), Err(failure.into()));
    assert!(bench.digest(&[(extent.id, SMALL)]).is_ok());
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}

pub fn a_delayed_submission_holds_up_no_other(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let an_hour = |on| delay(on, Duration::from_secs(3600));
    let faults = [Operation::Create, Operation::Digest, Operation::Release].map(an_hour);
    let mut bench = Bench::with_faults(harness, faults.to_vec());
    let late = new_id();
    bench.submit(Submission::Create { extent: late, device: FIRST, size: SMALL, kind: ExtentKind::Movable });
    bench.submit(Submission::Digest { ticket: late.get(), spans: Vec::new() });
    bench.submit(Submission::Release { extent: new_id() });

    let extent = bench.make();
    assert!(bench.digest(&[(extent.id, SMALL)]).is_ok());
    bench.free(extent);
    assert_eq!(bench.end().len(), 3, "the end cuts the delays short, and only those were left");
    Verdict::Passed
}

pub fn a_delay_passes(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    const SHORT: Duration = Duration::from_millis(50);
    let mut bench = Bench::with_faults(harness, vec![delay(Operation::Create, SHORT)]);
    let begun = Instant::now();
    let extent = bench.make();
    assert!(begun.elapsed() >= SHORT);
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}

pub fn host_memory_runs_out_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let fault = Fault { on: Operation::CreateHost, nth: 2, count: 1, effect: Effect::OutOfMemory };
    let mut bench = Bench::with_faults(harness, vec![fault]);
    let met: Vec<_> = (0..3).map(|_| bench.create_host(SMALL).map(drop)).collect();
    assert_eq!(met, [Ok(()), Err(DriverError::OutOfMemory), Ok(())]);
    bench.finish();
    Verdict::Passed
}

pub fn copies_have_scheduled_faults(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let mut bench = Bench::with_faults(harness, of_copies(1));
    let bytes = pattern(1, usize::try_from(SMALL.get()).expect("2 MiB fit in memory"));
    let half = bytes.len() / 2;
    let source = bench.make();
    assert!(bench.mapped(&source, Access::ReadWrite).write(0, &bytes));
    let targets: Vec<_> = (0..4).map(|_| bench.make_host()).collect();
    let results: Vec<_> = targets.iter().map(|target| bench.copy(&source, target, SMALL)).collect();
    assert_eq!(results, [failed("the link is down"), failed(&short()), Ok(()), Ok(())]);

    let corrupt = [&bytes[..half], &[!bytes[half]], &bytes[half + 1..]].concat();
    let partly = [&bytes[..half], &vec![0; half]].concat();
    for (target, expected) in targets.iter().zip([vec![0; bytes.len()], partly, corrupt, bytes]) {
        assert_eq!(bench.digest(&[(target.id, SMALL)]), Ok(blake3::hash(&expected).into()));
    }
    targets.into_iter().chain([source]).for_each(|extent| bench.free(extent));
    bench.finish();
    Verdict::Passed
}

pub fn a_late_copy_is_overtaken(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let mut bench = Bench::with_faults(harness, vec![delay(Operation::Copy, Duration::from_millis(20))]);
    let (source, target) = (bench.make(), bench.make_host());
    let late = bench.begin(&source, &target, SMALL);
    let next = bench.begin(&source, &target, SMALL);
    assert_eq!([bench.next_copied(), bench.next_copied()], [next, late]);
    bench.free(source);
    bench.free(target);
    bench.finish();
    Verdict::Passed
}

pub fn the_disk_is_full_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let folder = Folder::new(harness);
    let fault = Fault { on: Operation::CreateDisk, nth: 2, count: 1, effect: Effect::OutOfMemory };
    let mut bench = Bench::with_disk(harness, folder.config(), vec![fault]);
    let met: Vec<_> = (0..3).map(|_| bench.create_disk(SMALL).map(drop)).collect();
    let full = DriverError::OutOfDisk(DiskLimit::Free(Bytes::ZERO));
    assert_eq!(met, [Ok(()), Err(full), Ok(())]);
    assert_eq!(folder.files().len(), 2);
    bench.finish();
    Verdict::Passed
}

/// Each fault strikes its own copy, and silent damage is found when it is read.
pub fn copies_to_disk_have_scheduled_faults(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let folder = Folder::new(harness);
    let mut bench = Bench::with_disk(harness, folder.config(), of_copies(1));
    let (source, back) = (bench.make(), bench.make());
    let disks: Vec<_> = (0..4).map(|_| bench.create_disk(SMALL).expect("there is room")).collect();
    let results: Vec<_> = disks.iter().map(|disk| bench.copy_by_id(source.id, *disk, SMALL)).collect();
    let flaw = DiskFlaw::Failed(Errno::IO.raw_os_error());
    let unwritable = Err(CopyError::Unwritable { extent: disks[0], at: Bytes::ZERO, flaw });
    assert_eq!(results, [unwritable, failed(&short()), Ok(()), Ok(())]);
    let read: Vec<_> = disks.iter().map(|disk| bench.copy_by_id(*disk, back.id, SMALL)).collect();
    let unwritten = |extent| Err(CopyError::Unwritten { extent, at: Bytes::ZERO });
    let damaged = Err(CopyError::Damaged { extent: disks[2], at: Bytes::ZERO });
    assert_eq!(read, [unwritten(disks[0]), unwritten(disks[1]), damaged, Ok(())]);
    [source, back].into_iter().for_each(|extent| bench.free(extent));
    bench.finish();
    Verdict::Passed
}

pub fn copies_from_disk_have_scheduled_faults(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    let folder = Folder::new(harness);
    let mut bench = Bench::with_disk(harness, folder.config(), of_copies(2));
    let (source, back) = (bench.make(), bench.make());
    let disk = bench.create_disk(SMALL).expect("there is room");
    assert_eq!(bench.copy_by_id(source.id, disk, SMALL), Ok(()));
    let read: Vec<_> = (0..4).map(|_| bench.copy_by_id(disk, back.id, SMALL)).collect();
    let damaged = Err(CopyError::Damaged { extent: disk, at: Bytes::ZERO });
    let flaw = DiskFlaw::Failed(Errno::IO.raw_os_error());
    let unreadable = Err(CopyError::Unreadable { extent: disk, at: Bytes::ZERO, flaw });
    assert_eq!(read, [unreadable, failed(&short()), damaged.clone(), damaged]);
    [source, back].into_iter().for_each(|extent| bench.free(extent));
    bench.finish();
    Verdict::Passed
}

/// Some pieces of a copy have arrived, one fails, and others are in flight: no other copy suffers.
pub fn the_disk_fails_in_the_middle_of_a_copy_on_schedule(harness: &dyn Harness) -> Verdict {
    if !harness.facts().scheduled_faults {
        return NO_FAULTS;
    }
    const SIZE: Bytes = Bytes::mib(12);
    const HALF: Bytes = Bytes::mib(6);
    // More often than there are buffers.
    const TIMES: u64 = 20;
    let folder = Folder::new(harness);
    let fails = |nth, count| {
        let effect = Effect::Fail("an error of the disk".to_owned());
        Fault { on: Operation::Copy, nth, count, effect }
    };
    let mut bench = Bench::with_disk(harness, folder.config(), vec![fails(2, 1), fails(5, TIMES)]);
    let [one, two] = [1, 2].map(|seed| Text::new(seed, SIZE));
    let (source, back) = (on_device(&mut bench, SIZE), on_device(&mut bench, SIZE));
    let disk = bench.create_disk(SIZE).expect("there is room");
    let flaw = DiskFlaw::Failed(Errno::IO.raw_os_error());

    fill(&bench, &source, &one);
    assert_eq!(bench.copy_by_id(source.id, disk, SIZE), Ok(()));
    fill(&bench, &source, &two);
    let unwritable = Err(CopyError::Unwritable { extent: disk, at: HALF, flaw });
    assert_eq!(bench.copy_by_id(source.id, disk, SIZE), unwritable);
    let unwritten = Err(CopyError::Unwritten { extent: disk, at: HALF });
    assert_eq!(bench.copy_by_id(disk, back.id, SIZE), unwritten, "the old content is not there either");
    assert_has(&mut bench, &source, &two, "the source is as it was");

    assert_eq!(bench.copy_by_id(source.id, disk, SIZE), Ok(()), "it can be written again");
    let fail: Vec<_> = (0..TIMES).map(|_| bench.begin_by_id(disk, back.id, SIZE)).collect();
    let next = bench.begin_by_id(disk, back.id, SIZE);
    let unreadable = Err(CopyError::Unreadable { extent: disk, at: HALF, flaw });
    fail.into_iter().for_each(|copy| assert_eq!(bench.copied(copy), unreadable));
    assert_eq!(bench.copied(next), Ok(()), "the next copy is done");
    assert_has(&mut bench, &back, &two, "nothing is lost");
    free_all(bench, [source, back])
}

/// One fault of each kind, from that copy on.
fn of_copies(first: u64) -> Vec<Fault> {
    let effects = [Effect::Fail("the link is down".to_owned()), Effect::Short, Effect::Corrupt];
    let fault = |(nth, effect)| Fault { on: Operation::Copy, nth, count: 1, effect };
    (first..).zip(effects).map(fault).collect()
}

fn failed(problem: &str) -> Result<(), CopyError> {
    Err(CopyError::Driver(DriverError::Failed(problem.to_owned())))
}

fn short() -> String {
    format!("copied {} of {} bytes", SMALL.get() / 2, SMALL.get())
}

fn delay(on: Operation, by: Duration) -> Fault {
    Fault { on, nth: 1, count: 1, effect: Effect::Delay(by) }
}
