//! Reads the node from `/proc` and `/sys`. Readings that cannot be had are left out.

use std::{
    env,
    fs::{self, DirEntry},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use rustix::process::{Resource, getrlimit};

use crate::{
    cgroup::{self, Membership},
    readings::{MemoryReadings, NumaNode, NvidiaReadings, ProcessReadings, Readings, VERSION},
};

/// NVIDIA's vendor number on the PCI bus.
const NVIDIA: &str = "0x10de";
/// The class of display controllers, which those without a display have too.
const DISPLAY: &str = "0x03";
/// The bit of `CAP_IPC_LOCK`: a process with it may lock any amount.
const IPC_LOCK: u64 = 1 << 14;

/// The inodes of the host's namespaces, which the kernel fixes.
const HOST_NAMESPACES: [(&str, u64); 4] =
    [("cgroup", 0xeffffffb), ("ipc", 0xefffffff), ("pid", 0xeffffffc), ("user", 0xeffffffd)];

/// Reads the node, and the limits of this process. The devices stay unknown: only a driver shows them.
pub fn collect(program: &str) -> Readings {
    let mut readings = node(Path::new("/"));
    readings.source = format!("read by {program} on this node");
    readings.process = process(program);
    readings
}

/// Reads what does not depend on the process from the machine whose root directory is `root`.
fn node(root: &Path) -> Readings {
    let meminfo = text(root, "proc/meminfo").unwrap_or_default();
    Readings {
        version: VERSION,
        arch: env::consts::ARCH.to_owned(),
        kernel: text(root, "proc/sys/kernel/osrelease").unwrap_or_default(),
        memory: MemoryReadings {
            total_bytes: kib(&meminfo, "MemTotal:"),
            available_bytes: kib(&meminfo, "MemAvailable:"),
            swap_bytes: kib(&meminfo, "SwapTotal:"),
        },
        numa_nodes: numa_nodes(root),
        nvidia: nvidia(root),
        max_map_count: text(root, "proc/sys/vm/max_map_count").and_then(|count| count.parse().ok()),
        ..Readings::default()
    }
}

fn numa_nodes(root: &Path) -> Vec<NumaNode> {
    let read = |entry: DirEntry| {
        let id = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let meminfo = text(&entry.path(), "meminfo")?;
        // Each line begins with `Node N`.
        let value = |name| {
            let line = meminfo.lines().find_map(|line| line.split_once(name))?;
            kib_value(line.1)
        };
        Some(NumaNode {
            id,
            cpus: text(&entry.path(), "cpulist")?,
            total_bytes: value("MemTotal:")?,
            free_bytes: value("MemFree:").unwrap_or(0),
        })
    };
    let mut nodes: Vec<NumaNode> =
        entries(&root.join("sys/devices/system/node")).into_iter().filter_map(read).collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

fn nvidia(root: &Path) -> NvidiaReadings {
    let driver = root.join("proc/driver/nvidia");
    let version = text(&driver, "version").unwrap_or_default();
    let module = version.lines().find_map(|line| line.strip_prefix("NVRM version:"));
    let params = text(&driver, "params").unwrap_or_default();
    let mode = field(&params, "CoherentGPUMemoryMode:").map(|mode| mode.trim_matches('"').to_owned());
    let model = |gpu: DirEntry| field(&text(&gpu.path(), "information")?, "Model:").map(str::to_owned);
    let is_gpu = |device: &DirEntry| {
        let begins =
            |name, with| text(&device.path(), name).is_some_and(|text| text.trim_start().starts_with(with));
        begins("vendor", NVIDIA) && begins("class", DISPLAY)
    };
    let mut pci_devices: Vec<String> = entries(&root.join("sys/bus/pci/devices"))
        .into_iter()
        .filter(is_gpu)
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .collect();
    pci_devices.sort();
    let disable_hmm = text(root, "sys/module/nvidia_uvm/parameters/uvm_disable_hmm");
    let mut models: Vec<String> = entries(&driver.join("gpus")).into_iter().filter_map(model).collect();
    models.sort();
    NvidiaReadings {
        driver_version: module.and_then(version_in),
        open_module: module.map(|module| module.contains("Open")),
        coherent_gpu_memory_mode: mode,
        uvm_disable_hmm: disable_hmm.map(|is| is == "Y" || is == "1"),
        models,
        pci_devices,
    }
}

/// The first word with digits and dots only.
fn version_in(module: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    module.split_whitespace().find(is_version).map(str::to_owned)
}

fn process(program: &str) -> ProcessReadings {
    let files = getrlimit(Resource::Nofile);
    let table = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = field(&status, "CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    let own = |(kind, host): &(&str, u64)| {
        fs::metadata(format!("/proc/self/ns/{kind}")).is_ok_and(|namespace| namespace.ino() != *host)
    };
    let cgroup = Membership::all_in(&table).find(|it| it.is_unified()).map(|it| it.path.to_owned());
    ProcessReadings {
        program: program.to_owned(),
        open_files_soft: files.current,
        open_files_hard: files.maximum,
        locked_memory_bytes: getrlimit(Resource::Memlock).current,
        may_lock_all: effective.is_some_and(|bits| bits & IPC_LOCK != 0),
        cgroup,
        cgroup_memory_bytes: cgroup::memory_limit().map(vramd_types::Bytes::get),
        cgroup_memory_left_bytes: cgroup::memory_left().map(vramd_types::Bytes::get),
        own_namespaces: HOST_NAMESPACES
            .iter()
            .filter(|it| own(it))
            .map(|(kind, _)| (*kind).to_owned())
            .collect(),
    }
}

fn entries(folder: &Path) -> Vec<DirEntry> {
    fs::read_dir(folder).map(|entries| entries.flatten().collect()).unwrap_or_default()
}

/// The text of a file without the white space around it.
fn text(folder: &Path, name: &str) -> Option<String> {
    fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn kib(meminfo: &str, name: &str) -> Option<u64> {
    kib_value(field(meminfo, name)?)
}

fn kib_value(text: &str) -> Option<u64> {
    let kib: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_node_with_a_coherent_gpu_is_read_whole() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(
            root,
            "proc/meminfo",
            "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 900 kB\nSwapTotal: 0 kB\n",
        );
        write(root, "proc/sys/vm/max_map_count", "65530\n");
        for (id, cpus, total, free) in [(1, "", 400, 390), (0, "0-71", 600, 500)] {
            let folder = format!("sys/devices/system/node/node{id}");
            write(root, &format!("{folder}/cpulist"), &format!("{cpus}\n"));
            let meminfo = format!("Node {id} MemTotal:  {total} kB\nNode {id} MemFree:  {free} kB\n");
            write(root, &format!("{folder}/meminfo"), &meminfo);
        }
        write(root, "sys/devices/system/node/possible", "0-8\n");
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release\nGCC version: 1.2\n";
        write(root, "proc/driver/nvidia/version", version);
        write(root, "proc/driver/nvidia/params", "EnableMSI: 1\nCoherentGPUMemoryMode: \"driver\"\n");
        let information = "Model: \t\t NVIDIA GH200 480GB\nIRQ: 1\n";
        write(root, "proc/driver/nvidia/gpus/0009:01:00.0/information", information);
        write(root, "sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n");
        for (name, vendor, class) in
            [("b", "0x10de", "0x030200"), ("a", "0x10de", "0x040300"), ("c", "0x8086", "0x03")]
        {
            write(root, &format!("sys/bus/pci/devices/{name}/vendor"), vendor);
            write(root, &format!("sys/bus/pci/devices/{name}/class"), class);
        }
        let read = node(root);
        assert_eq!(
            (read.memory.total_bytes, read.memory.available_bytes),
            (Some(1000 << 10), Some(900 << 10))
        );
        assert_eq!(
            read.numa_nodes.iter().map(|node| (node.id, &*node.cpus)).collect::<Vec<_>>(),
            [(0, "0-71"), (1, "")]
        );
        assert_eq!(read.device_memory_nodes().map(|node| node.free_bytes).collect::<Vec<_>>(), [390 << 10]);
        let should = NvidiaReadings {
            driver_version: Some("580.95.05".to_owned()),
            open_module: Some(true),
            coherent_gpu_memory_mode: Some("driver".to_owned()),
            uvm_disable_hmm: Some(false),
            models: vec!["NVIDIA GH200 480GB".to_owned()],
            pci_devices: vec!["b".to_owned()],
        };
        assert_eq!((read.nvidia, read.max_map_count), (should, Some(65_530)));
    }

    #[test]
    fn an_empty_node_leaves_all_readings_out() {
        let root = tempfile::tempdir().unwrap();
        let read = node(root.path());
        assert_eq!((read.memory, read.nvidia), (MemoryReadings::default(), NvidiaReadings::default()));
        assert!(read.numa_nodes.is_empty() && read.devices.is_none());
    }

    #[test]
    fn this_machine_can_be_read() {
        let read = collect("tests");
        assert!(read.memory.total_bytes.is_some_and(|total| total > 64 << 20), "{read:?}");
        assert!(read.memory.available_bytes <= read.memory.total_bytes);
        assert!(read.process.open_files_soft.is_some_and(|files| files > 0));
        assert_eq!(read.process.program, "tests");
    }
}
