//! A machine with CUDA devices, for the suite.

use std::{
    env::temp_dir,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
};

use broker_driver::{
    Completion, DiskConfig, Driver, DriverError, LinkFacts,
    contract::{Facts, Harness, Importer},
    cuda::{self, CudaConfig, CudaFacts, Probed},
    sim::Fault,
};
use serde_json::{Value, json};

use crate::{arguments::Arguments, importer::Process};

pub(crate) struct CudaHarness {
    config: CudaConfig,
    uuids: Vec<String>,
    /// Of the first device, as CUDA numbers them.
    ordinals: Vec<usize>,
    directory: PathBuf,
    facts: CudaFacts,
    links: Vec<LinkFacts>,
}

type Opened = (Arc<dyn Driver>, Receiver<Completion>);

impl CudaHarness {
    /// Opens the driver once, to see that it works and what it can do.
    pub(crate) fn new(arguments: &Arguments) -> Result<Self, String> {
        let config = arguments.config.clone();
        let probed = probe(&config)?;
        let mut chosen = Vec::new();
        for (ordinal, found) in probed.found().iter().enumerate() {
            let uuid = &found.info.uuid;
            let named = arguments.devices.contains(uuid);
            match &found.refused {
                None if named || arguments.devices.is_empty() => chosen.push((ordinal, uuid.clone())),
                Some(why) if named => return Err(format!("device {uuid}: {why}")),
                Some(why) => eprintln!("device {uuid} is not used: {why}"),
                None => {}
            }
        }
        if chosen.is_empty() {
            return Err("the device does not exist".to_owned());
        }
        let (ordinals, uuids): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
        let driver = cuda::open(probed, &uuids, Arc::new(|_| {})).map_err(|error| error.to_string())?;
        let (facts, links) = (driver.facts().clone(), driver.links().to_vec());
        let directory = arguments.directory.clone().unwrap_or_else(temp_dir);
        Ok(Self { config, uuids, ordinals, directory, facts, links })
    }

    pub(crate) fn facts_text(&self) -> String {
        let mut text = format!("CUDA {}, host memory: {}", self.facts.version, self.facts.host);
        if let Some(problem) = &self.facts.no_nvml {
            text.push_str(&format!(", no NVML: {problem}"));
        }
        if let Some(problem) = &self.facts.unmeasured {
            text.push_str(&format!(", links not measured: {problem}"));
        }
        for link in &self.links {
            text.push_str(&format!("\n{link}"));
        }
        for device in &self.facts.devices {
            text.push_str(&format!(
                "\n{}: scrub {}, context {}, NVML {}, processes listed {}, legacy handles {}, RDMA {}, nearest \
                 host node {}",
                device.uuid,
                device.scrub,
                device.context_size,
                device.nvml,
                device.lists_processes,
                device.fixed,
                device.rdma,
                device.host_node,
            ));
        }
        text
    }

    pub(crate) fn facts_json(&self) -> Value {
        let device = |device: &cuda::DeviceFacts| {
            json!({
                "uuid": device.uuid,
                "scrub": device.scrub.to_string(),
                "context_size": device.context_size.to_string(),
                "nvml": device.nvml,
                "lists_processes": device.lists_processes,
                "fixed": device.fixed,
                "rdma": device.rdma,
                "host_node": device.host_node.0,
            })
        };
        let devices: Vec<Value> = self.facts.devices.iter().map(device).collect();
        json!({
            "cuda": self.facts.version.to_string(),
            "no_nvml": self.facts.no_nvml,
            "host": self.facts.host.to_string(),
            "unmeasured": self.facts.unmeasured,
            "links": self.links.iter().map(|link| json!({
                "name": link.name,
                "lanes": link.lanes.iter().map(|(lane, carries)| json!({ "lane": lane.to_string(), "bytes_per_s": carries }))
                    .collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "devices": devices,
        })
    }

    fn opened(&self, disk: Option<DiskConfig>, files: bool) -> Result<Opened, DriverError> {
        let config = CudaConfig { disk, files, ..self.config.clone() };
        let probed = probe(&config).unwrap_or_else(|problem| panic!("{problem}"));
        let (sink, completions) = channel();
        // A case that has ended early does not listen any more.
        let sink = Arc::new(move |completion| drop(sink.send(completion)));
        Ok((Arc::new(cuda::open(probed, &self.uuids, sink)?), completions))
    }
}

fn probe(config: &CudaConfig) -> Result<Probed, String> {
    cuda::probe(config.clone()).map_err(|why| why.to_string())
}

impl Harness for CudaHarness {
    fn facts(&self) -> Facts {
        Facts {
            exact_capacity: false,
            several_devices: self.uuids.len() > 1,
            scheduled_faults: false,
            other_programs: true,
        }
    }

    fn open(&self, faults: Vec<Fault>) -> (Arc<dyn Driver>, Receiver<Completion>) {
        assert!(faults.is_empty(), "a card's faults can't be scheduled");
        self.opened(None, false).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn open_with_disk(&self, disk: Option<DiskConfig>, faults: Vec<Fault>) -> Result<Opened, DriverError> {
        assert!(faults.is_empty(), "a disk's faults can't be scheduled");
        self.opened(disk, true)
    }

    fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    fn importer(&self) -> Box<dyn Importer> {
        Box::new(Process::start(self.config.library.as_deref(), &self.ordinals))
    }

    /// Starting a process is waited for: it has its context when it answers.
    fn quiet(&self) {}
}
