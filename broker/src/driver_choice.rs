//! Chooses the driver and opens it.

use std::{path::Path, sync::Arc};

use broker_driver::{
    DeviceInfo, DeviceReadings, DirectoryError, Driver, DriverError, Sink,
    cuda::{self, CudaConfig, CudaDriver, HostKind, Probed},
    probe_disk, sim,
};
use broker_platform::{Readings, collect};

use crate::{
    config::{self, Config, DeviceChoice, DriverKind, HostTier, SimDevices, SimRevocation},
    exit::Failure,
    platform::{
        gpu,
        host::{Host, HostUse},
    },
};

/// An open driver.
#[derive(Debug)]
pub struct Chosen {
    pub driver: Arc<dyn Driver>,
    /// Why this driver was chosen: one sentence for operators.
    pub reason: String,
    /// Scheduled revocations; empty except on a simulated node.
    pub revocations: Vec<SimRevocation>,
    pub host_use: HostUse,
    pub host: HostTier,
}

/// The name of the simulated driver.
pub const SIM: &str = "sim";

/// A driver that is chosen and not open yet.
enum Choice {
    Cuda { probed: Box<Probed>, uuids: Vec<String>, reason: String },
    Sim { devices: Vec<DeviceInfo>, reason: String },
}

impl Choice {
    fn into_devices(self) -> Vec<DeviceInfo> {
        match self {
            Self::Cuda { probed, uuids, .. } => {
                let found = probed.found().iter().map(|found| &found.info);
                found.filter(|device| uuids.contains(&device.uuid)).cloned().collect()
            }
            Self::Sim { devices, .. } => devices,
        }
    }
}

/// Opens the configured driver with the configured devices. Completions go to `sink`.
pub fn open(config: &Config, socket_dir: &Path, sink: Sink) -> Result<Chosen, Failure> {
    open_on(Path::new("/"), config, socket_dir, sink)
}

fn open_on(root: &Path, config: &Config, socket_dir: &Path, sink: Sink) -> Result<Chosen, Failure> {
    let (devices, reason) = match choose(root, config, socket_dir)? {
        Choice::Cuda { probed, uuids, reason } => return open_cuda(config, *probed, &uuids, sink, reason),
        Choice::Sim { devices, reason } => (devices, reason),
    };
    let mut node = SimDevices { sim: &config.driver.sim, socket_dir }.config();
    node.devices = devices;
    let host_use = sim_host_use(config);
    let host = host_tier(config, simulated(config, &node.devices), host_use)?;
    node.host = host.total(node.devices.len());
    node.disk = config.disk.config(node.devices.len());
    node.files = config.files.are_loaded();
    let revocations = config.driver.sim.revocations.clone();
    Ok(Chosen {
        driver: Arc::new(sim::open(node, sink).map_err(|error| failure(config, error))?),
        reason,
        revocations,
        host_use,
        host,
    })
}

fn simulated(config: &Config, devices: &[DeviceInfo]) -> Vec<DeviceReadings> {
    sim::readings(devices, config.driver.sim.platform)
}

/// Chooses the host tier of a node with these devices.
fn host_tier(config: &Config, devices: Vec<DeviceReadings>, by: HostUse) -> Result<HostTier, Failure> {
    let count = devices.len();
    let readings = Readings { devices: Some(devices), ..collect("vramd") };
    Ok(config::host_tier(&config.memory, count, Host::of_process(by), &readings)?)
}

/// A memfd is charged to the cgroup of the process that touches it.
fn sim_host_use(config: &Config) -> HostUse {
    let buffers = sim::buffers_max(config.disk.config(1).is_some(), config.files.are_loaded());
    HostUse { locked: false, in_cgroup: true, buffers }
}

