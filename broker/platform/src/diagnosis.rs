//! Judges the readings of a node for an operator.

use std::fmt::{self, Write as _};

use serde::Serialize;
use vramd_types::Bytes;

use crate::{
    Certainty, Detected, HostBound, HostNeed, HostShare, Platform, SHARE_PERCENT, file_access, host_share,
    platform,
    readings::{DaemonReadings, DeviceReadings, FallBackReadings, Readings},
};

/// Open files with which a daemon serves few parts on any node.
const OPEN_FILES_FEW: u64 = 4096;
/// How many times the parts of the ordinary size must fit, since allocations are often smaller than one.
const PARTS_SLACK: u64 = 4;
/// Mappings that a client needs for itself beside those of its parts.
const OWN_MAPPINGS: u64 = 1024;
/// The default of `limits.words_per_session_max`.
const WORDS_DEFAULT: u64 = 65_536;
/// The default of `memory.part_size`.
const PART_SIZE: Bytes = Bytes::mib(256);
/// Memory that a daemon takes for itself in its cgroup.
const DAEMON: Bytes = Bytes::mib(64);

/// A limit that stands in the way, or a fact to know, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The limit or subject, like `memory lock`.
    pub about: &'static str,
    pub text: String,
    /// The remedy; empty if nothing helps or nothing must be done.
    pub set: String,
}

/// All that can be said of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    pub detected: Detected,
    /// Consequences of the platform for memory that the daemon hands out.
    pub follows: Vec<String>,
    /// The tiers, one line each.
    pub tiers: Vec<String>,
    /// How the devices read files that clients map, and the copies that were made instead. Empty without a driver.
    pub files: Vec<String>,
    /// Limits that stand in the way. Empty if none does.
    pub limits: Vec<Finding>,
    /// Memory that Kubernetes counts wrongly on such a node.
    pub kubernetes: Vec<Finding>,
    /// Choices of the running daemon; empty without one.
    pub daemon: Vec<String>,
}

/// Judges the readings.
pub fn diagnose(readings: &Readings) -> Diagnosis {
    let detected = platform(readings);
    let share = share_of(readings);
    Diagnosis {
        follows: follows(readings, &detected),
        tiers: tiers(readings, detected.platform, share),
        files: files(readings),
        limits: limits(readings, &detected, share),
        kubernetes: kubernetes(readings, detected.platform),
        daemon: readings.daemon.as_ref().map(daemon).unwrap_or_default(),
        detected,
    }
}

/// The automatic host tier of a daemon with the default configuration.
fn share_of(readings: &Readings) -> HostShare {
    let nvidia = &readings.nvidia;
    let by_kernel = nvidia.models.len().max(nvidia.pci_devices.len()).max(1);
    let need = HostNeed {
        devices: readings.devices.as_ref().map_or(by_kernel, Vec::len),
        part_size: PART_SIZE,
        daemon: DAEMON,
        locked: readings.daemon.as_ref().is_some_and(|daemon| daemon.host_locked_by_daemon),
    };
    host_share(readings, need)
}

fn follows(readings: &Readings, detected: &Detected) -> Vec<String> {
    let lines: &[&str] = match detected.platform {
        Platform::NoGpu => &["vramd simulates a device (driver `sim`): for tests, no GPU is served"],
        Platform::Discrete => &[
            "device memory and host memory are separate tiers; parts move by copies over PCIe",
            "pageable host memory and mapped files cannot be read by the device in place",
        ],
        Platform::Hmm => &[
            "device memory and host memory are separate tiers; parts move by copies over PCIe",
            "the device can read pageable memory and mapped files in place, page by page; vramd uses pinned memory",
        ],
        Platform::CoherentNuma => &[
            "device memory and host memory are separate tiers; parts move by copies over NVLink-C2C",
            "the kernel may place page cache and other programs' memory on the device: it can be full before vramd hands it out",
            "vramd binds its pinned host memory to a node with CPUs (HOST_NUMA_ID)",
            "CDMM mode avoids all that: it is recommended where vramd owns the device",
        ],
        Platform::CoherentCdmm => &[
            "device memory and host memory are separate tiers; parts move by copies over NVLink-C2C",
            "host pages never migrate to the device; numactl and mbind do nothing for device memory",
            "a prefetch of system memory to the device goes to a CPU node without an error; vramd issues none",
        ],
        Platform::OnePool => &[
            "device memory and host memory are the same bytes: a second copy would take the room of the first",
            "there is no host tier by default; a disk tier and files in place of backing make room",
            "memory that other programs allocate is missing on the device",
        ],
    };
    let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    if detected.certainty == Certainty::Simulated {
        lines.insert(0, "the memory is simulated (driver `sim`): for tests, no GPU is served".to_owned());
    }
    if detected.platform == Platform::Discrete
        && detected.certainty == Certainty::Likely
        && readings.nvidia.open_module == Some(true)
        && readings.nvidia.uvm_disable_hmm == Some(false)
    {
        lines.push("HMM may be active: only the driver knows (start vramd, and ask again)".to_owned());
    }
    for (uuid, its) in &detected.others {
        lines.push(format!("device {uuid} differs: it is a {its}"));
    }
    lines
}

