//! Pinned buffers: the errors if the driver does not pin them, or does not unpin them.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vramd_types::HostNode;

use super::*;
use crate::{
    HostLimit,
    cuda::{
        api::{Context, KeepAlive as _},
        copies::{
            buffers::{Borrower, Buffers},
            pinned,
        },
    },
    disk::IoMemory as _,
};

fn context(driver: &CudaDriver) -> Arc<Context> {
    let dispatcher = driver.dispatcher();
    Arc::clone(dispatcher.as_ref().expect("it runs").state.devices[0].context())
}

/// The same for host memory, which is registered by the same call.
#[test]
fn the_memlock_limit_is_named_for_buffers_too() {
    let fake = Fake::new().with("fail.cuMemHostRegister_v2 = 2@triggered");
    let (driver, _completions) = opened(&fake);
    let context = context(&driver.unwrap());
    let maximum = getrlimit(Resource::Memlock).maximum;
    let lowest = maximum.unwrap_or(u64::MAX).min(3 << 20);
    setrlimit(Resource::Memlock, Rlimit { current: Some(lowest), maximum }).unwrap();
    let first = pinned::new_buffer(&context, 2 << 20).unwrap();
    fake.trigger(true);
    let refused = |length| pinned::new_buffer(&context, length).map(drop);
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

/// Memory that devices may still access by its address must not become other memory.
#[test]
fn a_buffer_that_cannot_be_unregistered_is_leaked() {
    let fake = Fake::new().with("fail.cuMemHostUnregister = 1@triggered");
    let (driver, _completions) = opened(&fake);
    let context = context(&driver.unwrap());
    let buffer = || pinned::new_buffer(&context, 2 << 20).unwrap();
    drop(buffer());
    assert_eq!(context.api().registered(), Bytes::ZERO);
    let kept = buffer();
    let address = kept.start().as_ptr().addr();
    fake.trigger(true);
    drop(kept);
    assert!(is_mapped(address));
    assert_eq!(context.api().registered(), Bytes::mib(2), "and it counts");
    fake.trigger(false);
    let next = buffer();
    assert_ne!(next.start().as_ptr().addr(), address);
}

/// Otherwise both would find the same room.
#[test]
fn buffers_and_host_memory_are_registered_one_at_a_time() {
    let fake = Fake::new().with("attribute.141 = 0").with("hang.cuMemHostRegister_v2 = 1").with("note = 1");
    let (driver, completions) = opened(&fake);
    let driver = driver.unwrap();
    let context = context(&driver);
    let registers = || fake.threads_calling("cuMemHostRegister_v2");
    fake.trigger(true);
    let (extent, size) = (ExtentId::from_raw(1), Bytes::mib(2));
    driver.submit(Submission::CreateHost { extent, node: HostNode(0), size, zeroed: true });
    let deadline = Instant::now() + Duration::from_secs(20);
    while !registers().iter().any(|by| by == "cuda-host") {
        assert!(Instant::now() < deadline, "{:?}", registers());
        thread::sleep(Duration::from_millis(1));
    }
    let before = registers().len();
    thread::scope(|scope| {
        let other = scope.spawn(|| pinned::new_buffer(&context, 2 << 20).map(drop));
        thread::sleep(Duration::from_millis(100));
        let meanwhile = registers().len();
        fake.trigger(false);
        assert_eq!(other.join().unwrap(), Ok(()));
        assert_eq!((meanwhile, registers().len()), (before, before + 1));
    });
    assert!(matches!(next(&completions), Completion::Created { result: Ok(_), .. }));
}

const PIECE: usize = 2 << 20;

/// Buffers of that library.
fn lending(fake: &Fake) -> (Arc<Context>, Arc<Buffers>) {
    let (driver, _completions) = opened(fake);
    (context(&driver.unwrap()), Arc::default())
}

#[test]
fn a_returned_buffer_is_lent_again_and_a_small_one_is_replaced() {
    let fake = Fake::new().with("register_mib = 21");
    let (context, buffers) = lending(&fake);
    let [one, other] = [buffers.borrower(), buffers.borrower()];
    let take = |length| one.take(&context, length).unwrap().expect("there is room");
    let first = take(PIECE);
    let start = first.start();
    drop(first);
    let again = other.take(&context, PIECE).unwrap().unwrap();
    assert_eq!((again.start(), context.api().registered()), (start, Bytes::mib(2)));
    drop(again);
    // As many as before, however large.
    drop(take(PIECE + 4096));
    assert_eq!(context.api().registered(), Bytes::new(2 << 20 | 4096));
    drop(take(PIECE));
    assert_eq!(context.api().registered(), Bytes::new(2 << 20 | 4096));
    // A small request gets no large buffer, and either is freed if there is no room beside it.
    drop(take(8 * PIECE));
    assert_eq!(context.api().registered(), Bytes::new(9 << 21 | 4096));
    let pieces = [(); 2].map(|()| take(PIECE));
    assert_eq!(context.api().registered(), Bytes::new(10 << 21 | 4096));
    let third = take(PIECE);
    assert_eq!(context.api().registered(), Bytes::new(3 << 21 | 4096));
    drop((pieces, third));
}

#[test]
fn a_borrower_without_buffers_waits_only_for_lent_ones() {
    let fake = Fake::new().with("register_mib = 5");
    let (context, buffers) = lending(&fake);
    let [one, other] = [buffers.borrower(), buffers.borrower()];
    let take = |borrower: &Borrower| borrower.take(&context, PIECE);
    let [first, second] = [(); 2].map(|()| take(&one).unwrap().unwrap());
    assert!(take(&one).unwrap().is_none(), "there is room for two");
    assert!(take(&other).unwrap().is_none(), "they will be back");
    drop(first);
    assert!(take(&one).unwrap().is_none(), "it has one, and the other has none");
    let its = take(&other).unwrap().unwrap();
    drop(second);
    let second = take(&one).unwrap().unwrap();
    // A borrower that waited in vain gets the reason, and holds up no other.
    let waiting = buffers.borrower();
    assert!(matches!(waiting.take_or_wait(&context, PIECE), Err(DriverError::OutOfHostMemory(_))));
    drop(its);
    assert!(take(&one).unwrap().is_some());
    // A leaked buffer is not waited for.
    second.leak();
    take(&one).unwrap().unwrap().leak();
    assert!(matches!(take(&one), Err(DriverError::OutOfHostMemory(_))));
}

/// The extent of a waiting piece may be gone by then; then it asks no more.
#[test]
fn a_borrower_that_stopped_asking_leaves_the_line() {
    let fake = Fake::new().with("register_mib = 2");
    let (context, buffers) = lending(&fake);
    let [one, gone, other] = [buffers.borrower(), buffers.borrower(), buffers.borrower()];
    let take = |borrower: &Borrower| borrower.take(&context, PIECE).unwrap();
    let first = take(&one);
    assert!(take(&gone).is_none());
    drop(first);
    assert!(take(&other).is_none(), "it came later");
    let deadline = Instant::now() + Duration::from_secs(20);
    while take(&other).is_none() {
        assert!(Instant::now() < deadline, "no borrower has a buffer");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_borrower_that_fails_for_another_reason_leaves_the_line() {
    let fake = Fake::new().with("register_mib = 5").with("fail.cuMemHostRegister_v2 = 54321@triggered");
    let (context, buffers) = lending(&fake);
    let [one, other] = [buffers.borrower(), buffers.borrower()];
    let take = |borrower: &Borrower| borrower.take(&context, PIECE);
    let [_first, second] = [(); 2].map(|()| take(&one).unwrap().unwrap());
    assert!(take(&one).unwrap().is_none() && take(&other).unwrap().is_none());
    fake.trigger(true);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !matches!(take(&other), Err(DriverError::Failed(_))) {
        assert!(Instant::now() < deadline, "it asks again");
        thread::sleep(Duration::from_millis(10));
    }
    drop(second);
    assert!(take(&one).unwrap().is_some());
}
