//! Ranges of foreign files: the driver reads them at any offset, and never writes them.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::OFlags;
use vramd_types::{Bytes, ExtentId};

use super::{
    Bench, Harness, Verdict,
    bench::{SMALL, new_id},
    copies::{Text, assert_has, fill, free_all, in_host, on_device},
    disk::{by_each, on_disk, release_all},
    folder::Folder,
};
use crate::{CopyError, DiskFlaw, DriverError, FileSpan, Submission};

/// Several pieces.
const SIZE: Bytes = Bytes::mib(6);

/// Bytes before the range: no whole block.
const BEFORE: usize = 4096 + 107;

/// A foreign file, beside the driver's directory.
struct Model(PathBuf);

impl Model {
    fn new(folder: &Folder, bytes: &[u8]) -> Self {
        let path = folder.path().with_extension("model");
        fs::write(&path, bytes).expect("there is room for a few MiB");
        let model = Self(path);
        model.sync();
        model
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the content to the disk, where direct IO reads it.
    fn sync(&self) {
        File::open(&self.0).and_then(|file| file.sync_data()).expect("it can be synced");
    }

    fn span(&self, offset: usize, bytes: Bytes) -> FileSpan {
        let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag");
        let opened = File::options().read(true).custom_flags(direct).open(&self.0);
        let file = Arc::new(opened.expect("it can be read past the page cache").into());
        FileSpan { file, offset: Bytes::new(offset as u64), bytes }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn open(bench: &mut Bench<'_>, size: Bytes, span: FileSpan) -> Result<ExtentId, DriverError> {
    let extent = new_id();
    bench.submit(Submission::OpenFile { extent, size, span });
    bench.created_on_disk(extent).map(|()| extent)
}

/// The content with that many bytes before it.
fn after(before: usize, text: &Text) -> Vec<u8> {
    [vec![0xab; before], text.bytes.clone()].concat()
}

pub fn a_range_of_a_file_is_read_at_any_offset(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let one = Text::new(1, SIZE);
        let targets = [in_host(&mut bench, SIZE), on_device(&mut bench, SIZE)];
        for before in [0, 4096, BEFORE] {
            let model = Model::new(folder, &after(before, &one));
            let piece = open(&mut bench, SIZE, model.span(before, SIZE)).expect("it is there");
            for target in &targets {
                assert_eq!(bench.copy_by_id(piece, target.id, SIZE), Ok(()), "{before} {}", target.id);
                assert_has(&mut bench, target, &one, &format!("{before} bytes on"));
            }
            assert_eq!(bench.digest(&[(piece, SIZE)]), Ok(blake3::hash(&one.bytes).into()), "{before}");
            release_all(&mut bench, [piece]);
            assert!(model.path().exists(), "it is not ours");
        }
        let _ = free_all(bench, targets);
    })
}

pub fn bytes_beyond_the_end_of_a_file_are_zeros(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let (one, other) = (Text::new(1, SIZE), Text::new(2, SIZE));
        let targets = [in_host(&mut bench, SIZE), on_device(&mut bench, SIZE)];
        // Ends in the middle of a block, at the end of one, at the end of a piece, and before whole pieces of
        // zeros; once with more of the file behind.
        let mib = 1 << 20;
        for (bytes, more) in [(5, 0), (4 * mib + 4096, 0), (2 * mib, 0), (6 * mib - 1, 100), (SIZE.get(), 0)]
        {
            let there = usize::try_from(bytes).expect("a few MiB");
            let text = [&one.bytes[..there], &vec![0; one.bytes.len() - there]].concat();
            let (file, text) =
                ([vec![7; BEFORE], one.bytes[..there].to_vec(), vec![9; more]].concat(), Text::of(text));
            let model = Model::new(folder, &file);
            let piece = open(&mut bench, SIZE, model.span(BEFORE, Bytes::new(bytes))).expect("it is there");
            for target in &targets {
                fill(&bench, target, &other);
                assert_eq!(bench.copy_by_id(piece, target.id, SIZE), Ok(()), "{bytes}");
                assert_has(&mut bench, target, &text, &format!("{bytes} bytes"));
            }
            assert_eq!(bench.digest(&[(piece, SIZE)]), Ok(blake3::hash(&text.bytes).into()), "{bytes}");
            release_all(&mut bench, [piece]);
        }
        let _ = free_all(bench, targets);
    })
}

pub fn a_changed_file_is_reported_and_its_first_content_counts(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let one = Text::new(1, SIZE);
        let model = Model::new(folder, &after(BEFORE, &one));
        let target = on_device(&mut bench, SIZE);
        // By a digest and by a copy.
        for hashed in [true, false] {
            let [bad, good] =
                [(); 2].map(|()| open(&mut bench, SIZE, model.span(BEFORE, SIZE)).expect("it is there"));
            match hashed {
                true => assert!(bench.digest(&[(bad, SIZE)]).is_ok()),
                false => assert_eq!(bench.copy_by_id(bad, target.id, SIZE), Ok(())),
            }
            let at = BEFORE as u64 + SMALL.get() + 77;
            let change = |byte: u8| {
                let file = File::options().write(true).open(model.path()).expect("it is there");
                file.write_all_at(&[byte], at).expect("it can be written");
                model.sync();
            };
            let was = one.bytes[usize::try_from(SMALL.get()).expect("a few MiB") + 77];
            change(!was);
            let damaged = Err(CopyError::Damaged { extent: bad, at: SMALL });
            assert_eq!(bench.copy_by_id(bad, target.id, SIZE), damaged);
            assert_eq!(bench.digest(&[(bad, SIZE)]).map(drop), damaged);
            assert_eq!(bench.copy_by_id(bad, target.id, SMALL), Ok(()), "the unchanged part");
            // An extent that has read nothing yet accepts the new content.
            assert_eq!(bench.copy_by_id(good, target.id, SIZE), Ok(()));
            assert_ne!(bench.digest(&[(target.id, SIZE)]), Ok(blake3::hash(&one.bytes).into()));
            change(was);
            assert_eq!(bench.copy_by_id(bad, target.id, SIZE), Ok(()), "the content is back");
            assert_has(&mut bench, &target, &one, "the first content");
            release_all(&mut bench, [bad, good]);
        }
        let _ = free_all(bench, [target]);
    })
}

