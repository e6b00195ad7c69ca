//! Clients that are killed in the middle of a move: the operator gets an outcome, the client leaves nothing, and its
//! neighbour keeps every byte.

use vramd_proto::v1::{MoveCause, MoveOutcome as Outcome, MoveState, SessionState, Tier, move_event::Change};
use vramd_tests::{Config, Daemon, MIB_2, Probe, config::Effect, content, digest, is_root, wait::until};

use crate::moves::{
    assert_nothing_left, clients::stopped::client, first, held, operators::list::listed,
    operators::write_backs::writing_back, outcomes, start_move, tiers, until_charged,
};

/// A client with 2 MiB, of another tenant if the tests run as root.
struct Neighbour(Probe);

impl Neighbour {
    fn new(daemon: &Daemon) -> Self {
        let mut probe = if is_root() { daemon.probe_as(20_001) } else { daemon.probe() };
        probe.ask("sdk open");
        probe.ask(&format!("sdk allocate {MIB_2}"));
        probe.ask("sdk write 9");
        Self(probe)
    }

    /// Ends the neighbour once nothing but its own memory is left.
    fn assert_unharmed(mut self, daemon: &Daemon) {
        until("nothing else is left", || {
            let state = daemon.state();
            (state.sessions.len(), state.allocations.len(), held(daemon)) == (1, 1, (2, 2))
        });
        assert_eq!(self.0.ask("sdk digest")["digest"], digest(&content(MIB_2, 9)));
        self.0.leave();
        assert_nothing_left(daemon);
    }
}

