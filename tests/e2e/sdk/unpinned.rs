//! Allocations and attaches without a handle pin: nothing is mapped before it is pinned.

use std::time::Duration;

use vramd_client::{Access, AllocationRequest, Bytes, Client, ClientBuilder, Error, Reason, aio};
use vramd_tests::{Config, Daemon, MIB, content, digest, wait::until};

const SIZE: u64 = 6 * MIB;

fn daemon() -> Daemon {
    Daemon::start(&Config::devices(&["16MiB"]).memory("host_size = \"16MiB\"").memory("harvest_ms = 5"))
}

fn builder(daemon: &Daemon) -> ClientBuilder {
    let patience = Duration::from_secs(60);
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(patience)
}

fn request() -> AllocationRequest {
    AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::mib(2)).unpinned()
}

#[test]
fn an_unpinned_allocation_is_pinned_evicted_sealed_and_attached() {
    let daemon = daemon();
    let client = builder(&daemon).connect().unwrap();
    let mut memory = client.allocate(request().name("weights").persistent()).unwrap();
    assert!(!memory.has_handle_pin());
    assert!(matches!(memory.as_slice(), Err(Error::NotPinned { .. })));
    // Part by part, and the rest in one piece.
    {
        let mut last = memory.pin_parts(2..3, Access::Write).unwrap();
        let offset = usize::try_from(4 * MIB).unwrap();
        last.as_mut_slice().unwrap().copy_from_slice(&content(SIZE, 8)[offset..]);
        assert_eq!(last.as_device_ptr(), memory.as_device_ptr() + 4 * MIB);
    }
    let offset = usize::try_from(4 * MIB).unwrap();
    memory.copy_from_host(0, &content(SIZE, 8)[..offset]).unwrap();
    let id = memory.id().to_string();
    until("it leaves", || {
        let evicting = daemon.vramctl().args(["alloc", "evict", &id, "--json"]).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&evicting.stdout).unwrap();
        (0..3).all(|at| told["parts"][at]["outcome"] == "moved")
    });
    let pinned = memory.pin(Access::Read).unwrap();
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(SIZE, 8)));
    drop(pinned);

    let mut sealed = memory.seal().unwrap();
    assert!(!sealed.has_handle_pin());
    assert_eq!(sealed.digest(), digest(&content(SIZE, 8)));
    let pinned = sealed.pin(Access::Read).unwrap();
    assert_eq!(digest(pinned.as_slice().unwrap()), digest(&content(SIZE, 8)));
    drop(pinned);
    sealed.repin().unwrap();
    assert_eq!(digest(sealed.as_slice().unwrap()), digest(&content(SIZE, 8)));
    let reader = builder(&daemon).connect().unwrap();
    assert_eq!(digest(reader.attach("weights").unwrap().as_slice().unwrap()), digest(&content(SIZE, 8)));
    sealed.free().unwrap();
    drop(reader);
    daemon.drains();
}

#[test]
fn a_batch_mixes_pinned_and_unpinned_handles() {
    let daemon = daemon();
    let client = builder(&daemon).connect().unwrap();
    let held = AllocationRequest::new(Bytes::mib(2));
    let mut both = client.allocate_batch([request(), held]).unwrap();
    let mut held = both.pop().unwrap();
    let mut unheld = both.pop().unwrap();
    assert_eq!((held.has_handle_pin(), unheld.has_handle_pin(), held.is_mapped()), (true, false, true));
    held.as_mut_slice().unwrap()[0] = 1;
    let set = client.pin_set(&[(&unheld, Access::Write), (&held, Access::Read)]).unwrap();
    assert_eq!(set.guards()[0].len_bytes(), SIZE);
    drop(set);
    unheld.repin().unwrap();
    assert!(unheld.is_mapped() && unheld.as_mut_slice().unwrap().iter().all(|byte| *byte == 0));
    // A part that was never pinned is freed as it was made.
    drop(client.allocate(request()).unwrap());
    client.allocate(request()).unwrap().free().unwrap();
    drop((held, unheld));
    client.flush().unwrap();
    daemon.drains();
}

#[test]
fn a_client_without_pins_is_sent_every_part() {
    let daemon = daemon();
    let raw = builder(&daemon).connect_raw().unwrap();
    let memory = raw.allocate(request()).unwrap();
    assert_eq!(memory.parts().len(), 3);
    assert!(memory.parts().iter().all(|part| part.writable && part.fd.is_some()));
    memory.free().unwrap();
    daemon.drains();
}

/// A device of four parts, and an allocation of eight.
fn small_device() -> Daemon {
    Daemon::start(&Config::devices(&["32MiB"]).memory("host_size = \"64MiB\"").memory("harvest_ms = 5"))
}

const LARGE: u64 = 64 * MIB;
const LARGE_PART: u64 = 8 * MIB;

