//! A machine with simulated devices, for the suite.

use std::{
    process::id,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, channel},
    },
};

use broker_driver::{
    Completion, DeviceInfo, Driver,
    contract::{Facts, Harness, Importer},
    sim::{self, Fault, SimConfig},
};
use vramd_types::Bytes;

use crate::importer;

const HOST: Bytes = Bytes::mib(128);

/// A node with two small devices, whose UUIDs no other test has.
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

impl Harness for SimHarness {
    fn facts(&self) -> Facts {
        Facts { exact_capacity: true, several_devices: true, scheduled_faults: true, outsiders: false }
    }

    fn open(&self, faults: Vec<Fault>) -> (Arc<dyn Driver>, Receiver<Completion>) {
        let (sink, completions) = channel();
        let config = SimConfig { devices: self.devices.clone(), host: HOST, faults, ..SimConfig::default() };
        // A case that has ended early no longer listens.
        let sink = Arc::new(move |completion| drop(sink.send(completion)));
        let driver = sim::open(config, sink).expect("the simulated driver opens");
        (Arc::new(driver), completions)
    }

    fn importer(&self) -> Box<dyn Importer> {
        Box::new(importer::Process::start())
    }

    fn quiet(&self) {
        importer::wait_for_starts();
    }
}
