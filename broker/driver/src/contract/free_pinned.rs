//! Pinned free memory of the host: pinning ahead, reuse, and rebuilds.

use vramd_types::{Bytes, HostNode};

use super::{
    Access, Bench, Harness, Verdict,
    bench::{Extent, SMALL, new_id, pattern},
};
use crate::{Completion, CopyError, DriverError, HostLimit, PinPace, Submission};

/// More than any case needs.
const MANY: usize = 100;

/// Another size than the small pieces.
const LARGE: Bytes = Bytes::mib(4);

fn content(seed: u8) -> Vec<u8> {
    pattern(seed, usize::try_from(SMALL.get()).expect("2 MiB fit in memory"))
}

fn hash(bytes: &[u8]) -> Result<[u8; 32], CopyError> {
    Ok(blake3::hash(bytes).into())
}

/// A small extent on the device, written by another process.
fn written(bench: &mut Bench<'_>, seed: u8) -> Extent {
    let extent = bench.make();
    assert!(bench.mapped(&extent, Access::ReadWrite).write(0, &content(seed)));
    extent
}

/// Like an extent that is written whole before any read.
fn make_unzeroed(bench: &mut Bench<'_>, size: Bytes) -> Result<Extent, DriverError> {
    bench.create_host_as(size, false)
}

/// Pins small pieces ahead, and returns how much is free.
fn filled(bench: &mut Bench<'_>, size: Bytes, pieces_max: usize) -> Bytes {
    let (free_pinned, problem) = bench.pin_ahead(size, SMALL, pieces_max, PinPace::FromStart);
    assert_eq!(problem, None);
    free_pinned
}

pub fn free_memory_is_reused_and_zeroed_on_request(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    assert_eq!(filled(&mut bench, SMALL, MANY), SMALL);
    let source = written(&mut bench, 1);
    let extent = bench.make_host();
    assert_eq!(bench.copy(&source, &extent, SMALL), Ok(()));
    bench.free(extent);

    let extent = make_unzeroed(&mut bench, SMALL).expect("it stays pinned");
    assert_eq!(bench.digest(&[(extent.id, SMALL)]), hash(&content(1)), "it is the same memory");
    bench.free(extent);
    for _ in 0..2 {
        let extent = bench.make_host();
        assert_eq!(bench.digest(&[(extent.id, SMALL)]), hash(&vec![0; content(0).len()]));
        assert_eq!(bench.copy(&source, &extent, SMALL), Ok(()));
        bench.free(extent);
    }
    bench.free(source);
    bench.finish();
    Verdict::Passed
}

pub fn memory_pinned_with_use_is_kept_and_grows_ahead(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (free_pinned, problem) = bench.pin_ahead(Bytes::mib(32), SMALL, MANY, PinPace::WithUse);
    assert_eq!((free_pinned, problem), (Bytes::ZERO, None), "nothing is pinned before the first extent");
    let extents: Vec<_> = (0..8).map(|_| bench.make_host()).collect();
    bench
        .free_pinned_until("half as much again is free", |free_pinned| free_pinned.ordinary == Bytes::mib(8));
    extents.into_iter().for_each(|extent| bench.free(extent));
    bench.free_pinned_until("all of it stays pinned", |free_pinned| free_pinned.ordinary == Bytes::mib(24));
    let full = Some(DriverError::OutOfHostMemory(HostLimit::Capacity(Bytes::mib(32))));
    assert_eq!(bench.create_host(Bytes::mib(34)).err(), full, "the limit is the same");
    let whole = bench.create_host(Bytes::mib(32)).expect("the free pieces go for it");
    bench.free(whole);
    bench.finish();
    Verdict::Passed
}

pub fn memory_exported_to_another_process_is_not_reused(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    assert_eq!(filled(&mut bench, Bytes::mib(4), MANY), Bytes::mib(4));
    let source = written(&mut bench, 2);
    let given = bench.make_host();
    let id = given.id;
    let mut importer = bench.mapped(&given, Access::ReadWrite);
    assert!(importer.write(0, &content(1)));
    let returned = bench.release(given);

    let extent = make_unzeroed(&mut bench, SMALL).expect("there is room for another");
    assert_ne!(bench.digest(&[(extent.id, SMALL)]), hash(&content(1)));
    assert_eq!(bench.copy(&source, &extent, SMALL), Ok(()));
    assert_eq!(importer.read(0, content(1).len()), content(1), "no other extent writes there");
    drop(importer);
    if !returned {
        bench.await_return(id);
    }
    bench.free(extent);
    bench.free(source);
    bench.finish();
    Verdict::Passed
}