fn tiers(readings: &Readings, platform: Platform, share: HostShare) -> Vec<String> {
    if let Some(daemon) = &readings.daemon {
        let of_devices: Vec<String> = daemon.device_bytes.iter().map(|bytes| size(*bytes)).collect();
        let when = match (daemon.host_bytes, daemon.host_pinned_from_start) {
            (0, _) => "",
            (_, true) => ", pinned from the start",
            (_, false) => ", pinned as parts arrive",
        };
        return vec![
            format!("device: {}", of_devices.join(", ")),
            format!(
                "host: {} for each device{when}: {}",
                none_or_size(daemon.host_bytes),
                daemon.host_reason
            ),
            format!("disk: {} for each device", none_or_size(daemon.disk_bytes)),
        ];
    }
    let devices = match (&readings.devices, platform) {
        (_, Platform::NoGpu) => "one simulated device of 16 GiB".to_owned(),
        (Some(devices), _) => {
            devices.iter().map(|device| size(device.total_bytes)).collect::<Vec<_>>().join(", ")
        }
        (None, _) => "as the driver shows them".to_owned(),
    };
    vec![
        format!("device: {devices}"),
        format!(
            "host: {} for each device, if a daemon started now: {}",
            none_or_size(share.each.get()),
            host_reason(share)
        ),
        "disk: none, unless [disk] names a directory and a size".to_owned(),
    ]
}

fn files(readings: &Readings) -> Vec<String> {
    let devices = readings.devices.as_deref().unwrap_or_default();
    let mut lines: Vec<String> = match devices {
        [] => Vec::new(),
        [first, others @ ..] if others.iter().all(|other| file_access(other) == file_access(first)) => {
            vec![file_access(first).to_string()]
        }
        all => all.iter().map(access_of).collect(),
    };
    let fall_backs = readings.daemon.as_ref().map(|daemon| daemon.fall_backs.as_slice()).unwrap_or_default();
    lines.extend(fall_backs.iter().map(copied));
    lines
}

fn access_of(device: &DeviceReadings) -> String {
    format!("{}: {}", device.uuid, file_access(device))
}

fn copied(fall_back: &FallBackReadings) -> String {
    let FallBackReadings { reason, meaning, loads, copied_bytes } = fall_back;
    let loads = if *loads == 1 { "1 load".to_owned() } else { format!("{loads} loads") };
    format!("{loads} copied {} to a device: {reason}: {meaning}", size(*copied_bytes))
}

/// Why the automatic host tier has its size: one sentence without a full stop.
pub fn host_reason(share: HostShare) -> String {
    let of = match share.bound {
        HostBound::OnePool => return "host and device memory are one pool".to_owned(),
        HostBound::Unknown => return "the free memory is unknown".to_owned(),
        HostBound::Free => "that is free",
        HostBound::Cgroup => "that the daemon's cgroup leaves",
        HostBound::Locked => "that the daemon may lock (RLIMIT_MEMLOCK)",
    };
    format!("{SHARE_PERCENT} % of the {} {of}, in whole parts", share.free)
}

