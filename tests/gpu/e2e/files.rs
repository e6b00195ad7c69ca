//! Files that the device reads where clients map them, or copies where it cannot.

use std::fs;

use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, MIB};

use super::{Actor, World};
use crate::{bundle::beside, content};

const SIZE: u64 = 96 * MIB;
const SEED: u64 = 40;
const CLIENTS: u64 = 2;

/// Kernels of two processes read one file. Where the device reads mapped files, nothing is charged. Elsewhere each
/// process has a copy, and the daemon counts both by their reason.
pub(super) fn read_in_place(_: &World) -> Value {
    let folder = tempfile::tempdir_in(beside(".")).unwrap();
    let path = fs::canonicalize(folder.path()).unwrap().join("weights");
    fs::write(&path, content::bytes(SEED, SIZE)).unwrap();
    let daemon = Daemon::start(&Config::cuda().immutable(path.parent().unwrap()));
    let device = readings(&daemon)["devices"][0].clone();
    let (reason, charged) = match expected(&device) {
        None => (Value::Null, 0),
        Some(reason) => (json!(reason), SIZE),
    };
    let is_mapped = reason.is_null();
    for _ in 0..CLIENTS {
        let mut client = Actor::ready(&daemon);
        let seen = client.ask(&format!("in-place {}", path.display()));
        assert_eq!(seen["sum"], content::sum(SEED, SIZE), "the kernel reads the bytes of the file: {seen}");
        assert_eq!((&seen["copied_because"], seen["charged"].as_u64()), (&reason, Some(charged)), "{device}");
        client.leave();
    }
    assert_eq!(daemon.state().charged(), 0);
    let counted = readings(&daemon)["daemon"]["fall_backs"].clone();
    if is_mapped {
        assert_eq!(counted, json!([]));
    } else {
        assert_eq!((&counted[0]["reason"], &counted[0]["loads"]), (&reason, &json!(CLIENTS)), "{counted}");
        assert_eq!(counted[0]["copied_bytes"], CLIENTS * SIZE);
    }
    json!({ "read_in_place": is_mapped, "bytes": SIZE, "device": device, "fall_backs": counted })
}

/// The reason for a copy on such a device, by the rule of decision 0040.
fn expected(device: &Value) -> Option<&'static str> {
    let is = |reading: &str| device[reading] == true;
    if is("pageable_memory_access") {
        return None;
    }
    if !is("integrated") {
        return Some("separate_tiers");
    }
    let registers = is("host_register_supported") && is("read_only_host_register_supported");
    (!registers).then_some("register_unsupported")
}

#[track_caller]
fn readings(daemon: &Daemon) -> Value {
    let told = daemon.vramctl().args(["--json", "doctor"]).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    told["readings"].clone()
}
