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

mod accounts;
mod api;
mod buffers;
mod contexts;
mod copier;
mod device;
mod digester;
mod disk_copier;
mod disk_room;
mod facts;
mod freer;
mod host_maker;
mod host_memory;
mod host_node;
mod host_room;
mod links;
mod looker;
mod maker;
mod memory;
mod node;
mod nvml;
pub mod peer;
mod pinned;
mod probe;
mod put_off;
mod scrub;
mod state;
mod surveys;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Sender, channel},
    },
};

use vramd_types::{Bytes, CopyId, DeviceIndex, GRANULARITY, HostNode};

pub use self::{
    api::CudaError,
    facts::{ContextSize, CudaFacts, DeviceFacts, HostKind, Scrub},
    pinned::buffers_max,
    probe::{Found, Probed, Version, Why, probe},
};
use self::{
    api::{Block, Stream},
    copier::Wire,
    device::Device,
    digester::Digest,
    disk_copier::CudaSide,
    host_maker::{HostMaker, HostOrder},
    host_memory::Pinner,
    links::Measured,
    looker::{Look, Onward},
    maker::{Make, Maker},
    memory::Held,
    state::{State, hand},
};
use crate::{
    Completion, DeviceInfo, DiskConfig, DiskFacts, Driver, DriverError, ExtentKind, KeptFacts, LinkFacts,
    Sink, Submission, Traffic,
    copies::{Lanes, Links, Table},
    disk::{self, Disk, DiskLink, DiskOrder, DiskWork, Warn},
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

/// Opens the devices of these UUIDs, numbered in this order. Makes a context on each, and looks whether memory is
/// zeroed as it should be.
pub fn open(probed: Probed, uuids: &[String], sink: Sink) -> Result<CudaDriver, DriverError> {
    let Probed { api, nvml, config, found } = probed;
    let params = config.params.as_deref().unwrap_or_else(|| Path::new(scrub::PARAMS));
    let nodes = config.nodes.as_deref().unwrap_or_else(|| Path::new(node::NODES));
    // Before any device, where it takes longer to fail.
    let disk = Disk::open(config.disk.as_ref(), config.files)?;
    let (mut makers, mut facts) = (Vec::new(), Vec::new());
    for uuid in uuids {
        let found = found.iter().find(|found| found.info.uuid == *uuid);
        let found = found.ok_or_else(|| DriverError::Failed(format!("there is no device {uuid}")))?;
        let ordinal = match (&found.refused, found.ordinal) {
            (None, Some(ordinal)) => ordinal,
            (refused, _) => {
                let why = refused.as_deref().unwrap_or("CUDA does not show it");
                return Err(DriverError::Failed(format!("device {uuid} cannot be used: {why}")));
            }
        };
        let card = nvml.as_ref().ok().and_then(|nvml| nvml.card(uuid));
        let opened = Device::open(&api, ordinal, found.info.clone(), card, nodes)
            .map_err(|error| DriverError::Failed(format!("open device {uuid}: {error}")))?;
        let (maker, of_device) = prepare(Arc::new(opened), params, probe::rdma(&api, ordinal))
            .map_err(|error| DriverError::Failed(format!("open device {uuid}: {error}")))?;
        makers.push(maker);
        facts.push(of_device);
    }
    let devices: Vec<Arc<Device>> = makers.iter().map(|maker| Arc::clone(&maker.device)).collect();
    let by_descriptor = devices.iter().all(|it| probe::host_by_descriptor(&api, it.context().device()));
    let host = if by_descriptor { HostKind::Numa } else { HostKind::Registered };
    let is_zero = host == HostKind::Registered || scrub::zeroes_host(params);
    let buses = config.buses.as_deref().unwrap_or_else(|| Path::new(node::BUSES));
    let Measured { links, problem: unmeasured } = links::measure(&devices, buses).and_disk(disk.as_ref());
    let host_maker = HostMaker::new(Pinner { kind: host, devices: devices.clone(), is_zero });
    let facts = CudaFacts { version: api.version(), no_nvml: nvml.err(), host, unmeasured, devices: facts };
    let state = State::new(api, devices, host == HostKind::Registered, sink);
    start(Arc::new(state), makers, host_maker, disk, links, facts)
}

/// What is found out about a device once it is open.
fn prepare(device: Arc<Device>, params: &Path, rdma: bool) -> Result<(Maker, DeviceFacts), CudaError> {
    // Outsiders may have left no room to look; that is their right, and no reason not to start.
    let scrub = match scrub::look(&device, params) {
        Err(error) if is_out_of_memory(&error) => Scrub::Zeroing("there was no room to look".to_owned()),
        looked => looked?,
    };
    let fixed = has_legacy_handles(&device)?;
    let facts = DeviceFacts {
        uuid: device.info().uuid.clone(),
        scrub: scrub.clone(),
        context_size: device.context_size(),
        nvml: device.has_nvml(),
        lists_processes: device.lists_processes(),
        fixed,
        rdma,
        host_node: device.node(),
    };
    let zeroing = match scrub {
        Scrub::Certain => None,
        Scrub::Zeroing(_) => Some(Stream::new(device.context())?),
    };
    Ok((Maker { device, fixed, zeroing }, facts))
}

fn has_legacy_handles(device: &Device) -> Result<bool, CudaError> {
    let block = match Block::allocate(device.context(), GRANULARITY) {
        // Found out at the first fixed allocation.
        Err(error) if is_out_of_memory(&error) => return Ok(true),
        block => block?,
    };
    // What it says where there are none differs; a context that came to harm is found out at the next call.
    Ok(block.share(GRANULARITY).is_ok())
}

fn is_out_of_memory(error: &CudaError) -> bool {
    DriverError::from(error.clone()) == DriverError::OutOfMemory
}

fn start(
    state: Arc<State>,
    makers: Vec<Maker>,
    host_maker: HostMaker,
    disk: Option<Disk>,
    links: Vec<LinkFacts>,
    facts: CudaFacts,
) -> Result<CudaDriver, DriverError> {
    let devices: Vec<DeviceInfo> = state.devices.iter().map(|device| device.info().clone()).collect();
    let fixed = makers.iter().all(|maker| maker.fixed);
    let own = Arc::clone(&state);
    let mut threads = Threads::new(move |problem| own.tell(Completion::Lost { problem: problem.to_owned() }));
    let (mut makes, (looks, looks_end), (frees, frees_end)) = (Vec::new(), channel(), channel());
    let ((digests, digests_end), (file_digests, file_digests_end)) = (channel(), channel());
    let ((hosts, hosts_end), (disks, disks_end)) = (channel(), channel());
    let disk_facts = disk.as_ref().and_then(Disk::facts).cloned();
    let engine = disk.as_ref().map(Disk::engine);
    for maker in makers {
        let (order, orders) = channel();
        makes.push(order);
        let (own, frees) = (Arc::clone(&state), frees.clone());
        threads.start("cuda-maker", Box::new(move || maker.run(&own, &orders, &frees)))?;
    }
    let (own, onward) = (Arc::clone(&state), Onward { frees, hosts: hosts.clone(), disk: disks.clone() });
    threads.start("cuda-looker", Box::new(move || looker::run(&own, &looks_end, &onward)))?;
    let own = Arc::clone(&state);
    threads.start("cuda-freer", Box::new(move || freer::run(&own, &frees_end)))?;
    let own = Arc::clone(&state);
    threads.start("cuda-host", Box::new(move || host_maker.run(&own, &hosts_end)))?;
    let own = Arc::clone(&state);
    threads.start("disk-maker", Box::new(move || disk::run(disk.as_ref(), &own, &disks_end)))?;
    // Files take as long as their disk does, and hold up nobody's seal.
    for end in [digests_end, file_digests_end] {
        let end = Arc::new(Mutex::new(end));
        for _ in 0..digester::THREADS {
            let (own, orders) = (Arc::clone(&state), Arc::clone(&end));
            threads.start("cuda-digest", Box::new(move || digester::run(&own, &orders)))?;
        }
    }
    let (lanes, lane_ends) = Lanes::new(devices.len(), engine.is_some(), &links);
    for end in lane_ends.memory {
        let (own, wire) = (Arc::clone(&state), Wire::new(&state, end.of)?);
        threads.start("cuda-copy", Box::new(move || wire.run(&own, end)))?;
    }
    for (end, engine) in lane_ends.disk.into_iter().zip(engine.into_iter().cycle()) {
        let own = Arc::clone(&state);
        let warn = Warn::by(move |problem| own.tell(Completion::Warning { problem }));
        let link = DiskLink::new(end.of, CudaSide::new(&state)?, engine, warn)?;
        let own = Arc::clone(&state);
        threads.start("disk-copy", Box::new(move || disk::run_lane(link, end, |it| own.tell(it))))?;
    }
    let (copies, own_links) = (Arc::clone(lanes.table()), Arc::clone(lanes.links()));
    let inlet = Mutex::new(Some(Inlet { state, makes, looks, digests, file_digests, hosts, disks, lanes }));
    Ok(CudaDriver {
        devices,
        disk: disk_facts,
        links,
        facts,
        fixed,
        copies,
        lanes: own_links,
        inlet,
        threads,
    })
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
    inlet: Mutex<Option<Inlet>>,
    threads: Threads,
}

/// Where submissions enter. The queues are as long as what the caller has outstanding.
struct Inlet {
    /// What copies move is found when they are submitted.
    state: Arc<State>,
    makes: Vec<Sender<Make>>,
    looks: Sender<Look>,
    digests: Sender<Digest>,
    file_digests: Sender<Digest>,
    hosts: Sender<HostOrder>,
    disks: Sender<DiskOrder>,
    lanes: Lanes<copier::Work, DiskWork<Held>>,
}

impl CudaDriver {
    pub fn facts(&self) -> &CudaFacts {
        &self.facts
    }

    fn inlet(&self) -> MutexGuard<'_, Option<Inlet>> {
        self.inlet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn makes(&self, kind: ExtentKind) -> bool {
        kind == ExtentKind::Movable || self.fixed
    }

    fn host_node(&self, device: DeviceIndex) -> HostNode {
        self.facts.devices.get(usize::from(device.0)).map_or(HostNode(0), |facts| facts.host_node)
    }

    fn maps_host(&self) -> bool {
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

    fn hashed(&self) -> Bytes {
        self.inlet().as_ref().map_or(Bytes::ZERO, |inlet| inlet.state.hashed.bytes())
    }

    fn kept(&self) -> Vec<KeptFacts> {
        self.inlet().as_ref().map(|inlet| inlet.state.kept()).unwrap_or_default()
    }

    fn copied_bytes(&self, copy: CopyId) -> Option<Bytes> {
        self.copies.copied(copy)
    }

    fn submit(&self, submission: Submission) {
        if let Some(inlet) = self.inlet().as_ref() {
            inlet.take(submission);
        }
    }
}

impl Inlet {
    fn take(&self, submission: Submission) {
        match submission {
            Submission::Create { extent, device, size, kind } => {
                match self.makes.get(usize::from(device.0)) {
                    Some(maker) => hand(maker, Make { extent, size, kind }),
                    None => hand(
                        &self.looks,
                        Look::Answer(Completion::Created { extent, result: nowhere(device) }),
                    ),
                }
            }
            Submission::Release { extent } => hand(&self.looks, Look::Release { extent }),
            Submission::Survey { device, clients } => hand(&self.looks, Look::Survey { device, clients }),
            Submission::Digest { ticket, spans } => {
                let of_file = spans.first().is_some_and(|(extent, _)| self.state.is_in_file(*extent));
                let to = if of_file { &self.file_digests } else { &self.digests };
                hand(to, Digest { ticket, spans });
            }
            Submission::CreateHost { extent, node, size, zeroed } => {
                hand(&self.hosts, HostOrder::Make { extent, node, size, zeroed });
            }
            Submission::KeepHost { node, size, piece, pieces_max } => {
                hand(&self.hosts, HostOrder::Keep { node, size, piece, pieces_max });
            }
            Submission::CreateDisk { extent, size } => {
                hand(&self.disks, DiskOrder::Make { extent, size, failure: None });
            }
            Submission::OpenFile { extent, size, span } => {
                hand(&self.disks, DiskOrder::Open { extent, size, span });
            }
            Submission::Copy { copy, from, to, size, class } => {
                let asked = self.lanes.table().ask(copy, size, class);
                self.lanes.send(asked, copier::find(&self.state, from, to, size));
            }
            Submission::CancelCopy { copy } => self.lanes.cancel(copy),
            Submission::ShareBy { shares } => self.lanes.links().share_by(shares),
            Submission::HastenCopy { copy } => self.lanes.hasten(copy),
            Submission::ReleaseNow { device } => hand(&self.looks, Look::ReleaseNow { device }),
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
        drop(self.inlet().take());
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
