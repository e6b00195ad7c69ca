//! Parts that can never be on their device together are refused at once, and block no waiter.

use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client, Error};
use vramd_tests::{Config, Daemon, MIB, content, digest, wait::until};

use crate::moves::{
    clients::programs::{allocate_unpinned, send, tiers_of},
    pins::fetch::connect,
    vramctl_json,
};

fn daemon(device: &str) -> Daemon {
    Daemon::start(&Config::devices(&[device]).memory("host_size = \"32MiB\"").memory("harvest_ms = 5"))
}

fn request(mib: u32) -> AllocationRequest {
    AllocationRequest::new(Bytes::mib(mib)).part_size(Bytes::mib(2))
}

/// Memory with content in parts of 2 MiB, all of it in the host.
fn allocate_in_host(daemon: &Daemon, client: &Client, count: u64) -> Allocation {
    let memory = allocate_unpinned(daemon, client, count);
    send(daemon, &memory, "host");
    memory
}

fn nobody_waits(daemon: &Daemon) -> bool {
    vramctl_json(daemon, &["wait", "list"])["waits"].as_array().expect("the list of waits").is_empty()
}

#[test]
fn a_seal_fetches_no_part() {
    let daemon = daemon("16MiB");
    let client = connect(&daemon);
    let memory = allocate_in_host(&daemon, &client, 3);
    let (id, bytes) = (memory.id().to_string(), content(6 * MIB, memory.id().get()));
    let sealed = memory.seal().unwrap();
    assert_eq!((tiers_of(&daemon, &id), nobody_waits(&daemon)), (vec!["host".to_owned(); 3], true));
    let pinned = sealed.pin(Access::Read).unwrap();
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&bytes));
    drop(pinned);
    sealed.free().unwrap();
    daemon.drains();
}

#[test]
fn an_attach_larger_than_the_device_blocks_no_waiter() {
    let daemon = daemon("8MiB");
    let [writer, reader, other] = [(); 3].map(|()| connect(&daemon));
    let weights =
        writer.allocate(request(12).unpinned().name("weights").persistent()).unwrap().seal().unwrap();
    let cache = allocate_in_host(&daemon, &other, 2);

    let refused = reader.attach("weights").unwrap_err();
    assert!(matches!(refused, Error::DeviceFull { asked, .. } if asked == Bytes::mib(12)), "{refused:?}");
    assert!(nobody_waits(&daemon));
    let pinned = cache.pin(Access::Read).unwrap();
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(4 * MIB, cache.id().get())));
    drop(pinned);
    let attached = reader.attach_unpinned("weights").unwrap();
    for at in 0..6 {
        drop(attached.pin_parts(at..at + 1, Access::Read).unwrap());
    }
    weights.free().unwrap();
    drop((attached, cache));
    daemon.drains();
}

#[test]
fn a_pin_set_beyond_the_unguaranteed_room_is_refused() {
    let daemon = daemon("16MiB");
    let client = connect(&daemon);
    let memory = allocate_in_host(&daemon, &client, 4);
    daemon.set_quota("another", "10MiB", "16MiB");
    let refused = memory.pin(Access::Read).unwrap_err();
    let Error::DeviceFull { asked, free, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((asked, free), (Bytes::mib(8), Bytes::mib(6)));
    drop(memory.pin_parts(0..3, Access::Read).unwrap());

    // A waiter is refused once its request can no longer fit.
    daemon.set_quota("another", "0", "16MiB");
    send(&daemon, &memory, "host");
    let filler = client.allocate(request(12)).unwrap();
    let tenant = client.tenant().to_owned();
    std::thread::scope(|scope| {
        let pinning = scope.spawn(|| memory.pin(Access::Read).map(drop));
        until("it waits", || !nobody_waits(&daemon));
        daemon.set_quota(&tenant, "0", "6MiB");
        let refused = pinning.join().unwrap().unwrap_err();
        assert!(matches!(refused, Error::QuotaLimit { .. }), "{refused:?}");
    });
    assert!(nobody_waits(&daemon));
    daemon.set_quota(&tenant, "0", "16MiB");
    filler.free().unwrap();
    assert_eq!(
        digest(memory.pin(Access::Read).unwrap().as_slice().unwrap()),
        digest(&content(8 * MIB, memory.id().get()))
    );
    memory.free().unwrap();
    daemon.drains();
}
