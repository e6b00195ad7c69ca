//! A client that fails harms no other client.

use std::{thread, time::Duration};

use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, GIB, MIB, rpc::is_serving, wait::until};

use super::{Actor, World};
use crate::content;

const SIZE: u64 = 64 * MIB;

pub(super) fn a_write_through_a_read_only_mapping(_: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut writer = Actor::ready(&daemon);
    writer.ask(&format!("allocate {SIZE} name=weights persistent"));
    writer.ask("fill 7");
    let digest = writer.text("seal", "digest");
    let [mut bad, mut good] = [(); 2].map(|()| {
        let mut reader = Actor::ready(&daemon);
        reader.ask("attach weights");
        reader
    });

    let copy = bad.failed("upload 1");
    let kernel = bad.failed("poke 1");
    assert_eq!(kernel, "CUDA_ERROR_ILLEGAL_ADDRESS");
    let afterwards = bad.failed("sum");
    for other in [&mut good, &mut writer] {
        assert_eq!(other.number("sum", "sum"), content::sum(7, SIZE));
        assert_eq!(other.text("digest", "digest"), digest, "nothing was written");
    }
    assert!(is_serving(&daemon.sockets().join("admin.sock"), ""), "the daemon goes on");
    bad.kill();
    let mut late = Actor::ready(&daemon);
    assert_eq!(late.text("attach weights", "digest"), digest);
    assert_eq!(late.number("sum", "sum"), content::sum(7, SIZE));
    writer.ask("free");
    [writer, good, late].into_iter().for_each(Actor::leave);
    daemon.drains();
    json!({ "copy": copy, "kernel": kernel, "afterwards": afterwards })
}

pub(super) fn an_illegal_address(_: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut actors = [Actor::ready(&daemon), Actor::ready(&daemon)];
    for actor in &mut actors {
        actor.ask(&format!("allocate {SIZE}"));
        actor.ask("fill 9");
    }
    let [mut bad, mut good] = actors;
    let kernel = bad.failed("fault");
    assert_eq!(kernel, "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(good.number("sum", "sum"), content::sum(9, SIZE), "the other goes on");
    let mut new = Actor::ready(&daemon);
    new.ask(&format!("allocate {SIZE} name=new persistent"));
    new.ask("fill 10");
    let digest = new.text("seal", "digest");
    assert_eq!(new.text("digest", "digest"), digest, "the daemon hashes as before");
    // Its process lives, so its mappings stay charged until it ends.
    assert_eq!(daemon.state().charged(), 3 * SIZE);
    bad.kill();
    until("the dead client's memory is returned", || daemon.state().charged() == 2 * SIZE);
    good.ask("free");
    new.ask("free");
    [good, new].into_iter().for_each(Actor::leave);
    daemon.drains();
    json!({ "kernel": kernel })
}

pub(super) fn killed_in_flight(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let before = world.used();
    let mut client = Actor::ready(&daemon);
    client.ask(&format!("allocate {GIB}"));
    let with_client = world.used();
    client.ask("spin 20000");
    // Long enough that the kernel certainly runs and is far from its end.
    thread::sleep(Duration::from_millis(100));
    client.kill();
    daemon.drains();
    world.wait_until_down_to(before);
    json!({
        "nvml_used_bytes": { "before": before, "with_client": with_client, "after": world.used() },
        "allocated_bytes": GIB,
    })
}
