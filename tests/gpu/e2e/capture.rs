//! Stream captures of a process beside the SDK's own calls in it.

use serde_json::Value;
use vramd_tests::{Config, Daemon};

use super::{Actor, World};

/// Records a table of actions during a capture, in each capture mode, with the fate of the capture. Bare driver calls are there for
/// comparison: their outcome is recorded and not judged.
pub(super) fn beside_the_sdk(_: &World) -> Value {
    let daemon = Daemon::start(&Config::cuda());
    let mut client = Actor::ready(&daemon);
    let seen = client.ask("captures");
    client.leave();
    daemon.drains();
    let rows = seen["capture"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["promised"] == true), "{seen}");
    let broken: Vec<_> = rows
        .iter()
        .filter(|row| row["promised"] == true)
        .filter(|row| row["done"] != "ok" || row["capture"] != "ok" || row["graph_is_right"] != true)
        .collect();
    assert!(broken.is_empty(), "of {rows:?}, broken: {broken:?}");
    seen
}
