//! Copies between memory and disk, by either engine.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use vramd_types::{Bytes, CopyId, ExtentId};

use super::{
    Access, Bench, Harness, Verdict,
    bench::{Extent, SECOND, SMALL, new_id},
    copies::{LARGE, Text, assert_has, fill, free_all, in_host, on_device},
    folder::Folder,
};
use crate::{Completion, CopyClass, CopyError, DiskFlaw, DriverError, ExtentKind, Submission, disk};

/// Runs the case with each engine.
pub(super) fn by_each(harness: &dyn Harness, case: impl Fn(Bench<'_>, &Folder)) -> Verdict {
    // `directory` checks that threads replace io_uring.
    for engine in disk::usable_engines() {
        let folder = Folder::new(harness);
        let bench = Bench::with_disk(harness, folder.config_with(Some(engine)), Vec::new());
        assert_eq!(bench.disk().map(|disk| disk.engine), Some(engine));
        case(bench, &folder);
        assert_eq!(folder.files(), Vec::<String>::new(), "all are deleted in the end");
    }
    Verdict::Passed
}

pub(super) fn on_disk(bench: &mut Bench<'_>, size: Bytes) -> ExtentId {
    bench.create_disk(size).expect("there is room for a few MiB")
}

pub(super) fn release_all(bench: &mut Bench<'_>, extents: impl IntoIterator<Item = ExtentId>) {
    extents.into_iter().for_each(|extent| assert!(bench.release_id(extent), "{extent} is deleted"));
}

/// An extent on disk with that content, copied through the host.
fn stored(bench: &mut Bench<'_>, text: &Text) -> ExtentId {
    let size = Bytes::new(text.bytes.len() as u64);
    let source = in_host(bench, size);
    fill(bench, &source, text);
    let disk = on_disk(bench, size);
    assert_eq!(bench.copy_by_id(source.id, disk, size), Ok(()));
    bench.free(source);
    disk
}

pub fn bytes_go_to_disk_and_back_every_way(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, _| {
        let one = Text::new(1, LARGE);
        let source = on_device(&mut bench, LARGE);
        fill(&bench, &source, &one);
        let (by_device, by_host) = (on_disk(&mut bench, LARGE), on_disk(&mut bench, LARGE));
        let (host, device) = (in_host(&mut bench, LARGE), on_device(&mut bench, LARGE));
        let way = [source.id, by_device, host.id, by_host, device.id];
        for (at, pair) in way.windows(2).enumerate() {
            assert_eq!(bench.copy_by_id(pair[0], pair[1], LARGE), Ok(()), "step {at}");
        }
        assert_has(&mut bench, &host, &one, "in the host");
        assert_has(&mut bench, &device, &one, "on the device");
        assert_has(&mut bench, &source, &one, "the source is as it was");
        release_all(&mut bench, [by_device, by_host]);
        let _ = free_all(bench, [source, host, device]);
    })
}

pub fn bytes_go_to_disk_from_another_device(harness: &dyn Harness) -> Verdict {
    if !harness.facts().several_devices {
        return Verdict::NotApplicable("there is one device");
    }
    by_each(harness, |mut bench, _| {
        let one = Text::new(1, LARGE);
        let source = bench.create(SECOND, LARGE).expect("there is room for a few MiB");
        let (disk, back) = (on_disk(&mut bench, LARGE), on_device(&mut bench, LARGE));
        fill(&bench, &source, &one);
        assert_eq!(bench.copy_by_id(source.id, disk, LARGE), Ok(()));
        assert_eq!(bench.copy_by_id(disk, back.id, LARGE), Ok(()));
        assert_has(&mut bench, &back, &one, "on the first device");
        release_all(&mut bench, [disk]);
        let _ = free_all(bench, [source, back]);
    })
}

