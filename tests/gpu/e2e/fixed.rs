//! Legacy handles are shared inside a tenant while the memory is open, and never sent to another tenant.

use serde_json::{Value, json};
use vramd_tests::{Daemon, MIB, wait::until};
use vramd_types::Reason;

use super::{Actor, World, sharing};
use crate::content;

const SIZE: u64 = 8 * MIB;

pub(super) fn inside_a_tenant(world: &World) -> Value {
    let daemon = Daemon::start(&sharing::config());
    let mut owner = Actor::ready(&daemon);
    owner.ask(&format!("allocate {SIZE} name=table fixed"));
    owner.ask("fill 5");
    let mut colleague = Actor::ready(&daemon);
    colleague.ask("attach-fixed table");
    assert_eq!(colleague.number("sum", "sum"), content::sum(5, SIZE));
    // Both processes write, since a legacy handle is always writable.
    colleague.ask("fill 6");
    assert_eq!(owner.number("sum", "sum"), content::sum(6, SIZE));
    let stranger = sharing::other(&daemon).map(|mut stranger| {
        stranger.ask("open");
        let refused = stranger.refused("attach-fixed owners/table");
        assert_eq!(refused.reason, Reason::AllocationNotFound.name(), "for others it does not exist");
        stranger.leave();
        refused.reason
    });
    let figures = world.figures();
    owner.ask("free");
    assert_eq!(daemon.state().charged(), SIZE, "charged while a process has it open");
    assert_eq!(colleague.number("sum", "sum"), content::sum(6, SIZE), "and it stays");
    colleague.ask("drop");
    until("it is freed with its last user", || daemon.state().charged() == 0);
    [owner, colleague].into_iter().for_each(Actor::leave);
    daemon.drains();
    json!({ "stranger": stranger, "nvml": figures })
}
