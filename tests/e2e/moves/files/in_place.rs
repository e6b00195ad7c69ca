//! Files that clients map: a device reads them in place where it can, and otherwise the copy is counted.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use vramd_client::{AllocationRequest, FallBack, FileCheck, FileMapping, LoadedFile, MappedFile};
use vramd_proto::v1::{CheckFileRequest, FallBackReason, FileAccess, ReportFallBackRequest};
use vramd_tests::{Config, Daemon, MIB, MIB_2};
use vramd_types::{Bytes, Reason};

use super::load::{Models, node, number};
use crate::{
    moves::{assert_nothing_left, pins::fetch::connect, vramctl, vramctl_json},
    pressure::{MEASURED, metric},
};

fn one_pool(device: &str, models: &Models) -> Config {
    node(device, models).platform("one-pool").telemetry(MEASURED)
}

#[track_caller]
fn mapped(loaded: LoadedFile) -> MappedFile {
    match loaded {
        LoadedFile::Mapped(file) => file,
        LoadedFile::Copied(_, why) => panic!("{why:?}"),
    }
}

#[track_caller]
fn holds(file: &MappedFile, path: &Path) {
    assert!(file.as_slice() == std::fs::read(path).unwrap(), "{path:?} has other bytes");
}

fn counted(daemon: &Daemon, reason: FallBack) -> u64 {
    let label = format!("vramd_fall_back_reason=\"{reason}\"");
    metric(daemon, "vramd_fall_backs_total", &[&label]).expect("each reason has a series from the start")
}

/// Two thirds of the memory, twice, and then as much again: no allocation of that size fits beside the first.
#[test]
fn a_second_file_of_two_thirds_of_the_memory_fits_beside_the_first() {
    let models = Models::new();
    let size = 16 * MIB_2;
    let (first, _) = models.model("first", size);
    let (second, _) = models.model("second", size);
    let daemon = Daemon::start(&one_pool("48MiB", &models));
    let clients = [connect(&daemon), connect(&daemon)];
    let load = |client: &vramd_client::Client, path: &Path| {
        mapped(client.load_in_place(path, AllocationRequest::whole_file()).unwrap())
    };
    let twice = clients.each_ref().map(|client| load(client, &first));
    let other = load(&clients[0], &second);
    for file in &twice {
        holds(file, &first);
    }
    holds(&other, &second);
    assert!(daemon.state().charged() < size / 100, "{}", daemon.state().charged());
    assert_eq!(twice[0].as_device_ptr(), twice[0].as_slice().as_ptr().addr() as u64);
    // An allocation of that size is all there is room for.
    let copied = clients[0].load(&first, 0, AllocationRequest::whole_file()).unwrap();
    assert!(daemon.state().charged() >= size);
    let full = clients[1].allocate(AllocationRequest::new(Bytes::new(size))).unwrap_err();
    assert_eq!(full.reason(), Some(Reason::QuotaLimit), "{full}");
    drop(copied);
    // The mappings do not need the sessions.
    drop(clients);
    holds(&other, &second);
    assert_nothing_left(&daemon);
    assert!(FallBack::ALL.into_iter().all(|reason| counted(&daemon, reason) == 0));
}

#[test]
fn a_copy_is_counted_by_its_reason_and_shown() {
    let models = Models::new();
    let (path, weights) = models.model("llama", MIB_2);
    let size = weights.len() as u64 + super::load::HEADER;
    let elsewhere = Models::new();
    for (config, reason, said) in [
        (node("16MiB", &models), FallBack::SeparateTiers, "the device reads no pageable host memory"),
        (node("16MiB", &elsewhere).platform("one-pool"), FallBack::FileMutable, "the file may change"),
    ] {
        let daemon = Daemon::start(&config.telemetry(MEASURED));
        let client = connect(&daemon);
        let loaded = client.load_in_place(&path, AllocationRequest::whole_file()).unwrap();
        let LoadedFile::Copied(sealed, why) = loaded else { panic!("{loaded:?}") };
        assert_eq!(why.reason, reason);
        assert!(!why.problem.is_empty());
        assert_eq!(sealed.as_slice().unwrap(), std::fs::read(&path).unwrap());
        assert_eq!(counted(&daemon, reason), 1);
        let text = String::from_utf8(vramctl(&daemon, &["doctor"]).stdout).unwrap();
        assert!(text.contains(&format!("1 load copied 2.00 MiB to a device: {reason}: {said}")), "{text}");
        let rows = vramctl_json(&daemon, &["doctor"])["readings"]["daemon"]["fall_backs"].clone();
        assert_eq!(rows[0]["reason"], reason.name());
        assert_eq!(rows[0]["copied_bytes"].as_u64(), Some(size));
        assert_eq!(rows.as_array().unwrap().len(), 1);
    }
}

