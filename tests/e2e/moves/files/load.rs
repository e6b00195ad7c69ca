//! Files that are loaded: an immutable one is the backing of its allocation.

use std::{
    fs::{self, File},
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use vramd_client::{Access, AllocationRequest, Bytes, Client, Error, Sealed};
use vramd_proto::v1::{AllocationSpec, LoadFileRequest};
use vramd_tests::{Config, Daemon, MIB, MIB_2, RawSession, content, digest, wait::until};
use vramd_types::Reason;

use crate::moves::{
    assert_nothing_left,
    clients::programs::{send_by_id, tiers_of},
    pins::fetch::connect,
    vramctl, vramctl_json,
};
use crate::pressure::{MEASURED, metric};

/// Bytes before the weights in the files of models.
pub(crate) const HEADER: u64 = 1000;

/// A folder of models beside the daemon's home.
pub(crate) struct Models {
    folder: tempfile::TempDir,
}

impl Models {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap()
    }

    /// A file with a header and this many bytes of weights behind it.
    pub(crate) fn model(&self, name: &str, size: u64) -> (PathBuf, Vec<u8>) {
        let (path, weights) = (self.path().join(name), content(size, 7));
        fs::write(&path, [&vec![0xee; usize::try_from(HEADER).unwrap()], &weights[..]].concat()).unwrap();
        File::open(&path).unwrap().sync_data().unwrap();
        (path, weights)
    }
}

pub(crate) fn node(device: &str, models: &Models) -> Config {
    Config::devices(&[device]).immutable(&models.path())
}

pub(crate) fn load(client: &Client, path: &Path) -> Result<Sealed, Error> {
    client.load(path, HEADER, request().unpinned())
}

/// A request for the whole file, in parts of 2 MiB.
pub(crate) fn request() -> AllocationRequest {
    AllocationRequest::whole_file().part_size(Bytes::new(MIB_2))
}

/// Compares every byte, one part at a time.
#[track_caller]
pub(crate) fn is_intact(sealed: &Sealed, weights: &[u8]) {
    let parts = u32::try_from(weights.len().div_ceil(2 << 20)).unwrap();
    are_intact(sealed, 0..parts, weights);
}

/// The same for some parts.
#[track_caller]
fn are_intact(sealed: &Sealed, parts: Range<u32>, weights: &[u8]) {
    for (part, should) in (0..).zip(weights.chunks(2 << 20)).filter(|(part, _)| parts.contains(part)) {
        let pinned = sealed.pin_parts(part..part + 1, Access::Read).unwrap();
        assert!(pinned.as_slice().unwrap() == should, "part {part} has other bytes");
    }
}

/// Changes a byte of a part in its file.
pub(crate) fn change(path: &Path, part: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (mut was, at) = ([0], HEADER + part * MIB_2 + 77);
    file.read_exact_at(&mut was, at).unwrap();
    file.write_all_at(&[!was[0]], at).unwrap();
    file.sync_data().unwrap();
}

