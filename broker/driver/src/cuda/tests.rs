//! Over the fake library: settings and failures that a test may not cause on a real card.

mod copies;
mod deferred;
mod disk;
mod failed_create;
mod host;
mod lost_context;
mod numa_node;
mod pinned_buffers;
mod surveys;

use std::{
    process::{Child, Command},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use fake_cuda::Fake;
use vramd_types::{Bytes, ExtentId, GRANULARITY};

use super::*;
use crate::Export;

const FIRST: DeviceIndex = DeviceIndex(0);

pub(super) fn config(fake: &Fake) -> CudaConfig {
    let library = Some(fake.library());
    CudaConfig { nvml: library.clone(), library, params: Some(fake.params()), ..CudaConfig::default() }
}

fn why(fake: &Fake) -> ProbeError {
    probe(config(fake)).expect_err("there is something wrong with it")
}

fn refusals(fake: &Fake) -> Vec<Option<String>> {
    probe(config(fake)).unwrap().found().iter().map(|found| found.refused.clone()).collect()
}

/// Opens all usable devices.
fn opened(fake: &Fake) -> (Result<CudaDriver, DriverError>, Receiver<Completion>) {
    opened_with(config(fake))
}

fn opened_with(config: CudaConfig) -> (Result<CudaDriver, DriverError>, Receiver<Completion>) {
    let probed = probe(config).unwrap();
    let usable_engines = probed.found().iter().filter(|found| found.refused.is_none());
    let uuids: Vec<String> = usable_engines.map(|found| found.info.uuid.clone()).collect();
    let (sink, completions) = channel();
    (open(probed, &uuids, Arc::new(move |completion| drop(sink.send(completion)))), completions)
}

fn create(raw: u64, kind: ExtentKind) -> Submission {
    Submission::Create { extent: ExtentId::from_raw(raw), device: FIRST, size: GRANULARITY, kind }
}

fn next(completions: &Receiver<Completion>) -> Completion {
    completions.recv_timeout(Duration::from_secs(20)).unwrap()
}

/// Another process, which holds the descriptors of two extents and nothing else.
struct Holder(Child);

impl Holder {
    fn of(handles: [&Export; 2]) -> Self {
        let [input, output] = handles.map(|handle| handle.fd().unwrap().try_clone_to_owned().unwrap());
        Self(Command::new("sleep").arg("600").stdin(input).stdout(output).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_missing_library_is_refused() {
    let none = CudaConfig { library: Some("/nowhere/libcuda.so.1".into()), ..CudaConfig::default() };
    let why = probe(none).expect_err("there is no such library");
    assert!(matches!(why, ProbeError::NoLibrary { .. }));
    assert!(why.to_string().contains("/nowhere/libcuda.so.1"), "{why}");
}

#[test]
fn a_library_that_fails_to_initialise_is_refused() {
    let stub = why(&Fake::new().with("init = 34"));
    assert!(matches!(stub, ProbeError::Stub { .. }), "{stub}");
    assert_eq!(why(&Fake::new().with("init = 100")), ProbeError::NoDevice);
    let mismatch = why(&Fake::new().with("init = 803")).to_string();
    assert!(mismatch.contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"), "{mismatch}");
    let unknown = why(&Fake::new().with("init = 54321")).to_string();
    assert!(unknown.contains("an error without a name (54321)"), "{unknown}");
}

#[test]
fn an_old_driver_is_refused() {
    let old = why(&Fake::new().with("version = 10020").without("cuMemExportToShareableHandle")).to_string();
    assert!(old.contains("(CUDA 10.2) has no function cuMemExportToShareableHandle"), "{old}");
    let no_driver = why(&Fake::new().without("cuInit")).to_string();
    assert!(no_driver.contains("has no function cuInit"), "{no_driver}");
}

#[test]
fn a_library_without_devices_is_refused() {
    assert_eq!(why(&Fake::new().with("devices = 0")), ProbeError::NoDevice);
}

#[test]
fn exclusive_compute_modes_are_refused() {
    for (mode, word) in [(2, "Prohibited"), (3, "Exclusive_Process")] {
        let refused = refusals(&Fake::new().with(&format!("compute_mode = {mode}")));
        assert!(refused[0].as_ref().is_some_and(|why| why.contains(word)), "{refused:?}");
    }
    let no_vmm = refusals(&Fake::new().with("attribute.102 = 0"));
    assert!(no_vmm[0].as_ref().is_some_and(|why| why.contains("virtual memory")), "{no_vmm:?}");
    let fake = Fake::new().with("compute_mode = 3");
    let probed = probe(config(&fake)).unwrap();
    let uuid = probed.found()[0].info.uuid.clone();
    let error = open(probed, &[uuid], Arc::new(|_| {})).unwrap_err().to_string();
    assert!(error.contains("Exclusive_Process"), "{error}");
}

#[test]
fn mig_instances_are_listed_and_one_can_be_used() {
    let fake = Fake::new().with("mig = 3");
    let probed = probe(config(&fake)).unwrap();
    assert!(probed.found().iter().all(|found| found.info.uuid.starts_with("MIG-")));
    let refused: Vec<_> = probed.found().iter().map(|found| found.refused.is_some()).collect();
    assert_eq!(refused, [false, true, true]);
    let last = probed.found()[2].clone();
    assert!(last.refused.unwrap().contains(&format!("CUDA_VISIBLE_DEVICES={}", last.info.uuid)));
    let (driver, _completions) = opened(&fake);
    assert_eq!(driver.unwrap().devices().len(), 1);
}

#[test]
fn a_context_is_measured() {
    let (driver, _completions) = opened(&Fake::new().with("context_mib = 24"));
    let driver = driver.unwrap();
    assert_eq!(driver.devices()[0].context, Bytes::mib(24));
    assert_eq!(driver.facts().devices[0].context_size, ContextSize::Listed);
    assert_eq!(driver.facts().devices[0].scrub, Scrub::Certain);
}

#[test]
fn a_scrub_override_means_zeroing() {
    let fake = Fake::new();
    std::fs::write(fake.params(), "RegistryDwords: \"RMDisableScrubOnFree=1\"\n").unwrap();
    let (driver, _completions) = opened(&fake);
    let scrub = driver.unwrap().facts().devices[0].scrub.clone();
    assert!(matches!(&scrub, Scrub::Zeroing(why) if why.contains("RMDisableScrubOnFree")), "{scrub:?}");
}

#[test]
fn a_device_without_room_for_a_context_is_refused() {
    let (driver, _completions) = opened(&Fake::new().with("memory_mib = 4"));
    let error = driver.unwrap_err().to_string();
    assert!(error.contains("cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{error}");
}

#[test]
fn an_unknown_code_is_reported_unchanged() {
    // The scrub check has created six extents by then, and the driver its sentinel.
    let (driver, completions) = opened(&Fake::new().with("fail.cuMemCreate = 54321@8"));
    let driver = driver.unwrap();
    driver.submit(create(1, ExtentKind::Movable));
    let problem = "cuMemCreate: an error without a name (54321)".to_owned();
    assert!(matches!(
        next(&completions),
        Completion::Created { result: Err(DriverError::Failed(reported)), .. } if reported == problem
    ));
}

#[test]
fn a_lost_context_is_the_last_report() {
    let (driver, completions) = opened(&Fake::new().with("fail.cuStreamQuery = 700@2"));
    let driver = driver.unwrap();
    driver.submit(create(1, ExtentKind::Movable));
    let Completion::Created { result: Ok(handle), .. } = next(&completions) else { panic!("it is made") };
    driver.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    assert!(matches!(next(&completions), Completion::Surveyed { .. }));
    driver.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    let Completion::Lost { problem } = next(&completions) else { panic!("the context is poisoned") };
    assert!(problem.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{problem}");
    driver.submit(create(2, ExtentKind::Movable));
    driver.submit(Submission::Digest { ticket: 1, spans: Vec::new() });
    drop(driver);
    assert!(completions.iter().next().is_none(), "nothing after that");
    assert!(handle.fd().is_some(), "exported memory stays");
}

#[test]
fn a_device_without_legacy_handles_makes_movable_extents() {
    let (driver, completions) = opened(&Fake::new().with("fail.cuIpcGetMemHandle = 801@1"));
    let driver = driver.unwrap();
    assert!(driver.supports(ExtentKind::Movable) && !driver.supports(ExtentKind::Fixed));
    driver.submit(create(1, ExtentKind::Fixed));
    assert!(matches!(
        next(&completions),
        Completion::Created { result: Err(DriverError::Failed(problem)), .. } if problem.contains("legacy")
    ));
}

#[test]
fn a_failed_export_leaves_nothing() {
    let (driver, completions) = opened(&Fake::new().with("fail.cuMemExportToShareableHandle = 304@2"));
    let driver = driver.unwrap();
    driver.submit(create(1, ExtentKind::Movable));
    assert!(matches!(next(&completions), Completion::Created { result: Err(_), .. }));
    driver.submit(Submission::Survey { device: FIRST, clients: Vec::new() });
    assert!(matches!(next(&completions), Completion::Surveyed { unbrokered: Bytes::ZERO, .. }));
}

#[test]
fn the_driver_zeroes_extents_without_room_for_the_scrub_check() {
    let (driver, _completions) = opened(&Fake::new().with("fail.cuMemCreate = 2@3"));
    let facts = format!("{:?}", driver.unwrap().facts());
    assert!(facts.contains("no room for the check"), "{facts}");
}
