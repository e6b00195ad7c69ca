//! The simulated driver: device and host memory made of memfds, really mapped by other processes, without a
//! GPU.
//!
//! It keeps the lifetime rules of the real driver. An extent is one memfd, zero when fresh. A process that gets
//! its descriptor maps it with the access it chooses. The memory lives while any process maps it or holds its
//! descriptor: releasing an extent ends only the driver's own use. The driver finds remaining holders by a
//! survey of the processes themselves (`holders`), independent of any ledger.
//!
//! The free memory of a device is its configured capacity, less live extents, less released ones that some
//! process still holds, and less unexplained memory of its name, for example of an earlier daemon whose clients
//! live on. The last two are as of the latest survey, which is repeated before anything is refused because of
//! them. The node's pages are taken when bytes are first written, not when an extent is created. So the driver
//! does not notice a capacity above what the node has. The host has one node, with a configured capacity too. In NUMA
//! mode it has the number that follows those of the devices' memory.
//! Its memory is pinned ahead of need as in the real driver (`free_pinned`), though it takes no time here.
//!
//! ```text
//!            ┌─────────── submit: counts, faults ───────────┐
//!            │ at once                                      │ delayed
//!            │                                         sim-timer
//!            ├──────────────────┬──────────────────┬────────┴────────┐
//!        sim-maker          sim-surveyor      sim-digest ×2      sim-copy (a direction each)
//!     creates, pins      releases, surveys     hashes extents      moves bytes
//!            │        one survey for a batch       │                │
//!            └── no room but for others' ─►         │                │
//!                      ├──► disk-maker              │                │
//!                      └────────► sink ◄────────────┴────────────────┘
//! ```

mod accounts;
mod copier;
mod digester;
mod disk_mover;
mod fault;
mod holders;
mod maker;
mod mapping;
mod memory;
mod state;
mod surveyor;
mod timer;

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use broker_platform::{
    Platform,
    readings::{NumaNode, simulated_nodes},
};
use vramd_types::{Bytes, CopyId, DeviceIndex, HostNode};

pub use fault::{Effect, Fault, Operation};

use self::{
    copier::{MemoryMover, Uplink},
    disk_mover::{SimDiskMover, SimSide},
    fault::Schedule,
    memory::UUID_BYTES_MAX,
    state::State,
    timer::{Late, Order, Routes},
};
use crate::{
    Completion, DeviceInfo, DeviceReadings, DiskConfig, DiskFacts, Driver, DriverError, ExtentKind,
    FreePinnedFacts, LaneId, LinkFacts, Sink, Submission, Traffic,
    copies::{Links, Table, lane},
    disk::{self, Disk, DiskMover, Warn},
    threads::Threads,
};

/// A simulated node and its faults.
#[derive(Clone, Debug, Default)]
pub struct SimConfig {
    /// UUIDs name the memory for the whole node: two drivers that use the same UUID at the same time count each
    /// other's memory as unbrokered.
    pub devices: Vec<DeviceInfo>,
    /// The capacity of the host; ignored if there is no device.
    pub host: Bytes,
    /// A real directory, if extents may lie on disk.
    pub disk: Option<DiskConfig>,
    /// Whether extents may be ranges of files.
    pub files: bool,
    pub link: LinkSpeed,
    /// The speed of the link that all devices share.
    pub uplink: LinkSpeed,
    pub faults: Vec<Fault>,
    /// The platform that the devices play. It changes their readings, and the node of host memory.
    pub platform: Platform,
}

/// The speed of a link between devices and the host, in bytes per second; 0 is as fast as the machine allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSpeed {
    pub to_device: u64,
    pub to_host: u64,
}

/// The host memory that all buffers take: those of the disk.
pub fn buffers_max(disk: bool, files: bool) -> Bytes {
    let readers = Bytes::new((digester::THREADS * disk::READ_BUFFER) as u64);
    if disk || files { disk::RING_BUFFERS.saturating_add(readers) } else { Bytes::ZERO }
}

