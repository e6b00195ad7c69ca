//! Capacity while other programs take memory, and while the daemon hands out all that it may.

use serde_json::{Value, json};
use vramd_tests::{Config, Daemon, GIB, MIB, MIB_2, wait::until};
use vramd_types::Reason;

use super::{Actor, World, sharing::device};

/// A program outside the daemon takes most of the device, which is an ordinary event. The daemon refuses requests that do not fit and
/// serves smaller ones. Everything is as before once the program has ended.
pub(super) fn taken_from_outside(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let total = daemon.state().devices[0].total_bytes;
    let leave = (12 * GIB).min(total / 2);
    let too_much = leave + leave / 2;
    let mut client = Actor::ready(&daemon);
    let mut outsider = Actor::start(&daemon);
    outsider.ask("gpu");
    let taken = outsider.number(&format!("hog {leave}"), "bytes");
    // Either the survey knows of the program by now, or the device itself is full.
    let at_once = client.refused(&format!("allocate {too_much}"));
    assert_eq!(at_once.reason, Reason::DeviceFull.name(), "{at_once:?}");
    until("the daemon sees what is taken", || daemon.state().unbrokered() >= taken);
    // Extents that were created before the driver ran out stay charged until they are returned.
    until("the undone extents are returned", || daemon.state().charged() == 0);
    let state = daemon.state();
    assert!(state.devices[0].capacity_bytes < leave, "{:?}", state.devices[0]);
    let later = client.refused(&format!("allocate {too_much}"));
    assert_eq!(later.reason, Reason::DeviceFull.name(), "{later:?}");
    client.ask(&format!("allocate {}", 64 * MIB));
    client.ask("fill 1");
    client.ask("free");
    let with_outsider = json!({ "daemon": device(&state), "nvml": world.figures() });

    outsider.kill();
    until("the daemon sees that it is back", || daemon.state().unbrokered() < GIB);
    client.ask(&format!("allocate {too_much}"));
    client.ask("fill 2");
    client.ask("free");
    client.leave();
    daemon.drains();
    json!({
        "taken_bytes": taken, "with_outsider": with_outsider,
        "without": { "daemon": device(&daemon.state()), "nvml": world.figures() },
    })
}

/// The whole capacity can be allocated at once, and written.
pub(super) fn all_of_it(world: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut client = Actor::ready(&daemon);
    let capacity = daemon.state().devices[0].capacity_bytes / MIB_2 * MIB_2;
    client.ask(&format!("allocate {capacity}"));
    client.ask("fill 3");
    let state = daemon.state();
    let mut second = Actor::ready(&daemon);
    let refused = second.refused(&format!("allocate {MIB_2}"));
    assert_eq!(refused.reason, Reason::DeviceFull.name(), "{refused:?}");
    let full = json!({ "daemon": device(&state), "nvml": world.figures() });
    client.ask("free");
    second.ask(&format!("allocate {MIB_2}"));
    second.ask("free");
    [client, second].into_iter().for_each(Actor::leave);
    daemon.drains();
    json!({ "allocated_bytes": capacity, "full": full })
}
