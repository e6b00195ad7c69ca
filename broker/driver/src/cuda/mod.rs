//! The CUDA driver: memory of real GPUs, behind the same contract as the simulated one.
//!
//! A movable extent is a `cuMemCreate` handle, exported once. Each client gets its own duplicate of that
//! descriptor through the socket. A fixed extent is a `cuMemAlloc` block with a legacy handle. The daemon maps
//! an extent when it first reads or moves its bytes, and keeps the mapping for the extent's life. Host memory
//! is pinned, and mapped for the CPU and all devices when it is created (`host::memory`); the driver does that
//! ahead of need (`host::node`).
//!
//! ```text
//!            ┌──────────────────── submit ───────────────────┬────────────────────┐
//!       cuda-maker (a device each)   cuda-releaser      cuda-digest ×2      cuda-copy (a direction
//!       create, export        release, survey, is the     copy out, hash     of a device each)
//!            │     │          context sound   │              │                    │
//!            │     │ failed           │      │ fixed        │                    │
//!            │     └────► cuda-freer ◄─┼──────┤              │                    │
//!            │                │        │      │ host         │                    │
//!            │   submit ──────┼────────┼─► cuda-host         │                    │
//!            │                │        │   pin, free         │                    │
//!            └──────────► sink ◄───────┴──────┴──────────────┴────────────────────┘
//! ```
//!
//! Beside these are the threads of the disk, if there is one: `disk-maker` for its files, and two lanes
//! (`crate::disk`).
//!
//! CUDA cannot revoke memory: it lives while any process maps it or holds its descriptor, and only the device's
//! own figures tell whether it has returned (`device::accounts`). An error that ends a context ends this
//! driver: it reports [`Completion::Lost`] once, and answers nothing any more.

mod api;
mod copies;
mod device;
mod extents;
mod host;
pub mod peer;
mod start;
mod state;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::Sender},
};

use vramd_types::{Bytes, CopyId, DeviceIndex, HostNode};

pub use self::{
    api::CudaError,
    copies::pinned::buffers_max,
    start::{
        facts::{ContextSize, CudaFacts, DeviceFacts, HostKind, Scrub},
        open,
        probe::{FoundDevice, ProbeError, Probed, Version, probe},
    },
};
use self::{
    copies::{copier, digester::Digest},
    device::memory::ExtentMemory,
    extents::{maker::Make, releaser::ReleaserOrder},
    host::maker::HostOrder,
    state::{State, send},
};
use crate::{
    Completion, DeviceInfo, DeviceReadings, DiskConfig, DiskFacts, Driver, DriverError, ExtentKind,
    FreePinnedFacts, LinkFacts, Submission, Traffic,
    copies::{Lanes, Links, Table},
    disk::{DiskOrder, DiskWork},
    threads::Threads,
};

/// Paths of libraries and kernel folders, if they are not the usual ones, and the disk for extents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaConfig {
    /// Instead of `libcuda.so.1`.
    pub library: Option<PathBuf>,
    /// Instead of `libnvidia-ml.so.1`.
    pub nvml: Option<PathBuf>,
    /// Instead of `/proc/driver/nvidia/params`.
    pub params: Option<PathBuf>,
    /// Instead of `/sys/devices/system/node`.
    pub nodes: Option<PathBuf>,
    /// Instead of `/sys/bus/pci/devices`.
    pub buses: Option<PathBuf>,
    pub disk: Option<DiskConfig>,
    /// Whether extents may be ranges of files.
    pub files: bool,
}

/// The CUDA driver.
pub struct CudaDriver {
    devices: Vec<DeviceInfo>,
    disk: Option<DiskFacts>,
    links: Vec<LinkFacts>,
    facts: CudaFacts,
    fixed: bool,
    copies: Arc<Table>,
    lanes: Arc<Links>,
    /// Taken to end the threads.
    dispatcher: Mutex<Option<Dispatcher>>,
    threads: Threads,
}

/// Passes submissions to the threads. The queues are as long as the caller's outstanding submissions.
struct Dispatcher {
    /// The extents of a copy are found when it is submitted.
    state: Arc<State>,
    makes: Vec<Sender<Make>>,
    releases: Sender<ReleaserOrder>,
    digests: Sender<Digest>,
    file_digests: Sender<Digest>,
    hosts: Sender<HostOrder>,
    disks: Sender<DiskOrder>,
    lanes: Lanes<copier::Work, DiskWork<ExtentMemory>>,
}

