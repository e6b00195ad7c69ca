//! Buffers that the driver pins: what is told where it does not, and where it does not let go of them.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::{
    HostLimit,
    cuda::{api::Context, pinned},
    disk::Room as _,
};

fn context(driver: &CudaDriver) -> Arc<Context> {
    let inlet = driver.inlet();
    Arc::clone(inlet.as_ref().expect("it runs").state.devices[0].context())
}

/// As of memory of the host, which is registered by the same call.
#[test]
fn the_limit_on_locked_memory_is_named_of_buffers_too() {
    let fake = Fake::new().says("fail.cuMemHostRegister_v2 = 2@told");
    let (driver, _completions) = opened(&fake);
    let context = context(&driver.unwrap());
    let maximum = getrlimit(Resource::Memlock).maximum;
    let lowest = maximum.unwrap_or(u64::MAX).min(3 << 20);
    setrlimit(Resource::Memlock, Rlimit { current: Some(lowest), maximum }).unwrap();
    let first = pinned::buffer(&context, 2 << 20).unwrap();
    fake.tell(true);
    let refused = |length| pinned::buffer(&context, length).map(drop);
    let locked = Err(DriverError::OutOfHostMemory(HostLimit::Locked(Bytes::new(lowest))));
    assert_eq!(refused(2 << 20), locked, "of all that is registered it is said");
    drop(first);
    let short = if lowest < 2 << 20 { locked } else { Err(DriverError::OutOfHostMemory(HostLimit::Pinned)) };
    assert_eq!(refused(2 << 20), short);
}

fn is_mapped(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let bounds = maps.lines().filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
    });
    bounds.into_iter().any(|(start, end)| (start..end).contains(&address))
}

/// What devices may still reach by that address must not become other memory.
#[test]
fn a_buffer_that_the_driver_does_not_let_go_of_is_kept() {
    let fake = Fake::new().says("fail.cuMemHostUnregister = 1@told");
    let (driver, _completions) = opened(&fake);
    let context = context(&driver.unwrap());
    let buffer = || pinned::buffer(&context, 2 << 20).unwrap();
    drop(buffer());
    assert_eq!(context.api().registered(), Bytes::ZERO);
    let kept = buffer();
    let address = kept.start().as_ptr().addr();
    fake.tell(true);
    drop(kept);
    assert!(is_mapped(address));
    assert_eq!(context.api().registered(), Bytes::mib(2), "and it counts");
    fake.tell(false);
    let next = buffer();
    assert_ne!(next.start().as_ptr().addr(), address);
}