/// Lengths that are not whole blocks, and reads shorter than what was written.
pub fn only_the_first_bytes_are_written_and_read(harness: &dyn Harness) -> Verdict {
    const PIECES: Bytes = Bytes::mib(4);
    by_each(harness, |mut bench, _| {
        let (one, two) = (Text::new(1, PIECES), Text::new(2, PIECES));
        let source = in_host(&mut bench, PIECES);
        fill(&bench, &source, &one);
        let disk = on_disk(&mut bench, PIECES);
        for target in [in_host(&mut bench, PIECES), on_device(&mut bench, PIECES)] {
            for written in [4097, SMALL.get() + 5, PIECES.get()] {
                assert_eq!(bench.copy_by_id(source.id, disk, Bytes::new(written)), Ok(()));
                for read in [0, 1, 4096, written] {
                    fill(&bench, &target, &two);
                    assert_eq!(bench.copy_by_id(disk, target.id, Bytes::new(read)), Ok(()));
                    let came = usize::try_from(read).expect("a few MiB fit in memory");
                    let expected = Text::of([&one.bytes[..came], &two.bytes[came..]].concat());
                    assert_has(&mut bench, &target, &expected, &format!("{read} of {written} bytes"));
                }
            }
            bench.free(target);
        }
        release_all(&mut bench, [disk]);
        let _ = free_all(bench, [source]);
    })
}

pub fn unwritten_pieces_cannot_be_read(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, _| {
        let (disk, target) = (on_disk(&mut bench, LARGE), in_host(&mut bench, LARGE));
        let unwritten = |at| Err(CopyError::Unwritten { extent: disk, at });
        assert_eq!(bench.copy_by_id(disk, target.id, SMALL), unwritten(Bytes::ZERO));
        assert_eq!(bench.copy_by_id(target.id, disk, Bytes::new(SMALL.get() + 1)), Ok(()));
        assert_eq!(bench.copy_by_id(disk, target.id, Bytes::new(SMALL.get() + 1)), Ok(()));
        assert_eq!(bench.copy_by_id(disk, target.id, LARGE), unwritten(SMALL));
        release_all(&mut bench, [disk]);
        let _ = free_all(bench, [target]);
    })
}

pub fn a_digest_covers_extents_on_disk(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let [one, two] = [1, 2].map(|seed| Text::new(seed, LARGE));
        let (host, disk, empty) =
            (in_host(&mut bench, LARGE), stored(&mut bench, &two), on_disk(&mut bench, SMALL));
        fill(&bench, &host, &one);
        // Not all of it, nor whole pieces; and zeros of an unwritten extent.
        let some = Bytes::new(LARGE.get() - 12_345);
        let spans = [(host.id, SMALL), (disk, some), (empty, SMALL), (disk, SMALL)];
        let zeros = vec![0; usize::try_from(SMALL.get()).expect("a few MiB")];
        let of =
            |text: &Text, size: Bytes| text.bytes[..usize::try_from(size.get()).expect("a few MiB")].to_vec();
        let text = [of(&one, SMALL), of(&two, some), zeros, of(&two, SMALL)].concat();
        assert_eq!(bench.digest(&spans), Ok(blake3::hash(&text).into()));
        let beyond = bench.digest(&[(disk, LARGE.saturating_add(SMALL))]);
        let has_only = |error: &CopyError| matches!(error, CopyError::Driver(DriverError::Failed(why)) if why.contains("has only"));
        assert!(beyond.as_ref().is_err_and(has_only), "{beyond:?}");
        let file = File::options().write(true).open(folder.file_of(disk)).expect("it is there");
        file.write_all_at(&[!two.bytes[77]], 77).expect("it can be written");
        file.sync_data().expect("it can be synced");
        assert_eq!(bench.digest(&spans), Err(CopyError::Damaged { extent: disk, at: Bytes::ZERO }));
        release_all(&mut bench, [disk, empty]);
        let _ = free_all(bench, [host]);
    })
}

