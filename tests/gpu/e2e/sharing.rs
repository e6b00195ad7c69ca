//! One process writes, others read the same bytes of the same device memory.

use rustix::process::geteuid;
use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, GIB, MIB, is_root, wait::until};

use super::{Actor, World};
use crate::content;

/// The user that plays another tenant, if the suite may switch users.
const OTHER_UID: u32 = 20_002;

pub(super) fn config() -> Config {
    Config::cuda().tenant(geteuid().as_raw(), "owners").tenant(OTHER_UID, "others")
}

/// Starts a client of another tenant. Returns `None` if the suite may not switch users.
#[track_caller]
pub(super) fn other(daemon: &Daemon) -> Option<Actor> {
    is_root().then(|| Actor::start_as(daemon, OTHER_UID))
}

/// Shares two parts and a remainder that is not a multiple of 2 MiB. Checks the content in three ways: by the daemon's digest, by copying
/// back, and by a kernel that reads the mapping.
pub(super) fn three_processes(world: &World) -> Value {
    const SIZE: u64 = 300 * MIB + 8 * 13;
    const CHARGED: u64 = 302 * MIB;
    let content = content::bytes(42, SIZE);
    let (digest, sum) = (vramd_tests::digest(&content), content::sum(42, SIZE));
    let daemon = Daemon::start(&config());
    let mut writer = Actor::start(&daemon);
    writer.ask("open");
    writer.ask(&format!("allocate {SIZE} name=weights persistent readers=others"));
    assert_eq!(writer.ask("copies 3")["same"], true, "the SDK's copies");
    assert_eq!(writer.ask("current")["nothing"], true, "the SDK left a context current");
    writer.ask("gpu");
    writer.ask("write 42");
    assert_eq!(writer.number("sum", "sum"), sum, "before it is sealed");
    assert_eq!(writer.text("seal", "digest"), digest);

    let mut readers = vec![Actor::start(&daemon)];
    readers.extend(other(&daemon));
    for reader in &mut readers {
        reader.ask("open");
        assert_eq!(reader.text("attach owners/weights", "digest"), digest);
        reader.ask("gpu");
        assert_eq!(reader.text("digest", "digest"), digest, "copied back");
        assert_eq!(reader.number("sum", "sum"), sum, "summed by a kernel");
    }
    assert_eq!(writer.number("sum", "sum"), sum, "after it is sealed");

    let state = daemon.state();
    assert_eq!(state.charged(), CHARGED, "charged once, to its owner");
    let charged_by_nvml = world.witness.of_process(world.gpu(), daemon.pid()).expect("NVML answers");
    if let Some(bytes) = charged_by_nvml {
        assert!(bytes >= CHARGED, "NVML charges the daemon {bytes}, whose tenants are charged {CHARGED}");
    }
    let of_client = |actor: &Actor| world.witness.of_process(world.gpu(), actor.pid()).expect("NVML answers");
    let seen = json!({
        "charged_bytes": CHARGED,
        "nvml_of_daemon_bytes": charged_by_nvml,
        "nvml_of_writer_bytes": of_client(&writer),
        "nvml_of_readers_bytes": readers.iter().map(of_client).collect::<Vec<_>>(),
        "device": device(&state),
        "nvml": world.figures(),
    });
    writer.ask("free");
    writer.leave();
    readers.into_iter().for_each(Actor::leave);
    daemon.drains();
    assert!(daemon.stop().0.success(), "the daemon ends well");
    seen
}

/// Returns the daemon's status of its first device.
pub(super) fn device(state: &vramd_tests::NodeState) -> Value {
    let device = &state.devices[0];
    json!({
        "total_bytes": device.total_bytes, "capacity_bytes": device.capacity_bytes,
        "held_bytes": device.held_bytes, "unreturned_bytes": device.unreturned_bytes,
        "unbrokered_bytes": device.unbrokered_bytes, "context_reserve_bytes": device.context_reserve_bytes,
    })
}

/// Places memory on the second GPU, and on both.
pub(super) fn several_gpus(world: &World) -> Value {
    let [first, second, ..] = &*world.gpus else { return json!("not run: one GPU") };
    let daemon = Daemon::start(&Config::cuda());
    let used = |uuid: &String| world.witness.used(uuid).expect("NVML answers");
    let mut writers = [first, second].map(|uuid| {
        let mut writer = Actor::start(&daemon);
        writer.ask("open");
        writer.ask(&format!("gpu {uuid}"));
        writer
    });
    let before = [first, second].map(used);
    let [on_first, on_second] = &mut writers;
    let device_of_far =
        on_second.text(&format!("allocate {GIB} name=far persistent device={second}"), "device");
    assert_eq!(&device_of_far, second);
    let after = [first, second].map(used);
    assert!(after[1] >= before[1] + GIB, "the second GPU holds it: {before:?}, {after:?}");
    assert!(after[0] < before[0] + GIB, "the first one does not: {before:?}, {after:?}");
    on_first.ask(&format!("allocate {GIB} name=near persistent device={first}"));

    let mut digests = Vec::new();
    for (writer, seed) in [(on_first, 1), (on_second, 2)] {
        writer.ask(&format!("fill {seed}"));
        digests.push(writer.text("seal", "digest"));
    }
    for ((name, uuid), (digest, seed)) in
        [("near", first), ("far", second)].into_iter().zip(digests.iter().zip([1, 2]))
    {
        let mut reader = Actor::start(&daemon);
        reader.ask("open");
        assert_eq!(&reader.text(&format!("attach {name}"), "digest"), digest);
        reader.ask(&format!("gpu {uuid}"));
        assert_eq!(reader.number("sum", "sum"), content::sum(seed, GIB), "{name}");
        reader.leave();
    }
    for mut writer in writers {
        writer.ask("free");
        writer.leave();
    }
    until("both GPUs hold nothing", || daemon.state().is_empty());
    json!({ "gpus": world.gpus.len(), "nvml_used_bytes_before": before, "nvml_used_bytes_after": after })
}
