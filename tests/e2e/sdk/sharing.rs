//! Several handles of one allocation in one session share its mapping, until the last of them ends.

use vramd_client::{Access, AllocationRequest, Bytes, Client, Error, Sealed};
use vramd_tests::{Config, Daemon, MIB, content, digest};

fn connect(daemon: &Daemon) -> Client {
    Client::builder().socket_dir(daemon.sockets()).name("test").connect().unwrap()
}

fn sealed(client: &Client, name: &str, size: u64) -> Sealed {
    let request = AllocationRequest::new(Bytes::new(size)).name(name).persistent();
    let mut memory = client.allocate(request.part_size(Bytes::mib(2))).unwrap();
    memory.as_mut_slice().unwrap().copy_from_slice(&content(size, 7));
    memory.seal().unwrap()
}

#[test]
fn attaching_twice_shares_one_mapping_until_the_last_handle_ends() {
    let daemon = Daemon::new();
    let (writer, reader) = (connect(&daemon), connect(&daemon));
    let size = 5 * MIB;
    let own = sealed(&writer, "model", size);
    let again = writer.attach("model").unwrap();
    assert_eq!(again.as_slice().unwrap().as_ptr(), own.as_slice().unwrap().as_ptr(), "the session sealed it");
    own.detach().unwrap();
    assert_eq!(digest(again.as_slice().unwrap()), again.digest());

    let first = reader.attach("model").unwrap();
    let second = reader.attach("model").unwrap();
    let third = reader.attach(first.id()).unwrap();
    let state = daemon.state();
    assert_eq!(state.allocations[0].mapper_count, 2, "each session maps it once");
    drop(first);
    third.detach().unwrap();
    reader.flush().unwrap();
    assert_eq!(digest(second.as_slice().unwrap()), second.digest());
    assert_eq!(again.free().unwrap().mapper_count, 1, "the other session maps it still");
    second.detach().unwrap();
    daemon.drains();
}

#[test]
fn a_handle_without_a_pin_takes_none_from_the_others() {
    let daemon = Daemon::start(&Config::devices(&["16MiB"]).memory("host_size = \"64MiB\""));
    let client = connect(&daemon);
    let mut held = sealed(&client, "model", 8 * MIB);
    let mut loose = client.attach_unpinned("model").unwrap();
    assert!(held.has_handle_pin() && !loose.has_handle_pin());
    assert!(matches!(loose.as_slice(), Err(Error::NotPinned { .. })));
    loose.repin().unwrap();
    loose.unpin().unwrap();
    assert_eq!(digest(held.as_slice().unwrap()), held.digest(), "the other handle still has its pin");
    // The last pin is given up: another allocation may have the room.
    held.unpin().unwrap();
    let other =
        client.allocate(AllocationRequest::new(Bytes::mib(12)).wait(std::time::Duration::from_secs(20)));
    drop(other.unwrap());
    // Both handles bring it back.
    loose.repin().unwrap();
    held.repin().unwrap();
    assert_eq!(digest(loose.as_slice().unwrap()), digest(held.as_slice().unwrap()));
    drop(held);
    client.flush().unwrap();
    assert_eq!(digest(loose.as_slice().unwrap()), loose.digest());
}

#[test]
fn memory_of_a_session_ends_with_its_last_handle() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let mut memory = client.allocate(AllocationRequest::new(Bytes::mib(2))).unwrap();
    memory.copy_from_host(0, b"kept").unwrap();
    let own = memory.seal().unwrap();
    let again = client.attach(own.id()).unwrap();
    let failed = again.free().unwrap_err();
    assert!(matches!(failed.error, Error::Pinned { .. }), "{:?}", failed.error);
    drop(own);
    client.flush().unwrap();
    let guard = failed.handle.pin(Access::Read).unwrap();
    assert_eq!(&guard.as_slice().unwrap()[..4], b"kept");
    drop(guard);
    // The dropped handle would have freed it, and so the last one does.
    drop(failed.handle);
    client.flush().unwrap();
    daemon.drains();
}
