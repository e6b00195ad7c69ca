//! Writes small files atomically: after a power failure a file has its old or its new content in full.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Replaces a file, and returns once the new content is on disk.
pub(super) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join(name))?;
    File::open(dir)?.sync_all()
}

/// Returns the file's content; `None` if it was never written.
pub(super) fn read(dir: &Path, name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(dir.join(name)) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
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
        replace(dir.path(), "f", b"one").unwrap();
        replace(dir.path(), "f", b"2").unwrap();
        assert_eq!(read(dir.path(), "f").unwrap().as_deref(), Some("2"));
        assert!(!dir.path().join("f.new").exists());
        assert!(replace(&dir.path().join("nowhere"), "f", b"").is_err());
    }
}