pub fn free_and_used_memory_stay_within_the_node_size(harness: &dyn Harness) -> Verdict {
    const ALL: Bytes = Bytes::mib(8);
    let mut bench = Bench::new(harness);
    assert_eq!(filled(&mut bench, ALL, MANY), ALL);
    let full = Some(DriverError::OutOfHostMemory(HostLimit::Capacity(ALL)));
    for zeroed in [true, false] {
        let whole = bench.create_host_as(ALL, zeroed).expect("all free memory is unpinned for it");
        assert_eq!(bench.create_host(SMALL).err(), full);
        bench.free(whole);
        let all: Vec<_> = (0..4).map(|_| bench.create_host_as(SMALL, zeroed).expect("a quarter")).collect();
        assert_eq!(make_unzeroed(&mut bench, SMALL).err(), full);
        all.into_iter().for_each(|extent| bench.free(extent));
    }
    assert_eq!(bench.create_host(Bytes::mib(10)).err(), full);
    bench.finish();
    Verdict::Passed
}

pub fn another_size_has_free_memory_unpinned(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    assert_eq!(filled(&mut bench, Bytes::mib(6), MANY), Bytes::mib(6));
    let source = written(&mut bench, 3);
    for _ in 0..2 {
        let large = bench.create_host(Bytes::mib(4)).expect("two pieces go for it");
        let small = make_unzeroed(&mut bench, SMALL).expect("one is left");
        assert!(bench.create_host(SMALL).is_err());
        assert_eq!(bench.copy(&source, &small, SMALL), Ok(()));
        assert_eq!(bench.copy(&small, &large, SMALL), Ok(()));
        assert_eq!(bench.digest(&[(large.id, SMALL)]), hash(&content(3)));
        bench.free(large);
        bench.free(small);
    }
    bench.free(source);
    bench.finish();
    Verdict::Passed
}

/// Free memory in as many extents of 4 MiB as fit, and no piece. Without a request for a piece, none of them is
/// unpinned.
fn fragmented(bench: &mut Bench<'_>, all: Bytes) {
    assert_eq!(filled(bench, all, MANY), all);
    for _ in 0..3 {
        let large: Vec<_> = (0..all.get() / LARGE.get())
            .map(|_| bench.create_host_as(LARGE, false).expect("pieces go for it"))
            .collect();
        large.into_iter().for_each(|extent| bench.free(extent));
        let free_pinned =
            bench.free_pinned_until("all of it is free as before", |free_pinned| free_pinned.larger == all);
        assert_eq!(
            (free_pinned.ordinary, free_pinned.smaller, free_pinned.rebuilds),
            (Bytes::ZERO, Bytes::ZERO, 0)
        );
    }
}

pub fn other_sizes_become_pieces_once_a_piece_is_missing(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    fragmented(&mut bench, Bytes::mib(16));
    let source = written(&mut bench, 5);
    let first = make_unzeroed(&mut bench, SMALL).expect("something goes for it");
    assert_eq!(bench.copy(&source, &first, SMALL), Ok(()));
    // Of the 14 MiB beside it one extent of 4 MiB is left once pieces have more than that.
    let free_pinned = bench
        .free_pinned_until("half of it are pieces", |free_pinned| free_pinned.ordinary == Bytes::mib(10));
    assert_eq!((free_pinned.larger, free_pinned.rebuilds), (LARGE, 1));
    let extents: Vec<_> = (0..5).map(|_| bench.make_host()).collect();
    for extent in &extents {
        assert_eq!(bench.digest(&[(extent.id, SMALL)]), hash(&vec![0; content(0).len()]));
    }
    assert_eq!(
        bench.free_pinned_until("all are taken", |free_pinned| free_pinned.ordinary.is_zero()).larger,
        LARGE
    );
    let large = bench.create_host_as(LARGE, false).expect("that size stays pinned too");
    assert_eq!(bench.digest(&[(first.id, SMALL)]), hash(&content(5)), "memory of extents is not touched");
    extents.into_iter().chain([large, first, source]).for_each(|extent| bench.free(extent));
    let free_pinned =
        bench.free_pinned_until("all is back", |free_pinned| free_pinned.ordinary == Bytes::mib(12));
    assert_eq!((free_pinned.larger, free_pinned.rebuilds), (LARGE, 1), "there were pieces all the time");
    bench.finish();
    Verdict::Passed
}