/// Tries what [`open`] and the checks after it need, and opens nothing: driver, devices, the disk directory, and sizes
/// against this machine. Returns the devices and the host tier.
pub fn check(config: &Config, socket_dir: &Path) -> Result<(Vec<DeviceInfo>, HostTier), Failure> {
    let choice = choose(Path::new("/"), config, socket_dir)?;
    let is_simulated = matches!(choice, Choice::Sim { .. });
    let devices = choice.into_devices();
    let (readings, host_use) = if is_simulated {
        (simulated(config, &devices), sim_host_use(config))
    } else {
        // Only an open driver says what its devices are, and whether its host memory counts for this process.
        let unknown =
            |device: &DeviceInfo| DeviceReadings { uuid: device.uuid.clone(), ..Default::default() };
        (devices.iter().map(unknown).collect(), HostUse::default())
    };
    let host = host_tier(config, readings, host_use)?;
    if let Some(disk) = config.disk.config(devices.len()) {
        probe_disk(&disk).map_err(|problem| failure(config, DriverError::Directory(problem)))?;
    }
    Ok((devices, host))
}

/// Chooses the driver and its devices.
fn choose(root: &Path, config: &Config, socket_dir: &Path) -> Result<Choice, Failure> {
    let reason = match config.driver.kind {
        DriverKind::Cuda => return choose_cuda(config, probe(config)?, "configured".to_owned()),
        DriverKind::Sim => "configured".to_owned(),
        DriverKind::Auto => match usable(config) {
            Ok(probed) => {
                let reason = format!("auto: CUDA {} has a usable device", probed.version());
                return choose_cuda(config, probed, reason);
            }
            Err((why, found)) => {
                // Simulated memory in place of a GPU's would look like success.
                if let Some(device) = found.or_else(|| gpu::nvidia_device(root)) {
                    return Err(Failure::BrokenDriver { device, why });
                }
                format!("auto: {why}")
            }
        },
    };
    let devices = SimDevices { sim: &config.driver.sim, socket_dir }.config().devices;
    Ok(Choice::Sim { devices: config::choose(&config.memory.devices, devices)?, reason })
}

/// Converts an error of the directory to one that names the configuration's line.
fn failure(config: &Config, error: DriverError) -> Failure {
    match error {
        DriverError::Directory(problem) => Failure::Disk {
            wrong: config.disk.explain(&problem),
            in_use: matches!(problem, DirectoryError::InUse { .. }),
        },
        error => Failure::Driver(error),
    }
}

fn probe(config: &Config) -> Result<Probed, Failure> {
    let config::Cuda { library, nvml_library } = config.driver.cuda.clone();
    Ok(cuda::probe(CudaConfig { library, nvml: nvml_library, ..CudaConfig::default() })?)
}

/// Probes CUDA for at least one usable device. The error says why there is none, and which device CUDA found.
fn usable(config: &Config) -> Result<Probed, (String, Option<String>)> {
    let probed = probe(config).map_err(|failure| (failure.to_string(), None))?;
    if probed.found().iter().any(|found| found.refused.is_none()) {
        Ok(probed)
    } else {
        let found = probed.found().first().map(|found| found.info.uuid.clone());
        Err((refusals(&probed), found))
    }
}

fn refusals(probed: &Probed) -> String {
    let refused = probed.found().iter().filter_map(|found| {
        found.refused.as_ref().map(|why| format!("device {} cannot be used: {why}", found.info.uuid))
    });
    refused.collect::<Vec<_>>().join("; ")
}

