//! Managed memory of a program that knows nothing of vramd: operators order it elsewhere, and its process moves it.

use fake_cuda::Fake;
use rustix::process::{Pid, Signal, kill_process};
use vramd_proto::v1::{Allocation, AllocationKind, Tier};
use vramd_tests::{proc, wait::until};

use crate::{Node, Talk, text};

/// The program's managed memory, as operators see it.
fn managed(node: &Node) -> Vec<Allocation> {
    let all = node.daemon.state().allocations;
    all.into_iter().filter(|it| it.kind() == AllocationKind::Managed).collect()
}

#[track_caller]
fn order(node: &Node, verb: &str, id: u64) {
    let output = node.daemon.vramctl().args(["alloc", verb, &format!("a-{id}")]).output().unwrap();
    assert_eq!(text(&output.stdout).trim_end(), "ordered", "{}", text(&output.stderr));
}

/// Where the memory is ordered, and where an order is under way to.
fn place(node: &Node, id: u64) -> (Tier, Tier) {
    let place = managed(node).into_iter().find(|it| it.allocation_id == id).unwrap().managed.unwrap();
    (place.ordered(), place.under_way())
}

const NOWHERE: Tier = Tier::Unspecified;

#[test]
fn orders_are_executed_in_the_program_by_the_batch_call() {
    let node = Node::new(Fake::new().with("note = 1"));
    let mut talk = Talk::start(&node, "managed");
    talk.expect("ready");
    let ids: Vec<u64> = managed(&node).iter().map(|it| it.allocation_id).collect();
    assert_eq!(ids.len(), 2);
    let by = |call: &str| node.fake.threads_calling(call);
    for (verb, to, location) in [("evict", Tier::Host, "2.0"), ("bring-in", Tier::Device, "1.0")] {
        for id in &ids {
            order(&node, verb, *id);
            until("the order is executed", || place(&node, *id) == (to, NOWHERE));
        }
        assert_eq!(by(&format!("cuMemAdvise_v2(3:{location})")), ["vramd-orders"; 2]);
        assert_eq!(by(&format!("cuMemPrefetchBatchAsync(1:{location})")), ["vramd-orders"; 2]);
        let device = &node.daemon.state().devices[0];
        let ordered = (device.managed_on_device_bytes, device.managed_on_host_bytes);
        let all = device.managed_bytes;
        assert_eq!(ordered, if to == Tier::Host { (0, all) } else { (all, 0) });
    }
    talk.answer();
    talk.expect("done");
    node.daemon.drains();
}

#[test]
fn driver_before_cuda_13_gets_a_prefetch_for_each() {
    let node = Node::new(Fake::new().with("note = 1").without("cuMemPrefetchBatchAsync"));
    let mut talk = Talk::start(&node, "managed");
    talk.expect("ready");
    let id = managed(&node)[0].allocation_id;
    order(&node, "evict", id);
    until("the order is executed", || place(&node, id) == (Tier::Host, NOWHERE));
    talk.answer();
    talk.expect("done");
}

#[test]
fn failed_order_is_counted_and_harms_nothing() {
    let fake =
        Fake::new().with("fail.cuMemPrefetchBatchAsync = 1@1").with("fail.cuMemPrefetchAsync_v2 = 1@1");
    let node = Node::configured(fake, |config| config.telemetry("prometheus_listen = \"127.0.0.1:0\""));
    let mut talk = Talk::start(&node, "managed");
    talk.expect("ready");
    let id = managed(&node)[0].allocation_id;
    order(&node, "evict", id);
    let count = |outcome: &str| {
        let series = format!("vramd_managed_orders_total{{vramd_managed_order_outcome=\"{outcome}\"}} ");
        let metrics = node.daemon.metrics();
        metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok())
    };
    until("the failure is counted", || (count("executed"), count("failed")) == (Some(0), Some(1)));
    assert_eq!(place(&node, id), (NOWHERE, NOWHERE));
    until("the log says why", || node.daemon.log().contains("prefetch: CUDA_ERROR_INVALID_VALUE"));
    talk.answer();
    talk.expect("done");
    node.daemon.drains();
}

#[test]
fn stopped_program_keeps_one_order_in_flight_and_takes_it_along() {
    let node = Node::new(Fake::new());
    let mut talk = Talk::start(&node, "managed");
    talk.expect("ready");
    let ids: Vec<u64> = managed(&node).iter().map(|it| it.allocation_id).collect();
    let pid = Pid::from_child(&talk.child);
    proc::stop(talk.child.id());
    for _ in 0..3 {
        order(&node, "evict", ids[0]);
        order(&node, "bring-in", ids[0]);
        order(&node, "evict", ids[1]);
    }
    assert_eq!(place(&node, ids[0]), (NOWHERE, Tier::Device));
    assert_eq!(place(&node, ids[1]), (NOWHERE, Tier::Host));
    kill_process(pid, Signal::CONT).unwrap();
    until("it has caught up", || {
        place(&node, ids[0]) == (Tier::Device, NOWHERE) && place(&node, ids[1]) == (Tier::Host, NOWHERE)
    });
    proc::stop(talk.child.id());
    order(&node, "bring-in", ids[1]);
    kill_process(pid, Signal::KILL).unwrap();
    drop(talk);
    node.daemon.drains();
}

#[test]
fn program_goes_on_when_the_daemon_ends_during_an_order() {
    let node = Node::new(Fake::new());
    let mut talk = Talk::start(&node, "managed");
    talk.expect("ready");
    let pid = Pid::from_child(&talk.child);
    proc::stop(talk.child.id());
    order(&node, "evict", managed(&node)[0].allocation_id);
    drop(node.daemon);
    kill_process(pid, Signal::CONT).unwrap();
    talk.answer();
    talk.expect("done");
}
