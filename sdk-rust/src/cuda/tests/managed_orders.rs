//! Orders for managed memory: the daemon's frame, the driver's calls, and the answer.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use vramd_proto::v1::{
    Device, ManagedOrder, ManagedOrders, ManagedOrdersDone, Tier, client_frame::Frame as Said,
    daemon_frame::Frame,
};
use vramd_types::AllocationId;

use super::FakeDriver;
use crate::{
    channel::fake::{PATIENCE, Pinning},
    cuda::{Gpus, ManagedRange},
};

const UUID: &str = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0";
/// The number that the fake driver gives to each stream that is made.
const OWN_STREAM: u64 = 0x5;
/// An advice: the preferred location.
const PREFER: u32 = 3;

fn start(fake: &FakeDriver, memories: &[u64]) -> Pinning {
    let device = Device { uuid: UUID.to_owned(), index: 0, name: String::new(), simulated: false };
    let daemon = Pinning::start(Gpus::new(&[device]).with_driver(&fake.driver), PATIENCE);
    for id in memories {
        let context = daemon.session.table().context_of_device(0).unwrap();
        let range = ManagedRange { address: id * 0x1000, size: 10 + usize::try_from(*id).unwrap() };
        daemon.session.table().managed.add(AllocationId::from_raw(*id), Some(context), range);
    }
    fake.calls();
    daemon
}

fn order(daemon: &Pinning, batch_id: u64, orders: &[(u64, Tier)]) {
    let order = |(id, to): &(u64, Tier)| ManagedOrder { allocation_id: *id, to: (*to).into() };
    let orders = orders.iter().map(order).collect();
    daemon.send(Frame::ManagedOrders(ManagedOrders { batch_id, orders }));
}

/// The answer: the batch, and what failed.
fn answer(daemon: &Pinning) -> (u64, Vec<(u64, String)>) {
    let Some(Said::ManagedOrdersDone(ManagedOrdersDone { batch_id, failures })) = daemon.next() else {
        panic!("an answer")
    };
    (batch_id, failures.into_iter().map(|it| (it.allocation_id, it.problem)).collect())
}

/// The calls that place memory.
fn placing(fake: &FakeDriver) -> Vec<String> {
    let mut calls = fake.calls();
    calls.retain(|call| call.starts_with("cuMemAdvise") || call.starts_with("cuMemPrefetch"));
    calls
}

#[test]
fn batch_is_one_call_and_is_answered_once_it_has_moved() {
    let fake = FakeDriver::load();
    let daemon = start(&fake, &[1, 2, 3, 4]);
    fake.stream(OWN_STREAM, true, false);
    order(&daemon, 9, &[(1, Tier::Host), (2, Tier::Host), (3, Tier::Device)]);
    assert!(daemon.is_silent(), "the prefetch goes on");
    fake.stream(OWN_STREAM, false, false);
    assert_eq!(answer(&daemon), (9, Vec::new()));
    let expected = [
        format!("cuMemAdvise_v2 1000+11 {PREFER}:2.0"),
        format!("cuMemAdvise_v2 2000+12 {PREFER}:2.0"),
        format!("cuMemAdvise_v2 3000+13 {PREFER}:1.0"),
        format!("cuMemPrefetchBatchAsync 1000+11,2000+12,3000+13 0:2.0,2:1.0 flags 0 on {OWN_STREAM:x}"),
    ];
    assert_eq!(placing(&fake), expected);
}

#[test]
fn driver_without_the_batch_call_gets_a_call_for_each() {
    let fake = FakeDriver::load_built(&["--cfg", "without_batch"]);
    let daemon = start(&fake, &[1, 2]);
    order(&daemon, 1, &[(1, Tier::Device), (2, Tier::Host)]);
    assert_eq!(answer(&daemon), (1, Vec::new()));
    let calls = placing(&fake);
    assert_eq!(calls[2], "cuMemPrefetchAsync_v2 1000+11 1.0 flags 0 on 5");
    assert_eq!(calls[3], "cuMemPrefetchAsync_v2 2000+12 2.0 flags 0 on 5");
    assert_eq!(calls.len(), 4);
}

