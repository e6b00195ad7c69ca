//! Finds the driver and its devices, before it uses any of them.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use broker_platform::readings::DeviceReadings;
use thiserror::Error;
use vramd_types::{Bytes, GRANULARITY};

use crate::cuda::{
    CudaConfig,
    api::{Api, Attribute, CudaError, Ordinal, Physical},
    device::nvml::{Instance, Nvml},
};
use crate::{DeviceInfo, DiskConfig};

/// The CUDA version of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(i32);

impl Version {
    pub(crate) fn of(number: i32) -> Self {
        Self(number)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Why CUDA is not available here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProbeError {
    #[error("no CUDA driver: {}: {problem}", .path.display())]
    NoLibrary { path: PathBuf, problem: String },
    #[error("{} is the toolkit's stub, which serves only for linking: put the driver's own library before it", .path.display())]
    Stub { path: PathBuf },
    #[error("the CUDA driver finds no device")]
    NoDevice,
    #[error("{} cannot be initialised: {name} ({code})", .path.display())]
    Init { path: PathBuf, code: u32, name: String },
    #[error("{}{} has no function {function}: install a newer driver", .path.display(), of_version(.version))]
    MissingFunction { path: PathBuf, function: &'static str, version: Option<Version> },
    #[error(transparent)]
    Failed(#[from] CudaError),
}

fn of_version(version: &Option<Version>) -> String {
    version.map_or_else(String::new, |version| format!(" (CUDA {version})"))
}

impl ProbeError {
    pub(crate) fn of_init(path: &Path, code: u32, name: &str) -> Self {
        const NO_DEVICE: u32 = 100;
        const STUB_LIBRARY: u32 = 34;
        match code {
            NO_DEVICE => Self::NoDevice,
            STUB_LIBRARY => Self::Stub { path: path.to_owned() },
            code => Self::Init { path: path.to_owned(), code, name: name.to_owned() },
        }
    }
}

/// A working driver and its devices.
#[derive(Debug)]
pub struct Probed {
    pub(crate) api: Arc<Api>,
    /// Or why it is not available.
    pub(crate) nvml: Result<&'static Nvml, String>,
    pub(crate) config: CudaConfig,
    pub(crate) found: Vec<FoundDevice>,
}

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// The size of a context is unknown before there is one: zero here.
    pub info: DeviceInfo,
    /// Why the device cannot be used.
    pub refused: Option<String>,
    pub(crate) ordinal: Option<Ordinal>,
}

impl Probed {
    /// The devices that CUDA shows this process, in its order, then MIG instances that it does not show.
    pub fn found(&self) -> &[FoundDevice] {
        &self.found
    }

    pub fn version(&self) -> Version {
        self.api.version()
    }

    /// Replaces the disk and the use of files. The size of the disk tier may depend on the number of devices.
    #[must_use]
    pub fn with_disk(self, disk: Option<DiskConfig>, files: bool) -> Self {
        Self { config: CudaConfig { disk, files, ..self.config }, ..self }
    }
}

/// Loads the driver and inspects its devices. Makes no context and allocates no memory.
pub fn probe(config: CudaConfig) -> Result<Probed, ProbeError> {
    let api = Api::load(config.library.as_deref())?;
    let ordinals = api.devices()?;
    let nvml = Nvml::open(config.nvml.as_deref());
    let instances = nvml.as_ref().map_or_else(|_| Vec::new(), |nvml| nvml.instances());
    let mut found = Vec::new();
    for ordinal in ordinals {
        found.push(inspect(&api, ordinal, &instances)?);
    }
    let unseen = instances.into_iter().filter(|it| !found.iter().any(|found| found.info.uuid == it.uuid));
    let unseen: Vec<FoundDevice> = unseen.map(other_instance).collect();
    found.extend(unseen);
    if found.is_empty() {
        return Err(ProbeError::NoDevice);
    }
    Ok(Probed { api, nvml, config, found })
}

fn inspect(api: &Api, ordinal: Ordinal, instances: &[Instance]) -> Result<FoundDevice, CudaError> {
    let hex = hex_of(api.device_uuid(ordinal)?);
    let instance = instances.iter().find(|instance| instance.uuid.ends_with(&hex));
    let uuid = instance.map_or_else(|| format!("GPU-{hex}"), |instance| instance.uuid.clone());
    let info = DeviceInfo {
        uuid,
        name: api.device_name(ordinal)?,
        total: api.total_memory(ordinal)?,
        context: Bytes::ZERO,
    };
    // A device that does not answer does not prevent the use of the others.
    let refused = refusal(api, ordinal).unwrap_or_else(|error| Some(error.to_string()));
    Ok(FoundDevice { info, refused, ordinal: Some(ordinal) })
}

/// Why a device that CUDA shows cannot be used.
fn refusal(api: &Api, ordinal: Ordinal) -> Result<Option<String>, CudaError> {
    const PROHIBITED: i32 = 2;
    const EXCLUSIVE_PROCESS: i32 = 3;
    let only_default = |mode: &str| {
        Some(format!(
            "its compute mode is {mode}, but clients need contexts beside the daemon's: set it to Default (nvidia-smi -c DEFAULT)"
        ))
    };
    match api.attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? {
        PROHIBITED => return Ok(only_default("Prohibited")),
        EXCLUSIVE_PROCESS => return Ok(only_default("Exclusive_Process")),
        _ => {}
    }
    for (attribute, what) in [
        (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, "virtual memory management"),
        (
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            "sharing of memory by file descriptor",
        ),
    ] {
        if api.attribute(ordinal, attribute)? == 0 {
            return Ok(Some(format!("it does not support {what}")));
        }
    }
    let granularity = Physical::granularity(api, ordinal, rdma(api, ordinal))?;
    if granularity.is_zero() || !GRANULARITY.is_multiple_of(granularity) {
        return Ok(Some(format!("its allocation granularity is {granularity}, which does not divide 2 MiB")));
    }
    Ok(None)
}

/// Reads the attributes that tell the platform. Older drivers do not know all of them.
pub(crate) fn readings(api: &Api, ordinal: Ordinal, info: &DeviceInfo) -> DeviceReadings {
    let value = |attribute| api.attribute(ordinal, attribute).ok();
    let is = |attribute| value(attribute).map(|value| value != 0);
    DeviceReadings {
        uuid: info.uuid.clone(),
        name: info.name.clone(),
        total_bytes: info.total.get(),
        integrated: is(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
        pageable_memory_access: is(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
        pageable_memory_access_uses_host_page_tables: is(
            Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        ),
        concurrent_managed_access: is(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS),
        direct_managed_mem_access_from_host: is(
            Attribute::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
        ),
        host_register_supported: is(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
        read_only_host_register_supported: is(
            Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
        ),
        host_numa_id: value(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
            .and_then(|node| u32::try_from(node).ok()),
        addressing_mode: None,
        simulated: None,
    }
}

/// Whether network cards can access the device's memory, if it is created for that.
pub(crate) fn rdma(api: &Api, ordinal: Ordinal) -> bool {
    let attribute = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    api.attribute(ordinal, attribute).is_ok_and(|supported| supported != 0)
}

/// Whether the driver has pinned host memory that is shared by descriptor.
pub(crate) fn host_by_descriptor(api: &Api, ordinal: Ordinal) -> bool {
    let attribute = Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    api.attribute(ordinal, attribute).is_ok_and(|supported| supported != 0)
}

/// CUDA opens one MIG instance in a process: the one that it shows.
fn other_instance(instance: Instance) -> FoundDevice {
    let reason = format!(
        "CUDA opens one MIG instance in a process, and this is another: a daemon of its own, started with \
         CUDA_VISIBLE_DEVICES={}, can serve it",
        instance.uuid
    );
    let info =
        DeviceInfo { uuid: instance.uuid, name: instance.name, total: instance.total, context: Bytes::ZERO };
    FoundDevice { info, refused: Some(reason), ordinal: None }
}

fn hex_of(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