/// The daemon's step at which the client dies.
struct Step {
    name: &'static str,
    /// The driver's operation that is held, and which one of them.
    held: (&'static str, u64),
    reached: fn(&Daemon) -> bool,
}

impl Step {
    fn config(&self) -> Config {
        let (on, nth) = self.held;
        holding(on, nth)
    }
}

fn holding(on: &'static str, nth: u64) -> Config {
    tiers("8MiB", "8MiB").fault(on, nth, Effect::Hold)
}

/// Kills the client, and lets the driver go on once the daemon knows that.
pub(crate) fn kill(daemon: &Daemon, client: Probe) {
    let pid = client.pid();
    client.kill();
    until("the daemon knows that it is gone", || {
        daemon.state().sessions.iter().all(|it| it.pid != pid || it.state() == SessionState::Gone)
    });
    daemon.end_holds();
}

/// Whether a part moves to that tier, in that state.
fn is(daemon: &Daemon, tier: Tier, state: MoveState) -> bool {
    listed(daemon).moves.iter().any(|it| (it.tier(), it.state()) == (tier, state))
}

/// Whether the move of the second part has ended so.
fn has_second_part(daemon: &Daemon, tier: Tier, change: Change) -> bool {
    let ended = listed(daemon).ended;
    ended.iter().any(|it| {
        let part = it.part.unwrap_or_default();
        (part.part_index, it.tier(), it.outcome()) == (1, tier, change)
    })
}

#[test]
fn a_client_is_killed_while_its_part_leaves() {
    let steps = [
        (
            Step {
                name: "its backing is made",
                held: ("create_host", 1),
                reached: |daemon| {
                    is(daemon, Tier::Host, MoveState::Preparing)
                        && has_second_part(daemon, Tier::Host, Change::Moved)
                },
            },
            [Outcome::Freed, Outcome::Moved],
        ),
        (
            Step {
                name: "it is copied",
                held: ("copy", 1),
                reached: |daemon| {
                    is(daemon, Tier::Host, MoveState::Copying)
                        && has_second_part(daemon, Tier::Host, Change::Moved)
                },
            },
            [Outcome::Freed, Outcome::Moved],
        ),
        (
            Step {
                name: "it has left, and the device has not got it back",
                held: ("release", 1),
                reached: |daemon| daemon.state().devices[0].moving_out_bytes == 0 && held(daemon) == (4, 6),
            },
            [Outcome::Moved, Outcome::Moved],
        ),
    ];
    for (step, told) in steps {
        let daemon = Daemon::start(&step.config());
        let (probe, id) = client(&daemon);
        let neighbour = Neighbour::new(&daemon);
        let evicting = start_move(&daemon, id, Tier::Host);
        until(step.name, || (step.reached)(&daemon));
        kill(&daemon, probe);
        assert_eq!(outcomes(&evicting.ok()), told, "{}", step.name);
        neighbour.assert_unharmed(&daemon);
    }
}

#[test]
fn a_client_is_killed_before_it_unmaps() {
    let daemon = Daemon::start(&tiers("8MiB", "8MiB").limit("unmap_answer_timeout_ms = 60000"));
    let mut probe = daemon.probe();
    let session = probe.ask("open pins")["session"].as_u64().unwrap();
    let id = probe.ask("allocate 2097152")["allocation"].as_u64().unwrap();
    let neighbour = Neighbour::new(&daemon);
    // The client does not read its channel.
    let evicting = start_move(&daemon, id, Tier::Host);
    until("it was told to unmap", || daemon.log().contains("revoke sent"));
    assert!(!evicting.is_answered());
    probe.kill();
    // The kernel decides whether the daemon sees the end of the channel or of the process first.
    match first(&evicting.ok()) {
        (Outcome::Freed, []) => {}
        (Outcome::Silent, [silent]) if *silent == session => {}
        other => panic!("{other:?}"),
    }
    neighbour.assert_unharmed(&daemon);
}

/// The client pins the part where it is. The copy that has begun must end first.
#[test]
fn a_client_is_killed_while_its_copy_is_cancelled() {
    let daemon = Daemon::start(&holding("copy", 1));
    let (mut probe, id) = client(&daemon);
    let neighbour = Neighbour::new(&daemon);
    let evicting = start_move(&daemon, id, Tier::Host);
    until("it is copied", || {
        is(&daemon, Tier::Host, MoveState::Copying) && has_second_part(&daemon, Tier::Host, Change::Moved)
    });
    probe.tell("sdk pin-for 60000");
    until("it is called off", || is(&daemon, Tier::Host, MoveState::Stopping));
    kill(&daemon, probe);
    assert_eq!(outcomes(&evicting.ok()), [Outcome::Wanted, Outcome::Moved]);
    neighbour.assert_unharmed(&daemon);
}

/// The first two operations of each kind are those of the allocation or of the way out. The third device's is the
/// neighbour's.
fn ways_in() -> [Step; 2] {
    [
        Step {
            name: "memory is made for it",
            held: ("create", 4),
            reached: |daemon| {
                is(daemon, Tier::Device, MoveState::Preparing)
                    && has_second_part(daemon, Tier::Device, Change::Moved)
            },
        },
        Step {
            name: "it is copied",
            held: ("copy", 3),
            reached: |daemon| {
                is(daemon, Tier::Device, MoveState::Copying)
                    && has_second_part(daemon, Tier::Device, Change::Moved)
            },
        },
    ]
}

/// A client whose parts are in the host, and its neighbour.
fn out(daemon: &Daemon) -> (Probe, u64, Neighbour) {
    let (probe, id) = client(daemon);
    let neighbour = Neighbour::new(daemon);
    assert_eq!(outcomes(&start_move(daemon, id, Tier::Host).ok()), [Outcome::Moved; 2]);
    until_charged(daemon, 2, 6);
    (probe, id, neighbour)
}

#[test]
fn a_client_is_killed_while_its_pin_fetches() {
    let mapped = Step {
        name: "one part is mapped and the other on its way",
        held: ("copy", 4),
        reached: |daemon| {
            is(daemon, Tier::Device, MoveState::Copying) && daemon.state().sessions[0].mapped_bytes > 0
        },
    };
    for step in ways_in().into_iter().chain([mapped]) {
        let daemon = Daemon::start(&step.config());
        let (mut probe, _, neighbour) = out(&daemon);
        probe.tell("sdk pin-for 60000");
        until(step.name, || (step.reached)(&daemon));
        kill(&daemon, probe);
        neighbour.assert_unharmed(&daemon);
        // The latest move comes first.
        let ended = listed(&daemon).ended.into_iter().filter(|it| it.tier() == Tier::Device);
        let ended: Vec<_> = ended.map(|it| (it.cause(), it.outcome(), it.detail)).collect();
        let by_its_pin = |outcome| (MoveCause::Demand, outcome, String::new());
        assert_eq!(ended, [Change::Stopped, Change::Moved].map(by_its_pin), "{}", step.name);
    }
}

#[test]
fn a_client_is_killed_while_an_operator_fetches() {
    for step in ways_in() {
        let daemon = Daemon::start(&step.config());
        let (probe, id, neighbour) = out(&daemon);
        let bringing = start_move(&daemon, id, Tier::Device);
        until(step.name, || (step.reached)(&daemon));
        kill(&daemon, probe);
        assert_eq!(outcomes(&bringing.ok()), [Outcome::Freed, Outcome::Moved], "{}", step.name);
        neighbour.assert_unharmed(&daemon);
    }
}

#[test]
fn a_client_is_killed_while_it_waits_for_room() {
    let daemon = Daemon::start(&tiers("6MiB", "16MiB"));
    let (mut probe, _, neighbour) = out(&daemon);
    let mut other = daemon.probe();
    other.ask("open");
    other.ask("allocate 2097152");
    probe.tell("sdk pin-for 60000");
    until("one part is there and the other waits", || {
        let device = &daemon.state().devices[0];
        (device.awaited_part_count, device.moving_in_bytes, device.held_bytes) == (1, 0, 3 * MIB_2)
    });
    probe.kill();
    until("nobody waits", || daemon.state().devices[0].awaited_part_count == 0);
    other.leave();
    neighbour.assert_unharmed(&daemon);
}

#[test]
fn a_client_is_killed_while_its_part_is_written_back() {
    let written_back = |daemon: &Daemon| has_second_part(daemon, Tier::Host, Change::WrittenBack);
    for (on, state) in [("create_host", MoveState::Preparing), ("copy", MoveState::Copying)] {
        let daemon = Daemon::start(&holding(on, 1));
        let (probe, id) = client(&daemon);
        let neighbour = Neighbour::new(&daemon);
        let writing = writing_back(&daemon, id);
        until(on, || {
            let moves = listed(&daemon).moves;
            moves.iter().any(|it| (it.cause(), it.state()) == (MoveCause::WriteBack, state))
                && written_back(&daemon)
        });
        kill(&daemon, probe);
        let told: Vec<_> = writing.ok().parts.iter().map(|part| part.outcome()).collect();
        assert_eq!(told, [Outcome::Freed, Outcome::Moved], "{on}");
        neighbour.assert_unharmed(&daemon);
    }
}
