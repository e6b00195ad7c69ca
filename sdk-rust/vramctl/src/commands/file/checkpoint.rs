//! Checkpoints in the format safetensors, compared tensor by tensor with an allocation that `vramd.load` has made.
//!
//! A file begins with the length of its header, then has the header (JSON), then the tensors. An allocation that was
//! copied from files ends with an index in JSON, its length and [`MAGIC`]; any other is a file itself. Nothing in them
//! is trusted: a header that does not describe exactly the bytes that follow is refused.

mod layout;

use std::{
    fs::File,
    io::{Error, ErrorKind},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use indicatif::ProgressBar;
use vramd_client::Sealed;

use self::layout::{Tensor, Tensors, file_names, parse_header, parse_index};
use super::{
    digest::{CHUNK_BYTES, chunk},
    open_regular,
};
use crate::output::failure::Failure;

/// The end of an allocation that was copied from a checkpoint.
const MAGIC: &[u8; 16] = b"vramd index 1\0\0\0";
const LENGTH_BYTES: u64 = 8;
type Length = [u8; 8];
/// The format's own bound.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const INDEX_BYTES_MAX: u64 = 256 << 20;
const INDEX_SUFFIX: &str = ".safetensors.index.json";
const SUFFIX: &str = ".safetensors";

/// The open files of a checkpoint.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    files: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    tensors: Tensors,
}

impl Checkpoint {
    /// Whether the path is that of a checkpoint, by its name or as a folder, and not of any other file.
    pub(crate) fn is_at(path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(SUFFIX) || name.ends_with(INDEX_SUFFIX) || path.is_dir()
    }

    /// Opens a file, the file of an index, or a folder that has either.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let files: Vec<_> =
            find_files(path)?.iter().map(|file| Shard::open(file)).collect::<Result<_, _>>()?;
        for (at, shard) in files.iter().enumerate() {
            for before in &files[..at] {
                if let Some(name) = shard.tensors.keys().find(|name| before.tensors.contains_key(*name)) {
                    return Err(refused(
                        &shard.path,
                        format!("tensor {name:?} is also in {}", before.path.display()),
                    ));
                }
            }
        }
        if files.iter().all(|shard| shard.tensors.is_empty()) {
            return Err(refused(path, "it has no tensors".to_owned()));
        }
        Ok(Self { path: path.to_owned(), files })
    }

    pub(crate) fn size(&self) -> u64 {
        self.files
            .iter()
            .flat_map(|shard| shard.tensors.values())
            .map(|tensor| tensor.end - tensor.start)
            .sum()
    }

    /// Compares types, shapes and bytes with an allocation, and names the first tensor that differs. `found` is what
    /// [`tensors_of`] has found in it.
    pub(crate) fn compare(
        &self,
        mapped: &Sealed,
        found: Result<Tensors, String>,
        progress: &ProgressBar,
    ) -> Result<(), Failure> {
        let differs = |problem| Failure::Content { path: self.path.display().to_string(), problem };
        let found = found.map_err(differs)?;
        let mut pairs = Vec::new();
        for shard in &self.files {
            for (name, tensor) in in_order(&shard.tensors) {
                match found.get(name) {
                    None => return Err(differs(format!("the allocation has no tensor {name:?}"))),
                    Some(other) if !tensor.is_like(other) => {
                        return Err(differs(format!(
                            "tensor {name:?} is {tensor} there, and {other} in the allocation"
                        )));
                    }
                    Some(other) => pairs.push((shard, name, tensor, other)),
                }
            }
        }
        let is_known = |name: &String| self.files.iter().any(|shard| shard.tensors.contains_key(name));
        if let Some((name, _)) = in_order(&found).into_iter().find(|(name, _)| !is_known(name)) {
            return Err(differs(format!("it has no tensor {name:?}, and the allocation has")));
        }
        let (mut ours, mut theirs) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        for (shard, name, tensor, other) in pairs {
            let length = tensor.end - tensor.start;
            let mut done = 0;
            while done < length {
                let (ours, theirs) = (chunk(&mut ours, length - done), chunk(&mut theirs, length - done));
                shard.file.read_exact_at(theirs, tensor.start + done).map_err(Failure::file(&shard.path))?;
                mapped.copy_to_host(other.start + done, ours)?;
                if let Some(at) = ours.iter().zip(&*theirs).position(|(ours, theirs)| ours != theirs) {
                    let at = done + at as u64;
                    return Err(differs(format!(
                        "tensor {name:?} has other bytes in the allocation, from byte {at} on"
                    )));
                }
                done += ours.len() as u64;
                progress.inc(ours.len() as u64);
            }
        }
        Ok(())
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = open_regular(path)?;
        let size = file.metadata().map_err(Failure::file(path))?.len();
        let mut length = Length::default();
        file.read_exact_at(&mut length, 0).map_err(Failure::file(path))?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX.min(size.saturating_sub(LENGTH_BYTES)) {
            let problem = format!("its header would have {length} bytes, and the file has {size}");
            return Err(refused(path, problem));
        }
        let mut header = buffer(length);
        file.read_exact_at(&mut header, LENGTH_BYTES).map_err(Failure::file(path))?;
        let tensors = parse_header(&header, size).map_err(|problem| refused(path, problem))?;
        Ok(Self { path: path.to_owned(), file, tensors })
    }
}

