//! Finds the holders of the node's memory in `/proc`, so that no process need report.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsRawFd, BorrowedFd},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::script::script;

/// One piece of device memory and its holders.
#[derive(Debug)]
pub(crate) struct HeldPiece {
    pub(crate) device: usize,
    size: usize,
    creator: u32,
    holders: Vec<u32>,
}

impl HeldPiece {
    /// The process that is charged: the creator while it holds the piece, else the first holder.
    fn charged(&self) -> u32 {
        if self.holders.contains(&self.creator) { self.creator } else { self.holders[0] }
    }
}

/// Stands for host memory, which belongs to no device.
pub(crate) const HOST: usize = usize::MAX;

/// The name of a piece's memfd.
pub(crate) fn name(device: usize) -> String {
    format!("fake-cuda:{}:{device}:{}", script().text("node", "fake"), std::process::id())
}

/// Every piece on the node, by inode.
pub(crate) fn survey() -> BTreeMap<u64, HeldPiece> {
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // Processes come and go, and some are foreign: what cannot be read counts as absent.
        descriptors(&mut seen, pid, &entry.path());
        mappings(&mut seen, pid, &entry.path());
    }
    seen
}

/// The size of page tables, which belong to no process.
static TABLES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn used(device: usize) -> usize {
    let pieces = survey().into_values().filter(|it| it.device == device);
    pieces.map(|it| it.size).sum::<usize>() + TABLES.load(Ordering::Relaxed)
}

pub(crate) fn set_tables(size: usize) {
    TABLES.store(size, Ordering::Relaxed);
}

pub(crate) fn processes(device: usize) -> BTreeMap<u32, usize> {
    let mut processes = BTreeMap::new();
    for it in survey().values().filter(|it| it.device == device) {
        *processes.entry(it.charged()).or_default() += it.size;
    }
    processes
}

/// The device of a piece's file, which another process may have made.
pub(crate) fn device_of(fd: BorrowedFd<'_>) -> Option<usize> {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    Some(parse(link.to_str()?)?.0)
}

/// Device and creator, from a name as the kernel shows it.
fn parse(text: &str) -> Option<(usize, u32)> {
    let name = text.split_once("/memfd:fake-cuda:")?.1.split(' ').next()?;
    let mut parts = name.split(':');
    if parts.next()? != script().text("node", "fake") {
        return None;
    }
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn enter(seen: &mut BTreeMap<u64, HeldPiece>, inode: u64, text: &str, size: usize, pid: u32) {
    let Some((device, creator)) = parse(text) else { return };
    let it = seen.entry(inode).or_insert_with(|| HeldPiece { device, size, creator, holders: Vec::new() });
    if !it.holders.contains(&pid) {
        it.holders.push(pid);
    }
}

fn descriptors(seen: &mut BTreeMap<u64, HeldPiece>, pid: u32, process: &Path) {
    for fd in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
        let Ok(link) = fs::read_link(fd.path()) else { continue };
        let Some(link) = link.to_str().filter(|link| link.starts_with("/memfd:fake-cuda:")) else { continue };
        if let Ok(file) = fs::metadata(fd.path()) {
            enter(seen, file.ino(), link, usize::try_from(file.len()).unwrap_or(0), pid);
        }
    }
}

fn mappings(seen: &mut BTreeMap<u64, HeldPiece>, pid: u32, process: &Path) {
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    for line in maps.lines().filter(|line| line.contains("/memfd:fake-cuda:")) {
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { continue };
        let hex = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        if let Some(inode) = words.nth(3).and_then(|inode| inode.parse().ok()) {
            enter(seen, inode, line, hex(end) - hex(start), pid);
        }
    }
}
