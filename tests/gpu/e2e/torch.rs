//! PyTorch in clients. It shares the device's primary context with the SDK, and several processes share a sealed model.

use std::ffi::OsStr;

use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, MIB};

use super::{World, python::Program};
use crate::bundle::beside;

const SIZE: u64 = 64 * MIB;
/// A whole number of parts, so that the charge equals the request.
const MODEL_SIZE: u64 = 512 * MIB;
/// Less than a context, and more than a library of PyTorch takes at its first use.
const SLACK: u64 = 256 * MIB;

pub(super) fn shares_the_context(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let library = beside("torch/libtorch_share.so");
    let size = SIZE.to_string();
    let mut program = Program::start(
        &daemon,
        "torch_share.py",
        [library.as_os_str(), OsStr::new(world.gpu()), OsStr::new(&size)],
    );
    let pid = program.pid();
    let look = || (world.used(), world.witness.of_process(world.gpu(), pid).expect("NVML answers"));
    let torch = program.stage();
    if let Some(why) = torch.get("absent") {
        return json!({ "absent": why });
    }
    let (used, of_process) = look();
    program.continue_program();
    let mapped = program.stage();
    let (used_mapped, of_process_mapped) = look();
    assert!(used_mapped < used + SIZE + SLACK, "a second context: {used}, then {used_mapped} bytes in use");
    if let (Some(before), Some(after)) = (of_process, of_process_mapped) {
        assert!(after < before + SLACK, "a second context: NVML charges {before}, then {after}");
    }
    assert_eq!(daemon.state().charged(), SIZE);
    program.continue_program();
    let freed = program.stage();
    assert_eq!(freed["stage"], "freed");
    program.end_well();
    daemon.drains();
    assert!(daemon.stop().0.success(), "the daemon ends well");
    json!({
        "torch": torch, "mapped": mapped,
        "nvml_used_bytes": [used, used_mapped], "nvml_of_process_bytes": [of_process, of_process_mapped],
    })
}

/// Shares a model by the Python package and DLPack. The card has one copy for any number of processes.
pub(super) fn shares_a_model(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let start =
        |role: &str| Program::start(&daemon, "torch_model.py", [role, world.gpu(), &MODEL_SIZE.to_string()]);
    let mut writer = start("write");
    let sealed = writer.stage();
    if let Some(why) = sealed.get("absent") {
        return json!({ "absent": why });
    }
    let held = daemon.state().charged();
    writer.continue_program();
    let mut readers = [start("read"), start("read")];
    let mapped = readers.each_mut().map(Program::stage);
    for reader in &mapped {
        assert_eq!(reader["digest"], sealed["digest"], "one model");
    }
    assert_eq!(daemon.state().charged(), held, "one copy, however many map it");
    let mut ended = vec![writer.stage()];
    writer.end_well();
    for mut reader in readers {
        reader.continue_program();
        ended.push(reader.stage());
        reader.end_well();
    }
    assert_eq!(daemon.state().charged(), MODEL_SIZE, "persistent memory stays");
    let freed =
        daemon.vramctl().args(["alloc", "free", &sealed["id"].to_string()]).output().expect("vramctl starts");
    assert!(freed.status.success(), "{}", String::from_utf8_lossy(&freed.stderr));
    daemon.drains();
    assert!(daemon.stop().0.success(), "the daemon ends well");
    json!({ "sealed": sealed, "mapped": mapped, "held_bytes": held, "ended": ended })
}
