//! What lies on disk, read by whoever waits for it: a thread that hashes, which has nothing else to do meanwhile.

use std::sync::Arc;

use vramd_types::Bytes;

use super::{
    ALIGNMENT, DiskExtent, PIECE,
    engine::{Op, Way, transfer_all},
    piece::failed,
    room::Buffer,
};
use crate::{CopyError, DriverError};

/// With a buffer that is made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct DiskReader {
    buffer: Option<Buffer>,
}

impl DiskReader {
    /// Hands on the first bytes of an extent, verified, one piece after the other. What was never written is zeros.
    pub(crate) fn each(
        &mut self,
        extent: &DiskExtent,
        length: Bytes,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), CopyError> {
        if length > extent.size() {
            let (id, size) = (extent.id(), extent.size().get());
            return Err(DriverError::Failed(format!("{id} has only {size} bytes")).into());
        }
        let mut at = 0;
        while at < length.get() {
            let piece = PIECE.min(length.get() - at);
            let bytes = self.piece(extent, at, usize::try_from(piece).unwrap_or(usize::MAX));
            take(bytes?);
            at += piece;
        }
        Ok(())
    }

    fn piece(&mut self, extent: &DiskExtent, at: u64, length: usize) -> Result<&[u8], CopyError> {
        let reading = match extent.is_any_of(at) {
            true => Some(extent.reading(at, length)?),
            false => None,
        };
        let mut room = match self.buffer.take() {
            Some(buffer) => buffer,
            None => {
                Buffer::new(usize::try_from(PIECE).unwrap_or(usize::MAX) + ALIGNMENT).map_err(|error| {
                    CopyError::Driver(DriverError::Failed(format!("make a buffer to read into: {error}")))
                })?
            }
        };
        let Some(reading) = reading else {
            let bytes = &mut self.buffer.insert(room).bytes_mut()[..length];
            bytes.fill(0);
            return Ok(bytes);
        };
        let mut read = Ok(());
        if reading.blocks > 0 {
            let (file, way) = (Arc::clone(extent.file()), Way::FromDisk);
            let done = transfer_all(Op { tag: 0, file, way, at: reading.at, length: reading.blocks, room });
            (room, read) = (done.room, done.result);
        }
        // Before anything can fail: the next piece needs it.
        let bytes = self.buffer.insert(room).bytes_mut();
        reading.check(read).map_err(|flaw| failed(extent.id(), at, Way::FromDisk, flaw))?;
        let there = reading.skip..reading.skip + reading.length;
        extent.verify(at, reading.expected, extent.sums().of(at, &bytes[there.clone()]))?;
        bytes[there.end..].fill(0);
        Ok(&bytes[there.start..there.start + length])
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write as _, os::unix::fs::OpenOptionsExt as _};

    use rustix::fs::OFlags;
    use vramd_types::ExtentId;

    use super::*;
    use crate::{DiskFlaw, FileSpan, disk::Room as _};

    #[test]
    fn a_file_that_ends_within_a_block_is_read_to_its_end_and_one_cut_off_there_is_short() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().write_all(&[7; 5000]).unwrap();
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
        let file = Arc::new(File::options().read(true).custom_flags(direct).open(&path).unwrap().into());
        let id = ExtentId::from_raw(3);
        let read = |there: u64| {
            let span = FileSpan { file: Arc::clone(&file), offset: Bytes::ZERO, bytes: Bytes::new(there) };
            let extent = DiskExtent::of_file(id, Bytes::mib(2), span).unwrap();
            let mut bytes: Vec<u8> = Vec::new();
            DiskReader::default().each(&extent, Bytes::mib(2), |more| bytes.extend(more)).map(|()| bytes)
        };
        let whole = read(5000).unwrap();
        assert!(whole[..5000] == [7; 5000] && whole[5000..].iter().all(|byte| *byte == 0));
        let flaw = DiskFlaw::Short(Bytes::new(5000));
        assert_eq!(read(9000), Err(CopyError::Unreadable { extent: id, at: Bytes::ZERO, flaw }));
    }

    #[test]
    fn its_buffer_outlives_a_read_that_fails() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().write_all(&[7; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let span =
            |bytes| FileSpan { file: Arc::new(file.try_clone().unwrap().into()), offset: Bytes::ZERO, bytes };
        let of = |bytes| DiskExtent::of_file(ExtentId::from_raw(3), Bytes::mib(2), span(bytes)).unwrap();
        let mut reader = DiskReader::default();
        let mut read = |extent: &DiskExtent| {
            let result = reader.each(extent, Bytes::mib(2), |_| {});
            (result, reader.buffer.as_ref().map(|buffer| buffer.start()))
        };
        let extent = of(Bytes::new(8192));
        let (whole, first) = read(&extent);
        assert_eq!(whole, Ok(()));
        let (short, then) = read(&of(Bytes::new(9000)));
        assert!(matches!(short, Err(CopyError::Unreadable { .. })) && then.is_some() && then == first);
        std::os::unix::fs::FileExt::write_all_at(&file, &[8], 0).unwrap();
        let (changed, then) = read(&extent);
        assert!(matches!(changed, Err(CopyError::Damaged { .. })) && then == first, "{changed:?}");
    }
}
