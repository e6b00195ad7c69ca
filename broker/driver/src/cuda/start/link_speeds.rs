//! Measures the speed of the links between devices and host memory when the driver is opened: each lane alone,
//! and lanes together that may share a link. Lanes share a link if together they are slower than the sum of
//! each alone.

use std::{
    collections::VecDeque,
    fmt, fs, mem,
    path::Path,
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use vramd_types::{Bytes, DeviceIndex};

use crate::cuda::{
    api::{Block, CudaError, KeepAlive, Pinned, Stream, Transfer, TransferKind},
    copies::pinned,
    device::Device,
    host::headroom,
};
use crate::{
    DriverError, LaneId, LinkFacts,
    copies::shared_link,
    disk::{self, Disk},
};

/// Long enough that one chunk more or less is a hundredth of it, on a link of 55 GB/s.
const MEASURE_FOR: Duration = Duration::from_millis(20);
/// A link on which no chunk ends within this time is not measured further.
const GIVE_UP_AFTER: Duration = Duration::from_secs(2);
/// Chunks as in the lanes, and enough of them that the link never waits for this thread.
const CHUNK: Bytes = Bytes::mib(16);
const IN_FLIGHT: usize = 3;
/// Each chunk lies elsewhere than the last few, so that no cache of the host has it.
const CHUNKS: usize = 4;
/// The buffer of each device, while it is measured.
pub(crate) const BUFFER: Bytes = Bytes::new(CHUNK.get() * CHUNKS as u64);

/// The measured links. A link that could not be measured is a problem to report, but does not prevent the
/// start.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) links: Vec<LinkFacts>,
    pub(crate) problem: Option<String>,
}

enum Problem {
    Cuda(CudaError),
    Slow,
}

impl From<CudaError> for Problem {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(error) => error.fmt(f),
            Self::Slow => write!(f, "no copy of {CHUNK} ended within {GIVE_UP_AFTER:?}"),
        }
    }
}

/// A path that devices may share, with a name for people and these devices. Narrower ones come first.
type SharedPath = (String, Vec<DeviceIndex>);