#[test]
fn a_model_larger_than_the_device_is_charged_for_its_resident_parts() {
    let models = Models::new();
    // The last part is shorter.
    let (path, weights) = models.model("llama", 9 * MIB_2 + 12_345);
    let daemon = Daemon::start(&node("8MiB", &models).telemetry(MEASURED));
    let client = connect(&daemon);
    let sealed = load(&client, &path).unwrap();
    assert_eq!(sealed.digest(), digest(&weights));
    let bytes_in_file = || metric::<u64>(&daemon, "vramd_in_file_bytes", &[]).unwrap_or(0);
    assert_eq!(metric(&daemon, "vramd_digest_io_bytes_total", &[]), Some(9 * MIB_2 + 12_345));
    assert_eq!(bytes_in_file(), 10 * MIB_2);
    let info = sealed.info();
    assert_eq!((info.file.as_deref(), info.size.get()), (path.to_str(), 9 * MIB_2 + 12_345));
    assert_eq!((info.charged, info.in_file), (Bytes::ZERO, Bytes::new(10 * MIB_2)));
    for _ in 0..2 {
        is_intact(&sealed, &weights);
    }
    let id = sealed.id().to_string();
    let shown = vramctl_json(&daemon, &["alloc", "show", &id])["allocation"].clone();
    assert_eq!(shown["file"], path.to_str().unwrap());
    let (on_device, in_file) = (&shown["tier_bytes"]["device"], &shown["file_bytes"]);
    assert_eq!((on_device.as_u64(), in_file.as_u64()), (Some(8 * MIB), Some(12 * MIB)));
    assert_eq!(
        (shown["charged_bytes"].as_u64(), shown["tier_bytes"]["disk"].as_u64()),
        (Some(8 * MIB), Some(0))
    );
    let table = vramctl(&daemon, &["alloc", "list"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("device+file"), "{table:?}");
    // A part that an operator evicts to its file leaves the device at once.
    send_by_id(&daemon, &id, "disk");
    assert_eq!(tiers_of(&daemon, &id), vec!["disk"; 10]);
    until("the device has its room back", || daemon.state().charged() == 0);
    is_intact(&sealed, &weights);
    assert!(daemon.state().charged_on_disk() == 0);
    assert_eq!(bytes_in_file(), 10 * MIB_2, "it goes back there");
    sealed.free().unwrap();
    drop(client);
    assert_nothing_left(&daemon);
    assert_eq!(bytes_in_file(), 0);
    assert_eq!(fs::read(&path).unwrap()[usize::try_from(HEADER).unwrap()..], weights, "it is as it was");
}

#[test]
fn a_loaded_file_is_attached_by_name_and_outlives_its_session() {
    let models = Models::new();
    let (path, weights) = models.model("llama", 3 * MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let [first, second] = [connect(&daemon), connect(&daemon)];
    let named = request().name("llama").persistent();
    let sealed = first.load(&path, HEADER, named.clone()).unwrap();
    assert_eq!(sealed.as_slice().unwrap(), weights);
    let other = second.attach("llama").unwrap();
    assert_eq!(other.as_slice().unwrap(), weights);
    assert_eq!(daemon.state().charged(), 3 * MIB_2, "one copy for both");
    let taken = first.load(&path, HEADER, named).unwrap_err();
    assert_eq!(taken.reason(), Some(Reason::NameTaken), "{taken}");
    drop((sealed, other, first, second));
    let third = connect(&daemon);
    is_intact(&third.attach_unpinned("llama").unwrap(), &weights);
    third.attach("llama").unwrap().free().unwrap();
    drop(third);
    assert_nothing_left(&daemon);
}

#[test]
fn a_file_that_may_change_is_copied_and_has_backing() {
    let models = Models::new();
    let (path, weights) = models.model("llama", 2 * MIB_2 + 5);
    let elsewhere = Models::new();
    for config in [Config::devices(&["16MiB"]), node("16MiB", &elsewhere)] {
        let daemon = Daemon::start(&config.memory("host_size = \"16MiB\""));
        let client = connect(&daemon);
        let sealed = load(&client, &path).unwrap();
        assert_eq!((sealed.digest(), sealed.info().file.clone()), (&*digest(&weights), None));
        assert_eq!(sealed.info().charged.get(), 3 * MIB_2);
        change(&path, 0);
        is_intact(&sealed, &weights);
        change(&path, 0);
        drop((sealed, client));
        assert_nothing_left(&daemon);
    }
}

#[test]
fn a_file_that_may_change_is_refused_in_place_only() {
    let models = Models::new();
    let (path, weights) = models.model("llama", MIB_2 + 5);
    let elsewhere = Models::new();
    let daemon = Daemon::start(&node("16MiB", &elsewhere));
    let client = connect(&daemon);
    let request = || request().in_place_only();
    let refused = client.load(&path, HEADER, request()).unwrap_err();
    assert!(matches!(&refused, Error::FileMutable { .. }), "{refused:?}");
    drop(client);
    assert_nothing_left(&daemon);
    let daemon = Daemon::start(&node("16MiB", &models));
    let client = connect(&daemon);
    is_intact(&client.load(&path, HEADER, request()).unwrap(), &weights);
}

#[test]
fn changed_bytes_of_a_loaded_file_are_never_served() {
    let models = Models::new();
    let (path, weights) = models.model("llama", 4 * MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let client = connect(&daemon);
    let sealed = load(&client, &path).unwrap();
    change(&path, 2);
    let lost = |part: u32| match sealed.pin_parts(part..part + 1, Access::Read) {
        Err(Error::ContentLost { part_index, .. }) => assert_eq!(part_index, u64::from(part)),
        other => panic!("{other:?}"),
    };
    lost(2);
    let first = sealed.pin_parts(0..2, Access::Read).unwrap();
    assert!(first.as_slice().unwrap() == &weights[..4 << 20], "others are as they were");
    drop(first);
    // A truncated file loses every part behind its end.
    File::options().write(true).open(&path).unwrap().set_len(HEADER + MIB_2).unwrap();
    lost(2);
    lost(3);
    let log = daemon.log();
    assert!(log.contains("damaged") || log.contains("the file ends after"), "{log}");
    // The part on the device is still whole.
    are_intact(&sealed, 0..1, &weights);
    drop((sealed, client));
    assert_nothing_left(&daemon);
}

#[test]
fn a_replaced_or_deleted_file_still_serves_the_loaded_bytes() {
    let models = Models::new();
    let (path, weights) = models.model("llama", 2 * MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let client = connect(&daemon);
    let sealed = load(&client, &path).unwrap();
    let next = models.path().join("next");
    fs::write(&next, vec![0; weights.len()]).unwrap();
    fs::rename(&next, &path).unwrap();
    is_intact(&sealed, &weights);
    fs::remove_file(&path).unwrap();
    let id = sealed.id().to_string();
    send_by_id(&daemon, &id, "disk");
    is_intact(&sealed, &weights);
}

pub(crate) fn number(file: &File) -> u32 {
    u32::try_from(file.as_raw_fd()).unwrap()
}

pub(crate) fn raw(session: &RawSession, fd: u32, offset_bytes: u64, size_bytes: u64) -> LoadFileRequest {
    LoadFileRequest {
        session_id: session.id(),
        item: Some(AllocationSpec { size_bytes, ..Default::default() }),
        fd,
        offset_bytes,
        ..Default::default()
    }
}

#[test]
fn a_refused_load_leaves_nothing() {
    let models = Models::new();
    let (path, _) = models.model("llama", MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let session = RawSession::open(&daemon.sockets());
    let refused = |fd: u32, offset, size| session.memory.load_file(raw(&session, fd, offset, size)).refused();
    let size = HEADER + MIB_2;
    let good = File::open(&path).unwrap();
    for (offset, bytes) in
        [(0, size + 1), (1, size), (size, 0), (size + 1, 0), (u64::MAX, 0), (u64::MAX, 1), (0, u64::MAX)]
    {
        refused(number(&good), offset, bytes).is(Reason::FileInvalid);
    }
    // Zero bytes are not the whole file.
    let zero = LoadFileRequest { size_bytes: Some(0), ..raw(&session, number(&good), 0, 0) };
    let zero = session.memory.load_file(zero).refused();
    assert_eq!(zero.is(Reason::SizeInvalid).fact("field"), "size_bytes");
    let write_only = File::options().write(true).open(&path).unwrap();
    refused(number(&write_only), 0, 1).is(Reason::FileInvalid);
    refused(number(&File::open(models.path()).unwrap()), 0, 1).is(Reason::FileInvalid);
    refused(number(&File::open("/dev/zero").unwrap()), 0, 1).is(Reason::FileInvalid);
    refused(u32::MAX, 0, 1).is(Reason::FileInvalid);
    refused(1 << 20, 0, 1).is(Reason::FileInvalid);
    let elsewhere = Models::new();
    let (other, _) = elsewhere.model("llama", MIB_2);
    let told = refused(number(&File::open(&other).unwrap()), 0, 1);
    assert_eq!(told.is(Reason::FileMutable).facts["path"], other.display().to_string());
    // The core's refusals are those of any allocation.
    let wrong = LoadFileRequest {
        item: Some(AllocationSpec { discardable: true, size_bytes: 1, ..Default::default() }),
        ..raw(&session, number(&good), 0, 1)
    };
    session.memory.load_file(wrong).refused().is(Reason::RequestInvalid);
    let loaded = session.memory.load_file(raw(&session, number(&good), HEADER, 0)).ok().allocation.unwrap();
    assert_eq!((loaded.size_bytes, loaded.file_bytes, loaded.mapper_count), (MIB_2, MIB_2, 0));
    let some = LoadFileRequest { size_bytes: Some(7), ..raw(&session, number(&good), HEADER, 0) };
    assert_eq!(session.memory.load_file(some).ok().allocation.unwrap().size_bytes, 7);
    drop(session);
    assert_nothing_left(&daemon);
    // On a node without immutable paths every file may change.
    let without = Daemon::start(&Config::devices(&["16MiB"]));
    let session = RawSession::open(&without.sockets());
    session.memory.load_file(raw(&session, number(&good), 0, 1)).refused().is(Reason::FileMutable);
}

#[test]
fn a_request_id_stands_for_one_allocation() {
    let models = Models::new();
    let (path, _) = models.model("llama", MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let session = RawSession::open(&daemon.sockets());
    let file = File::open(&path).unwrap();
    let request = LoadFileRequest { request_id: vec![5; 16], ..raw(&session, number(&file), HEADER, 0) };
    let load = || session.memory.load_file(request.clone()).ok().allocation.unwrap().allocation_id;
    let first = load();
    // Even if the file has gone.
    fs::remove_file(&path).unwrap();
    assert_eq!(load(), first);
    let other = LoadFileRequest { offset_bytes: 0, ..request };
    session.memory.load_file(other).refused().is(Reason::RequestIdReused);
}

#[test]
fn vramctl_put_loads_a_file_in_place_or_copies_it() {
    let models = Models::new();
    let (path, _) = models.model("llama", 3 * MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let file = path.to_str().unwrap();
    let put = vramctl_json(&daemon, &["put", file, "llama", "--in-place"]);
    assert_eq!((put["file"].as_str(), put["charged_bytes"].as_u64()), (Some(file), Some(0)));
    assert_eq!(put["digest"], digest(&fs::read(&path).unwrap()));
    let verified = vramctl(&daemon, &["verify", "llama", file]);
    assert!(verified.status.success(), "{verified:?}");
    let elsewhere = Models::new();
    let (other, _) = elsewhere.model("mistral", MIB_2);
    let copied = vramctl_json(&daemon, &["put", other.to_str().unwrap(), "mistral", "--in-place"]);
    assert_eq!((copied["file"].is_null(), copied["charged_bytes"].as_u64()), (true, Some(2 * MIB_2)));
    for put in [put, copied] {
        vramctl_json(&daemon, &["alloc", "free", put["allocation_id"].as_str().unwrap()]);
    }
    assert_nothing_left(&daemon);
}

#[test]
fn more_files_load_at_once_than_are_read_at_once() {
    let models = Models::new();
    let (path, weights) = models.model("llama", MIB_2);
    let daemon = Daemon::start(&node("16MiB", &models));
    let client = connect(&daemon);
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..40).map(|_| scope.spawn(|| load(&client, &path).unwrap())).collect();
        for one in loads {
            is_intact(&one.join().unwrap(), &weights);
        }
    });
    drop(client);
    assert_nothing_left(&daemon);
}
