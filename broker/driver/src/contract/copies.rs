//! Copies between extents: all bytes arrive in place and in order, or the driver reports a failure.

use vramd_types::{Bytes, CopyId};

use super::{
    Access, Bench, Harness, Verdict,
    bench::{Extent, FIRST, SECOND, SMALL, new_id, pattern},
};
use crate::{Completion, CopyClass, CopyError, DriverError, ExtentKind, Submission};

/// More than a chunk.
pub(super) const LARGE: Bytes = Bytes::mib(18);

/// The expected content of an extent. The digest is computed once, since unoptimised tests take time for it.
pub(super) struct Text {
    pub(super) bytes: Vec<u8>,
    digest: [u8; 32],
}

impl Text {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        let digest = blake3::hash(&bytes).into();
        Self { bytes, digest }
    }

    pub(super) fn new(seed: u8, size: Bytes) -> Self {
        Self::of(pattern(seed, usize::try_from(size.get()).expect("a few MiB fit in memory")))
    }

    fn last(&self) -> &[u8] {
        &self.bytes[self.bytes.len() - LAST..]
    }
}

const LAST: usize = 1000;

/// Has another process write into the whole extent.
pub(super) fn fill(bench: &Bench<'_>, extent: &Extent, text: &Text) {
    assert!(bench.mapped(extent, Access::ReadWrite).write(0, &text.bytes));
}

pub(super) fn on_device(bench: &mut Bench<'_>, size: Bytes) -> Extent {
    bench.create(FIRST, size).expect("there is room for a few MiB")
}

pub(super) fn in_host(bench: &mut Bench<'_>, size: Bytes) -> Extent {
    bench.create_host(size).expect("there is room for a few MiB")
}

pub(super) fn assert_has(bench: &mut Bench<'_>, extent: &Extent, text: &Text, what: &str) {
    let length = Bytes::new(text.bytes.len() as u64);
    assert_eq!(bench.digest(&[(extent.id, length)]), Ok(text.digest), "{what}");
}

pub(super) fn free_all(mut bench: Bench<'_>, extents: impl IntoIterator<Item = Extent>) -> Verdict {
    extents.into_iter().for_each(|extent| bench.free(extent));
    bench.finish();
    Verdict::Passed
}

pub fn bytes_arrive_in_every_direction(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let source = on_device(&mut bench, LARGE);
    fill(&bench, &source, &one);
    let out = in_host(&mut bench, LARGE);
    let within_host = in_host(&mut bench, LARGE);
    let back = on_device(&mut bench, LARGE);
    let within_device = on_device(&mut bench, LARGE);
    let way = [source, out, within_host, back, within_device];
    for (at, pair) in way.windows(2).enumerate() {
        let [from, to] = pair else { unreachable!("windows of two") };
        assert_eq!(bench.copy(from, to, LARGE), Ok(()), "step {at}");
        assert_has(&mut bench, to, &one, &format!("step {at}"));
    }
    assert_has(&mut bench, &way[0], &one, "the source is as it was");
    free_all(bench, way)
}

pub fn bytes_arrive_on_another_device(harness: &dyn Harness) -> Verdict {
    if !harness.facts().several_devices {
        return Verdict::NotApplicable("there is one device");
    }
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let source = on_device(&mut bench, LARGE);
    fill(&bench, &source, &one);
    let there = bench.create(SECOND, LARGE).expect("there is room for a few MiB");
    let back = in_host(&mut bench, LARGE);
    assert_eq!(bench.copy(&source, &there, LARGE), Ok(()));
    assert_eq!(bench.copy(&there, &back, LARGE), Ok(()));
    assert_has(&mut bench, &there, &one, "there");
    assert_has(&mut bench, &back, &one, "and back");
    free_all(bench, [source, there, back])
}

pub fn only_the_first_bytes_are_copied(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (source, target) = (on_device(&mut bench, LARGE), in_host(&mut bench, LARGE));
    let (one, mut expected) = (Text::new(1, LARGE), Text::new(2, LARGE));
    fill(&bench, &source, &one);
    fill(&bench, &target, &expected);
    for length in [0, 4097, (16 << 20) + 5] {
        assert_eq!(bench.copy(&source, &target, Bytes::new(length)), Ok(()));
        let copied = usize::try_from(length).expect("a few MiB fit in memory");
        let bytes = [&one.bytes[..copied], &expected.bytes[copied..]].concat();
        expected = Text::of(bytes);
        assert_has(&mut bench, &target, &expected, &format!("{length} bytes"));
    }
    free_all(bench, [source, target])
}