pub fn a_damaged_extent_is_reported_and_no_other(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let one = Text::new(1, LARGE);
        let (bad, good) = (stored(&mut bench, &one), stored(&mut bench, &one));
        let byte = SMALL.get() + 12_345;
        let file = File::options().read(true).write(true).open(folder.file_of(bad)).expect("it is there");
        let mut was = [0];
        file.read_exact_at(&mut was, byte).expect("it can be read");
        file.write_all_at(&[!was[0]], byte).expect("it can be written");
        file.sync_data().expect("it can be synced");
        for target in [in_host(&mut bench, LARGE), on_device(&mut bench, LARGE)] {
            let damaged = CopyError::Damaged { extent: bad, at: SMALL };
            for _ in 0..2 {
                assert_eq!(bench.copy_by_id(bad, target.id, LARGE), Err(damaged.clone()));
            }
            assert_eq!(bench.copy_by_id(good, target.id, LARGE), Ok(()));
            assert_has(&mut bench, &target, &one, "the other one");
            bench.free(target);
        }
        let again = in_host(&mut bench, LARGE);
        assert_eq!(bench.copy_by_id(again.id, bad, LARGE), Ok(()), "it can be written again");
        assert_eq!(bench.copy_by_id(bad, again.id, LARGE), Ok(()));
        release_all(&mut bench, [bad, good]);
        let _ = free_all(bench, [again]);
    })
}

pub fn a_truncated_extent_file_is_reported(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let one = Text::new(1, LARGE);
        let (bad, good) = (stored(&mut bench, &one), stored(&mut bench, &one));
        let file = File::options().write(true).open(folder.file_of(bad)).expect("it is there");
        file.set_len(SMALL.get() + 8192).expect("it can be cut off");
        let target = in_host(&mut bench, LARGE);
        let flaw = DiskFlaw::Short(Bytes::new(8192));
        let short = CopyError::Unreadable { extent: bad, at: SMALL, flaw };
        assert_eq!(bench.copy_by_id(bad, target.id, LARGE), Err(short));
        assert_eq!(bench.copy_by_id(good, target.id, LARGE), Ok(()));
        assert_has(&mut bench, &target, &one, "the other one");
        release_all(&mut bench, [bad, good]);
        let _ = free_all(bench, [target]);
    })
}

pub fn copies_from_disk_and_to_disk_are_done_in_order(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, _| {
        let texts: Vec<Text> = (1..4).map(|seed| Text::new(seed, SMALL)).collect();
        let sources: Vec<Extent> = texts.iter().map(|_| bench.make_host()).collect();
        sources.iter().zip(&texts).for_each(|(source, text)| fill(&bench, source, text));
        let (disk, large) = (on_disk(&mut bench, SMALL), on_disk(&mut bench, LARGE));
        let (other, target) = (on_device(&mut bench, LARGE), bench.make());
        let mut requested = vec![bench.begin_by_id(other.id, large, LARGE)];
        requested.extend((0..30).map(|at| bench.begin_by_id(sources[at % 3].id, disk, SMALL)));
        let reported: Vec<CopyId> = requested.iter().map(|_| bench.next_copied()).collect();
        assert_eq!(reported, requested);
        let mut requested = vec![bench.begin_by_id(large, other.id, LARGE)];
        requested.extend((0..5).map(|_| bench.begin_by_id(disk, target.id, SMALL)));
        let reported: Vec<CopyId> = requested.iter().map(|_| bench.next_copied()).collect();
        assert_eq!(reported, requested);
        assert_has(&mut bench, &target, &texts[2], "the last one's bytes");
        release_all(&mut bench, [disk, large]);
        let _ = free_all(bench, sources.into_iter().chain([other, target]));
    })
}

pub fn copies_both_ways_at_once_do_not_mix(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, _| {
        let (one, two) = (Text::new(1, LARGE), Text::new(2, LARGE));
        let there = stored(&mut bench, &two);
        let (first, second) = (on_device(&mut bench, LARGE), on_device(&mut bench, LARGE));
        fill(&bench, &first, &one);
        let disk = on_disk(&mut bench, LARGE);
        let ways = [(first.id, disk), (there, second.id)];
        let requested: Vec<CopyId> =
            ways.iter().cycle().take(6).map(|(from, to)| bench.begin_by_id(*from, *to, LARGE)).collect();
        for copy in requested {
            assert_eq!(bench.copied(copy), Ok(()));
        }
        assert_has(&mut bench, &second, &two, "from disk");
        assert_eq!(bench.copy_by_id(disk, second.id, LARGE), Ok(()));
        assert_has(&mut bench, &second, &one, "to disk");
        release_all(&mut bench, [there, disk]);
        let _ = free_all(bench, [first, second]);
    })
}

