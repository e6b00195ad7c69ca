//! The real daemon on the CUDA driver, over a driver library of our own: what a real card can't be made to do when a
//! test wants it.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use fake_cuda::Fake;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use vramd_proto::v1::{
    AllocationKind, AllocationSpec, MoveOutcome, MovePartsRequest, MovePartsResponse, PartRef,
    RevokeMappingsRequest, ShowAllocationRequest, Tier, daemon_frame::Frame, move_parts_request::Target,
    revoke_mappings_request, show_allocation_request,
};
use vramd_tests::{
    Pending, RawSession,
    channel::Packet,
    content,
    rpc::{Admin, is_serving},
    session::persistent,
    spec,
    wait::{PATIENCE, until},
};
use vramd_types::Reason;

/// Two parts.
const SIZE: u64 = 6 << 20;

struct Daemon {
    place: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    /// Starts it and waits until it serves.
    fn start(fake: &Fake) -> Self {
        Self::start_with_host(fake, "0")
    }

    /// With so much memory of the host beside its device.
    fn start_with_host(fake: &Fake, host_size: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramd"));
        command.env_remove("VRAMD_SOCKET_DIR").arg("--config").arg(configured(&place, fake, host_size));
        command.stdin(Stdio::null()).stdout(fs::File::create(place.path().join("log")).unwrap());
        command.stderr(fs::File::options().append(true).open(place.path().join("log")).unwrap());
        let child = command.spawn().unwrap();
        let daemon = Self { place, child };
        until("the daemon serves", || is_serving(&daemon.sockets().join("admin.sock"), ""));
        daemon
    }

    fn sockets(&self) -> PathBuf {
        self.place.path().join("run")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.path().join("log")).unwrap()
    }

    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

fn configured(place: &tempfile::TempDir, fake: &Fake, host_size: &str) -> PathBuf {
    let (file, library) = (place.path().join("vramd.toml"), fake.library());
    let text = format!(
        "[daemon]\nsocket_dir = {:?}\nstate_dir = {:?}\n[memory]\npart_size = \"4MiB\"\nmargin = \"0\"\n\
         host_size = {host_size:?}\nsessions_reserved = 0\n[driver]\nkind = \"cuda\"\n[driver.cuda]\n\
         library = {library:?}\nnvml_library = {library:?}\n[limits]\nsurvey_interval_ms = 50\n",
        place.path().join("run"),
        place.path().join("state"),
    );
    fs::write(&file, text).unwrap();
    file
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All that a watch of the health says, until the daemon hangs up. `begun` is called after the first word.
async fn health(socket: &Path, begun: impl FnOnce()) -> Vec<ServingStatus> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let watch = client.watch(HealthCheckRequest { service: String::new() }).await;
    let mut watch = watch.unwrap().into_inner();
    let mut said = vec![watch.message().await.unwrap().unwrap().status()];
    begun();
    // An error is the end of the connection.
    while let Ok(Some(word)) = watch.message().await {
        said.push(word.status());
    }
    said
}

/// Health says so, the daemon ends with a status of its own within seconds, and what a client maps stays its own.
fn is_poisoned(code: u32) {
    let fake = Fake::new().says(&format!("fail.cuStreamQuery = {code}@told"));
    let mut daemon = Daemon::start(&fake);
    let mut session = RawSession::open(&daemon.sockets());
    let allocation = session.allocate(spec(SIZE)).allocation_id;
    let bytes = content(SIZE, 1);
    session.write(allocation, &bytes);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut poisoned = Instant::now();
    let said = runtime.block_on(health(&daemon.sockets().join("admin.sock"), || {
        fake.tell(true);
        poisoned = Instant::now();
    }));
    assert_eq!(said, [ServingStatus::Serving, ServingStatus::NotServing]);
    assert_eq!(daemon.ended().code(), Some(7), "{}", daemon.log());
    assert!(poisoned.elapsed() < Duration::from_secs(10), "{:?}", poisoned.elapsed());
    assert!(daemon.log().contains(&format!("({code})")), "{}", daemon.log());

    assert_eq!(session.digest(allocation, SIZE), vramd_tests::digest(&bytes), "it is all there");
    let more = content(SIZE, 2);
    session.write(allocation, &more);
    assert_eq!(session.digest(allocation, SIZE), vramd_tests::digest(&more), "and can be used");
}