pub fn both_directions_at_once_do_not_mix(harness: &dyn Harness) -> Verdict {
    const ROUNDS: u8 = 2;
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let two = Text::new(2, LARGE);
    let (first, second) = (on_device(&mut bench, LARGE), on_device(&mut bench, LARGE));
    let (out, coming) = (in_host(&mut bench, LARGE), in_host(&mut bench, LARGE));
    fill(&bench, &first, &one);
    fill(&bench, &coming, &two);
    for _ in 0..ROUNDS {
        let copies: Vec<CopyId> = (0..3)
            .flat_map(|_| [bench.begin(&first, &out, LARGE), bench.begin(&coming, &second, LARGE)])
            .collect();
        for copy in copies {
            assert_eq!(bench.copied(copy), Ok(()));
        }
        assert_has(&mut bench, &out, &one, "out");
        assert_has(&mut bench, &second, &two, "in");
        for target in [&out, &second] {
            assert_eq!(bench.copy(if target.id == out.id { &coming } else { &first }, target, SMALL), Ok(()));
        }
    }
    free_all(bench, [first, second, out, coming])
}

/// Two parts change places, through the same extents.
pub fn an_exchange_is_a_copy_out_and_then_one_in(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let two = Text::new(2, LARGE);
    let (device, coming) = (on_device(&mut bench, LARGE), in_host(&mut bench, LARGE));
    let backing = in_host(&mut bench, LARGE);
    fill(&bench, &device, &one);
    fill(&bench, &coming, &two);
    assert_eq!(bench.copy(&device, &backing, LARGE), Ok(()));
    assert_eq!(bench.copy(&coming, &device, LARGE), Ok(()));
    assert_has(&mut bench, &backing, &one, "the old content");
    assert_has(&mut bench, &device, &two, "the new content");
    free_all(bench, [device, coming, backing])
}

pub fn copies_of_a_direction_are_done_in_order(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let large = on_device(&mut bench, LARGE);
    let sources: Vec<Extent> = (0..3).map(|_| bench.make()).collect();
    let texts: Vec<Text> = (1..4).map(|seed| Text::new(seed, SMALL)).collect();
    sources.iter().zip(&texts).for_each(|(source, text)| fill(&bench, source, text));
    let target = in_host(&mut bench, LARGE);
    let mut requested = vec![bench.begin(&large, &target, LARGE)];
    requested.extend((0..30).map(|at| bench.begin(&sources[at % 3], &target, SMALL)));
    let reported: Vec<CopyId> = requested.iter().map(|_| bench.next_copied()).collect();
    assert_eq!(reported, requested);
    assert_has(&mut bench, &target, &texts[2], "the last one's bytes");
    free_all(bench, sources.into_iter().chain([large, target]))
}

/// Many background copies, and a demand copy behind them all.
pub fn a_demand_copy_goes_first(harness: &dyn Harness) -> Verdict {
    const COPIES: usize = 40;
    let mut bench = Bench::new(harness);
    let large = on_device(&mut bench, LARGE);
    let (scratch, hastened, target) =
        (in_host(&mut bench, LARGE), in_host(&mut bench, LARGE), in_host(&mut bench, LARGE));
    let one = Text::new(1, LARGE);
    fill(&bench, &large, &one);
    let begin = |class, to: &Extent| bench.begin_as(class, (large.id, to.id), LARGE);
    let mut requested: Vec<CopyId> = (0..COPIES).map(|_| begin(CopyClass::WriteBack, &scratch)).collect();
    let later = begin(CopyClass::WriteBack, &hastened);
    let first = begin(CopyClass::Demand, &target);
    bench.submit(Submission::HastenCopy { copy: later });
    bench.submit(Submission::HastenCopy { copy: CopyId::from_raw(new_id().get()) });
    requested.extend([later, first]);
    let reported: Vec<CopyId> = requested.iter().map(|_| bench.next_copied()).collect();
    let place = |copy| reported.iter().position(|it| *it == copy).expect("each is reported once");
    assert!(place(first) < COPIES - 1, "it does not wait for all of them: {reported:?}");
    assert!(place(later) < COPIES - 1, "nor does the hastened copy: {reported:?}");
    let others: Vec<CopyId> = reported.iter().copied().filter(|it| ![later, first].contains(it)).collect();
    assert_eq!(others, requested[..COPIES], "all others in their order");
    assert_has(&mut bench, &target, &one, "whole");
    assert_has(&mut bench, &hastened, &one, "whole");
    free_all(bench, [large, scratch, hastened, target])
}

/// How many copies are cancelled depends on the link's speed; nothing else may.
pub fn a_cancelled_copy_is_reported_once_and_harms_no_other(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let source = on_device(&mut bench, LARGE);
    fill(&bench, &source, &one);
    let (scratch, target) = (in_host(&mut bench, LARGE), in_host(&mut bench, LARGE));
    let first = bench.begin(&source, &scratch, LARGE);
    let cancelled: Vec<CopyId> = (0..8).map(|_| bench.begin(&source, &scratch, LARGE)).collect();
    let last = bench.begin(&source, &target, LARGE);
    for copy in &cancelled {
        bench.submit(Submission::CancelCopy { copy: *copy });
        // Some were cancelled before they began, twice.
        bench.submit(Submission::CancelCopy { copy: *copy });
    }
    bench.submit(Submission::CancelCopy { copy: CopyId::from_raw(new_id().get()) });
    assert_eq!(bench.copied(first), Ok(()));
    for copy in cancelled {
        let result = bench.copied(copy);
        assert!(matches!(result, Ok(()) | Err(CopyError::Cancelled)), "{result:?}");
        bench.submit(Submission::CancelCopy { copy });
    }
    assert_eq!(bench.copied(last), Ok(()));
    assert_eq!(bench.copied_bytes(last), None, "it was reported");
    assert_has(&mut bench, &target, &one, "the last one's bytes");
    assert_has(&mut bench, &source, &one, "the source is as it was");
    free_all(bench, [source, scratch, target])
}