/// Many background copies, and two demand copies behind them, to disk and from it.
pub fn a_demand_copy_of_the_disk_goes_first(harness: &dyn Harness) -> Verdict {
    const SIZE: Bytes = Bytes::mib(8);
    by_each(harness, |mut bench, _| {
        let one = Text::new(1, SIZE);
        let source = on_device(&mut bench, SIZE);
        fill(&bench, &source, &one);
        let disks = [(); 3].map(|()| on_disk(&mut bench, SIZE));
        two_go_first(&mut bench, source.id, disks, SIZE);
        let targets = [(); 3].map(|()| on_device(&mut bench, SIZE));
        let [_, hastened, target] = disks;
        for from in [hastened, target] {
            two_go_first(&mut bench, from, targets.each_ref().map(|it| it.id), SIZE);
            for target in &targets {
                assert_has(&mut bench, target, &one, "whole");
                fill(&bench, target, &Text::new(2, SIZE));
            }
        }
        release_all(&mut bench, disks);
        let _ = free_all(bench, targets.into_iter().chain([source]));
    })
}

/// Begins many background copies to the first target, then a demand copy to each of the others.
fn two_go_first(bench: &mut Bench<'_>, from: ExtentId, to: [ExtentId; 3], size: Bytes) {
    const COPIES: usize = 16;
    /// The background chunks in flight, a piece of their share, the other of the two, and what a lane begins
    /// before it reads new orders: a ring of pieces, which are three copies.
    const BEFORE_MAX: usize = 5 + 4;
    let [scratch, hastened, target] = to;
    let begin = |bench: &mut Bench<'_>, class, to| bench.begin_as(class, (from, to), size);
    let mut requested: Vec<CopyId> =
        (0..COPIES).map(|_| begin(bench, CopyClass::WriteBack, scratch)).collect();
    let later = begin(bench, CopyClass::WriteBack, hastened);
    requested.extend([later, begin(bench, CopyClass::Demand, target)]);
    bench.submit(Submission::HastenCopy { copy: later });
    // Copies that ended before could not yield.
    let over = requested.iter().filter(|copy| bench.copied_bytes(**copy).is_none()).count();
    let reported: Vec<CopyId> = requested.iter().map(|_| bench.next_copied()).collect();
    for copy in &requested[COPIES..] {
        let place = reported.iter().position(|it| it == copy).expect("each is reported once");
        assert!(
            place <= over + BEFORE_MAX,
            "{place} were before it, {over} of them over by then: {reported:?}"
        );
    }
}

/// How many copies are cancelled depends on the disk's speed; nothing else may.
pub fn a_cancelled_copy_of_the_disk_harms_no_other(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, _| {
        let one = Text::new(1, LARGE);
        let (disk, scratch) = (stored(&mut bench, &one), on_device(&mut bench, LARGE));
        let target = on_device(&mut bench, LARGE);
        let spoilt = on_disk(&mut bench, LARGE);
        let cancelled: Vec<CopyId> = (0..6)
            .flat_map(|_| {
                [bench.begin_by_id(disk, scratch.id, LARGE), bench.begin_by_id(scratch.id, spoilt, LARGE)]
            })
            .collect();
        let last = bench.begin_by_id(disk, target.id, LARGE);
        for copy in cancelled.iter().rev() {
            bench.submit(Submission::CancelCopy { copy: *copy });
        }
        for copy in &cancelled {
            let result = bench.copied(*copy);
            assert!(matches!(result, Ok(()) | Err(CopyError::Cancelled)), "{result:?}");
            assert_eq!(bench.copied_bytes(*copy), None, "it was reported");
        }
        assert_eq!(bench.copied(last), Ok(()));
        assert_has(&mut bench, &target, &one, "the last one's bytes");
        assert_eq!(bench.copy_by_id(target.id, spoilt, LARGE), Ok(()));
        assert_eq!(bench.copy_by_id(spoilt, scratch.id, LARGE), Ok(()));
        assert_has(&mut bench, &scratch, &one, "rewritten content is whole");
        release_all(&mut bench, [disk, spoilt]);
        let _ = free_all(bench, [scratch, target]);
    })
}