fn limits(readings: &Readings, detected: &Detected, share: HostShare) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |about, text: String, set: &str| found.push(Finding { about, text, set: set.to_owned() });
    let process = &readings.process;
    let daemon = readings.daemon.as_ref();
    let has_gpu = detected.platform != Platform::NoGpu && detected.certainty != Certainty::Simulated;
    let host = daemon.map_or_else(|| share.each.get(), |daemon| daemon.host_bytes);

    let unlocked = !process.may_lock_all && daemon.is_none_or(|daemon| daemon.host_locked_by_daemon);
    if let Some(limit) = process.locked_memory_bytes.filter(|_| unlocked && has_gpu) {
        let text = format!(
            "the process may lock {}; it counts where the driver pins in the daemon's name",
            size(limit)
        );
        add("memory lock", text, "LimitMEMLOCK=infinity, or the capability CAP_IPC_LOCK");
    }
    // The daemon raises its soft limit to the hard one. Each part takes a descriptor on its device and one in its
    // backing, and extents may use three quarters.
    let parts_of = |files: u64| files.saturating_mul(3) / 8;
    let wanted = parts_wanted(readings, host).saturating_mul(PARTS_SLACK);
    let few = |files: &u64| *files <= OPEN_FILES_FEW || parts_of(*files) < wanted;
    if let Some(files) = process.open_files_hard.filter(few) {
        let text = format!("at most {files} open files: about {} parts in all", parts_of(files));
        add("open files", text, "LimitNOFILE=1048576");
    }
    let words = daemon.map_or(WORDS_DEFAULT, |daemon| daemon.words_per_session_max);
    // The usual setting of kernels, 65530, is a few mappings below the default, which stands in no way.
    if let Some(count) = readings.max_map_count.filter(|count| *count < words - words / 10) {
        let text = format!(
            "vm.max_map_count is {count}: a client can map {} parts, fewer than limits.words_per_session_max = {words}",
            count.saturating_sub(OWN_MAPPINGS)
        );
        add(
            "mappings",
            text,
            &format!("sysctl vm.max_map_count={}", (words + OWN_MAPPINGS).next_power_of_two()),
        );
    }
    // Beyond what the node has free, the cgroup bounds nothing.
    let binds = |left: &u64| readings.memory.available_bytes.is_none_or(|available| *left < available);
    if let (Some(limit), Some(left)) =
        (process.cgroup_memory_bytes, process.cgroup_memory_left_bytes.filter(binds))
    {
        let text =
            format!("the cgroup of the process may have {}, of which {} are left", size(limit), size(left));
        add(
            "cgroup",
            text,
            "MemoryMax of the unit or the pod's memory limit, or [memory] host_size in bytes",
        );
    }
    if host == 0 {
        match (detected.platform, share.bound) {
            (Platform::OnePool, _) => {}
            _ if daemon.is_some_and(|daemon| daemon.host_reason == CONFIGURED) => {
                add(
                    "host tier",
                    "host_size is 0: memory leaves a device only for disk or files".to_owned(),
                    "[memory] host_size = \"auto\"",
                );
            }
            _ => {
                let text = format!("too little memory is free for a host tier: {}", host_reason(share));
                add("host tier", text, "more memory for the node or the cgroup, or [disk]");
            }
        }
    } else if detected.platform == Platform::OnePool {
        let text = "memory.host_size is set on a node with one pool: a part in the host takes the room of a device part";
        add("host tier", text.to_owned(), "[memory] host_size = \"auto\"");
    }
    if readings.memory.swap_bytes == Some(0) && readings.memory.available_bytes.is_some() && has_gpu {
        let text = "the node has no swap: pinned memory cannot be swapped, so other programs run out first";
        add("swap", text.to_owned(), "");
    }
    let sees_no_cgroups = process.own_namespaces.iter().any(|namespace| namespace == "cgroup");
    for namespace in &process.own_namespaces {
        let (text, set) = match namespace.as_str() {
            "pid" => (
                "clients in other pid namespaces have no pid here: files in place, and the memory of their contexts, need it",
                "hostPID for the daemon",
            ),
            "user" => (
                "uids of clients are mapped: rules by uid see the mapped ones",
                if sees_no_cgroups { "no user namespace" } else { "rules by cgroup, or no user namespace" },
            ),
            "cgroup" => (
                "the daemon sees cgroups below its own only, and refuses rules by cgroup",
                "the host's cgroup namespace for the daemon",
            ),
            _ => continue,
        };
        add("namespaces", format!("own {namespace} namespace: {text}"), set);
    }
    found
}

