//! The simulated driver keeps the contract: with every case, on real memory mapped by real other processes.

mod importer;

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
    contract::{self, Facts, Harness, Verdict},
    contract_tests,
    sim::{self, Fault, SimConfig},
};
use vramd_types::Bytes;

contract_tests!(SimHarness::new(), judge);

/// All but what CUDA alone has.
const NOT_SIMULATED: [Verdict; 2] = [
    Verdict::NotApplicable("this driver makes no fixed extents"),
    Verdict::NotApplicable("importers of this machine take no memory of their own"),
];

fn judge(verdict: Verdict) {
    assert!(verdict == Verdict::Passed || NOT_SIMULATED.contains(&verdict), "{verdict:?}");
}

/// A node with two small devices, whose UUIDs no other test has.
struct SimHarness {
    devices: Vec<DeviceInfo>,
}

impl SimHarness {
    fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let node = LAST.fetch_add(1, Ordering::Relaxed);
        let device = |index: u32| DeviceInfo {
            uuid: format!("GPU-contract-{}-{node}-{index}", id()),
            name: "Simulated".to_owned(),
            total: Bytes::mib(64),
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
        let config = SimConfig { devices: self.devices.clone(), faults };
        // A case that has ended early no longer listens.
        let sink = Arc::new(move |completion| drop(sink.send(completion)));
        let driver = sim::open(config, sink).expect("the simulated driver opens");
        (Arc::new(driver), completions)
    }

    fn importer(&self) -> Box<dyn contract::Importer> {
        Box::new(importer::Process::start())
    }

    fn quiet(&self) {
        importer::wait_for_starts();
    }
}
