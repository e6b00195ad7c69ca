//! Drivers that are not there, too old, unwilling, or without the device.

use std::{path::Path, sync::Arc};

use super::fake::{Copy, FakeDriver, load_failing};
use crate::cuda::Driver;

#[test]
fn missing_library_is_an_error() {
    let error = Driver::load(Path::new("/nowhere/libcuda.so.1")).unwrap_err().to_string();
    assert!(error.starts_with("the CUDA driver could not be loaded: /nowhere/libcuda.so.1: "), "{error}");
}

#[test]
fn missing_function_is_named() {
    let copy = Copy::new(&["--cfg", "without_set_access"]);
    let error = Driver::load(&copy.0).unwrap_err().to_string();
    assert!(
        error.ends_with("is too old a CUDA driver (of CUDA 12.2): it has no function cuMemSetAccess"),
        "{error}"
    );
}

#[test]
fn failed_driver_start_has_the_drivers_message() {
    let error = load_failing("cuInit", 34).unwrap_err().to_string();
    assert!(error.ends_with("cannot be used: cuInit: CUDA_ERROR_STUB_LIBRARY (34)"), "{error}");
    let error = load_failing("cuInit", 98765).unwrap_err().to_string();
    assert!(error.ends_with("cuInit: an error without a name (98765)"), "{error}");
}

#[test]
fn devices_are_found_by_the_daemons_uuid() {
    let fake = FakeDriver::load();
    let uuid = "a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0";
    assert!(
        fake.driver.sees(&format!("GPU-{uuid}")) && fake.driver.sees(&format!("MIG-{}", uuid.to_uppercase()))
    );
    assert!(!fake.driver.sees(uuid) && !fake.driver.sees("GPU-0") && !fake.driver.sees("sim-0"));
    let problem = fake.driver.context("GPU-0").unwrap_err();
    assert_eq!(problem, "CUDA does not show GPU-0 to this process");
}

#[test]
fn context_is_retained_once_and_released_by_its_last_user() {
    let fake = FakeDriver::load();
    let uuid = "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1";
    let first = fake.driver.context(uuid).unwrap();
    let second = fake.driver.context(uuid).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    drop(first);
    assert_eq!(fake.calls(), ["cuDevicePrimaryCtxRetain 1"]);
    drop(second);
    assert_eq!(fake.calls(), ["cuDevicePrimaryCtxRelease 1"]);
}

#[test]
fn device_without_context_is_named() {
    let fake = FakeDriver::load();
    fake.fail("cuDevicePrimaryCtxRetain", 46);
    let uuid = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0";
    let problem = fake.driver.context(uuid).unwrap_err();
    let expected = "cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)";
    assert_eq!(problem, format!("the primary context of {uuid} could not be retained: {expected}"));
}
