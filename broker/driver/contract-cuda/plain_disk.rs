//! Measures a plain program: it reads or writes a file from one end to the other, with direct IO.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use vramd_types::Bytes;

/// Some disks are fastest with one large request at a time, others with several: the better one counts.
const SHAPES: [(usize, u64); 2] = [(1, 16 << 20), (4, 4 << 20)];
const ALIGNMENT: usize = 4096;

pub(crate) struct Plain {
    path: PathBuf,
    size: Bytes,
}

impl Plain {
    /// Creates a preallocated file.
    pub(crate) fn new(path: PathBuf, size: Bytes) -> Result<Self, String> {
        let file = File::create(&path).map_err(|error| format!("make {}: {error}", path.display()))?;
        fallocate(&file, FallocateFlags::empty(), 0, size.get())
            .map_err(|error| format!("preallocate {}: {error}", path.display()))?;
        Ok(Self { path, size })
    }

    pub(crate) fn write(&self) -> Result<Duration, String> {
        best(&self.path, self.size, |file, buffer, at| file.write_all_at(buffer, at))
    }
}

pub(crate) fn read(path: &Path, size: Bytes) -> Result<Duration, String> {
    best(path, size, |file, buffer, at| file.read_exact_at(buffer, at))
}

fn best(
    path: &Path,
    size: Bytes,
    step: impl Fn(&File, &mut [u8], u64) -> std::io::Result<()> + Sync,
) -> Result<Duration, String> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(|error| error.to_string())?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(path);
    let file = file.map_err(|error| format!("open {}: {error}", path.display()))?;
    let mut best = Duration::MAX;
    for (threads, request) in SHAPES {
        let begun = Instant::now();
        let (file, step) = (&file, &step);
        thread::scope(|scope| {
            let work = move |first| all(file, size, first, threads, request, step);
            let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || work(first))).collect();
            running.into_iter().try_for_each(|it| it.join().map_err(|_| "a panic".to_owned())?)
        })?;
        best = best.min(begun.elapsed());
    }
    Ok(best)
}

/// Every n-th request, from the first on.
fn all(
    file: &File,
    size: Bytes,
    first: usize,
    threads: usize,
    request: u64,
    step: &impl Fn(&File, &mut [u8], u64) -> std::io::Result<()>,
) -> Result<(), String> {
    let length = usize::try_from(request).map_err(|error| error.to_string())?;
    let mut room = vec![0x5a; length + ALIGNMENT];
    let start = room.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut room[start..start + length];
    let firsts = (first as u64 * request..size.get()).step_by(length * threads);
    for at in firsts {
        step(file, buffer, at).map_err(|error| format!("plain IO: {error}"))?;
    }
    Ok(())
}
