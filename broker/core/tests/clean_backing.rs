//! Writes behind pins: lost silently by default, found where clean backing is checked.

use crate::world::{
    Client, World, config,
    moving::{charged, evict, mib, tier, to},
    revoking::{answer, part},
    spec,
};
use broker_core::{ClientFrame, ClientRequest, Notice, PartMove, PartRef, StoredQuotas, Tier};
use vramd_types::Bytes;

/// With a part that holds 7, and has come back from the host unwritten.
fn with_a_shadow(check_shadows: bool) -> (World, Client, PartRef) {
    let mut config = config(&[Bytes::mib(8)]);
    config.devices[0].host = Bytes::mib(8);
    config.check_clean_backings = check_shadows;
    let mut world = World::with(config, StoredQuotas::default());
    let client = world.open_pinning("a");
    let part = part(world.allocate(client, spec(4)).expect("room"), 0);
    world.write(client, part, 7);
    evict(&mut world, part);
    comes_back(&mut world, client, part, 1);
    (world, client, part)
}

fn comes_back(world: &mut World, client: Client, part: PartRef, call: u64) {
    world.pin_call(client, call, &[part]);
    world.run_until_idle();
    assert_eq!(answer(world, client, call), Some(&None));
    world.frame(client, ClientFrame::PinEnded { call });
}

/// Nothing says so.
fn write_behind_pins(world: &mut World, part: PartRef, content: u64) {
    let extent = world.extents[&part];
    world.contents.insert(extent, content);
}

fn told(world: &World) -> Vec<(PartRef, &str, Tier, Bytes)> {
    let told = world.notices.iter().filter_map(|notice| match notice {
        Notice::CleanBackingDiffers { part, tenant, tier, bytes, .. } => {
            Some((*part, &**tenant, *tier, *bytes))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn write_behind_pins_is_found_where_clean_backing_is_checked() {
    for (checked, holds) in [(false, 7), (true, 8)] {
        let (mut world, client, part) = with_a_shadow(checked);
        write_behind_pins(&mut world, part, 8);
        assert!(matches!(evict(&mut world, part), PartMove::Moved));
        assert_eq!((tier(&world, part), charged(&world)), (Tier::Host, mib(0, 4)));
        let should = checked.then_some((part, "a", Tier::Host, Bytes::mib(4)));
        assert_eq!(told(&world), should.into_iter().collect::<Vec<_>>());
        comes_back(&mut world, client, part, 2);
        assert_eq!(world.read(client, part), holds);
    }
}

#[test]
fn clean_backing_and_dirty_parts_raise_no_notice() {
    let (mut world, client, part) = with_a_shadow(true);
    for (call, content) in [(2, 7), (4, 8)] {
        world.write(client, part, content);
        evict(&mut world, part);
        comes_back(&mut world, client, part, call);
        evict(&mut world, part);
        comes_back(&mut world, client, part, call + 1);
        assert_eq!((world.read(client, part), told(&world).len()), (content, 0));
    }
}

#[test]
fn pin_during_a_comparison_gets_the_part_as_it_is() {
    for steps in 0..6 {
        let (mut world, client, part) = with_a_shadow(true);
        write_behind_pins(&mut world, part, 8);
        world.start_operator(None, to(part.allocation, Tier::Host));
        for _ in 0..steps {
            if !world.work_once() {
                world.answer_once(client.channel);
            }
        }
        world.pin_call(client, 2, &[part]);
        world.run_until_idle();
        assert_eq!(answer(&world, client, 2), Some(&None), "after {steps} steps");
        assert_eq!((world.read(client, part), charged(&world)), (8, mib(4, 4)), "after {steps} steps");
    }
}

#[test]
fn part_freed_during_a_comparison_is_released() {
    let (mut world, client, part) = with_a_shadow(true);
    world.start_operator(None, to(part.allocation, Tier::Host));
    while !world
        .work
        .iter()
        .any(|work| matches!(work, broker_core::Command::Copy { compare_first: true, .. }))
    {
        if !world.work_once() {
            assert!(world.answer_once(client.channel), "it is never compared");
        }
    }
    world.call(client, ClientRequest::FreeBatch(vec![part.allocation])).expect("freed");
    world.run_until_idle();
    assert_eq!(charged(&world), mib(0, 0));
}
