//! Discardable memory in the SDK: it is dropped where other memory would be copied.

use std::time::Duration;

use vramd_client::{Access, Allocation, AllocationRequest, Bytes, Client, ClientBuilder, Reason, aio};
use vramd_proto::v1::{EventKind, WatchRequest, move_event::Change, watch_response::Event};
use vramd_tests::{Config, Daemon, MIB, Watching, content, wait::until};

const SIZE: u64 = 8 * MIB;
const PART: usize = 2 << 20;

/// A device of four parts, with room for one in the host.
fn daemon() -> Daemon {
    Daemon::start(&Config::devices(&["8MiB"]).memory("host_size = \"2MiB\"").memory("harvest_ms = 5"))
}

fn builder(daemon: &Daemon) -> ClientBuilder {
    let patience = Duration::from_secs(60);
    Client::builder().socket_dir(daemon.sockets()).name("test").request_timeout(patience)
}

fn request() -> AllocationRequest {
    AllocationRequest::new(Bytes::new(SIZE)).part_size(Bytes::mib(2)).discardable()
}

/// For each part its drop count, and whether it has the bytes that were written to it.
fn inspect(memory: &Allocation, written: &[u8]) -> Vec<(u64, bool)> {
    let parts = (0..4).zip(written.chunks(PART));
    let look = |(index, written)| {
        let pinned = memory.pin_parts(index..index + 1, Access::Read).unwrap();
        (pinned.drop_count(), pinned.as_slice().unwrap() == written)
    };
    parts.map(look).collect()
}

#[test]
fn a_discardable_part_is_dropped_for_room_and_its_owner_notified() {
    let daemon = daemon();
    let [client, other] = [(); 2].map(|()| builder(&daemon).connect().unwrap());
    let kinds = vec![EventKind::Move.into()];
    let mut watching = Watching::start(&daemon.admin, WatchRequest { kinds, ..Default::default() }).unwrap();
    let mut memory = client.allocate(request()).unwrap();
    let written = content(SIZE, 3);
    memory.copy_from_host(0, &written).unwrap();
    memory.unpin().unwrap();
    assert_eq!(inspect(&memory, &written), [(0, true); 4]);
    assert_eq!(daemon.state().charged_in_host(), 0, "it needs nothing below");

    let needed = AllocationRequest::new(Bytes::mib(4)).part_size(Bytes::mib(2)).wait(Duration::from_secs(10));
    let theirs = other.allocate(needed).unwrap();
    for _ in 0..2 {
        let Some(Event::Move(told)) = watching.read().event else { panic!("no move") };
        assert_eq!((told.change(), told.allocation_id), (Change::Dropped, memory.id().get()));
    }
    let id = memory.id().to_string();
    until("dropped parts are no longer charged", || {
        let shown = daemon.vramctl().args(["alloc", "show", &id, "--json"]).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown["allocation"]["charged_bytes"] == 4 * MIB && shown["allocation"]["discardable"] == true
    });
    theirs.free().unwrap();
    let now = inspect(&memory, &written);
    assert_eq!(now.iter().map(|(losses, _)| losses).sum::<u64>(), 2);
    assert!(now.iter().all(|(losses, same)| (*losses == 0) == *same), "{now:?}");
    // Every thread that pins the part gets the same drop count.
    let elsewhere = std::thread::scope(|scope| {
        scope.spawn(|| memory.pin(Access::Read).unwrap().drop_count()).join().unwrap()
    });
    assert_eq!((elsewhere, memory.pin_ref(0..4, Access::Write).unwrap().drop_count()), (2, 2));
    memory.copy_from_host(0, &written).unwrap();
    assert!(inspect(&memory, &written).iter().all(|(_, same)| *same));

    let failed = memory.seal().unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::KindUnsupported));
    drop(failed);
    let named = request().name("scratch").persistent();
    assert_eq!(client.allocate(named).unwrap_err().reason(), Some(Reason::RequestInvalid));
    drop((client, other));
    daemon.drains();
}

#[test]
fn a_task_is_notified_of_a_drop() {
    let daemon = daemon();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = aio::Client::from(builder(&daemon).connect_async().await.unwrap().blocking().clone());
        let memory = client.allocate(request().unpinned()).await.unwrap();
        let losses = memory.pin_async(Access::Write).await.unwrap().drop_count();
        let id = memory.id().to_string();
        until("it is dropped", || {
            let evicting = daemon.vramctl().args(["alloc", "evict", &id, "--json"]).output().unwrap();
            let told: serde_json::Value = serde_json::from_slice(&evicting.stdout).unwrap();
            (0..4).all(|at| told["parts"][at]["outcome"] == "moved")
        });
        until("it is nowhere, and charged no more", || {
            let shown = daemon.vramctl().args(["alloc", "show", &id, "--json"]).output().unwrap();
            let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
            let nowhere = (0..4).all(|at| shown["allocation"]["parts"][at]["tier"].is_null());
            nowhere && shown["allocation"]["charged_bytes"] == 0
        });
        let pinned = memory.pin_async(Access::Read).await.unwrap();
        assert_eq!((losses, pinned.drop_count()), (0, 4));
    });
    daemon.drains();
}