impl CudaDriver {
    pub fn facts(&self) -> &CudaFacts {
        &self.facts
    }

    fn dispatcher(&self) -> MutexGuard<'_, Option<Dispatcher>> {
        self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn supports(&self, kind: ExtentKind) -> bool {
        kind == ExtentKind::Movable || self.fixed
    }

    fn readings(&self) -> Vec<DeviceReadings> {
        self.facts.devices.iter().map(|facts| facts.readings.clone()).collect()
    }

    fn host_node(&self, device: DeviceIndex) -> HostNode {
        self.facts.devices.get(usize::from(device.0)).map_or(HostNode(0), |facts| facts.host_node)
    }

    fn can_map_host(&self) -> bool {
        self.facts.host == HostKind::Numa
    }

    fn disk(&self) -> Option<&DiskFacts> {
        self.disk.as_ref()
    }

    fn links(&self) -> &[LinkFacts] {
        &self.links
    }

    fn traffic(&self) -> Vec<Traffic> {
        self.lanes.traffic()
    }

    fn hashed_bytes(&self) -> Bytes {
        self.dispatcher().as_ref().map_or(Bytes::ZERO, |dispatcher| dispatcher.state.hashed.bytes())
    }

    fn free_pinned(&self) -> Vec<FreePinnedFacts> {
        self.dispatcher().as_ref().map(|dispatcher| dispatcher.state.free_pinned()).unwrap_or_default()
    }

    fn copied_bytes(&self, copy: CopyId) -> Option<Bytes> {
        self.copies.copied(copy)
    }

    fn submit(&self, submission: Submission) {
        if let Some(dispatcher) = self.dispatcher().as_ref() {
            dispatcher.dispatch(submission);
        }
    }
}

impl Dispatcher {
    fn dispatch(&self, submission: Submission) {
        match submission {
            Submission::Create { extent, device, size, kind } => {
                match self.makes.get(usize::from(device.0)) {
                    Some(maker) => send(maker, Make { extent, size, kind }),
                    None => send(
                        &self.releases,
                        ReleaserOrder::Report(Completion::Created { extent, result: unknown_device(device) }),
                    ),
                }
            }
            Submission::Release { extent } => send(&self.releases, ReleaserOrder::Release { extent }),
            Submission::Survey { device, clients } => {
                send(&self.releases, ReleaserOrder::Survey { device, clients })
            }
            Submission::Digest { ticket, spans } => {
                let of_file = spans.first().is_some_and(|(extent, _)| self.state.is_in_file(*extent));
                let to = if of_file { &self.file_digests } else { &self.digests };
                send(to, Digest { ticket, spans });
            }
            Submission::CreateHost { extent, node, size, zeroed } => {
                send(&self.hosts, HostOrder::Make { extent, node, size, zeroed });
            }
            Submission::PinAhead { node, size, piece, pieces_max, pace } => {
                send(&self.hosts, HostOrder::PinAhead { node, size, piece, pieces_max, pace });
            }
            Submission::CreateDisk { extent, size } => {
                send(&self.disks, DiskOrder::Make { extent, size, failure: None });
            }
            Submission::OpenFile { extent, size, span } => {
                send(&self.disks, DiskOrder::Open { extent, size, span });
            }
            Submission::Copy { copy, from, to, size, class } => {
                let requested = self.lanes.table().register(copy, size, class);
                self.lanes.send(requested, copier::find(&self.state, from, to, size));
            }
            Submission::CancelCopy { copy } => self.lanes.cancel(copy),
            Submission::SetShares { shares } => self.lanes.links().set_shares(shares),
            Submission::HastenCopy { copy } => self.lanes.hasten(copy),
            Submission::ReleaseNow { device } => send(&self.releases, ReleaserOrder::ReleaseNow { device }),
        }
    }
}

fn unknown_device<T>(device: DeviceIndex) -> Result<T, DriverError> {
    Err(DriverError::Failed(format!("device {device} does not exist")))
}

/// All submissions are still done. If the driver is dropped inside its own sink, it waits for none of its
/// threads.
impl Drop for CudaDriver {
    fn drop(&mut self) {
        drop(self.dispatcher().take());
        self.threads.join();
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver").field("devices", &self.devices).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
