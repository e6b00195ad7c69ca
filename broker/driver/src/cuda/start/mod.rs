//! Opens the driver: probes the devices, finds out what they can do, measures the links and starts the threads.

pub(crate) mod facts;
pub(crate) mod link_speeds;
pub(crate) mod probe;
pub(crate) mod scrub;

use std::{
    path::Path,
    sync::{Arc, Mutex, mpsc::channel},
};

use vramd_types::GRANULARITY;

use self::{
    facts::{CudaFacts, DeviceFacts, HostKind, Scrub},
    link_speeds::Measured,
    probe::Probed,
};
use super::{
    CudaDriver, Dispatcher,
    api::{Block, CudaError, Stream},
    copies::{copier::MemoryMover, digester, disk_side::CudaSide},
    device::{Device, numa},
    extents::{
        freer,
        maker::Maker,
        releaser::{self, Destinations},
    },
    host::{maker::HostMaker, memory::Pinner},
    state::State,
};
use crate::{
    Completion, DeviceInfo, DeviceReadings, DriverError, LinkFacts, Sink,
    copies::Lanes,
    disk::{self, Disk, DiskMover, Warn},
    threads::Threads,
};

/// Opens the devices of these UUIDs, numbered in this order. Makes a context on each, and checks whether fresh
/// memory is zero.
pub fn open(probed: Probed, uuids: &[String], sink: Sink) -> Result<CudaDriver, DriverError> {
    let Probed { api, nvml, config, found } = probed;
    let params = config.params.as_deref().unwrap_or_else(|| Path::new(scrub::PARAMS));
    let nodes = config.nodes.as_deref().unwrap_or_else(|| Path::new(numa::NODES));
    // Before any device, where a failure takes longer.
    let disk = Disk::open(config.disk.as_ref(), config.files)?;
    let (mut makers, mut facts) = (Vec::new(), Vec::new());
    for uuid in uuids {
        let found = found.iter().find(|found| found.info.uuid == *uuid);
        let found = found.ok_or_else(|| DriverError::Failed(format!("device {uuid} does not exist")))?;
        let ordinal = match (&found.refused, found.ordinal) {
            (None, Some(ordinal)) => ordinal,
            (refused, _) => {
                let why = refused.as_deref().unwrap_or("CUDA does not show it");
                return Err(DriverError::Failed(format!("device {uuid} cannot be used: {why}")));
            }
        };
        let card = nvml.as_ref().ok().and_then(|nvml| nvml.card(uuid));
        let opened = Device::open(&api, ordinal, found.info.clone(), card, nodes)
            .map_err(|error| DriverError::Failed(format!("cannot open device {uuid}: {error}")))?;
        let readings = probe::readings(&api, ordinal, &found.info);
        let (maker, of_device) = prepare(Arc::new(opened), params, probe::rdma(&api, ordinal), readings)
            .map_err(|error| DriverError::Failed(format!("cannot open device {uuid}: {error}")))?;
        makers.push(maker);
        facts.push(of_device);
    }
    let devices: Vec<Arc<Device>> = makers.iter().map(|maker| Arc::clone(&maker.device)).collect();
    let by_descriptor = devices.iter().all(|it| probe::host_by_descriptor(&api, it.context().device()));
    let host = if by_descriptor { HostKind::Numa } else { HostKind::Registered };
    let is_zero = host == HostKind::Registered || scrub::zeroes_host(params);
    let buses = config.buses.as_deref().unwrap_or_else(|| Path::new(numa::BUSES));
    let Measured { links, problem: unmeasured } =
        link_speeds::measure(&devices, buses).with_disk(disk.as_ref());
    let host_maker = HostMaker::new(Pinner { kind: host, devices: devices.clone(), is_zero });
    let facts = CudaFacts { version: api.version(), no_nvml: nvml.err(), host, unmeasured, devices: facts };
    let state = State::new(api, devices, host == HostKind::Registered, sink);
    start_threads(Arc::new(state), makers, host_maker, disk, links, facts)
}