#[test]
fn failures_are_answered_with_the_step_and_the_drivers_reason() {
    let fake = FakeDriver::load();
    let daemon = start(&fake, &[1]);
    fake.fail("cuMemAdvise_v2", 1);
    order(&daemon, 1, &[(1, Tier::Host), (7, Tier::Host)]);
    let unknown = (7, "the client has no such managed memory".to_owned());
    let of_advice = (1, "preferred location: CUDA_ERROR_INVALID_VALUE".to_owned());
    assert_eq!(answer(&daemon), (1, vec![unknown, of_advice]));
    assert_eq!(placing(&fake).len(), 2, "it is prefetched all the same");
    fake.fail("cuMemPrefetchAsync_v2", 1);
    fake.fail("cuMemPrefetchBatchAsync", 1);
    order(&daemon, 2, &[(1, Tier::Host)]);
    assert_eq!(answer(&daemon), (2, vec![(1, "prefetch: CUDA_ERROR_INVALID_VALUE".to_owned())]));
}

#[test]
fn failed_batch_call_is_followed_by_a_call_for_each() {
    let fake = FakeDriver::load();
    let daemon = start(&fake, &[1, 2]);
    fake.fail("cuMemPrefetchBatchAsync", 1);
    order(&daemon, 1, &[(1, Tier::Host), (2, Tier::Host)]);
    assert_eq!(answer(&daemon), (1, Vec::new()));
    let each = placing(&fake).into_iter().filter(|call| call.starts_with("cuMemPrefetchAsync_v2")).count();
    assert_eq!(each, 2);
}

#[test]
fn free_waits_for_the_order_that_moves_the_memory() {
    let fake = FakeDriver::load();
    let daemon = start(&fake, &[1, 2]);
    fake.stream(OWN_STREAM, true, false);
    order(&daemon, 1, &[(1, Tier::Host)]);
    let begun = Instant::now();
    while placing(&fake).is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        thread::yield_now();
    }
    // Other memory is not held up.
    daemon.session.table().managed.remove(AllocationId::from_raw(2));
    let session = daemon.session.clone();
    let freeing = thread::spawn(move || session.table().managed.remove(AllocationId::from_raw(1)));
    thread::sleep(Duration::from_millis(30));
    assert!(!freeing.is_finished(), "the order still moves it");
    fake.stream(OWN_STREAM, false, false);
    freeing.join().unwrap();
    assert_eq!(answer(&daemon), (1, Vec::new()));
    // Neither is moved again.
    fake.calls();
    order(&daemon, 2, &[(1, Tier::Device), (2, Tier::Device)]);
    assert_eq!(answer(&daemon).1.len(), 2);
    assert!(placing(&fake).is_empty());
}

#[test]
fn batches_of_a_session_are_executed_in_their_order() {
    let fake = FakeDriver::load();
    let daemon = start(&fake, &[1]);
    fake.stream(OWN_STREAM, true, false);
    for batch in 1..=3 {
        order(&daemon, batch, &[(1, if batch == 2 { Tier::Device } else { Tier::Host })]);
    }
    fake.stream(OWN_STREAM, false, false);
    assert_eq!([1, 2, 3].map(|_| answer(&daemon).0), [1, 2, 3]);
    let places: Vec<_> = placing(&fake).into_iter().filter(|call| call.contains("Batch")).collect();
    assert!(places[0].contains("0:2.0") && places[1].contains("0:1.0") && places[2].contains("0:2.0"));
}

#[test]
fn simulated_memory_is_moved_by_an_answer() {
    let device = Device { uuid: "sim-0".to_owned(), index: 0, name: String::new(), simulated: true };
    let daemon = Pinning::start(Gpus::new(&[device]), PATIENCE);
    let range = ManagedRange { address: 0x1000, size: 5 };
    daemon.session.table().managed.add(AllocationId::from_raw(1), None, range);
    order(&daemon, 4, &[(1, Tier::Host)]);
    assert_eq!(answer(&daemon), (4, Vec::new()));
}

#[test]
fn thread_of_orders_ends_with_them() {
    let fake = FakeDriver::load();
    let daemon = start(&fake, &[1]);
    let context = daemon.session.table().context_of_device(0).unwrap();
    for batch in 1..=20 {
        order(&daemon, batch, &[(1, Tier::Host)]);
        assert_eq!(answer(&daemon).0, batch);
    }
    daemon.session.table().managed.remove(AllocationId::from_raw(1));
    let begun = Instant::now();
    // The table's own, and the one here.
    while Arc::strong_count(&context) > 2 {
        assert!(begun.elapsed() < PATIENCE, "a thread keeps the context");
        thread::yield_now();
    }
}