fn seal_large(client: &Client, written: &[u8]) -> String {
    let request = AllocationRequest::new(Bytes::new(LARGE)).part_size(Bytes::new(LARGE_PART)).unpinned();
    let mut memory = client.allocate(request.name("weights").persistent()).unwrap();
    memory.copy_from_host(0, written).unwrap();
    let sealed = memory.seal().unwrap();
    assert_eq!(sealed.digest(), digest(written));
    sealed.id().to_string()
}

#[test]
fn an_allocation_larger_than_the_device_is_sealed_and_read_by_ranges() {
    let daemon = small_device();
    let written = content(LARGE, 4);
    let owner = builder(&daemon).connect().unwrap();
    let id = seal_large(&owner, &written);

    let [reader, other] = [(); 2].map(|()| builder(&daemon).connect().unwrap());
    let sealed = reader.attach_unpinned("weights").unwrap();
    assert_eq!(
        (sealed.id().to_string(), sealed.has_handle_pin(), sealed.digest()),
        (id, false, &*digest(&written))
    );
    assert!(matches!(sealed.as_slice(), Err(Error::NotPinned { .. })));
    // Two readers at once, from both ends.
    let also = other.attach_unpinned("weights").unwrap();
    let read = |sealed: &vramd_client::Sealed, parts: &[u32]| {
        for first in parts.iter().copied() {
            let pinned = sealed.pin_parts(first..first + 2, Access::Read).unwrap();
            let at = usize::try_from(u64::from(first) * LARGE_PART).unwrap();
            let bytes = pinned.as_slice().unwrap();
            assert!(bytes == &written[at..at + bytes.len()], "parts {first} and {}", first + 1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| read(&sealed, &[0, 2, 4, 6]));
        scope.spawn(|| read(&also, &[6, 4, 2, 0]));
    });
    // More parts at once than the device has; and then all of it, piece by piece.
    let refused = sealed.pin(Access::Read).unwrap_err();
    let Error::DeviceFull { tier, free, asked, .. } = &refused else { panic!("{refused}") };
    assert_eq!((&**tier, *free, *asked), ("device", Bytes::mib(32), Bytes::new(LARGE)));
    assert_eq!(sealed.pin(Access::Write).unwrap_err().reason(), Some(Reason::AlreadySealed));
    let mut copied = vec![0; written.len()];
    sealed.copy_to_host(0, &mut copied).unwrap();
    assert!(copied == written);
    let verified = daemon.vramctl().args(["verify", "weights", "--json"]).output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!(told["digest"], digest(&written), "{told}");
    also.detach().unwrap();
    let id = sealed.id();
    sealed.detach().unwrap();
    owner.free(id).unwrap();
    drop((owner, reader, other));
    daemon.drains();
}

#[test]
fn a_task_attaches_what_is_larger_than_the_device() {
    let daemon = small_device();
    let written = content(LARGE, 5);
    let owner = builder(&daemon).connect().unwrap();
    seal_large(&owner, &written);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = aio::Client::from(builder(&daemon).connect_async().await.unwrap().blocking().clone());
        let sealed = client.attach_unpinned("weights").await.unwrap();
        assert!(!sealed.has_handle_pin());
        for first in [0, 7, 3] {
            let pinned = sealed.pin_parts_async(first..first + 1, Access::Read).await.unwrap();
            let at = usize::try_from(u64::from(first) * LARGE_PART).unwrap();
            let bytes = pinned.as_slice().unwrap();
            assert!(bytes == &written[at..at + bytes.len()], "part {first}");
        }
        let id = sealed.id();
        sealed.detach_async().await.unwrap();
        owner.free(id).unwrap();
    });
    drop(owner);
    daemon.drains();
}

#[test]
fn a_task_pins_an_unpinned_allocation() {
    let daemon = daemon();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = aio::Client::from(builder(&daemon).connect_async().await.unwrap().blocking().clone());
        let mut memory = client.allocate(request().wait(Duration::from_secs(5))).await.unwrap();
        memory.copy_from_host_async(SIZE - 1, &[7]).await.unwrap();
        let pinned = memory.pin_async(Access::Read).await.unwrap();
        assert_eq!(pinned.as_slice().unwrap().last(), Some(&7));
        drop(pinned);
        let too_large = AllocationRequest::new(Bytes::gib(64)).wait(Duration::from_millis(1));
        let refused = client.allocate(too_large).await.unwrap_err();
        let Error::DeviceFull { tier, asked, .. } = &refused else { panic!("{refused}") };
        assert_eq!((&**tier, *asked), ("device", Bytes::gib(64)));
        let sealed = memory.seal_async().await.unwrap();
        assert!(!sealed.has_handle_pin());
        sealed.free_async().await.unwrap();
    });
    daemon.drains();
}