#[test]
fn an_illegal_address_in_the_daemon_s_context() {
    is_poisoned(700);
}

#[test]
fn a_failed_launch_in_the_daemon_s_context() {
    is_poisoned(719);
}

/// Each part of an allocation is exported when it is made, and then sent to whoever maps it.
#[test]
fn a_part_is_exported_once_and_sent_to_many() {
    let fake = Fake::new().says("note = 1");
    let daemon = Daemon::start(&fake);
    let exports = || fake.callers("cuMemExportToShareableHandle").len();
    let before = exports();
    let mut owner = RawSession::open(&daemon.sockets());
    let allocation = owner.allocate(persistent("shared", SIZE)).allocation_id;
    assert_eq!(exports(), before + 2, "two parts");
    let bytes = content(SIZE, 3);
    owner.write(allocation, &bytes);
    owner.seal(allocation);
    for _ in 0..3 {
        let mut reader = RawSession::open(&daemon.sockets());
        let attached = reader.attach("shared").allocation_id;
        assert_eq!(reader.digest(attached, SIZE), vramd_tests::digest(&bytes));
    }
    assert_eq!(exports(), before + 2, "they were sent, to its owner again and to three readers");
}

fn evicting(daemon: &Daemon, allocation: u64, part: u32) -> Pending<MovePartsResponse> {
    Admin::new(&daemon.sockets()).move_parts(MovePartsRequest {
        target: Some(Target::AllocationId(allocation)),
        part_indexes: vec![part],
        tier: Tier::Host.into(),
        ..Default::default()
    })
}

/// What cannot be pinned ahead is told in the log, and who needs it gets an exact answer and loses nothing.
fn has_less_than_was_configured(fake: &Fake, pinned: u64, why: &str) {
    let daemon = Daemon::start_with_host(fake, "16MiB");
    let said = format!("pinned_bytes={pinned} problem=out of host memory: {why}");
    until("it is told", || daemon.log().contains(&said));
    let mut session = RawSession::open_with_pins(&daemon.sockets());
    let allocation = session.allocate(spec(8 << 20)).allocation_id;
    let bytes = content(8 << 20, 4);
    session.write(allocation, &bytes);
    let parts_pinned = u32::try_from(pinned / (4 << 20)).unwrap();
    for part in 0..=parts_pinned {
        let answer = evicting(&daemon, allocation, part);
        // What was sent before the answer may be read after it.
        let mut answered = false;
        while !answered {
            answered = answer.is_answered();
            while session.channel.waits(Duration::from_millis(5)) {
                let revoke = session.receive_revoke();
                session.unmap_parts(revoke.parts);
            }
        }
        let answer = answer.ok();
        if part < parts_pinned {
            assert_eq!(answer.parts[0].outcome(), MoveOutcome::Moved, "{answer:?}");
            continue;
        }
        let error = answer.parts[0].error.clone().expect("a refusal");
        assert_eq!((error.reason.as_str(), error.metadata["tier"].as_str()), ("DEVICE_FULL", "host"));
    }
    let wanted = (0..2).map(|part_index| PartRef { allocation_id: allocation, part_index });
    let call = session.pin(wanted.collect());
    session.pin_answer(call).expect("there is room on the device");
    session.pin_ended(call);
    assert_eq!(session.digest(allocation, 8 << 20), vramd_tests::digest(&bytes));
    assert!(daemon.log().contains(&format!("out of host memory: {why}")), "{}", daemon.log());
}

