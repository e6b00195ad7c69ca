//! Several handles of one allocation in one session share its mapping, until the last of them ends.

use std::os::{fd::AsRawFd as _, unix::fs::FileExt as _};

use vramd_client::{
    Access, AllocationRequest, Bytes, Client, Error, RawAllocation, RawClient, Reason, Sealed,
};
use vramd_tests::{Config, Daemon, MIB, content, digest, wait::until};

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

#[test]
fn refused_attach_of_open_memory_leaves_its_handle_alone() {
    let daemon = Daemon::new();
    let client = connect(&daemon);
    let open = client.allocate(AllocationRequest::new(Bytes::mib(2))).unwrap();
    assert_eq!(client.attach(open.id()).unwrap_err().reason(), Some(Reason::NotSealed));
    let own = open.seal().unwrap();
    client.flush().unwrap();
    assert_eq!(digest(own.as_slice().unwrap()), own.digest());
}

fn connect_raw(daemon: &Daemon) -> RawClient {
    Client::builder().socket_dir(daemon.sockets()).name("test").connect_raw().unwrap()
}

/// The numbers of the descriptors that a raw handle has.
fn descriptors(handle: &RawAllocation) -> Vec<i32> {
    handle.parts().iter().filter_map(|part| Some(part.fd.as_ref()?.as_raw_fd())).collect()
}

/// The bytes that a raw handle's descriptors lead to.
fn read(handle: &RawAllocation) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in handle.parts() {
        let mut of_part = vec![0; usize::try_from(part.size.get()).unwrap()];
        let file = std::fs::File::from(part.fd.as_ref().unwrap().try_clone().unwrap());
        file.read_exact_at(&mut of_part, 0).unwrap();
        bytes.extend(of_part);
    }
    bytes.truncate(usize::try_from(handle.info().size.get()).unwrap());
    bytes
}

#[test]
fn raw_handles_of_an_allocation_share_its_descriptors_until_the_last_ends() {
    let daemon = Daemon::new();
    let (writer, raw) = (connect(&daemon), connect_raw(&daemon));
    let own = sealed(&writer, "model", 5 * MIB);
    let mapper_count = || daemon.state().allocations[0].mapper_count;

    let first = raw.attach("model").unwrap();
    let mut second = raw.attach(first.id()).unwrap();
    let third = raw.attach("model").unwrap();
    assert_eq!((descriptors(&first).len(), mapper_count()), (3, 2), "the session maps it once");
    assert_eq!([descriptors(&second), descriptors(&third)], [(); 2].map(|()| descriptors(&first)));
    assert_eq!(digest(&read(&third)), own.digest());

    // Refused, the handle is as before.
    let refused = first.free().unwrap_err();
    assert!(matches!(refused.error, Error::Pinned { pins: 2, .. }), "{:?}", refused.error);
    assert_eq!(descriptors(&refused.handle), descriptors(&second));
    drop(refused.handle);
    third.detach().unwrap();
    assert_eq!(digest(&read(&second)), own.digest());

    // A program that has mapped a part and closed its descriptor uses that mapping.
    second.parts_mut().iter_mut().for_each(|part| part.fd = None);
    let fourth = raw.attach("model").unwrap();
    let offsets = |handle: &RawAllocation| handle.parts().iter().map(|part| part.offset).collect::<Vec<_>>();
    assert_eq!((descriptors(&fourth).len(), offsets(&fourth)), (0, offsets(&second)));
    assert_eq!(mapper_count(), 2);
    drop(second);
    fourth.detach().unwrap();
    until("the raw session is detached", || mapper_count() == 1);
    let anew = raw.attach("model").unwrap();
    assert_eq!(digest(&read(&anew)), own.digest());
    anew.detach().unwrap();
    own.free().unwrap();
    daemon.drains();
}

#[test]
fn raw_memory_of_a_session_ends_with_its_last_handle() {
    let daemon = Daemon::new();
    let raw = connect_raw(&daemon);
    let open = raw.allocate(AllocationRequest::new(Bytes::mib(2))).unwrap();
    // Another handle of open memory is refused, and leaves this one as it was.
    assert_eq!(raw.attach(open.id()).unwrap_err().reason(), Some(Reason::NotSealed));
    let own = open.seal().unwrap();
    let again = raw.attach(own.id()).unwrap();
    assert_eq!(descriptors(&again), descriptors(&own));
    assert_eq!(read(&again), vec![0; 2 << 20]);
    drop(own);
    // Sealed memory cannot be sealed again; the attempt ends the last handle, and with it the memory.
    assert_eq!(raw.list("").unwrap().len(), 1);
    assert_eq!(again.seal().unwrap_err().reason(), Some(Reason::AlreadySealed));
    daemon.drains();
}
