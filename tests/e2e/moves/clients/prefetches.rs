//! Clients that die, stop or fork while their prefetch requests are queued or under way: nothing stays reserved, and
//! the requests of other programs go on.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vramd_client::{
    Allocation, AllocationId, AllocationRequest, Bytes, Client, Prefetch, PrefetchRequest, PrefetchState,
};
use vramd_proto::v1::SessionState;
use vramd_tests::{
    Config, Daemon, Probe,
    config::Effect,
    content, digest, is_root,
    wait::{PATIENCE, until},
};

use crate::moves::{
    assert_nothing_left,
    clients::{
        killed::kill,
        programs::{allocate_unpinned, is_intact, send, send_by_id},
    },
    pins::fetch::connect,
    tiers, until_charged, vramctl_json,
};

const SIZE: u64 = 4 << 20;
const SEED: u64 = 7;
const READY: PrefetchState = PrefetchState::Ready { parts_left_out: 0, is_late: false };

/// The test's own program beside a client process of another tenant, if the tests run as root. Both have two parts in the
/// host.
struct Scene {
    daemon: Daemon,
    client: Client,
    memory: Allocation,
    /// The other one's session.
    session: String,
}

impl Scene {
    /// The first four copies are those of the parts on their way out.
    fn new(config: &Config) -> (Self, Probe) {
        let daemon = Daemon::start(config);
        let mut probe = if is_root() { daemon.probe_as(20_001) } else { daemon.probe() };
        let session = probe.ask("sdk open")["session"].as_u64().unwrap();
        let id = probe.ask(&format!("sdk allocate {SIZE} part=2097152"))["allocation"].as_u64().unwrap();
        probe.ask(&format!("sdk write {SEED}"));
        probe.ask("sdk unhold");
        send_by_id(&daemon, &AllocationId::from_raw(id).to_string(), "host");
        let client = connect(&daemon);
        let memory = allocate_unpinned(&daemon, &client, 2);
        send(&daemon, &memory, "host");
        until_charged(&daemon, 0, 8);
        let session = vramd_client::SessionId::from_raw(session).to_string();
        (Self { daemon, client, memory, session }, probe)
    }

    /// Fills the device with memory that the test's program uses.
    #[track_caller]
    fn fill(&self) -> Allocation {
        let request = AllocationRequest::new(Bytes::mib(8)).part_size(Bytes::mib(2));
        self.client.allocate(request.wait(PATIENCE)).expect("parts make room that no session pins")
    }

    #[track_caller]
    fn prefetch(&self) -> Prefetch {
        self.client.prefetch(PrefetchRequest::new().all(&self.memory)).expect("it fits")
    }

    /// The phases of the other session's requests.
    #[track_caller]
    fn phases(&self) -> Vec<String> {
        let listed = vramctl_json(&self.daemon, &["prefetch", "list"]);
        let entries = listed["prefetches"].as_array().expect("a list").iter();
        let theirs = entries.filter(|it| it["session_id"] == self.session.as_str());
        theirs.map(|it| it["phase"].as_str().expect("a phase").to_owned()).collect()
    }

    /// The test's program is served, and when it has ended nothing is left.
    #[track_caller]
    fn assert_served(self, prefetch: &Prefetch) {
        let Self { daemon, client, memory, .. } = self;
        assert_eq!(prefetch.wait().unwrap(), READY);
        is_intact(&memory, 2);
        drop(memory);
        client.flush().unwrap();
        drop(client);
        assert_nothing_left(&daemon);
    }
}

/// The client process makes a request for each of its parts.
#[track_caller]
fn ask(probe: &mut Probe) {
    for part in 0..2 {
        probe.ask(&format!("sdk prefetch {part} {}", part + 1));
    }
}

#[track_caller]
fn assert_intact(probe: &mut Probe) {
    assert_eq!(probe.ask("sdk pinned-digest")["digest"], digest(&content(SIZE, SEED)));
}

#[test]
fn a_client_is_killed_while_its_prefetches_are_queued() {
    for is_forked in [false, true] {
        let (scene, mut probe) = Scene::new(&tiers("8MiB", "32MiB"));
        let held = scene.fill();
        ask(&mut probe);
        let prefetch = scene.prefetch();
        assert_eq!(scene.phases(), ["queued", "queued"]);
        // A child inherits the channel, and lives on.
        let child = is_forked.then(|| probe.ask("fork")["pid"].as_i64().expect("a pid"));
        probe.kill();
        until("its requests have ended", || scene.phases().is_empty());
        held.free().unwrap();
        assert_eq!(prefetch.wait().unwrap(), READY);
        if let Some(child) = child {
            let child = Pid::from_raw(child.try_into().unwrap()).expect("a child has a pid");
            kill_process(child, Signal::KILL).expect("it lives");
        }
        scene.assert_served(&prefetch);
    }
}

#[test]
fn a_client_is_killed_while_its_prefetches_are_copied() {
    let config = tiers("8MiB", "32MiB").fault("copy", 5, Effect::Hold);
    let (scene, mut probe) = Scene::new(&config);
    ask(&mut probe);
    let prefetch = scene.prefetch();
    let moving_in = || scene.daemon.state().devices[0].moving_in_bytes;
    until("a copy is held", || scene.phases() == ["fetching", "arrived"] && moving_in() >= SIZE / 2);
    kill(&scene.daemon, probe);
    until("its requests have ended", || scene.phases().is_empty());
    scene.assert_served(&prefetch);
}

/// Its requests are served, and what they have brought leaves again for a program that uses the room.
#[test]
fn a_stopped_clients_prefetches_keep_no_room_from_others() {
    let (scene, mut probe) = Scene::new(&tiers("8MiB", "32MiB"));
    let held = scene.fill();
    ask(&mut probe);
    probe.freeze();
    held.free().unwrap();
    until("its parts have come", || scene.phases() == ["arrived", "arrived"]);
    let held = scene.fill();
    assert_eq!(scene.phases(), Vec::<String>::new());
    let prefetch = scene.prefetch();
    held.free().unwrap();
    assert_eq!(prefetch.wait().unwrap(), READY);
    assert!(scene.daemon.state().sessions.iter().all(|it| it.state() == SessionState::Live));
    probe.signal(Signal::CONT);
    let is_dropped = |state: &Value| state.as_str().is_some_and(|it| it.starts_with("Dropped"));
    // It was told that they are ready, then that they are dropped, and reads both only now.
    until("it has read what it was told last", || {
        let told = probe.ask("sdk prefetches");
        let states = told["states"].as_array().expect("a list");
        states.len() == 2 && states.iter().all(is_dropped)
    });
    assert_intact(&mut probe);
    probe.leave();
    scene.assert_served(&prefetch);
}

#[test]
fn a_forked_child_ends_none_of_its_parents_prefetches() {
    let (scene, mut probe) = Scene::new(&tiers("8MiB", "32MiB"));
    let held = scene.fill();
    ask(&mut probe);
    assert_eq!(probe.ask("sdk fork-prefetches")["statuses"], serde_json::json!([0, 0]));
    assert_eq!(scene.phases(), ["queued", "queued"]);
    held.free().unwrap();
    let ready = format!("{READY:?}");
    assert_eq!(probe.ask("sdk prefetched")["ends"], serde_json::json!([ready, ready]));
    assert_intact(&mut probe);
    let prefetch = scene.prefetch();
    assert_eq!(prefetch.wait().unwrap(), READY);
    probe.leave();
    scene.assert_served(&prefetch);
}
