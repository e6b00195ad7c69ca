//! A machine with simulated devices, for the suite.

use std::{
    env::temp_dir,
    path::PathBuf,
    process::id,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, channel},
    },
};

use broker_driver::{
    Completion, DeviceInfo, DiskConfig, Driver, DriverError,
    contract::{Facts, Harness, Importer},
    sim::{self, Fault, SimConfig},
};
use vramd_types::Bytes;

use crate::importer;

const HOST: Bytes = Bytes::mib(128);

/// A node with two small devices, whose UUIDs no other test uses.
pub(crate) struct SimHarness {
    devices: Vec<DeviceInfo>,
}

impl SimHarness {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let node = LAST.fetch_add(1, Ordering::Relaxed);
        let device = |index: u32| DeviceInfo {
            uuid: format!("GPU-contract-{}-{node}-{index}", id()),
            name: "Simulated".to_owned(),
            total: Bytes::mib(128),
            context: Bytes::ZERO,
        };
        Self { devices: vec![device(0), device(1)] }
    }
}

type Opened = (Arc<dyn Driver>, Receiver<Completion>);

impl SimHarness {
    fn opened(
        &self,
        (disk, files): (Option<DiskConfig>, bool),
        faults: Vec<Fault>,
    ) -> Result<Opened, DriverError> {
        let (sink, completions) = channel();
        let devices = self.devices.clone();
        let config = SimConfig { devices, host: HOST, disk, files, faults, ..SimConfig::default() };
        // A case that has ended early does not listen any more.
        let sink = Arc::new(move |completion| drop(sink.send(completion)));
        Ok((Arc::new(sim::open(config, sink)?), completions))
    }
}

impl Harness for SimHarness {
    fn facts(&self) -> Facts {
        Facts { exact_capacity: true, several_devices: true, scheduled_faults: true, other_programs: false }
    }

    fn open(&self, faults: Vec<Fault>) -> (Arc<dyn Driver>, Receiver<Completion>) {
        self.opened((None, false), faults).expect("the simulated driver opens")
    }

    fn open_with_disk(&self, disk: Option<DiskConfig>, faults: Vec<Fault>) -> Result<Opened, DriverError> {
        self.opened((disk, true), faults)
    }

    fn directory(&self) -> PathBuf {
        temp_dir()
    }

    fn importer(&self) -> Box<dyn Importer> {
        Box::new(importer::Process::start())
    }

    fn quiet(&self) {
        importer::wait_for_starts();
    }
}
