//! The speed of a plain program that reads or writes a preallocated file, which was written before, past the page cache. It uses the number
//! of threads and the request size that are fastest on this machine.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use serde_json::{Value, json};

use super::room::AlignedRoom;
use crate::content;

/// Thread counts and request sizes to try; each thread has one request at a time. The best one of each direction counts.
const SHAPES: [Shape; 8] = [
    Shape { threads: 1, request: 16 << 20 },
    Shape { threads: 4, request: 4 << 20 },
    Shape { threads: 4, request: 16 << 20 },
    Shape { threads: 8, request: 2 << 20 },
    Shape { threads: 16, request: 1 << 20 },
    Shape { threads: 16, request: 2 << 20 },
    Shape { threads: 16, request: 4 << 20 },
    Shape { threads: 32, request: 1 << 20 },
];
/// How often each is tried, and with how many bytes.
const TRIES: usize = 2;
const TRIED_BYTES: usize = 1 << 30;
/// The best shape for reads is tried once more over this much memory, each request beside the last. Such memory is in no processor cache,
/// like memory that a device has copied away.
const FAR: usize = 256 << 20;
/// The file repeats this much random content. Every request size divides it.
const TILE: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
struct Shape {
    threads: usize,
    request: usize,
}

/// A preallocated file. Dropping it deletes the file.
#[derive(Debug)]
pub(super) struct PlainDisk {
    path: PathBuf,
    file: File,
    tile: AlignedRoom,
    rooms: AlignedRoom,
    seed: u64,
    read: Shape,
    write: Shape,
    facts: Value,
}

impl PlainDisk {
    /// Creates a file of that size in that directory.
    pub(super) fn new(directory: &Path, size: usize) -> Result<Self> {
        let path = directory.join("vramd-plain");
        let direct = i32::try_from(OFlags::DIRECT.bits())?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(direct)
            .open(&path);
        let file = file.with_context(|| format!("{} cannot be made", path.display()))?;
        fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
        let most =
            SHAPES.iter().map(|shape| shape.threads * shape.request).max().unwrap_or_default().max(FAR);
        let (tile, rooms) = (AlignedRoom::new(TILE), AlignedRoom::new(most));
        let [read, write] = [SHAPES[0]; 2];
        let mut plain = Self { path, file, tile, rooms, seed: 0, read, write, facts: Value::Null };
        plain.write(size)?;
        plain.choose(size.min(TRIED_BYTES))?;
        Ok(plain)
    }

    /// Tries all shapes and keeps the best ones.
    pub(super) fn facts(&self) -> Value {
        self.facts.clone()
    }

    /// Writes new random content over `bytes` bytes.
    pub(super) fn write(&mut self, bytes: usize) -> Result<Duration> {
        self.seed += 1;
        content::write(self.seed, &mut self.tile.bytes_mut()[..bytes.min(TILE)]);
        self.write_as(self.write, bytes, 0)
    }

    /// Reads `bytes` bytes, and compares the last reads with the content there.
    pub(super) fn read(&mut self, bytes: usize) -> Result<Duration> {
        self.read_as(self.read, bytes, true)
    }

    /// Reads and writes at once, half a file apart, until the later end.
    pub(super) fn read_and_write(&mut self, bytes: usize) -> Result<Duration> {
        let (read, write) = (self.read, self.write);
        let (file, tile, rooms) = (&self.file, self.tile.bytes(), self.rooms.bytes_mut());
        let (reading, writing) = thread::scope(|scope| {
            let writing = scope.spawn(|| write_all(file, tile, write, bytes, bytes / 2));
            let reading = read_all(file, rooms, 0, None, read, bytes);
            (reading, writing.join().expect("a thread that writes does not panic"))
        });
        Ok(reading?.max(writing?))
    }

