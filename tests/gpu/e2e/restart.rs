//! Clients keep their mappings when the daemon dies.

use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, MIB, wait::until};

use super::{Actor, World, sharing::device};
use crate::content;

const SIZE: u64 = 512 * MIB;

pub(super) fn killed_and_started_again(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut writer = Actor::ready(&daemon);
    writer.ask(&format!("allocate {SIZE} name=weights persistent"));
    writer.ask("fill 3");
    let digest = writer.text("seal", "digest");
    let mut reader = Actor::ready(&daemon);
    reader.ask("attach weights");
    let home = daemon.kill();

    for actor in [&mut writer, &mut reader] {
        assert_eq!(actor.number("sum", "sum"), content::sum(3, SIZE), "mappings stand");
        assert_eq!(actor.text("digest", "digest"), digest);
    }
    let orphaned = world.figures();
    let daemon = Daemon::start_in(home);
    until("the next daemon counts what it finds", || daemon.state().unbrokered() >= SIZE);
    let found = device(&daemon.state());
    let mut newcomer = Actor::ready(&daemon);
    newcomer.ask(&format!("allocate {SIZE}"));
    newcomer.ask("fill 4");
    assert_eq!(reader.text("digest", "digest"), digest, "and the next one's memory is other memory");
    newcomer.ask("free");
    [writer, reader, newcomer].into_iter().for_each(Actor::leave);
    until("it is free once the clients have left", || daemon.state().unbrokered() < SIZE);
    let after = device(&daemon.state());
    assert!(daemon.stop().0.success(), "the daemon ends well");
    json!({ "nvml_without_daemon": orphaned, "found": found, "after": after })
}
