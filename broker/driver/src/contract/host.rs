//! Host memory: content, sharing and refusals.

use vramd_types::{Bytes, HostNode};

use super::{
    Access, Bench, Harness, Verdict,
    bench::{FIRST, SMALL, new_id, pattern},
    memory,
};
use crate::{DriverError, ExtentKind, Submission};

const PIECE: usize = 10_000;

pub fn host_memory_is_zero_and_can_be_shared(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make_host();
    let last = SMALL.get() - PIECE as u64;
    let mut bytes = vec![0; usize::try_from(SMALL.get()).expect("2 MiB fit in memory")];
    assert_eq!(bench.digest(&[(extent.id, SMALL)]), Ok(blake3::hash(&bytes).into()));
    let mut first = bench.mapped(&extent, Access::ReadWrite);
    let mut second = bench.mapped(&extent, Access::ReadWrite);
    assert_eq!(first.read(0, PIECE), vec![0; PIECE]);
    assert!(first.write(5, &pattern(1, PIECE)));
    assert_eq!(second.read(5, PIECE), pattern(1, PIECE));
    assert!(second.write(last, &pattern(2, PIECE)));
    assert_eq!(first.read(last, PIECE), pattern(2, PIECE));
    bytes[5..5 + PIECE].copy_from_slice(&pattern(1, PIECE));
    let last = bytes.len() - PIECE;
    bytes[last..].copy_from_slice(&pattern(2, PIECE));
    assert_eq!(bench.digest(&[(extent.id, SMALL)]), Ok(blake3::hash(&bytes).into()));
    drop((first, second));
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}

pub fn reused_host_memory_is_zero(harness: &dyn Harness) -> Verdict {
    memory::zero_each_time(harness, Bench::make_host)
}

pub fn a_mapping_of_host_memory_outlives_its_release(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make_host();
    let mut importer = bench.mapped(&extent, Access::ReadWrite);
    assert!(importer.write(0, &pattern(1, PIECE)));
    bench.release(extent);
    let other = bench.make_host();
    assert!(bench.mapped(&other, Access::ReadWrite).write(0, &pattern(2, PIECE)));
    assert_eq!(importer.read(0, PIECE), pattern(1, PIECE));
    bench.finish();
    Verdict::Passed
}

pub fn running_out_of_host_memory_is_an_answer(harness: &dyn Harness) -> Verdict {
    const MORE_THAN_ANYBODY_HAS: Bytes = Bytes::new(1 << 50);
    let mut bench = Bench::new(harness);
    for _ in 0..3 {
        let refused = bench.create_host(MORE_THAN_ANYBODY_HAS).map(drop);
        assert!(matches!(refused, Err(DriverError::OutOfHostMemory(_))), "{refused:?}");
        let extent = bench.make_host();
        bench.free(extent);
    }
    bench.finish();
    Verdict::Passed
}

pub fn invalid_host_submissions_are_refused(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    for size in [Bytes::ZERO, Bytes::new(1), Bytes::new(SMALL.get() + 4096), Bytes::MAX] {
        assert!(matches!(bench.create_host(size).map(drop), Err(DriverError::Failed(_))), "{size}");
    }
    let extent = bench.make_host();
    let on_device = bench.make();
    let node = bench.host_node();
    for (id, node) in [(extent.id, node), (on_device.id, node), (new_id(), HostNode(u16::MAX))] {
        bench.submit(Submission::CreateHost { extent: id, node, size: SMALL, zeroed: true });
        assert!(matches!(bench.created(id), Err(DriverError::Failed(_))), "{id} on {node}");
    }
    let kind = ExtentKind::Movable;
    bench.submit(Submission::Create { extent: extent.id, device: FIRST, size: SMALL, kind });
    assert!(matches!(bench.created(extent.id), Err(DriverError::Failed(_))), "the id is in use");
    bench.free(extent);
    bench.free(on_device);
    bench.finish();
    Verdict::Passed
}
