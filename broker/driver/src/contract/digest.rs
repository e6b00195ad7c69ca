//! Digests of the bytes that importers wrote, compared with ones computed here.

use vramd_types::Bytes;

use super::{
    Access, Bench, Harness, Verdict,
    bench::{Extent, FIRST, new_id, pattern},
};
use crate::{CopyError, DriverError};

/// Several times one importer's write or one thread's share.
const SIZE: Bytes = Bytes::mib(6);

/// An extent that another process has filled, and its content.
fn filled(bench: &mut Bench<'_>, seed: u8) -> (Extent, Vec<u8>) {
    let extent = bench.create(FIRST, SIZE).expect("there is room for 6 MiB");
    let bytes = pattern(seed, usize::try_from(SIZE.get()).expect("6 MiB fit in memory"));
    assert!(bench.mapped(&extent, Access::ReadWrite).write(0, &bytes));
    (extent, bytes)
}

fn expected(bytes: &[u8]) -> Result<[u8; 32], CopyError> {
    Ok(blake3::hash(bytes).into())
}

pub fn a_digest_is_of_the_bytes(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (extent, mut bytes) = filled(&mut bench, 1);
    assert_eq!(bench.digest(&[(extent.id, SIZE)]), expected(&bytes));
    // A second digest sees what is written after the first.
    assert!(bench.mapped(&extent, Access::ReadWrite).write(4_000_000, b"changed"));
    bytes[4_000_000..4_000_007].copy_from_slice(b"changed");
    assert_eq!(bench.digest(&[(extent.id, SIZE)]), expected(&bytes));
    let fresh = bench.make();
    let zeros = vec![0; usize::try_from(fresh.size.get()).expect("2 MiB fit in memory")];
    assert_eq!(bench.digest(&[(fresh.id, fresh.size)]), expected(&zeros));
    // A digest keeps no memory.
    bench.free(extent);
    bench.free(fresh);
    bench.finish();
    Verdict::Passed
}

pub fn a_digest_can_be_of_a_part(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (extent, bytes) = filled(&mut bench, 2);
    for length in [0, 1, 4095, 1 << 21, (1 << 21) + 1] {
        let requested = Bytes::new(length);
        let length = usize::try_from(length).expect("it is below the extent's size");
        assert_eq!(bench.digest(&[(extent.id, requested)]), expected(&bytes[..length]), "{length} bytes");
    }
    bench.finish();
    Verdict::Passed
}

pub fn a_digest_joins_extents(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (first, first_bytes) = filled(&mut bench, 3);
    let (second, second_bytes) = filled(&mut bench, 4);
    let mut joined = second_bytes;
    joined.extend_from_slice(&first_bytes[..1000]);
    let spans = [(second.id, SIZE), (first.id, Bytes::new(1000))];
    assert_eq!(bench.digest(&spans), expected(&joined));
    assert_eq!(bench.digest(&[]), expected(&[]));
    bench.finish();
    Verdict::Passed
}

pub fn a_digest_of_missing_bytes_fails(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let (extent, bytes) = filled(&mut bench, 5);
    let failed = |result| matches!(result, Err(CopyError::Driver(DriverError::Failed(_))));
    assert!(failed(bench.digest(&[(extent.id, Bytes::new(SIZE.get() + 1))])), "longer than the extent");
    assert!(failed(bench.digest(&[(extent.id, SIZE), (new_id(), SIZE)])), "no such extent");
    assert_eq!(bench.digest(&[(extent.id, SIZE)]), expected(&bytes));
    let id = extent.id;
    bench.free(extent);
    assert!(failed(bench.digest(&[(id, SIZE)])), "released");
    bench.finish();
    Verdict::Passed
}
