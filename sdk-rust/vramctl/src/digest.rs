//! Digests as the daemon prints them: `blake3:` and 64 hexadecimal digits.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use indicatif::ProgressBar;

use crate::failure::Failure;

/// Large enough for all cores to have work, small enough for progress to be seen.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct Digest {
    hasher: blake3::Hasher,
}

impl Digest {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update_rayon(bytes);
    }

    pub(crate) fn finish(&self) -> String {
        format!("blake3:{}", self.hasher.finalize().to_hex())
    }
}

pub(crate) fn of_bytes(bytes: &[u8], progress: &ProgressBar) -> String {
    let mut digest = Digest::default();
    for chunk in bytes.chunks(CHUNK_BYTES) {
        digest.update(chunk);
        progress.inc(chunk.len() as u64);
    }
    digest.finish()
}

pub(crate) fn of_file(path: &Path, progress: &ProgressBar) -> Result<String, Failure> {
    let mut file = File::open(path).map_err(Failure::file(path))?;
    let mut digest = Digest::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(digest.finish()),
            Ok(count) => {
                digest.update(&buffer[..count]);
                progress.inc(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::file(path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_files_have_the_same_digest() {
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * CHUNK_BYTES + 7).collect();
        let path = std::env::temp_dir().join(format!("vramctl-digest-{}", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let of_file = of_file(&path, &ProgressBar::hidden()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(of_file, of_bytes(&bytes, &ProgressBar::hidden()));
        assert_eq!(of_file, format!("blake3:{}", blake3::hash(&bytes).to_hex()));
    }
}
