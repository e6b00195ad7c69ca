//! Mappings that the driver registers, so that a device reads them.

use std::ptr::NonNull;

use super::FakeDriver;

const UUID: &str = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0";

#[test]
fn mapping_is_registered_read_only_and_read_at_the_drivers_address() {
    let fake = FakeDriver::load();
    let context = fake.driver.context(UUID).unwrap();
    fake.calls();
    let mut bytes = [0_u8; 4096];
    let start = NonNull::from(&mut bytes).cast::<u8>();
    let address = context.register_read_only(start, bytes.len()).unwrap();
    assert_eq!(address, start.addr().get() as u64 + 0x1000_0000);
    // Portable (1), with an address of the device (2), and read-only (8).
    assert_eq!(
        fake.calls(),
        ["cuMemHostRegister_v2 size 4096 flags 11", "cuMemHostGetDevicePointer_v2 flags 0"]
    );
    context.unregister_host(start).unwrap();
    assert_eq!((fake.calls(), fake.current()), (vec!["cuMemHostUnregister".to_owned()], 0));
}

#[test]
fn failed_registration_leaves_nothing_registered() {
    let fake = FakeDriver::load();
    let context = fake.driver.context(UUID).unwrap();
    let mut bytes = [0_u8; 4096];
    let start = NonNull::from(&mut bytes).cast::<u8>();
    fake.fail("cuMemHostGetDevicePointer_v2", 1);
    fake.calls();
    let fault = context.register_read_only(start, bytes.len()).unwrap_err();
    assert!(fault.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{fault}");
    assert_eq!(fake.calls().last().unwrap(), "cuMemHostUnregister");
    fake.fail("cuMemHostRegister_v2", 2);
    assert!(context.register_read_only(start, bytes.len()).is_err());
    assert_eq!(fake.calls(), ["cuMemHostRegister_v2 size 4096 flags 11"]);
}
