//! The content of an extent, as the processes that map it see it.

use super::{
    Access, Bench, Harness, Verdict,
    bench::{Extent, SMALL, pattern},
};

const PIECE: usize = 10_000;

/// The start of the last piece of a small extent.
fn last_piece() -> u64 {
    SMALL.get() - PIECE as u64
}

pub fn fresh_memory_is_zero(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let mut reader = bench.mapped(&extent, Access::ReadOnly);
    let bytes = reader.read(0, usize::try_from(SMALL.get()).expect("2 MiB fit in memory"));
    assert!(bytes.iter().all(|byte| *byte == 0));
    bench.finish();
    Verdict::Passed
}

pub fn reused_memory_is_zero(harness: &dyn Harness) -> Verdict {
    zero_each_time(harness, Bench::make)
}

/// Creates, writes and frees memory again and again.
pub(super) fn zero_each_time<'h>(
    harness: &'h dyn Harness,
    make: impl Fn(&mut Bench<'h>) -> Extent,
) -> Verdict {
    let mut bench = Bench::new(harness);
    for _ in 0..4 {
        let extent = make(&mut bench);
        let mut importer = bench.mapped(&extent, Access::ReadWrite);
        for offset in [0, SMALL.get() / 2, last_piece()] {
            assert_eq!(importer.read(offset, PIECE), vec![0; PIECE], "at {offset}");
            assert!(importer.write(offset, &pattern(3, PIECE)));
        }
        drop(importer);
        bench.free(extent);
    }
    bench.finish();
    Verdict::Passed
}

pub fn importers_see_each_others_bytes(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let mut first = bench.mapped(&extent, Access::ReadWrite);
    let mut second = bench.mapped(&extent, Access::ReadWrite);
    assert!(first.write(5, &pattern(1, PIECE)));
    assert_eq!(second.read(5, PIECE), pattern(1, PIECE));
    assert!(second.write(last_piece(), &pattern(2, PIECE)));
    assert_eq!(first.read(last_piece(), PIECE), pattern(2, PIECE));
    bench.finish();
    Verdict::Passed
}

pub fn an_importer_chooses_its_access(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let mut reader = bench.mapped(&extent, Access::ReadOnly);
    let mut writer = bench.mapped(&extent, Access::ReadWrite);
    assert!(writer.write(0, &pattern(1, PIECE)));
    assert!(!reader.write(0, &pattern(2, PIECE)), "a read-only mapping was written");
    assert_eq!(writer.read(0, PIECE), pattern(1, PIECE));
    assert!(writer.write(0, &pattern(3, PIECE)), "another's read-only mapping does not bind the writer");
    bench.finish();
    Verdict::Passed
}

pub fn a_mapping_outlives_its_descriptor(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    let extent = bench.make();
    let mut importer = bench.importer();
    importer.import(&extent.export, extent.device, extent.size);
    importer.map(Access::ReadWrite);
    assert!(importer.write(0, &pattern(1, PIECE)));
    importer.close();
    assert_eq!(importer.read(0, PIECE), pattern(1, PIECE));
    bench.finish();
    Verdict::Passed
}