/// The tensors of an allocation, or why it is no checkpoint.
pub(crate) fn tensors_of(mapped: &Sealed) -> Result<Result<Tensors, String>, Failure> {
    let size = mapped.info().size.get();
    let tail_bytes = LENGTH_BYTES + MAGIC.len() as u64;
    let (mut length, mut magic) = (Length::default(), [0; MAGIC.len()]);
    if size > tail_bytes {
        mapped.copy_to_host(size - tail_bytes, &mut length)?;
        mapped.copy_to_host(size - MAGIC.len() as u64, &mut magic)?;
    }
    if &magic == MAGIC {
        let length = u64::from_le_bytes(length);
        if length > INDEX_BYTES_MAX.min(size - tail_bytes) {
            return Ok(Err(format!("the allocation's index would have {length} bytes of {size}")));
        }
        let end = size - tail_bytes - length;
        let mut index = buffer(length);
        mapped.copy_to_host(end, &mut index)?;
        return Ok(parse_index(&index, end)
            .map_err(|problem| format!("the allocation's index is damaged: {problem}")));
    }
    let mut length = Length::default();
    if size > LENGTH_BYTES {
        mapped.copy_to_host(0, &mut length)?;
    }
    let length = u64::from_le_bytes(length);
    if length == 0 || length > HEADER_BYTES_MAX.min(size.saturating_sub(LENGTH_BYTES)) {
        return Ok(Err("the allocation is no checkpoint: it has neither an index nor a header".to_owned()));
    }
    let mut header = buffer(length);
    mapped.copy_to_host(LENGTH_BYTES, &mut header)?;
    Ok(parse_header(&header, size).map_err(|problem| format!("the allocation is no checkpoint: {problem}")))
}

fn find_files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_dir() {
        let mut names = Vec::new();
        for entry in path.read_dir().map_err(Failure::file(path))? {
            names.push(entry.map_err(Failure::file(path))?.path());
        }
        names.sort();
        let with = |suffix: &str| {
            let is =
                |name: &&PathBuf| name.file_name().unwrap_or_default().to_string_lossy().ends_with(suffix);
            names.iter().filter(is).cloned().collect::<Vec<_>>()
        };
        return match (&with(INDEX_SUFFIX)[..], with(SUFFIX)) {
            ([index], _) => find_files(index),
            ([], files) if !files.is_empty() => Ok(files),
            ([], _) => Err(refused(path, "it has no file `*.safetensors`".to_owned())),
            (many, _) => Err(refused(path, format!("it has {} indexes: name one of them", many.len()))),
        };
    }
    if !path.to_string_lossy().ends_with(INDEX_SUFFIX) {
        return Ok(vec![path.to_owned()]);
    }
    let file = open_regular(path)?;
    let length = file.metadata().map_err(Failure::file(path))?.len();
    if length > HEADER_BYTES_MAX {
        return Err(refused(path, format!("it has {length} bytes, more than an index may have")));
    }
    let mut text = buffer(length);
    file.read_exact_at(&mut text, 0).map_err(Failure::file(path))?;
    let names = file_names(&text).map_err(|problem| refused(path, problem))?;
    Ok(names.iter().map(|name| path.with_file_name(name)).collect())
}

/// By their place, so that files are read from their beginning to their end.
fn in_order(tensors: &Tensors) -> Vec<(&String, &Tensor)> {
    let mut all: Vec<_> = tensors.iter().collect();
    all.sort_by_key(|(_, tensor)| tensor.start);
    all
}

/// Room for so many bytes, which a bound was put on before.
fn buffer(length: u64) -> Vec<u8> {
    vec![0; usize::try_from(length).unwrap_or_default()]
}

fn refused(path: &Path, problem: String) -> Failure {
    Failure::file(path)(Error::new(ErrorKind::InvalidData, problem))
}