pub fn creates_are_served_while_other_sizes_become_pieces(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    fragmented(&mut bench, Bytes::mib(64));
    let mut extents = Vec::new();
    for _ in 0..8 {
        extents.push(make_unzeroed(&mut bench, SMALL).expect("there is room"));
        extents.push(bench.create_host(LARGE).expect("for either"));
    }
    // The rest is free in pieces or in large memory, or is being rebuilt.
    for _ in 0..8 {
        extents.push(bench.make_host());
    }
    let full = Some(DriverError::OutOfHostMemory(HostLimit::Capacity(Bytes::mib(64))));
    assert_eq!(bench.create_host(SMALL).err(), full);
    extents.into_iter().for_each(|extent| bench.free(extent));
    bench.finish();
    Verdict::Passed
}

pub fn free_pieces_stay_within_their_maximum(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    assert_eq!(filled(&mut bench, Bytes::mib(8), 1), SMALL);
    let source = written(&mut bench, 4);
    let extents = [(); 2].map(|()| bench.make_host());
    for extent in &extents {
        assert_eq!(bench.copy(&source, extent, SMALL), Ok(()));
    }
    // Meanwhile another piece may have been pinned: then neither stays free.
    extents.into_iter().for_each(|extent| bench.free(extent));
    let again = [(); 2].map(|()| make_unzeroed(&mut bench, SMALL).expect("there is room"));
    let old = again.iter().filter(|it| bench.digest(&[(it.id, SMALL)]) == hash(&content(4))).count();
    assert!(old <= 1, "{old}");
    again.into_iter().chain([source]).for_each(|extent| bench.free(extent));
    bench.finish();
    Verdict::Passed
}

pub fn pin_ahead_is_accepted_once_for_each_known_node(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (node, nowhere) = (bench.host_node(), HostNode(u16::MAX));
    let mut problem = |node| {
        bench.submit(Submission::PinAhead {
            node,
            size: SMALL,
            piece: SMALL,
            pieces_max: MANY,
            pace: PinPace::FromStart,
        });
        bench.wait(|completion| match completion {
            Completion::PinnedAhead { node: of, problem, .. } if *of == node => Some(problem.clone()),
            _ => None,
        })
    };
    assert!(matches!(problem(nowhere), Some(DriverError::Failed(_))));
    assert_eq!(problem(node), None);
    assert!(matches!(problem(node), Some(DriverError::Failed(_))));
    bench.finish();
    Verdict::Passed
}

/// Work that is not done by then is dropped.
pub fn the_end_does_not_wait_for_memory_ahead(harness: &dyn Harness) -> Verdict {
    let bench = Bench::new(harness);
    let (node, extent) = (bench.host_node(), new_id());
    bench.submit(Submission::PinAhead {
        node,
        size: Bytes::mib(64),
        piece: SMALL,
        pieces_max: MANY,
        pace: PinPace::FromStart,
    });
    bench.submit(Submission::CreateHost { extent, node, size: SMALL, zeroed: true });
    let reported = bench.end();
    let free_pinned =
        |it: &Completion| matches!(it, Completion::PinnedAhead { free, .. } if *free <= Bytes::mib(64));
    assert_eq!(reported.iter().filter(|it| free_pinned(it)).count(), 1, "{reported:?}");
    assert!(
        reported.iter().any(|it| matches!(it, Completion::Created { result: Ok(_), .. })),
        "{reported:?}"
    );
    assert_eq!(reported.len(), 2, "{reported:?}");
    Verdict::Passed
}