    fn choose(&mut self, bytes: usize) -> Result<()> {
        let mut tried = Vec::new();
        for shape in SHAPES {
            let (mut read, mut write) = (Duration::MAX, Duration::MAX);
            for _ in 0..TRIES {
                write = write.min(self.write_as(shape, bytes, 0)?);
                read = read.min(self.read_as(shape, bytes, true)?);
            }
            tried.push((shape, read, write));
        }
        let best = |of: fn(&(Shape, Duration, Duration)) -> Duration| {
            tried.iter().min_by_key(|tried| of(tried)).map_or(SHAPES[0], |(shape, ..)| *shape)
        };
        (self.read, self.write) = (best(|(_, read, _)| *read), best(|(.., write)| *write));
        let mut far = Duration::MAX;
        for _ in 0..TRIES {
            far = far.min(read_all(
                &self.file,
                self.rooms.bytes_mut(),
                FAR,
                Some(self.tile.bytes()),
                self.read,
                bytes,
            )?);
        }
        let speed = |took: &Duration| bytes as f64 / 1e9 / took.as_secs_f64();
        let row = |(shape, read, write): &(Shape, Duration, Duration)| {
            let mut row = shape.json();
            row["read_gb_per_s"] = json!(speed(read));
            row["write_gb_per_s"] = json!(speed(write));
            row
        };
        self.facts = json!({
            "tried_bytes": bytes, "tried": tried.iter().map(row).collect::<Vec<_>>(),
            "read": self.read.json(), "write": self.write.json(),
            "read_far_gb_per_s": speed(&far), "read_far_bytes": FAR,
        });
        Ok(())
    }

    fn write_as(&self, shape: Shape, bytes: usize, from: usize) -> Result<Duration> {
        write_all(&self.file, self.tile.bytes(), shape, bytes, from)
    }

    fn read_as(&mut self, shape: Shape, bytes: usize, compared: bool) -> Result<Duration> {
        let tile = compared.then_some(self.tile.bytes());
        read_all(&self.file, self.rooms.bytes_mut(), 0, tile, shape, bytes)
    }
}

impl Drop for PlainDisk {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Shape {
    fn json(self) -> Value {
        json!({ "threads": self.threads, "request_bytes": self.request })
    }

    /// Returns where the requests of one thread begin.
    fn places(self, thread: usize, bytes: usize) -> impl Iterator<Item = usize> {
        (thread * self.request..bytes).step_by(self.threads * self.request)
    }
}

/// Iterates over the whole range, from that place on.
fn write_all(file: &File, tile: &[u8], shape: Shape, bytes: usize, from: usize) -> Result<Duration> {
    let begun = Instant::now();
    let work = |thread| -> Result<Instant> {
        for at in shape.places(thread, bytes) {
            let at = (at + from) % bytes;
            let length = shape.request.min(bytes - at);
            file.write_all_at(&tile[at % TILE..][..length], at as u64)?;
        }
        Ok(Instant::now())
    };
    let ends = thread::scope(|scope| {
        let threads: Vec<_> = (0..shape.threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|it| it.join().expect("a thread that writes does not panic")).collect()
    });
    later(begun, ends)
}

/// Reads into `memory` bytes, or as little as the shape needs. Compares the last read of each thread with the content, if that is given.
fn read_all(
    file: &File,
    rooms: &mut [u8],
    over: usize,
    tile: Option<&[u8]>,
    shape: Shape,
    bytes: usize,
) -> Result<Duration> {
    let begun = Instant::now();
    let each = (over / shape.threads / shape.request).max(1) * shape.request;
    let work = |thread, room: &mut [u8]| -> Result<Instant> {
        let mut last = None;
        for (nth, at) in shape.places(thread, bytes).enumerate() {
            let (to, length) = (nth * shape.request % each, shape.request.min(bytes - at));
            file.read_exact_at(&mut room[to..][..length], at as u64)?;
            last = Some((to, at, length));
        }
        let end = Instant::now();
        if let (Some(tile), Some((to, at, length))) = (tile, last) {
            let is_same = room[to..][..length] == tile[at % TILE..][..length];
            ensure!(is_same, "the plain file is not as it was written");
        }
        Ok(end)
    };
    let ends = thread::scope(|scope| {
        let rooms = rooms.chunks_mut(each).take(shape.threads).enumerate();
        let threads: Vec<_> = rooms.map(|(thread, room)| scope.spawn(move || work(thread, room))).collect();
        threads.into_iter().map(|it| it.join().expect("a thread that reads does not panic")).collect()
    });
    later(begun, ends)
}

fn later(begun: Instant, ends: Vec<Result<Instant>>) -> Result<Duration> {
    let ends = ends.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(ends.into_iter().max().unwrap_or(begun) - begun)
}