#[test]
fn fixed_memory_is_neither_moved_nor_revoked() {
    let daemon = Daemon::start_with_host(&Fake::new(), "16MiB");
    let session = RawSession::open_with_pins(&daemon.sockets());
    let fixed = AllocationSpec { kind: AllocationKind::Fixed.into(), ..spec(4 << 20) };
    let allocation_id = session.reserve(fixed).allocation_id;
    let Packet::Frame(Frame::Map(mut map), fds) = session.channel.receive(PATIENCE) else { panic!("no map") };
    let part = map.parts.pop().unwrap();
    assert!(fds.is_empty() && map.parts.is_empty(), "one part, and no descriptor");
    let (memory, bytes) = (Fake::behind(&part.cuda_ipc_handle), content(4 << 20, 5));
    memory.write_all_at(&bytes, 0).unwrap();
    let part = part.part.unwrap();
    session.acknowledge(vec![part]);

    let admin = Admin::new(&daemon.sockets());
    for tier in [Tier::Host, Tier::Device] {
        let target = Some(Target::AllocationId(allocation_id));
        let moving = MovePartsRequest { target, tier: tier.into(), ..Default::default() };
        let refused = admin.move_parts(moving).refused();
        assert_eq!(refused.is(Reason::KindUnsupported).fact("kind"), "movable fixed");
    }
    for wait in [false, true] {
        let target = Some(revoke_mappings_request::Target::AllocationId(allocation_id));
        let revoking = RevokeMappingsRequest { target, wait, ..Default::default() };
        let refused = admin.revoke_mappings(revoking).refused();
        assert_eq!(refused.is(Reason::KindUnsupported).fact("kind"), "revocable fixed");
    }
    assert!(!session.channel.waits(Duration::from_millis(50)), "nobody is told to unmap anything");
    let shown = admin.show_allocation(ShowAllocationRequest {
        target: Some(show_allocation_request::Target::AllocationId(allocation_id)),
    });
    let shown = shown.ok().allocation.unwrap();
    assert_eq!((shown.resident_bytes, shown.host_bytes), (4 << 20, 0));
    let mut found = vec![0; bytes.len()];
    memory.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(vramd_tests::digest(&found), vramd_tests::digest(&bytes));
}

/// What the driver says is nearest to the device is asked for, ahead of need and for who moves.
#[test]
fn the_host_tier_is_of_the_node_that_is_nearest_to_the_device() {
    let fake = Fake::new().says("note = 1").says("attribute.134 = 1");
    let daemon = Daemon::start_with_host(&fake, "16MiB");
    let made = |node: u32| fake.calls(&format!("cuMemCreate(host:{node})")).len();
    until("all of it is pinned", || made(1) == 4);
    assert_eq!(made(0), 0, "{}", daemon.log());
}

#[test]
fn host_memory_that_cannot_be_had() {
    has_less_than_was_configured(&Fake::new().says("host_mib = 4"), 4 << 20, "no more can be pinned");
}

#[test]
fn host_memory_that_cannot_be_registered() {
    let fake = Fake::new().says("attribute.141 = 0").says("fail.cuMemHostRegister_v2 = 2@1");
    has_less_than_was_configured(&fake, 0, "");
}

/// Where the driver pins in the daemon's name, and it may not lock that much.
#[test]
fn a_limit_on_locked_memory_below_the_host_tier_is_told_at_the_start() {
    let fake = Fake::new().says("attribute.141 = 0");
    let place = tempfile::tempdir().unwrap();
    let file = configured(&place, &fake, "16MiB");
    // What a thread takes from its own bounding set its children cannot have.
    let started = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK).unwrap();
        }
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -l 8192 && exec \"$0\" --config \"$1\"", env!("CARGO_BIN_EXE_vramd")]);
        command.env_remove("VRAMD_SOCKET_DIR").arg(file).output().unwrap()
    });
    let output = started.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("memory.host_size: 16 MiB for 1 devices, and this process may lock 8 MiB of memory"),
        "{said}"
    );
}
