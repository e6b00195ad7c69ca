//! Every resource has a bound, and a refusal names it.

use vramd_proto::v1::AllocationSpec;
use vramd_tests::{
    Config, Daemon, MIB, RawSession,
    config::Effect,
    session::{hello, spec},
};
use vramd_types::Reason;

#[test]
fn sessions_of_a_tenant_are_bounded() {
    let daemon = Daemon::start(&Config::default().limit("sessions_per_tenant_max = 2"));
    let (first, _second) = (daemon.open(), daemon.open());
    let state = daemon.state();
    let refused = RawSession::open_with(&daemon.sockets(), hello()).unwrap_err();
    refused.is(Reason::SessionsTooMany);
    assert_eq!((refused.fact("tenant"), refused.number("limit_count")), (first.tenant(), 2));
    assert_eq!(daemon.state(), state);
}

#[test]
fn allocations_of_a_tenant_are_bounded() {
    let daemon = Daemon::start(&Config::default().limit("allocations_per_tenant_max = 2"));
    let mut session = daemon.open();
    let first = session.allocate(spec(1)).allocation_id;
    session.allocate(spec(1));
    let state = daemon.settled_state();
    let refused = session.refused(spec(1));
    assert_eq!(refused.is(Reason::AllocationsTooMany).number("limit_count"), 2);
    assert_eq!(daemon.state(), state);
    session.free(first);
    session.allocate(spec(1));
}

#[test]
fn parts_of_a_tenant_are_bounded() {
    let daemon = Daemon::start(&Config::default().limit("parts_per_tenant_max = 4"));
    let mut session = daemon.open();
    let state = daemon.state();
    let small = AllocationSpec { part_size_bytes: Some(2 * MIB), ..spec(10 * MIB) };
    session.refused(small).is(Reason::AllocationsTooMany);
    assert_eq!(daemon.state(), state);
    session.allocate(AllocationSpec { part_size_bytes: Some(2 * MIB), ..spec(8 * MIB) });
}

#[test]
fn waiting_requests_are_bounded() {
    let slow = Config::default().fault("create", 1, Effect::Hold).limit("pending_requests_max = 1");
    let daemon = Daemon::start(&slow.limit("pending_requests_per_tenant_max = 1"));
    let mut session = daemon.open();
    let waiting = session.memory.allocate_batch(session.request(vec![spec(2 * MIB)]));
    vramd_tests::wait::until("it waits for the driver", || daemon.state().charged() == 2 * MIB);
    let state = daemon.state();
    let refused = session.refused(spec(4 * MIB));
    assert_eq!(refused.is(Reason::QueueFull).number("limit_count"), 1);
    assert_eq!(daemon.state(), state);
    // Operators have places of their own.
    daemon.set_quota("other", "2MiB", "4MiB");
    daemon.end_holds();
    let done = waiting.ok().allocations[0].allocation_id;
    session.map_all(done);
    session.allocate(spec(4 * MIB));
}

#[test]
fn descriptors_in_flight_are_bounded() {
    let config = Config::default().limit("fds_in_flight_max = 4").limit("fds_in_flight_per_tenant_max = 4");
    let daemon = Daemon::start(&config);
    let (mut first, mut second) = (daemon.open(), daemon.open());
    let parts = || AllocationSpec { part_size_bytes: Some(2 * MIB), ..spec(12 * MIB) };
    let (one, two) = (first.reserve(parts()).allocation_id, second.reserve(parts()).allocation_id);
    // The budget refuses nothing: packets wait until it allows them, and the sessions take turns.
    for _ in 0..2 {
        for session in [&mut first, &mut second] {
            let parcel = session.receive_map();
            assert!(daemon.state().node.fds_in_flight <= 4);
            session.accept(parcel);
        }
    }
    assert_eq!((first.parts(one).count(), second.parts(two).count()), (6, 6));
}