#[test]
fn only_the_session_s_process_asks_and_only_for_what_it_can_read() {
    let models = Models::new();
    let (path, _) = models.model("llama", MIB);
    let daemon = Daemon::start(&Config {
        devices: vec!["16MiB".into(), "16MiB".into()],
        ..one_pool("16MiB", &models)
    });
    let session = daemon.open();
    let file = File::open(&path).unwrap();
    let request = |fd, device: Option<&str>| CheckFileRequest {
        session_id: session.id(),
        fd,
        device: device.map(str::to_owned),
    };
    let ask = |fd, device| session.memory.check_file(request(fd, device));
    let good = ask(number(&file), Some("1")).ok();
    assert_eq!((good.access(), good.in_place_by_default), (FileAccess::Direct, true));
    assert_eq!(good.device, ask(number(&file), Some(&good.device)).ok().device);
    assert_ne!(good.device, ask(number(&file), None).ok().device, "the first without a name");
    for device in ["7", "", "00", "+0", "GPU-none"] {
        ask(number(&file), Some(device)).refused().is(Reason::DeviceUnknown);
    }
    let write_only = File::options().write(true).open(&path).unwrap();
    for fd in [number(&write_only), 1 << 20] {
        ask(fd, None).refused().is(Reason::FileInvalid);
    }
    let report = |session_id, reason| {
        session.memory.report_fall_back(ReportFallBackRequest { session_id, reason, size_bytes: 5 })
    };
    report(session.id(), FallBackReason::Misaligned.into()).ok();
    for reason in [0, 99, -1] {
        report(session.id(), reason).refused().is(Reason::RequestInvalid);
    }
    report(session.id() + 1000, 1).refused().is(Reason::SessionLost);
    let foreign = CheckFileRequest { session_id: session.id() + 1000, ..request(number(&file), None) };
    session.memory.check_file(foreign).refused().is(Reason::SessionLost);
    assert_eq!(counted(&daemon, FallBack::Misaligned), 1);
}

/// The check is of one file at one moment: what was written or cut off since is not mapped.
#[test]
fn only_the_file_that_was_checked_is_mapped_and_not_after_a_write() {
    let models = Models::new();
    let (path, _) = models.model("llama", MIB);
    let daemon = Daemon::start(&one_pool("16MiB", &models));
    let clients = [connect(&daemon), connect(&daemon)];
    let client = &clients[0];
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let checked = || client.check_file(&file, None).unwrap();
    let refuses = |by: &vramd_client::Client, file: &File, check: &FileCheck, problem: &str| {
        let refused = by.map_file(file, check).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::FileInvalid), "{refused}");
        assert!(refused.to_string().contains(problem), "{refused}");
    };
    let check = checked();
    assert!(check.access().is_ok() && check.is_in_place_by_default());
    let FileMapping::Mapped(now) = client.map_file(&file, &check).unwrap() else {
        panic!("it can be mapped")
    };
    holds(&now, &path);
    drop(now);
    refuses(client, &File::open("/proc/self/exe").unwrap(), &check, "another file was checked");
    refuses(&clients[1], &file, &check, "another session");
    let written = "written after it was checked";
    file.write_all_at(b"x", 0).unwrap();
    // The kernel's times are coarse.
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    refuses(client, &file, &check, written);
    let check = checked();
    file.set_len(MIB / 2).unwrap();
    refuses(client, &file, &check, written);
    file.set_len(0).unwrap();
    let refused = client.check_file(&file, None).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::FileInvalid), "{refused}");
    assert!(refused.to_string().contains("empty"), "{refused}");
}

/// Devices that copy refuse it too, so that a program is the same on each.
#[test]
fn a_request_that_a_mapping_cannot_meet_is_refused_on_each_device() {
    let models = Models::new();
    let (path, _) = models.model("llama", MIB);
    for config in [one_pool("16MiB", &models), node("16MiB", &models)] {
        let daemon = Daemon::start(&config);
        let client = connect(&daemon);
        for request in
            [AllocationRequest::new(Bytes::new(MIB)), AllocationRequest::whole_file().discardable()]
        {
            let refused = client.load_in_place(&path, request).unwrap_err();
            assert_eq!(refused.reason(), Some(Reason::RequestInvalid), "{refused}");
        }
        assert_nothing_left(&daemon);
    }
}
