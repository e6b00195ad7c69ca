//! Writes small files atomically: after a power failure a file has its old or its new content in full. The content before
//! the last change stays beside it, as `NAME.old`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Replaces a file, and returns once the new content is on disk. A failed write leaves nothing behind.
pub(super) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = dir.join(temporary(name));
    let written = write(&temporary, content).and_then(|()| {
        keep_old(dir, name);
        fs::rename(&temporary, dir.join(name))
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    File::open(dir)?.sync_all()
}

/// Writes over the beginning of a file, which takes no room on a full disk. For content within one sector, of no fewer
/// bytes than the file has.
pub(super) fn overwrite(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(dir.join(name))?;
    file.write_all_at(content, 0)?;
    file.sync_all()
}

/// Returns the file's content; `None` if it was never written.
pub(super) fn read(dir: &Path, name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(dir.join(name)) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name of the content before the last change.
pub(super) fn old(name: &str) -> String {
    format!("{name}.old")
}

/// Renames a damaged file to `NAME.damaged`. A missing one is none.
pub(super) fn set_aside(dir: &Path, name: &str) -> io::Result<()> {
    match fs::rename(dir.join(name), dir.join(format!("{name}.damaged"))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes what a write left that the daemon's death or a full disk has cut off.
pub(super) fn remove_leftovers(dir: &Path, name: &str) {
    let _ = fs::remove_file(dir.join(temporary(name)));
    let _ = fs::remove_file(dir.join(temporary(&old(name))));
}

fn temporary(name: &str) -> String {
    format!("{name}.new")
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Gives the present content its second name. It is a help and no more, so a failure changes nothing.
fn keep_old(dir: &Path, name: &str) {
    let link = dir.join(temporary(&old(name)));
    let _ = fs::remove_file(&link);
    if fs::hard_link(dir.join(name), &link).is_ok() {
        let _ = fs::rename(&link, dir.join(old(name)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_despite_leftovers_of_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), "f").unwrap(), None);
        fs::write(dir.path().join("f.new"), "half of someth").unwrap();
        fs::write(dir.path().join("f.old.new"), "half of anoth").unwrap();
        replace(dir.path(), "f", b"one").unwrap();
        replace(dir.path(), "f", b"2").unwrap();
        assert_eq!(read(dir.path(), "f").unwrap().as_deref(), Some("2"));
        assert_eq!(read(dir.path(), "f.old").unwrap().as_deref(), Some("one"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert!(replace(&dir.path().join("nowhere"), "f", b"").is_err());
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        replace(dir.path(), "f", b"one").unwrap();
        // A directory of that name: the rename fails after the content was written.
        fs::create_dir_all(dir.path().join("g/full")).unwrap();
        assert!(replace(dir.path(), "g", b"two").is_err());
        assert!(!dir.path().join("g.new").exists());
        assert_eq!(read(dir.path(), "f").unwrap().as_deref(), Some("one"));
    }
}