/// Opens the simulated devices. Fails if a UUID cannot be part of a memfd's name or occurs twice, if a fault is
/// impossible, if `/proc` cannot be read, or if the directory cannot hold extents.
pub fn open(config: SimConfig, sink: Sink) -> Result<SimDriver, DriverError> {
    check(&config.devices)?;
    let SimConfig { devices, host, disk, files, link, uplink, faults, platform } = config;
    let schedule = Schedule::new(faults)?;
    let disk = Disk::open(disk.as_ref(), files)?;
    let disk_facts = disk.as_ref().and_then(Disk::facts).cloned();
    let engine = disk.as_ref().map(Disk::engine);
    let host = if devices.is_empty() { Bytes::ZERO } else { host };
    let nodes = simulated_nodes(&readings(&devices, platform));
    // The nearest node is the first, which in NUMA mode is the memory of a device.
    let node = u16::try_from(NumaNode::for_host_memory(0, &nodes)).map_or(HostNode(0), HostNode);
    let state = Arc::new(State::new(devices.clone(), node, host, sink)?);

    let links = links(devices.len(), link, uplink);
    let uplink = Uplink::new(uplink);
    let own = Arc::clone(&state);
    let mut threads =
        Threads::new(move |problem| own.report(Completion::Lost { problem: problem.to_owned() }));
    let (routes, ends) = timer::routes(Arc::clone(&state), devices.len(), disk.is_some(), &links);
    let (late, due) = std::sync::mpsc::channel();
    // In the order of their end: each thread ends once all that could send to it have ended.
    let onward = routes.clone();
    threads.start("sim-timer", Box::new(move || timer::run(&due, &onward)))?;
    let (own, surveys) = (Arc::clone(&state), routes.surveys.clone());
    threads.start("sim-maker", Box::new(move || maker::run(&own, &ends.tasks, &surveys)))?;
    let (own, orders) = (Arc::clone(&state), routes.disk.clone());
    threads.start("sim-surveyor", Box::new(move || surveyor::run(&own, &ends.surveys, &orders)))?;
    let own = Arc::clone(&state);
    threads.start("disk-maker", Box::new(move || disk::run(disk.as_ref(), &own, &ends.disk)))?;
    for end in [ends.digests, ends.file_digests] {
        let digests = Arc::new(Mutex::new(end));
        for _ in 0..digester::THREADS {
            let (own, digests) = (Arc::clone(&state), Arc::clone(&digests));
            threads.start("sim-digest", Box::new(move || digester::run(&own, &digests)))?;
        }
    }
    for end in ends.lanes.memory {
        let (own, mover) = (Arc::clone(&state), MemoryMover::new(end.of, link, &uplink));
        threads.start(
            "sim-copy",
            Box::new(move || lane::run(mover, end.links, &end.orders, |it| own.report(it))),
        )?;
    }
    for (end, engine) in ends.lanes.disk.into_iter().zip(engine.into_iter().cycle()) {
        let own = Arc::clone(&state);
        let warn = Warn::by(move |problem| own.report(Completion::Warning { problem }));
        let mover = DiskMover::new(end.of, SimSide::default(), engine, warn)?;
        let (own, mover) = (Arc::clone(&state), SimDiskMover { direction: end.of, mover });
        threads.start("disk-copy", Box::new(move || disk::run_lane(mover, end, |it| own.report(it))))?;
    }
    let (copies, lanes) = (Arc::clone(routes.lanes.table()), Arc::clone(routes.lanes.links()));
    let dispatcher = Some(Dispatcher { schedule, routes, late });
    Ok(SimDriver {
        devices,
        node,
        platform,
        disk: disk_facts,
        links,
        copies,
        lanes,
        dispatcher: Mutex::new(dispatcher),
        threads,
    })
}

/// The readings of simulated devices that play this platform.
pub fn readings(devices: &[DeviceInfo], platform: Platform) -> Vec<DeviceReadings> {
    let simulated = |DeviceInfo { uuid, name, total, .. }: &DeviceInfo| {
        DeviceReadings::simulated(uuid.clone(), name.clone(), total.get(), platform)
    };
    devices.iter().map(simulated).collect()
}

/// The simulated driver.
pub struct SimDriver {
    devices: Vec<DeviceInfo>,
    /// The only one of host memory.
    node: HostNode,
    platform: Platform,
    disk: Option<DiskFacts>,
    links: Vec<LinkFacts>,
    copies: Arc<Table>,
    lanes: Arc<Links>,
    /// Taken to end the threads.
    dispatcher: Mutex<Option<Dispatcher>>,
    threads: Threads,
}

/// Passes submissions to the threads.
struct Dispatcher {
    schedule: Schedule,
    routes: Routes,
    late: std::sync::mpsc::Sender<Late>,
}

impl SimDriver {
    fn dispatcher(&self) -> MutexGuard<'_, Option<Dispatcher>> {
        self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn supports(&self, kind: ExtentKind) -> bool {
        kind == ExtentKind::Movable
    }