pub(crate) fn measure(devices: &[Arc<Device>], buses: &Path) -> Measured {
    let opened: Vec<Result<_, DriverError>> = thread::scope(|scope| {
        // Each near its device: memory belongs to the node of the thread that touches it first.
        let opening: Vec<_> = devices.iter().map(|device| scope.spawn(|| open(device))).collect();
        opening
            .into_iter()
            .map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let (mut measured, mut ends) = (Measured { links: Vec::new(), problem: None }, Vec::new());
    for (device, opened) in (0..).map(DeviceIndex).zip(opened) {
        match opened.and_then(|opened| Ok(DeviceEnds::new(opened)?)) {
            Ok(end) => ends.push((device, end)),
            Err(error) => measured.failed(&format!("device {device}"), &error),
        }
    }
    let opened = ends.iter().map(|(device, _)| *device).collect();
    let paths = shared_paths(devices, buses);
    measured.measure_links(opened, paths, &mut |lanes| measure_together(&mut runs_of(&mut ends, lanes)));
    measured
}

/// Measures the speeds of lanes while they run together, in bytes per second and in the order of the lanes.
type Together<'a> = &'a mut dyn FnMut(&[LaneId]) -> Result<Vec<u64>, Problem>;

impl Measured {
    /// Adds the links of the disk, if there is one.
    pub(crate) fn with_disk(mut self, disk: Option<&Disk>) -> Self {
        let measured = |disk: &Disk| match headroom::limit_below_for_daemon(disk::MEASURE_BUFFERS) {
            Some(limit) => Err(DriverError::OutOfHostMemory(limit)),
            None => disk.measure(),
        };
        match disk.filter(|disk| disk.facts().is_some()).map_or(Ok(Vec::new()), measured) {
            Ok(links) => self.links.extend(links),
            Err(error) => self.failed("disk", &error),
        }
        self
    }

    fn failed(&mut self, what: &str, problem: &dyn fmt::Display) {
        let before = self.problem.take().map_or_else(String::new, |before| before + "; ");
        self.problem = Some(format!("{before}{what}: {problem}"));
    }

    /// Measures each lane alone, then the lanes of each path together. A device that fails is not measured again.
    fn measure_links(
        &mut self,
        mut devices: Vec<DeviceIndex>,
        paths: Vec<SharedPath>,
        together: Together<'_>,
    ) {
        devices.retain(|device| self.measure_alone(*device, together));
        let mut before = CarriedSoFar::new(&self.links, &devices);
        for (name, members) in paths {
            self.measure_path(&name, &members, &mut before, together);
        }
    }

    /// Measures each direction of a device. Returns whether both could be measured.
    fn measure_alone(&mut self, device: DeviceIndex, together: Together<'_>) -> bool {
        for lane in [LaneId::ToDevice(device), LaneId::FromDevice(device)] {
            let name = lane.to_string();
            match together(&[lane]) {
                Ok(carries) => {
                    let lanes = carries.into_iter().map(|carries| (lane, carries)).collect();
                    self.links.push(LinkFacts { name, lanes });
                }
                Err(problem) => {
                    self.failed(&name, &problem);
                    return false;
                }
            }
        }
        true
    }

    /// Measures a path in one direction, the other, and both at once. The speeds are compared with those that
    /// the lanes had together before: a limit of a narrower path is not attributed to this one.
    fn measure_path(
        &mut self,
        name: &str,
        members: &[DeviceIndex],
        before: &mut CarriedSoFar,
        together: Together<'_>,
    ) {
        for (kind, inward, outward) in [(" in", true, false), (" out", false, true), ("", true, true)] {
            let is_on = |lane: &LaneId| match lane {
                LaneId::ToDevice(device) => inward && members.contains(device),
                LaneId::FromDevice(device) => outward && members.contains(device),
                _ => false,
            };
            let is_both = inward && outward;
            let on = before.of(is_on, is_both);
            if on.len() < 2 {
                continue;
            }
            let name = format!("{name}{kind}");
            let lanes: Vec<LaneId> = on.iter().map(|(lane, _)| *lane).collect();
            match together(&lanes) {
                Ok(carried) => {
                    self.links.extend(shared_link(&name, &on, &carried));
                    before.carried(&on, &carried, is_both);
                }
                Err(problem) => return self.failed(&name, &problem),
            }
        }
    }
}

/// The speeds of lanes so far, in one direction at once and in both.
struct CarriedSoFar {
    lanes: Vec<(LaneId, [u64; 2])>,
}

impl CarriedSoFar {
    /// Each lane of these devices alone.
    fn new(links: &[LinkFacts], devices: &[DeviceIndex]) -> Self {
        let is_of = |lane: &LaneId| match lane {
            LaneId::ToDevice(device) | LaneId::FromDevice(device) => devices.contains(device),
            _ => false,
        };
        let alone = links.iter().flat_map(|link| &link.lanes).filter(|(lane, _)| is_of(lane));
        Self { lanes: alone.map(|(lane, carries)| (*lane, [*carries; 2])).collect() }
    }

    /// Both directions are no faster than each of them.
    fn of(&self, is_on: impl Fn(&LaneId) -> bool, is_both: bool) -> Vec<(LaneId, u64)> {
        let on = self.lanes.iter().filter(|(lane, _)| is_on(lane));
        on.map(|(lane, [one, both])| (*lane, if is_both { *one.min(both) } else { *one })).collect()
    }

    fn carried(&mut self, on: &[(LaneId, u64)], carried: &[u64], is_both: bool) {
        for (lane, carries) in &mut self.lanes {
            let at = on.iter().position(|(of, _)| of == lane);
            if let Some(carried) = at.and_then(|at| carried.get(at)) {
                carries[usize::from(is_both)] = *carried;
            }
        }
    }
}

/// A device and host memory near it, with a stream in each direction.
struct DeviceEnds {
    inward: Run,
    outward: Run,
}

/// Copies that follow each other.
struct Run {
    stream: Stream,
    kind: TransferKind<'static>,
    from: u64,
    to: u64,
    memory: RunMemory,
    next: usize,
}

#[derive(Clone)]
struct RunMemory {
    _both: Rc<(Block, Pinned)>,
}

impl KeepAlive for RunMemory {}

fn open(device: &Arc<Device>) -> Result<(Arc<Device>, Block, Pinned), DriverError> {
    device.run_near();
    let length = usize::try_from(BUFFER.get()).unwrap_or(usize::MAX);
    let block = Block::allocate(device.context(), BUFFER)?;
    Ok((Arc::clone(device), block, pinned::new_buffer(device.context(), length)?))
}

impl DeviceEnds {
    fn new((device, block, host): (Arc<Device>, Block, Pinned)) -> Result<Self, CudaError> {
        let context = device.context();
        let (on_device, in_host) = (block.address(), host.address());
        let memory = RunMemory { _both: Rc::new((block, host)) };
        let run = |kind, from, to| {
            Ok(Run { stream: Stream::new(context)?, kind, from, to, memory: memory.clone(), next: 0 })
        };
        Ok(Self {
            inward: run(TransferKind::HostToDevice, in_host, on_device)?,
            outward: run(TransferKind::DeviceToHost, on_device, in_host)?,
        })
    }
}

impl Run {
    fn begin(&mut self) -> Result<Transfer<RunMemory>, CudaError> {
        let at = CHUNK.get() * (self.next % CHUNKS) as u64;
        self.next += 1;
        let length = usize::try_from(CHUNK.get()).unwrap_or(usize::MAX);
        self.stream.copy(self.memory.clone(), self.kind, self.from + at, self.to + at, length)
    }
}

/// The runs of these lanes, in their order.
fn runs_of<'e>(ends: &'e mut [(DeviceIndex, DeviceEnds)], lanes: &[LaneId]) -> Vec<&'e mut Run> {
    let runs = ends.iter_mut().flat_map(|(device, end)| {
        [(LaneId::ToDevice(*device), &mut end.inward), (LaneId::FromDevice(*device), &mut end.outward)]
    });
    let mut runs: Vec<_> = runs.filter(|(lane, _)| lanes.contains(lane)).collect();
    runs.sort_by_key(|(lane, _)| lanes.iter().position(|of| of == lane));
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Chunks of several runs, in the order of their beginning.
type InFlight = Vec<VecDeque<Transfer<RunMemory>>>;

/// The speed of each run, in bytes per second, while all run together.
fn measure_together(runs: &mut [&mut Run]) -> Result<Vec<u64>, Problem> {
    let mut in_flight = Vec::new();
    let carried = measured(runs, &mut in_flight);
    let carried = carried.and_then(|carried| ended(&mut in_flight).map(|()| carried));
    if carried.is_err() {
        // Dropping them would wait for their end.
        mem::forget(in_flight);
    }
    carried
}

fn measured(runs: &mut [&mut Run], in_flight: &mut InFlight) -> Result<Vec<u64>, Problem> {
    in_flight.extend(runs.iter().map(|_| VecDeque::new()));
    for (run, chunks) in runs.iter_mut().zip(in_flight.iter_mut()) {
        for _ in 0..IN_FLIGHT {
            chunks.push_back(run.begin()?);
        }
    }
    let mut ended: Vec<(u64, Option<Instant>, Instant)> = vec![(0, None, Instant::now()); runs.len()];
    let began = Instant::now();
    // Until each run has measured something, however slow it is.
    while began.elapsed() < MEASURE_FOR || ended.iter().any(|(chunks, ..)| *chunks < 2) {
        in_time(began)?;
        for ((run, chunks), (count, first, last)) in runs.iter_mut().zip(in_flight.iter_mut()).zip(&mut ended)
        {
            let Some(front) = chunks.front_mut() else { continue };
            if front.poll()? {
                chunks.pop_front();
                chunks.push_back(run.begin()?);
                *last = Instant::now();
                // Everything before the first end is start-up.
                match first {
                    None => *first = Some(*last),
                    Some(_) => *count += 1,
                }
            }
        }
    }
    Ok(ended
        .into_iter()
        .map(|(count, first, last)| rate(count, first.map_or(Duration::ZERO, |first| last - first)))
        .collect())
}

/// Waits for the end of all chunks, within a limit.
fn ended(in_flight: &mut InFlight) -> Result<(), Problem> {
    let began = Instant::now();
    for chunk in in_flight.iter_mut().flatten() {
        while !chunk.poll()? {
            in_time(began)?;
            thread::yield_now();
        }
    }
    Ok(())
}

fn in_time(began: Instant) -> Result<(), Problem> {
    if began.elapsed() > GIVE_UP_AFTER { Err(Problem::Slow) } else { Ok(()) }
}

fn rate(chunks: u64, took: Duration) -> u64 {
    let bytes = u128::from(chunks) * u128::from(CHUNK.get());
    u64::try_from(bytes * 1_000_000_000 / took.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// From the kernel's tree of buses: the switches above several devices, and the node of host memory.
fn shared_paths(devices: &[Arc<Device>], buses: &Path) -> Vec<SharedPath> {
    let mut shared_paths: Vec<SharedPath> = Vec::new();
    let mut join =
        |name: String, device: DeviceIndex| match shared_paths.iter_mut().find(|(known, _)| *known == name) {
            Some((_, members)) => members.push(device),
            None => shared_paths.push((name, vec![device])),
        };
    for (index, device) in (0..).map(DeviceIndex).zip(devices) {
        let path = device.bus().and_then(|bus| fs::canonicalize(buses.join(bus)).ok());
        let above: Vec<String> = path.iter().flat_map(|path| bridges(path)).collect();
        above.into_iter().for_each(|bridge| join(format!("uplink {bridge}"), index));
        join(format!("node {}", device.node()), index);
        join(format!("device {index}"), index);
    }
    shared_paths.sort_by_key(|(name, members)| (members.len(), !name.starts_with("device")));
    let mut known: Vec<Vec<DeviceIndex>> = Vec::new();
    shared_paths.retain(|(_, members)| {
        let is_new = !known.contains(members);
        known.extend(is_new.then(|| members.clone()));
        is_new
    });
    shared_paths
}

/// The bridges above a PCI device, from the path of its folder: the nearest first.
fn bridges(path: &Path) -> Vec<String> {
    let names = path.iter().filter_map(|name| name.to_str());
    let functions = names.filter(|name| name.split(':').count() == 3 && name.contains('.'));
    let mut bridges: Vec<String> = functions.map(str::to_owned).collect();
    bridges.pop();
    bridges.reverse();
    bridges
}

#[cfg(test)]
mod tests;
