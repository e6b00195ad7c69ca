//! Cached extents on a full device: no session uses them, and other programs may want the room.

use std::time::Duration;

use crate::world::{
    World, config,
    pressing::{SECOND, fill, free, levels, on_device, pass_time},
};
use broker_core::{Notice, Pressure, StoredQuotas, Tier};
use vramd_types::Bytes;

/// A device of 40 MiB whose tenants cache freed memory, with this much host memory.
fn node(host: u32, cold_after: Duration) -> World {
    let mut config = config(&[Bytes::mib(40)]);
    (config.devices[0].host, config.part_size) = (Bytes::mib(host), Bytes::mib(2));
    config.pressure.cold_after = cold_after;
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(40);
    World::with(config, StoredQuotas::default())
}

fn held_and_cached(world: &World) -> (Bytes, Bytes) {
    let device = &world.broker.devices()[0];
    (device.charged, device.cached)
}

fn given_up(world: &mut World) -> usize {
    world.notices.drain(..).filter(|notice| matches!(notice, Notice::GivenUp { .. })).count()
}

#[test]
fn pressure_sample_releases_cached_extents_until_there_is_room() {
    for (host, cold_after) in [(0, SECOND * 30), (0, Duration::ZERO), (80, Duration::ZERO)] {
        let mut world = node(host, cold_after);
        let client = world.open_pinning("a");
        let parts = fill(&mut world, client, 19);
        for _ in 0..60 {
            pass_time(&mut world, SECOND);
        }
        // Nothing moves: the next sample follows when something is cached.
        free(&mut world, client, &parts[..5]);
        assert_eq!(held_and_cached(&world), (Bytes::mib(38), Bytes::mib(10)));
        pass_time(&mut world, SECOND * 2);
        assert_eq!(held_and_cached(&world), (Bytes::mib(34), Bytes::mib(6)), "{host} {cold_after:?}");
        assert_eq!(given_up(&mut world), 2);
        pass_time(&mut world, SECOND * 10);
        assert_eq!(given_up(&mut world), 0, "85 percent may be held");
    }
}

#[test]
fn critical_pressure_releases_cached_extents_at_once_before_cold_parts() {
    let mut world = node(80, SECOND * 30);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 17);
    free(&mut world, client, &parts[..2]);
    pass_time(&mut world, SECOND * 40);
    assert_eq!(held_and_cached(&world), (Bytes::mib(34), Bytes::mib(4)));
    levels(&mut world, Tier::Device);
    // They arrive on the device one by one: with the second its pressure is critical.
    fill(&mut world, client, 2);
    assert_eq!(held_and_cached(&world), (Bytes::mib(34), Bytes::ZERO));
    assert!(levels(&mut world, Tier::Device).contains(&Pressure::Critical));
    assert_eq!(on_device(&world, &parts[2..]), 15, "that was enough");
}
