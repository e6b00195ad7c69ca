//! Sealed memory larger than its device: hashed where it lies, attached unpinned, and read some parts at a
//! time.

use crate::world::{
    Client, World, config,
    moving::{parts, tiers},
    persistent,
    revoking::answer,
    spec,
};
use broker_core::{
    AllocationSpec, AllocationState, ClientFrame, ClientRequest, Kind, PartRef, Refusal, StoredQuotas,
    Target, Tier,
};
use vramd_types::{Bytes, PartIndex};

const PARTS: u32 = 8;

/// One part after the other, two at a time.
fn read(world: &mut World, client: Client, all: &[PartRef], first: u64, content: impl Fn(u32) -> u64) {
    for (call, some) in (first..).zip(all.chunks(2)) {
        world.pin_call(client, call, some);
        world.run_until_idle();
        assert_eq!(answer(world, client, call), Some(&None), "{some:?}");
        for part in some {
            assert_eq!(world.read(client, *part), content(part.part.0), "{part:?}");
        }
        world.frame(client, ClientFrame::PinEnded { call });
    }
}

#[test]
fn memory_larger_than_its_device_is_sealed_below_and_read_by_ranges() {
    let mut world = tiers(8, 64);
    let owner = world.open_pinning("a");
    let large =
        AllocationSpec { unpinned: true, part_size: Some(Bytes::mib(4)), ..persistent(PARTS * 4, "weights") };
    let id = world.allocate(owner, large).expect("room below");
    let all = parts(&world, id);
    for (call, part) in (1..).zip(&all) {
        world.pin_call(owner, call, &[*part]);
        world.run_until_idle();
        world.write(owner, *part, u64::from(part.part.0) + 1);
        world.frame(owner, ClientFrame::PinEnded { call });
    }
    world.call(owner, ClientRequest::Seal(id)).expect("it is hashed where it lies");
    let view = world.broker.show(&Target::Id(id)).expect("it is there");
    assert_eq!(view.state, AllocationState::Sealed);
    assert!(view.parts.iter().any(|part| part.tier == Tier::Host), "there is no room for all of it");

    let reader = world.open_pinning("a");
    let held = world.charged();
    world.call(reader, ClientRequest::AttachUnpinned(Target::Name("weights".to_owned()))).expect("attached");
    world.run_until_idle();
    assert!(all.iter().all(|part| !world.maps(reader, *part)), "nothing is sent before it is pinned");
    assert_eq!((world.charged(), world.broker.waits().len()), (held, 0), "and nothing is brought");
    let content = |part| u64::from(part) + 1;
    read(&mut world, reader, &all, 1, content);
    read(&mut world, owner, &all, 100, content);
    // More at once than the device has.
    world.pin_call(reader, 50, &all[..3]);
    world.run_until_idle();
    assert!(matches!(answer(&world, reader, 50), Some(Some(Refusal::DeviceFull { .. }))));
    world.frame(reader, ClientFrame::PinEnded { call: 50 });

    world.call(reader, ClientRequest::Detach(vec![id])).expect("detached");
    let again = ClientRequest::AttachUnpinned(Target::Id(id));
    world.call(reader, again).expect("attached again");
    read(&mut world, reader, &all, 60, content);
    world.end_process(reader);
    world.call(owner, ClientRequest::FreeBatch(vec![id])).expect("freed");
    world.run_until_idle();
    assert_eq!((world.charged(), world.charged_in_host()), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn session_without_pins_cannot_have_memory_larger_than_its_device() {
    let mut config = config(&[Bytes::mib(16)]);
    config.devices[0].makes_fixed = true;
    let mut world = World::with(config, StoredQuotas::default());
    let [plain, pinning] = [world.open("a"), world.open_pinning("a")];
    let sealed = world.sealed(plain, persistent(4, "x"));
    let fixed = world.allocate(plain, AllocationSpec { kind: Kind::Fixed, ..spec(4) }).expect("room");
    for (client, id) in [(plain, sealed), (pinning, fixed)] {
        let refused = world.call(client, ClientRequest::AttachUnpinned(Target::Id(id))).expect_err("no pins");
        assert!(matches!(refused, Refusal::RequestInvalid { field: "unheld", .. }), "{refused}");
    }
    world.call(pinning, ClientRequest::AttachUnpinned(Target::Id(sealed))).expect("attached");
    assert!(!world.maps(pinning, PartRef { allocation: sealed, part: PartIndex(0) }));
}