/// Chooses devices of CUDA. Devices named in the configuration must all be usable; otherwise the usable ones are taken.
fn choose_cuda(config: &Config, probed: Probed, reason: String) -> Result<Choice, Failure> {
    let all: Vec<DeviceInfo> = probed.found().iter().map(|found| found.info.clone()).collect();
    let is_named = matches!(config.memory.devices, DeviceChoice::These(_));
    let mut uuids: Vec<String> = Vec::new();
    for device in config::choose(&config.memory.devices, all)? {
        let refused = probed.found().iter().find(|found| found.info.uuid == device.uuid);
        match refused.and_then(|found| found.refused.as_ref()) {
            Some(why) if !is_named => {
                tracing::warn!(uuid = device.uuid, name = device.name, why, "device not used")
            }
            Some(why) => {
                let problem = format!("device {} cannot be used: {why}", device.uuid);
                return Err(Failure::Driver(DriverError::Failed(problem)));
            }
            None => uuids.push(device.uuid),
        }
    }
    if uuids.is_empty() {
        return Err(Failure::Driver(DriverError::Failed(refusals(&probed))));
    }
    Ok(Choice::Cuda { probed: Box::new(probed), uuids, reason })
}

fn open_cuda(
    config: &Config,
    probed: Probed,
    uuids: &[String],
    sink: Sink,
    reason: String,
) -> Result<Chosen, Failure> {
    let probed = probed.with_disk(config.disk.config(uuids.len()), config.files.are_loaded());
    let driver = cuda::open(probed, uuids, sink).map_err(|error| failure(config, error))?;
    log_facts(&driver);
    let is_registered = driver.facts().host == HostKind::Registered;
    let buffers = cuda::buffers_max(uuids.len(), config.disk.config(1).is_some(), config.files.are_loaded());
    let host_use = HostUse { locked: is_registered, in_cgroup: is_registered, buffers };
    let host = host_tier(config, driver.readings(), host_use)?;
    Ok(Chosen { driver: Arc::new(driver), reason, revocations: Vec::new(), host_use, host })
}

