//! Digests as the daemon prints them: `blake3:` and 64 hexadecimal digits.

use std::{
    io::{self, Read as _},
    path::Path,
};

use indicatif::ProgressBar;
use vramd_client::Sealed;

use super::open_regular;
use crate::output::failure::Failure;

/// Bytes that are read and hashed at a time: enough to keep all cores busy, few enough to show progress.
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

/// The front of the buffer, at most `left` bytes.
pub(crate) fn chunk(buffer: &mut [u8], left: u64) -> &mut [u8] {
    let len = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    &mut buffer[..len]
}

/// Hashes the mapped bytes, read back from wherever they lie.
pub(crate) fn hash_mapping(mapped: &Sealed, progress: &ProgressBar) -> Result<String, Failure> {
    let size = mapped.info().size.get();
    let mut digest = Digest::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < size {
        let chunk = chunk(&mut buffer, size - offset);
        mapped.copy_to_host(offset, chunk)?;
        digest.update(chunk);
        offset += chunk.len() as u64;
        progress.set_position(offset);
    }
    Ok(digest.finish())
}

pub(crate) fn hash_file(path: &Path, progress: &ProgressBar) -> Result<String, Failure> {
    let mut file = open_regular(path)?;
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
    fn a_files_digest_is_that_of_its_bytes() {
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * CHUNK_BYTES + 7).collect();
        let path = std::env::temp_dir().join(format!("vramctl-digest-{}", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let digest = hash_file(&path, &ProgressBar::hidden()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(digest, format!("blake3:{}", blake3::hash(&bytes).to_hex()));
    }

    #[test]
    fn the_last_chunk_has_the_remaining_bytes() {
        let mut buffer = [0; 4];
        let lens: Vec<_> = [9, 5, 1].into_iter().map(|left| chunk(&mut buffer, left).len()).collect();
        assert_eq!(lens, [4, 4, 1]);
    }
}
