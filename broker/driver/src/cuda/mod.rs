//! The CUDA driver: memory of real GPUs, behind the same contract as the simulated one.
//!
//! A movable extent is a `cuMemCreate` handle, exported once; the descriptor is what clients get, each its own
//! duplicate through the socket. A fixed one is a `cuMemAlloc` block with a legacy handle. The daemon maps an extent
//! when it first looks at its bytes or moves them, and from then on for the extent's life. Memory of the host is pinned,
//! and mapped for the CPU and for all devices when it is made (`host_memory`); that is done ahead of need (`host_node`).
//!
//! ```text
//!            ┌──────────────────── submit ───────────────────┬────────────────────┐
//!       cuda-maker (a device each)   cuda-looker        cuda-digest ×2      cuda-copy (a direction
//!       create, export        release, survey, is the     copy out, hash     of a device each)
//!            │     │          context sound   │              │                    │
//!            │     │ not made          │      │ fixed        │                    │
//!            │     └────► cuda-freer ◄─┼──────┤              │                    │
//!            │                │        │      │ host         │                    │
//!            │   submit ──────┼────────┼─► cuda-host         │                    │
//!            │                │        │   pin, keep         │                    │
//!            └──────────► sink ◄───────┴──────┴──────────────┴────────────────────┘
//! ```
//!
//! Beside these are the threads of the disk, if there is one: who makes its files, and its two lanes (`crate::disk`).
//!
//! The driver has no way to revoke: memory lives while any process maps it or holds its descriptor, and the card's own
//! figures are all that tells whether it came back (`accounts`). An error that ends a context ends this driver:
//! [`Completion::Lost`] says so once, and nothing is answered any more.

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
    Completion, DeviceInfo, DiskConfig, DiskFacts, Driver, DriverError, ExtentKind, FreePinnedFacts,
    LinkFacts, Submission, Traffic,
    copies::{Lanes, Links, Table},
    disk::{DiskOrder, DiskWork},
    threads::Threads,
};

/// Where the libraries are, if not where they usually are, and where extents may lie on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaConfig {
    /// `libcuda.so.1`.
    pub library: Option<PathBuf>,
    /// `libnvidia-ml.so.1`.
    pub nvml: Option<PathBuf>,
    /// What `/proc/driver/nvidia/params` is.
    pub params: Option<PathBuf>,
    /// What `/sys/devices/system/node` is.
    pub nodes: Option<PathBuf>,
    /// What `/sys/bus/pci/devices` is.
    pub buses: Option<PathBuf>,
    pub disk: Option<DiskConfig>,
    /// Whether extents may be pieces of files.
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
    /// Taken away to end the threads.
    dispatcher: Mutex<Option<Dispatcher>>,
    threads: Threads,
}

/// Where submissions enter. The queues are as long as what the caller has outstanding.
struct Dispatcher {
    /// What copies move is found when they are submitted.
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
                        ReleaserOrder::Report(Completion::Created { extent, result: nowhere(device) }),
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
            Submission::PinAhead { node, size, piece, pieces_max } => {
                send(&self.hosts, HostOrder::PinAhead { node, size, piece, pieces_max });
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

fn nowhere<T>(device: DeviceIndex) -> Result<T, DriverError> {
    Err(DriverError::Failed(format!("there is no device {device}")))
}

/// What was submitted is still done.
/// Dropped from inside its own sink it waits for none of its threads.
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
