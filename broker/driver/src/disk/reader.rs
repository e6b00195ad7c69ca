//! Reads extents on disk for digests, on the hashing thread itself, which has no other work meanwhile.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use vramd_types::Bytes;

use super::{
    ALIGNMENT, DiskExtent, PIECE,
    engine::{DiskDirection, Op, transfer_all},
    io_memory::{IoMemory, clear},
    piece::failed,
};
use crate::{CopyError, DriverError};

/// The bytes read at once: a piece, and the blocks around it.
pub(crate) const READ_BUFFER: usize = (2 << 20) + ALIGNMENT;
const _: () = assert!(READ_BUFFER as u64 == PIECE + ALIGNMENT as u64, "a piece fits");

/// Counts bytes read for digests. The atomic orders nothing else.
#[derive(Debug, Default)]
pub(crate) struct HashedBytes(AtomicU64);

impl HashedBytes {
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::new(self.0.load(Ordering::Relaxed))
    }
}

/// Passes the first bytes of an extent to `take`, verified and counted, piece by piece. Unwritten pieces are
/// zeros. All bytes go through a buffer of [`READ_BUFFER`] bytes.
pub(crate) fn read_each<R: IoMemory>(
    extent: &DiskExtent,
    length: Bytes,
    mut buffer: R,
    hashed: &HashedBytes,
    mut take: impl FnMut(&[u8]),
) -> Result<(), CopyError> {
    if length > extent.size() {
        let (id, size) = (extent.id(), extent.size().get());
        return Err(DriverError::Failed(format!(
            "extent {id} has only {size} bytes, {length} were requested",
            length = length.get()
        ))
        .into());
    }
    let mut at = 0;
    while at < length.get() {
        let piece = PIECE.min(length.get() - at);
        let range;
        (buffer, range) = read(extent, at, usize::try_from(piece).unwrap_or(usize::MAX), buffer)?;
        hashed.0.fetch_add(piece, Ordering::Relaxed);
        take(&buffer.bytes()[range]);
        at += piece;
    }
    Ok(())
}

/// Reads one piece, and returns its range in the buffer.
fn read<R: IoMemory>(
    extent: &DiskExtent,
    at: u64,
    length: usize,
    mut buffer: R,
) -> Result<(R, Range<usize>), CopyError> {
    if !extent.has_content(at) {
        clear(&mut buffer, 0..length);
        return Ok((buffer, 0..length));
    }
    let reading = extent.reading(at, length)?;
    let mut read = Ok(());
    if reading.blocks > 0 {
        let (file, direction) = (Arc::clone(extent.file()), DiskDirection::FromDisk);
        let done =
            transfer_all(Op { tag: 0, file, direction, at: reading.at, length: reading.blocks, buffer });
        (buffer, read) = (done.buffer, done.result);
    }
    reading.check(read).map_err(|flaw| failed(extent.id(), at, DiskDirection::FromDisk, flaw))?;
    let range = reading.skip..reading.skip + reading.length;
    extent.verify(at, reading.expected, extent.checksums().of(at, &buffer.bytes()[range.clone()]))?;
    let end = buffer.length();
    clear(&mut buffer, range.end..end);
    Ok((buffer, range.start..range.start + length))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write as _, os::unix::fs::OpenOptionsExt as _};

    use rustix::fs::OFlags;
    use vramd_types::ExtentId;

    use super::*;
    use crate::{DiskFlaw, FileSpan, disk::Buffer};

    fn buffer() -> Buffer {
        Buffer::new(READ_BUFFER).unwrap()
    }

    #[test]
    fn a_file_ending_within_a_block_is_read_to_its_end() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().write_all(&[7; 5000]).unwrap();
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        let file = Arc::new(File::options().read(true).custom_flags(direct).open(&path).unwrap().into());
        let id = ExtentId::from_raw(3);
        let read = |range: u64| {
            let span = FileSpan { file: Arc::clone(&file), offset: Bytes::ZERO, bytes: Bytes::new(range) };
            let extent = DiskExtent::of_file(id, Bytes::mib(2), span).unwrap();
            let mut bytes: Vec<u8> = Vec::new();
            read_each(&extent, Bytes::mib(2), buffer(), &HashedBytes::default(), |more| bytes.extend(more))
                .map(|()| bytes)
        };
        let whole = read(5000).unwrap();
        assert!(whole[..5000] == [7; 5000] && whole[5000..].iter().all(|byte| *byte == 0));
        let flaw = DiskFlaw::Short(Bytes::new(5000));
        assert_eq!(read(9000), Err(CopyError::Unreadable { extent: id, at: Bytes::ZERO, flaw }));
    }

    #[test]
    fn short_and_changed_files_are_reported() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().write_all(&[7; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let span =
            |bytes| FileSpan { file: Arc::new(file.try_clone().unwrap().into()), offset: Bytes::ZERO, bytes };
        let of = |bytes| DiskExtent::of_file(ExtentId::from_raw(3), Bytes::mib(2), span(bytes)).unwrap();
        let read =
            |extent: &DiskExtent| read_each(extent, Bytes::mib(2), buffer(), &HashedBytes::default(), |_| {});
        let extent = of(Bytes::new(8192));
        assert_eq!(read(&extent), Ok(()));
        let short = read(&of(Bytes::new(9000)));
        assert!(matches!(short, Err(CopyError::Unreadable { .. })), "{short:?}");
        std::os::unix::fs::FileExt::write_all_at(&file, &[8], 0).unwrap();
        let changed = read(&extent);
        assert!(matches!(changed, Err(CopyError::Damaged { .. })), "{changed:?}");
    }
}