pub fn a_truncated_file_is_reported_and_a_renamed_one_is_read(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let one = Text::new(1, SIZE);
        let model = Model::new(folder, &one.bytes);
        let target = on_device(&mut bench, SIZE);
        let piece = open(&mut bench, SIZE, model.span(0, SIZE)).expect("it is there");
        assert!(bench.digest(&[(piece, SIZE)]).is_ok());
        // The file is not read by its name.
        let elsewhere = model.path().with_extension("moved");
        fs::rename(model.path(), &elsewhere).expect("it can be moved");
        assert_eq!(bench.copy_by_id(piece, target.id, SIZE), Ok(()));
        fs::rename(&elsewhere, model.path()).expect("it can be moved back");
        let file = File::options().write(true).open(model.path()).expect("it is there");
        file.set_len(SMALL.get() + 8192).expect("it can be cut off");
        let flaw = DiskFlaw::Short(Bytes::new(8192));
        let short = CopyError::Unreadable { extent: piece, at: SMALL, flaw };
        assert_eq!(bench.copy_by_id(piece, target.id, SIZE), Err(short.clone()));
        assert!(short.is_loss(), "it was there");
        assert!(bench.digest(&[(piece, SIZE)]).is_err());
        release_all(&mut bench, [piece]);
        let _ = free_all(bench, [target]);
    })
}

pub fn nothing_is_ever_written_to_a_file(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let (one, two) = (Text::new(1, SIZE), Text::new(2, SIZE));
        let model = Model::new(folder, &one.bytes);
        let piece = open(&mut bench, SIZE, model.span(0, SIZE)).expect("it is there");
        for source in [in_host(&mut bench, SIZE), on_device(&mut bench, SIZE)] {
            fill(&bench, &source, &two);
            let refused = bench.copy_by_id(source.id, piece, SIZE);
            assert!(matches!(refused, Err(CopyError::Driver(DriverError::Failed(_)))), "{refused:?}");
            bench.free(source);
        }
        assert!(fs::read(model.path()).expect("it can be read") == one.bytes);
        // Extents beside it on disk can be written as before.
        let (source, disk) = (on_device(&mut bench, SMALL), on_disk(&mut bench, SMALL));
        assert_eq!(bench.copy_by_id(source.id, disk, SMALL), Ok(()));
        release_all(&mut bench, [piece, disk]);
        let _ = free_all(bench, [source]);
    })
}

pub fn files_need_no_directory(harness: &dyn Harness) -> Verdict {
    let folder = Folder::new(harness);
    let one = Text::new(1, SMALL);
    let model = Model::new(&folder, &one.bytes);
    let mut bench = Bench::with_files(harness, None, Vec::new());
    assert!(bench.disk().is_none());
    let piece = open(&mut bench, SMALL, model.span(0, SMALL)).expect("it is there");
    let target = bench.make();
    assert_eq!(bench.copy_by_id(piece, target.id, SMALL), Ok(()));
    assert_has(&mut bench, &target, &one, "of a file");
    assert!(matches!(bench.create_disk(SMALL), Err(DriverError::Failed(_))), "there is none");
    release_all(&mut bench, [piece]);
    free_all(bench, [target])
}

pub fn invalid_file_submissions_are_refused(harness: &dyn Harness) -> Verdict {
    by_each(harness, |mut bench, folder| {
        let model = Model::new(folder, b"a few bytes");
        let few = Bytes::new(11);
        for (size, span) in [
            (Bytes::ZERO, model.span(0, Bytes::ZERO)),
            (Bytes::new(7), model.span(0, Bytes::new(7))),
            (SMALL, model.span(0, SIZE)),
            (SMALL, FileSpan { offset: Bytes::MAX, ..model.span(0, few) }),
        ] {
            let refused = open(&mut bench, size, span);
            assert!(matches!(refused, Err(DriverError::Failed(_))), "{refused:?}");
        }
        let piece = open(&mut bench, SMALL, model.span(0, few)).expect("it is there");
        bench.submit(Submission::OpenFile { extent: piece, size: SMALL, span: model.span(0, few) });
        assert!(matches!(bench.created_on_disk(piece), Err(DriverError::Failed(_))), "it exists");
        // Longer than the file, and longer than the extent.
        let longer =
            open(&mut bench, SMALL, model.span(0, Bytes::new(12))).expect("it is not looked at before");
        let target = on_device(&mut bench, SIZE);
        assert!(bench.copy_by_id(longer, target.id, SMALL).is_err());
        assert!(bench.copy_by_id(piece, target.id, SIZE).is_err());
        release_all(&mut bench, [piece, longer]);
        let _ = free_all(bench, [target]);
    })
}