    fn readings(&self) -> Vec<DeviceReadings> {
        readings(&self.devices, self.platform)
    }

    fn host_node(&self, _device: DeviceIndex) -> HostNode {
        self.node
    }

    fn can_map_host(&self) -> bool {
        true
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
        self.dispatcher().as_ref().map_or(Bytes::ZERO, |dispatcher| dispatcher.routes.state.hashed.bytes())
    }

    fn free_pinned(&self) -> Vec<FreePinnedFacts> {
        let dispatcher = self.dispatcher();
        dispatcher
            .as_ref()
            .and_then(|dispatcher| dispatcher.routes.state.accounts().free_pinned(self.node))
            .into_iter()
            .collect()
    }

    fn copied_bytes(&self, copy: CopyId) -> Option<Bytes> {
        self.copies.copied(copy)
    }

    fn submit(&self, submission: Submission) {
        if let Some(dispatcher) = self.dispatcher().as_mut() {
            dispatcher.dispatch(submission);
        }
    }
}

impl Dispatcher {
    fn dispatch(&mut self, submission: Submission) {
        let fate = self.schedule.next_fate(&submission);
        let (delay, held_until) = (fate.delay, fate.held_until.clone());
        let Some(order) = Order::of(submission, fate, &self.routes) else { return };
        if delay.is_zero() && held_until.is_none() {
            self.routes.send(order);
            return;
        }
        let now = Instant::now();
        // A delay beyond the end of time does not delay.
        let due = now.checked_add(delay).unwrap_or(now);
        state::send(&self.late, Late { due, held_until, order });
    }
}

/// All submissions are still done, delayed ones at once. If the driver is dropped inside its own sink, it waits
/// for none of its threads.
impl Drop for SimDriver {
    fn drop(&mut self) {
        drop(self.dispatcher().take());
        self.threads.join();
    }
}

impl fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDriver").field("devices", &self.devices).finish_non_exhaustive()
    }
}

/// The configured speeds: there is nothing to measure. The uplink counts as shared if it is slower than all
/// lanes together.
fn links(devices: usize, link: LinkSpeed, uplink: LinkSpeed) -> Vec<LinkFacts> {
    type Of = fn(DeviceIndex) -> LaneId;
    let devices: Vec<DeviceIndex> = (0..).map(DeviceIndex).take(devices).collect();
    let ways: [(Of, u64, u64); 2] = [
        (LaneId::ToDevice, link.to_device, uplink.to_device),
        (LaneId::FromDevice, link.to_host, uplink.to_host),
    ];
    let own = devices.iter().flat_map(|device| {
        let speeds = ways.iter().filter(|(_, own, _)| *own > 0);
        speeds.map(move |(lane, own, _)| LinkFacts {
            name: format!("device {device}"),
            lanes: vec![(lane(*device), *own)],
        })
    });
    let count = devices.len() as u64;
    let is_narrow = |own: u64, shared: u64| shared > 0 && (own == 0 || shared < own.saturating_mul(count));
    let shared = ways.iter().filter(|(_, own, shared)| devices.len() > 1 && is_narrow(*own, *shared));
    let shared = shared.map(|(lane, _, carries)| LinkFacts {
        name: "uplink".to_owned(),
        lanes: devices.iter().map(|device| (lane(*device), *carries)).collect(),
    });
    own.chain(shared).collect()
}

fn check(devices: &[DeviceInfo]) -> Result<(), DriverError> {
    let mut uuids = HashSet::new();
    for DeviceInfo { uuid, total, .. } in devices {
        let plain = uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if uuid.is_empty() || uuid.len() > UUID_BYTES_MAX || !plain {
            return Err(DriverError::Failed(format!(
                "`{uuid}` is not a valid UUID of a simulated device: use 1 to {UUID_BYTES_MAX} letters, digits, `-`, `_` and `.`"
            )));
        }
        if !uuids.insert(uuid) {
            return Err(DriverError::Failed(format!("two devices have the UUID `{uuid}`")));
        }
        if *total > Bytes::new(i64::MAX.unsigned_abs()) {
            return Err(DriverError::Failed(format!("device `{uuid}` is larger than any file can be")));
        }
    }
    if devices.len() > usize::from(u16::MAX) {
        return Err(DriverError::Failed(format!(
            "{} devices are too many, at most {} are supported",
            devices.len(),
            u16::MAX
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