pub fn an_impossible_copy_is_refused(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (device, host) = (bench.make(), bench.make_host());
    let one = Text::new(1, SMALL);
    fill(&bench, &device, &one);
    let (was_device, was_host) = (bench.make(), bench.make_host());
    let gone = [was_device.id, was_host.id, new_id()];
    bench.free(was_device);
    bench.free(was_host);
    let longer = Bytes::new(SMALL.get() + 1);
    let mut requested =
        vec![(device.id, device.id, SMALL), (device.id, host.id, longer), (host.id, device.id, longer)];
    requested.extend(gone.into_iter().flat_map(|gone| [(gone, host.id, SMALL), (host.id, gone, SMALL)]));
    for (from, to, size) in requested {
        let copy = bench.begin_by_id(from, to, size);
        let result = bench.copied(copy);
        assert!(
            matches!(result, Err(CopyError::Driver(DriverError::Failed(_)))),
            "{size} from {from} to {to}: {result:?}"
        );
    }
    assert_eq!(bench.copy(&device, &host, SMALL), Ok(()));
    assert_has(&mut bench, &host, &one, "a valid copy is done");
    free_all(bench, [device, host])
}

pub fn copies_go_on_beside_other_submissions(harness: &dyn Harness) -> Verdict {
    const ROUNDS: usize = 4;
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let (source, host) = (on_device(&mut bench, LARGE), in_host(&mut bench, LARGE));
    let target = on_device(&mut bench, LARGE);
    fill(&bench, &source, &one);
    let mut others = Vec::new();
    for _ in 0..ROUNDS {
        let out = bench.begin(&source, &host, LARGE);
        let kind = ExtentKind::Movable;
        let ids = [new_id(), new_id()];
        bench.submit(Submission::Create { extent: ids[0], device: FIRST, size: SMALL, kind });
        bench.submit(Submission::CreateHost {
            extent: ids[1],
            node: bench.host_node(),
            size: SMALL,
            zeroed: true,
        });
        bench.submit(Submission::Digest { ticket: ids[0].get(), spans: vec![(source.id, SMALL)] });
        bench.survey(FIRST);
        assert_eq!(bench.copied(out), Ok(()));
        let back = bench.begin(&host, &target, LARGE);
        for id in ids {
            drop(bench.created(id).expect("there is room for 2 MiB"));
            bench.submit(Submission::Release { extent: id });
            others.push(id);
        }
        assert_eq!(bench.copied(back), Ok(()));
    }
    assert_has(&mut bench, &target, &one, "beside all else");
    for id in others {
        if !bench.released(id) {
            bench.await_return(id);
        }
    }
    for _ in 0..ROUNDS {
        assert!(bench.wait(|it| matches!(it, Completion::Digested { .. }).then_some(true)));
    }
    free_all(bench, [source, host, target])
}

pub fn a_copy_keeps_its_extents_alive(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let (source, host) = (on_device(&mut bench, LARGE), in_host(&mut bench, LARGE));
    let target = on_device(&mut bench, LARGE);
    fill(&bench, &source, &one);
    assert_eq!(bench.copy(&source, &host, LARGE), Ok(()));
    let mut importer = bench.mapped(&target, Access::ReadOnly);
    let in_flight = bench.begin(&host, &target, LARGE);
    let ids = [source.id, host.id, target.id];
    let returned = [source, host, target].map(|extent| bench.release(extent));
    assert_eq!(bench.copied(in_flight), Ok(()));
    assert_eq!(importer.read(LARGE.get() - LAST as u64, LAST), one.last());
    assert!(!returned[2], "a process maps it");
    importer.kill();
    for (id, returned) in ids.into_iter().zip(returned) {
        if !returned {
            bench.await_return(id);
        }
    }
    bench.finish();
    Verdict::Passed
}

pub fn copies_are_done_though_the_driver_is_dropped(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let one = Text::new(1, LARGE);
    let (source, target) = (on_device(&mut bench, LARGE), in_host(&mut bench, LARGE));
    fill(&bench, &source, &one);
    let mut importer = bench.mapped(&target, Access::ReadOnly);
    let copies: Vec<CopyId> = (0..3).map(|_| bench.begin(&source, &target, LARGE)).collect();
    drop((source, target));
    let reported: Vec<CopyId> = bench
        .end()
        .into_iter()
        .map(|completion| match completion {
            Completion::Copied { copy, result: Ok(()) } => copy,
            other => panic!("unexpected: {other:?}"),
        })
        .collect();
    assert_eq!(reported, copies);
    assert_eq!(importer.read(LARGE.get() - LAST as u64, LAST), one.last());
    Verdict::Passed
}