pub fn a_copy_keeps_its_disk_extents_alive(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let one = Text::new(1, LARGE);
        let disk = stored(&mut bench, &one);
        let target = on_device(&mut bench, LARGE);
        let copies: Vec<CopyId> = (0..3).map(|_| bench.begin_by_id(disk, target.id, LARGE)).collect();
        bench.submit(Submission::Release { extent: disk });
        // Other extents are created and deleted meanwhile.
        let other = on_disk(&mut bench, SMALL);
        release_all(&mut bench, [other]);
        for copy in copies {
            assert_eq!(bench.copied(copy), Ok(()));
        }
        assert!(bench.released(disk), "once nothing moves");
        assert!(!folder.file_of(disk).exists());
        assert_has(&mut bench, &target, &one, "its extents stayed alive");
        let _ = free_all(bench, [target]);
    })
}

pub fn copies_of_the_disk_are_done_though_the_driver_is_dropped(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, _| {
        let one = Text::new(1, LARGE);
        let disk = stored(&mut bench, &one);
        let target = on_device(&mut bench, LARGE);
        let mut importer = bench.mapped(&target, Access::ReadOnly);
        let copies: Vec<CopyId> = (0..3).map(|_| bench.begin_by_id(disk, target.id, LARGE)).collect();
        let late = new_id();
        bench.submit(Submission::CreateDisk { extent: late, size: SMALL });
        drop(target);
        let mut reported = Vec::new();
        for completion in bench.end() {
            match completion {
                Completion::Copied { copy, result: Ok(()) } => reported.push(copy),
                Completion::DiskCreated { extent, result: Ok(()) } => assert_eq!(extent, late),
                other => panic!("unexpected: {other:?}"),
            }
        }
        assert_eq!(reported, copies);
        let last = LARGE.get() - 1000;
        assert_eq!(importer.read(last, 1000), one.bytes[one.bytes.len() - 1000..]);
    })
}

pub fn invalid_disk_submissions_are_refused(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        for size in [Bytes::ZERO, Bytes::new(1), Bytes::new(SMALL.get() + 4096), Bytes::MAX] {
            assert!(matches!(bench.create_disk(size), Err(DriverError::Failed(_))), "{size}");
        }
        let (disk, other) = (on_disk(&mut bench, SMALL), on_disk(&mut bench, SMALL));
        let (host, device) = (bench.make_host(), bench.make());
        for id in [disk, host.id, device.id] {
            bench.submit(Submission::CreateDisk { extent: id, size: SMALL });
            assert!(matches!(bench.created_on_disk(id), Err(DriverError::Failed(_))), "{id} exists");
        }
        let node = bench.host_node();
        bench.submit(Submission::CreateHost { extent: disk, node, size: SMALL, zeroed: true });
        assert!(matches!(bench.created(disk), Err(DriverError::Failed(_))), "it lies on disk");
        let kind = ExtentKind::Movable;
        bench.submit(Submission::Create { extent: disk, device: device.device, size: SMALL, kind });
        assert!(matches!(bench.created(disk), Err(DriverError::Failed(_))), "it lies on disk");
        let longer = Bytes::new(SMALL.get() + 1);
        let requested =
            [(disk, other, SMALL), (disk, disk, SMALL), (disk, host.id, longer), (host.id, disk, longer)];
        for (from, to, size) in
            requested.into_iter().chain([(new_id(), disk, SMALL), (disk, new_id(), SMALL)])
        {
            let result = bench.copy_by_id(from, to, size);
            assert!(matches!(result, Err(CopyError::Driver(DriverError::Failed(_)))), "{result:?}");
        }
        let taken = new_id();
        fs::write(folder.file_of(taken), b"not ours").expect("it can be written");
        bench.submit(Submission::CreateDisk { extent: taken, size: SMALL });
        assert!(matches!(bench.created_on_disk(taken), Err(DriverError::Failed(_))), "the file is there");
        fs::remove_file(folder.file_of(taken)).expect("it is still there");
        release_all(&mut bench, [disk, other, disk]);
        let _ = free_all(bench, [host, device]);
    })
}
