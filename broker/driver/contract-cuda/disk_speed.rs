//! Measures how fast extents go to disk and come back, beside a plain program that reads and writes files of
//! the same size in the same directory with direct IO. No case, but figures for the reader of the report.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};

use broker_driver::{
    Completion, CopyClass, DiskConfig, DiskEngine, Driver, DriverError, ExtentKind, LaneId, Submission,
    contract::{Access, Harness},
};
use serde_json::{Value, json};
use vramd_types::{Bytes, CopyId, DeviceIndex, ExtentId};

use crate::plain_disk;

const SIZE: Bytes = Bytes::gib(1);
const ROUNDS: usize = 3;
const DEVICE: DeviceIndex = DeviceIndex(0);
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// Returns an entry for the report, and lines for people.
pub(crate) fn measure(harness: &dyn Harness) -> Result<(Value, String), String> {
    let folder = Folder::new(&harness.directory())?;
    let (mut value, mut text) = (json!({ "bytes": SIZE.get(), "rounds": ROUNDS }), String::new());
    for engine in [DiskEngine::Uring, DiskEngine::Threads] {
        match Measured::open(harness, &folder.0, engine) {
            Ok(mut measured) => {
                let of_disk = |(lane, _): &(LaneId, u64)| matches!(lane, LaneId::FromDisk | LaneId::ToDisk);
                for link in measured.driver.links().iter().filter(|link| link.lanes.iter().any(of_disk)) {
                    text.push_str(&format!("as the driver measured it, {link}\n"));
                }
                let (figures, line) = measured.all(harness, &folder.0)?;
                value[engine.to_string()] = figures;
                text.push_str(&format!("disk by {engine}, GB/s, beside a plain program: {line}\n"));
            }
            Err(problem) => text.push_str(&format!("disk by {engine}: {problem}\n")),
        }
    }
    Ok((value, text.trim_end().to_owned()))
}

/// Deleted when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(directory: &Path) -> Result<Self, String> {
        let path = directory.join(format!("vramd-disk-speed-{}", process::id()));
        fs::create_dir(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Measured {
    driver: Arc<dyn Driver>,
    completions: Receiver<Completion>,
    copies: u64,
}

const ON_DEVICE: ExtentId = ExtentId::from_raw(1);
const IN_HOST: ExtentId = ExtentId::from_raw(2);
const ON_DISK: ExtentId = ExtentId::from_raw(3);

impl Measured {
    fn open(harness: &dyn Harness, directory: &Path, engine: DiskEngine) -> Result<Self, DriverError> {
        let config = DiskConfig { directory: directory.to_owned(), capacity: SIZE, engine: Some(engine) };
        let (driver, completions) = harness.open_with_disk(Some(config), Vec::new())?;
        Ok(Self { driver, completions, copies: 0 })
    }

    fn all(&mut self, harness: &dyn Harness, folder: &Path) -> Result<(Value, String), String> {
        let node = self.driver.host_node(DEVICE);
        self.made(Submission::CreateHost { extent: IN_HOST, node, size: SIZE, zeroed: false }, harness)?;
        let kind = ExtentKind::Movable;
        self.made(Submission::Create { extent: ON_DEVICE, device: DEVICE, size: SIZE, kind }, harness)?;
        self.made(Submission::CreateDisk { extent: ON_DISK, size: SIZE }, harness)?;
        self.copy(IN_HOST, ON_DEVICE)?;
        let file = folder.join(format!("vramd-extent-{}", ON_DISK.get()));
        let plain = plain_disk::Plain::new(folder.join("plain"), SIZE)?;
        let fresh = (self.copy(ON_DEVICE, ON_DISK)?, plain.write()?);
        let ways = [
            ("disk_write", ON_DEVICE, ON_DISK),
            ("disk_read", ON_DISK, ON_DEVICE),
            ("disk_write_from_host", IN_HOST, ON_DISK),
            ("disk_read_to_host", ON_DISK, IN_HOST),
        ];
        let mut figures = json!({
            "disk_write_fresh": { "gb_per_s": speed(fresh.0), "plain": speed(fresh.1) },
        });
        let mut line = String::new();
        for (name, from, to) in ways {
            let (mut took, mut beside) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                took.push(self.copy(from, to)?);
                beside.push(if to == ON_DISK { plain.write()? } else { plain_disk::read(&file, SIZE)? });
            }
            let (own, plain) = (speed(median(took)), speed(median(beside)));
            figures[name] = json!({ "gb_per_s": own, "plain": plain, "share": own / plain });
            line.push_str(&format!("{name} {own:.2} of {plain:.2} ({:.0} %); ", 100.0 * own / plain));
        }
        Ok((figures, line.trim_end_matches("; ").to_owned()))
    }

    /// Creates an extent, and fills it if it is host memory.
    fn made(&self, submission: Submission, harness: &dyn Harness) -> Result<(), String> {
        self.driver.submit(submission);
        match self.next()? {
            Completion::Created { extent, result } => {
                let export = result.map_err(|error| error.to_string())?;
                if extent == IN_HOST {
                    let mut importer = harness.importer();
                    importer.import(&export, DEVICE, SIZE);
                    importer.map(Access::ReadWrite);
                    (0..SIZE.get()).step_by(STEP).for_each(|at| {
                        importer.write(at, &noise(at));
                    });
                }
                Ok(())
            }
            Completion::DiskCreated { result, .. } => result.map_err(|error| error.to_string()),
            other => Err(format!("unexpected: {other:?}")),
        }
    }

    fn copy(&mut self, from: ExtentId, to: ExtentId) -> Result<Duration, String> {
        self.copies += 1;
        let (copy, begun) = (CopyId::from_raw(self.copies), Instant::now());
        self.driver.submit(Submission::Copy { copy, from, to, size: SIZE, class: CopyClass::Demand });
        match self.next()? {
            Completion::Copied { result, .. } => result.map_err(|error| error.to_string())?,
            other => return Err(format!("unexpected: {other:?}")),
        }
        Ok(begun.elapsed())
    }

    fn next(&self) -> Result<Completion, String> {
        self.completions.recv_timeout(ANSWER_MAX).map_err(|_| "the driver does not answer".to_owned())
    }
}

const STEP: usize = 1 << 20;

/// Bytes that no disk compresses.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..STEP / 8).flat_map(|_| next()).collect()
}

/// In GB/s.
fn speed(took: Duration) -> f64 {
    u32::try_from(SIZE.get() >> 20).map_or(0.0, f64::from) * f64::from(1 << 20) / took.as_secs_f64() / 1e9
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}