/// Finds out the facts of an opened device.
fn prepare(
    device: Arc<Device>,
    params: &Path,
    rdma: bool,
    readings: DeviceReadings,
) -> Result<(Maker, DeviceFacts), CudaError> {
    // Other programs may have left no room for the check. That is no reason not to start.
    let scrub = match scrub::check(&device, params) {
        Err(error) if is_out_of_memory(&error) => {
            Scrub::Zeroing("there was no room for the check".to_owned())
        }
        checked => checked?,
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
        readings,
    };
    let zeroing = match scrub {
        Scrub::Certain => None,
        Scrub::Zeroing(_) => Some(Stream::new(device.context())?),
    };
    Ok((Maker { device, fixed, zeroing }, facts))
}

fn has_legacy_handles(device: &Device) -> Result<bool, CudaError> {
    let block = match Block::allocate(device.context(), GRANULARITY) {
        // The first fixed allocation will tell.
        Err(error) if is_out_of_memory(&error) => return Ok(true),
        block => block?,
    };
    // Drivers without legacy handles answer in different ways. A lost context is noticed at the next call.
    Ok(block.share(GRANULARITY).is_ok())
}

fn is_out_of_memory(error: &CudaError) -> bool {
    DriverError::from(error.clone()) == DriverError::OutOfMemory
}

fn start_threads(
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
    let mut threads =
        Threads::new(move |problem| own.report(Completion::Lost { problem: problem.to_owned() }));
    let (mut makes, (releases, releases_end), (frees, frees_end)) = (Vec::new(), channel(), channel());
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
    let (own, destinations) =
        (Arc::clone(&state), Destinations { frees, hosts: hosts.clone(), disk: disks.clone() });
    threads.start("cuda-releaser", Box::new(move || releaser::run(&own, &releases_end, &destinations)))?;
    let own = Arc::clone(&state);
    threads.start("cuda-freer", Box::new(move || freer::run(&own, &frees_end)))?;
    let own = Arc::clone(&state);
    threads.start("cuda-host", Box::new(move || host_maker.run(&own, &hosts_end)))?;
    let own = Arc::clone(&state);
    threads.start("disk-maker", Box::new(move || disk::run(disk.as_ref(), &own, &disks_end)))?;
    // Files take as long as their disk, and must not delay seals of memory.
    for end in [digests_end, file_digests_end] {
        let end = Arc::new(Mutex::new(end));
        for _ in 0..digester::THREADS {
            let (own, orders) = (Arc::clone(&state), Arc::clone(&end));
            threads.start("cuda-digest", Box::new(move || digester::run(&own, &orders)))?;
        }
    }
    let (lanes, lane_ends) = Lanes::new(devices.len(), engine.is_some(), &links);
    for end in lane_ends.memory {
        let (own, mover) = (Arc::clone(&state), MemoryMover::new(&state, end.of)?);
        threads.start("cuda-copy", Box::new(move || mover.run(&own, end)))?;
    }
    for (end, engine) in lane_ends.disk.into_iter().zip(engine.into_iter().cycle()) {
        let own = Arc::clone(&state);
        let warn = Warn::by(move |problem| own.report(Completion::Warning { problem }));
        let mover = DiskMover::new(end.of, CudaSide::new(&state)?, engine, warn)?;
        let own = Arc::clone(&state);
        threads.start("disk-copy", Box::new(move || disk::run_lane(mover, end, |it| own.report(it))))?;
    }
    let (copies, own_links) = (Arc::clone(lanes.table()), Arc::clone(lanes.links()));
    let dispatcher =
        Mutex::new(Some(Dispatcher { state, makes, releases, digests, file_digests, hosts, disks, lanes }));
    Ok(CudaDriver {
        devices,
        disk: disk_facts,
        links,
        facts,
        fixed,
        copies,
        lanes: own_links,
        dispatcher,
        threads,
    })
}
