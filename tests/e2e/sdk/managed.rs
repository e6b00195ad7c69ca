//! Managed memory in the SDK: the daemon charges it and orders it to the device or to the host.

use std::time::Duration;

use vramd_client::{
    AllocationKind, Bytes, Client, ManagedMemory, ManagedPlace, ManagedRequest, Reason, Tier,
};
use vramd_tests::{Config, Daemon, MIB, wait::until};

fn connect(daemon: &Daemon) -> Client {
    let patience = Duration::from_secs(60);
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(patience).connect().unwrap()
}

fn allocate(client: &Client, mib: u32) -> ManagedMemory {
    client.allocate_managed(ManagedRequest::new(Bytes::mib(mib))).unwrap()
}

#[track_caller]
fn settles(client: &Client, memory: &ManagedMemory, on: Tier) {
    let there = Some(ManagedPlace { ordered: Some(on), under_way: None });
    until("the order is executed", || client.describe(memory.id()).unwrap().managed == there);
}

#[test]
fn memory_is_ordered_and_shown_as_such() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let client = connect(&daemon);
    let memory = allocate(&client, 16);
    let shown = client.describe(memory.id()).unwrap();
    assert_eq!(shown.kind, AllocationKind::Managed);
    assert_eq!(shown.managed, Some(ManagedPlace { ordered: None, under_way: None }));
    memory.evict().unwrap();
    settles(&client, &memory, Tier::Host);
    let quota = || client.quota().unwrap().remove(0);
    let figures = || {
        let quota = quota();
        [quota.used, quota.managed, quota.managed_on_device, quota.managed_on_host].map(|it| it.get() / MIB)
    };
    assert_eq!(figures(), [16, 16, 0, 16], "it stays charged");
    memory.bring_in().unwrap();
    settles(&client, &memory, Tier::Device);
    assert_eq!(figures(), [16, 16, 16, 0]);
    assert_eq!(client.describe(memory.id()).unwrap().resident, Bytes::ZERO, "ordered is not known");
    assert!(memory.free(0).is_empty());
    until("its charge ends", || figures() == [0; 4]);
}

#[test]
fn no_more_is_ordered_to_the_device_than_the_limit() {
    let daemon = Daemon::start(&Config::devices(&["64MiB"]));
    let client = connect(&daemon);
    let memories = [allocate(&client, 16), allocate(&client, 16)];
    for memory in &memories {
        memory.evict().unwrap();
        settles(&client, memory, Tier::Host);
    }
    daemon.set_quota(client.tenant(), "0", "20MiB");
    memories[0].bring_in().unwrap();
    let refused = memories[1].bring_in().unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::QuotaLimit), "{refused}");
    settles(&client, &memories[0], Tier::Device);
    settles(&client, &memories[1], Tier::Host);
    daemon.set_quota(client.tenant(), "0", "40MiB");
    memories[1].bring_in().unwrap();
    settles(&client, &memories[1], Tier::Device);
}
