//! Memory shared by a legacy handle, for drivers that support it.

use vramd_types::Bytes;

use super::{
    Access, Bench, Harness, Verdict,
    bench::{Extent, FIRST, SMALL, pattern},
};
use crate::{Export, ExtentKind};

const SIZE: Bytes = Bytes::mib(6);
const NONE: Verdict = Verdict::NotApplicable("this driver makes no fixed extents");

fn fixed(bench: &mut Bench<'_>, size: Bytes) -> Extent {
    let extent = bench.create_kind(FIRST, size, ExtentKind::Fixed).expect("there is room for a few MiB");
    assert!(matches!(extent.export, Export::CudaIpc(_)), "{:?}", extent.export);
    extent
}

pub fn a_legacy_handle_shares_memory(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    if !bench.supports(ExtentKind::Fixed) {
        return NONE;
    }
    let extent = fixed(&mut bench, SIZE);
    let last = SIZE.get() - 10_000;
    let mut first = bench.mapped(&extent, Access::ReadWrite);
    let mut second = bench.mapped(&extent, Access::ReadWrite);
    assert!(first.write(0, &pattern(1, 10_000)));
    assert!(second.write(last, &pattern(2, 10_000)));
    assert_eq!(second.read(0, 10_000), pattern(1, 10_000));
    assert_eq!(first.read(last, 10_000), pattern(2, 10_000));
    // Clients close the handle before the memory is freed; the core ensures that.
    first.unmap();
    second.kill();
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}

pub fn reused_fixed_memory_is_zero(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    if !bench.supports(ExtentKind::Fixed) {
        return NONE;
    }
    for _ in 0..4 {
        let extent = fixed(&mut bench, SMALL);
        let mut importer = bench.mapped(&extent, Access::ReadWrite);
        assert_eq!(importer.read(0, 10_000), vec![0; 10_000]);
        assert!(importer.write(0, &pattern(3, 10_000)));
        importer.unmap();
        drop(importer);
        bench.free(extent);
    }
    bench.finish();
    Verdict::Passed
}

pub fn fixed_memory_can_be_digested(harness: &dyn Harness) -> Verdict {
    let mut bench = Bench::new(harness);
    if !bench.supports(ExtentKind::Fixed) {
        return NONE;
    }
    let extent = fixed(&mut bench, SIZE);
    let bytes = pattern(4, usize::try_from(SIZE.get()).expect("6 MiB fit in memory"));
    let mut writer = bench.mapped(&extent, Access::ReadWrite);
    assert!(writer.write(0, &bytes));
    writer.unmap();
    assert_eq!(bench.digest(&[(extent.id, SIZE)]), Ok(blake3::hash(&bytes).into()));
    bench.free(extent);
    bench.finish();
    Verdict::Passed
}