/// Logs facts that an operator may need later.
fn log_facts(driver: &CudaDriver) {
    let facts = driver.facts();
    if let Some(problem) = &facts.no_nvml {
        tracing::warn!(
            problem,
            "NVML is missing: CUDA contexts of clients cannot be told from memory of other programs"
        );
    }
    if let Some(problem) = &facts.unmeasured {
        tracing::warn!(problem, "links were not measured: each link schedules its copies by itself");
    }
    for device in &facts.devices {
        tracing::debug!(
            uuid = device.uuid,
            cuda = %facts.version,
            scrub = %device.scrub,
            context_size = %device.context_size,
            nvml = device.nvml,
            lists_processes = device.lists_processes,
            legacy_handles = device.fixed,
            rdma = device.rdma,
            host = %facts.host,
            host_node = %device.host_node,
            "CUDA device"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use broker_driver::cuda::ProbeError;
    use fake_cuda::Fake;

    use super::*;

    fn open_with(change: impl FnOnce(&mut Config)) -> Result<Chosen, Failure> {
        let mut config = Config::default();
        config.driver.cuda.library = Some("/nowhere/libcuda.so.1".into());
        change(&mut config);
        let dir = tempfile::tempdir().unwrap();
        // A machine without devices.
        open_on(dir.path(), &config, dir.path(), Arc::new(|_| {}))
    }

    fn on(fake: &Fake, kind: DriverKind) -> impl FnOnce(&mut Config) + use<> {
        let library: PathBuf = fake.library();
        move |config| {
            config.driver.kind = kind;
            config.driver.cuda.library = Some(library.clone());
            config.driver.cuda.nvml_library = Some(library);
        }
    }

    #[test]
    fn the_choice_comes_with_its_reason() {
        assert_eq!(open_with(|config| config.driver.kind = DriverKind::Sim).unwrap().reason, "configured");
        let auto = open_with(|_| {}).unwrap();
        assert_eq!((auto.driver.name(), auto.driver.devices().len()), ("sim", 1));
        assert!(auto.reason.contains("no CUDA driver: /nowhere/libcuda.so.1"), "{}", auto.reason);
    }

    #[test]
    fn auto_takes_a_usable_gpu() {
        let cuda = open_with(on(&Fake::new(), DriverKind::Auto)).unwrap();
        assert_eq!((cuda.driver.name(), cuda.driver.devices().len()), ("cuda", 1));
        for (line, reason) in [("init = 34", "the toolkit's stub"), ("init = 100", "finds no device")] {
            let sim = open_with(on(&Fake::new().with(line), DriverKind::Auto)).unwrap();
            assert_eq!(sim.driver.name(), SIM, "{line}");
            assert!(sim.reason.contains(reason), "{}", sim.reason);
        }
    }

    #[test]
    fn auto_simulates_nothing_where_a_device_is() {
        let unusable = open_with(on(&Fake::new().with("compute_mode = 3"), DriverKind::Auto)).unwrap_err();
        let said = unusable.to_string();
        assert!(said.contains("Exclusive_Process") && said.contains("driver.kind = \"sim\""), "{said}");
        assert_eq!(unusable.exit(), crate::exit::Exit::Driver);

        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:01:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("vendor"), "0x10de\n").unwrap();
        std::fs::write(device.join("class"), "0x030200\n").unwrap();
        let mut config = Config::default();
        config.driver.cuda.library = Some("/nowhere/libcuda.so.1".into());
        let broken = open_on(root.path(), &config, root.path(), Arc::new(|_| {})).unwrap_err().to_string();
        assert!(broken.contains("0000:01:00.0") && broken.contains("/nowhere/libcuda.so.1"), "{broken}");
        config.driver.kind = DriverKind::Sim;
        open_on(root.path(), &config, root.path(), Arc::new(|_| {})).unwrap();
    }

    #[test]
    fn registered_host_memory_counts_as_locked_and_in_the_cgroup() {
        let used = |fake: &Fake| open_with(on(fake, DriverKind::Cuda)).unwrap().host_use;
        let buffers = cuda::buffers_max(1, false, false);
        let by_driver = HostUse { buffers, ..HostUse::default() };
        assert_eq!(used(&Fake::new()), by_driver, "the driver pins it by itself");
        let registered = used(&Fake::new().with("attribute.141 = 0"));
        let is_registered = HostUse { locked: true, in_cgroup: true, buffers };
        assert_eq!(registered, is_registered, "where it has none that goes by descriptor");
        let sim = open_with(|config| config.driver.kind = DriverKind::Sim).unwrap().host_use;
        assert_eq!(sim, HostUse { in_cgroup: true, ..HostUse::default() });
    }

    #[test]
    fn each_failure_to_open_has_its_own_kind() {
        let cuda = open_with(|config| config.driver.kind = DriverKind::Cuda);
        assert!(matches!(cuda, Err(Failure::Cuda(ProbeError::NoLibrary { .. }))));
        let absent = open_with(|config| config.memory.devices = DeviceChoice::These(vec!["7".into()]));
        assert!(matches!(absent, Err(Failure::Device(_))));
        let twice = open_with(|config| {
            config.driver.sim.devices[0].uuid = Some("GPU-x".into());
            let again = config.driver.sim.devices[0].clone();
            config.driver.sim.devices.push(again);
        });
        assert!(matches!(twice, Err(Failure::Driver(_))));
    }

    #[test]
    fn a_named_device_is_used_or_refused() {
        let fake = Fake::new().with("mig = 2").with("devices = 2");
        let named = |index: &str| {
            let choose = on(&fake, DriverKind::Cuda);
            let index = index.to_owned();
            open_with(move |config| {
                choose(config);
                config.memory.devices = DeviceChoice::These(vec![index]);
            })
        };
        assert!(named("1").unwrap().driver.devices()[0].uuid.starts_with("GPU-"));
        let refused = named("2").unwrap_err();
        assert!(matches!(refused, Failure::Driver(_)));
        assert!(refused.to_string().contains("CUDA_VISIBLE_DEVICES=MIG-"), "{refused}");
        assert!(matches!(named("3"), Err(Failure::Device(_))));
        let all = open_with(on(&fake, DriverKind::Cuda)).unwrap();
        assert_eq!(all.driver.devices().len(), 2, "the instance out of reach is left out");
    }
}