/// Parts of the ordinary size in device memory and host memory together.
fn parts_wanted(readings: &Readings, host_each: u64) -> u64 {
    let devices = readings.devices.as_deref().unwrap_or_default();
    let bytes = devices.iter().map(|device| device.total_bytes.saturating_add(host_each));
    bytes.fold(0, u64::saturating_add) / PART_SIZE.get()
}

fn kubernetes(readings: &Readings, platform: Platform) -> Vec<Finding> {
    let total = readings.memory.total_bytes.map_or_else(|| "unknown".to_owned(), size);
    let (text, set) = match platform {
        Platform::CoherentNuma => {
            let nodes = readings.nodes_of_devices();
            let of_devices: u64 =
                nodes.iter().filter(|node| node.is_device_memory()).map(|node| node.total_bytes).sum();
            (
                format!(
                    "the kubelet counts {} of device memory as memory of the node ({total} in all); memory limits of pods span both",
                    size(of_devices)
                ),
                format!(
                    "CDMM (NVreg_CoherentGPUMemoryMode=driver), or --system-reserved memory of {} for the kubelet",
                    size(of_devices)
                ),
            )
        }
        Platform::OnePool => (
            format!(
                "the kubelet counts the whole pool as memory of the node ({total}), and what vramd hands out is in it"
            ),
            "--system-reserved memory for the kubelet, as much as vramd may hand out (memory.device_share)"
                .to_owned(),
        ),
        _ => return Vec::new(),
    };
    vec![Finding { about: "node memory", text, set }]
}

/// The reason of a configured host tier.
pub const CONFIGURED: &str = "configured";

fn daemon(daemon: &DaemonReadings) -> Vec<String> {
    vec![
        format!("vramd {} with driver {} ({})", daemon.version, daemon.driver, daemon.driver_reason),
        format!(
            "extents: {}; parts that one client may map: {}",
            daemon.extents_max, daemon.words_per_session_max
        ),
    ]
}

fn size(bytes: u64) -> String {
    Bytes::new(bytes).to_string()
}

fn none_or_size(bytes: u64) -> String {
    if bytes == 0 { "none".to_owned() } else { size(bytes) }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.text)?;
        if self.set.is_empty() { Ok(()) } else { write!(f, "\n  set: {}", self.set) }
    }
}

/// One block for each question, with the answer's lines indented.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Detected { platform, certainty, because, node, .. } = &self.detected;
        let unsure = " (likely: no driver was asked)";
        match (certainty, node) {
            (Certainty::Certain, _) => writeln!(f, "NODE\n  {platform}"),
            (Certainty::Simulated, Some(node)) => {
                writeln!(f, "NODE\n  {node}{unsure}\n  simulated by vramd: {platform}")
            }
            (Certainty::Likely | Certainty::Simulated, _) => writeln!(f, "NODE\n  {platform}{unsure}"),
        }?;
        let mut block = |title: &str, lines: Vec<String>| {
            if lines.is_empty() {
                return Ok(());
            }
            let mut text = String::new();
            for line in lines {
                line.lines().try_for_each(|line| writeln!(text, "  {line}"))?;
            }
            write!(f, "\n{title}\n{text}")
        };
        let texts = |findings: &[Finding]| findings.iter().map(Finding::to_string).collect::<Vec<_>>();
        block("BECAUSE", because.clone())?;
        block("WHAT FOLLOWS", self.follows.clone())?;
        block("TIERS", self.tiers.clone())?;
        block("MAPPED FILES", self.files.clone())?;
        let none = vec!["none stands in the way".to_owned()];
        block("LIMITS", if self.limits.is_empty() { none } else { texts(&self.limits) })?;
        block("KUBERNETES", texts(&self.kubernetes))?;
        block("DAEMON", self.daemon.clone())
    }
}
