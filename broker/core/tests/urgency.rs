//! Work that is done sooner for a waiter, and frames that are joined without one.

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{charged, evict, fill, mib, one_written, parts, tier, tiers, to},
    revoking::{answer, part},
    set_quota, spec,
    writing_back::one_step,
};
use broker_core::{
    ClientRequest, Command, Completion, DaemonFrame, Event, PartRef, StoredQuotas, Tier, WordsOutcome, limits,
};
use vramd_types::{Bytes, CopyClass};

fn patient(device: u32, host: u32) -> World {
    let mut world = tiers(device, host);
    world.defers_releases = true;
    world
}

#[test]
fn release_without_a_waiter_may_be_deferred() {
    let mut world = patient(16, 64);
    let a = world.open_pinning("a");
    let part = part(world.allocate(a, spec(4)).expect("room"), 0);
    evict(&mut world, part);
    assert_eq!((world.deferred.len(), tier(&world, part)), (1, Tier::Host));
    assert_eq!(charged(&world), mib(4, 4), "it is charged until the driver has it back");
    world.allocate(a, spec(8)).expect("there is room beside it");
    assert_eq!(world.deferred.len(), 1);
}

#[test]
fn waiter_has_a_deferred_release_done() {
    let mut world = patient(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let evicted = part(world.allocate(a, spec(8)).expect("room"), 0);
    for part in parts(&world, evicted.allocation) {
        world.write(a, part, 1);
    }
    world.operate(to(evicted.allocation, Tier::Host)).expect("they leave");
    assert_eq!(world.deferred.len(), 2);
    world.allocate(b, spec(4)).expect("the deferred release is done now");
    world.pin_call(a, 1, &[evicted]);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
    assert!(world.deferred.is_empty());
}

#[test]
fn release_for_a_waiter_is_not_deferred() {
    let mut world = patient(8, 64);
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    for _ in 0..2 {
        world.allocate(a, spec(4)).expect("room");
    }
    for _ in 0..4 {
        world.allocate(b, spec(4)).expect("the part of a session leaves");
    }
    assert_eq!(charged(&world), mib(8, 24));
}

/// A node of three extents of 4 MiB, where everything freed is cached.
fn of_three_extents() -> World {
    let mut config = config(&[Bytes::mib(64)]);
    config.devices[0].host = Bytes::mib(64);
    config.limits.extents_max = 3;
    config.limits.cached_bytes_per_tenant_max = Bytes::mib(64);
    World::with(config, StoredQuotas::default())
}

fn keep(world: &mut World, client: Client, mib: u32) {
    let id = world.allocate(client, spec(mib)).expect("room");
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("freed");
    assert_eq!(world.broker.devices()[0].cached, Bytes::mib(mib));
    world.defers_releases = true;
}

#[test]
fn batch_beyond_the_extent_count_has_cached_extents_released() {
    let mut world = of_three_extents();
    let a = world.open_pinning("a");
    keep(&mut world, a, 12);
    world.allocate(a, spec(8)).expect("two are given up for it");
    assert!(world.deferred.is_empty());
}

#[test]
fn part_beyond_the_extent_count_has_a_cached_extent_released() {
    let mut world = of_three_extents();
    let [a, b] = ["a", "b"].map(|tenant| world.open_pinning(tenant));
    let away = part(world.allocate(a, spec(4)).expect("room"), 0);
    evict(&mut world, away);
    assert_eq!(tier(&world, away), Tier::Host);
    keep(&mut world, b, 8);
    world.pin_call(a, 1, &[away]);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
    assert_eq!((tier(&world, away), world.deferred.len()), (Tier::Device, 0));
}

#[test]
fn tenant_at_its_limit_has_its_own_cached_extents_released() {
    let mut world = patient(16, 64);
    world.operate(set_quota("a", 0, 4)).expect("stored");
    let a = world.open_pinning("a");
    let first = part(world.allocate(a, spec(4)).expect("room"), 0);
    evict(&mut world, first);
    world.allocate(a, spec(4)).expect("the limit counts what is being released until it is");
}

#[test]
fn guarantee_has_the_extents_that_it_waits_for_released() {
    let mut world = patient(8, 64);
    let a = world.open_pinning("a");
    let evicted = part(world.allocate(a, spec(4)).expect("room"), 0);
    world.allocate(a, spec(4)).expect("room");
    evict(&mut world, evicted);
    world.operate(set_quota("b", 4, 8)).expect("it is backed by what was put off");
    assert!(world.deferred.is_empty());
}

/// The classes of copies that the driver was asked for and has not done.
fn classes(world: &World) -> Vec<CopyClass> {
    let copies = world.work.iter().filter_map(|work| match work {
        Command::Copy { class, .. } => Some(*class),
        _ => None,
    });
    copies.collect()
}

/// With a part that an operator has moved there, whose copy has been asked for.
fn copying(world: &mut World, client: Client, part: PartRef, tier: Tier) {
    world.start_operator(None, to(part.allocation, tier));
    until_copied(world, client);
    let class = if tier == Tier::Device { CopyClass::Prefetch } else { CopyClass::WriteBack };
    assert_eq!(classes(world), [class]);
}

/// Until a copy has been asked for.
fn until_copied(world: &mut World, client: Client) {
    for _ in 0..10 {
        if !classes(world).is_empty() {
            return;
        }
        one_step(world, client);
    }
    panic!("nothing is copied");
}

#[test]
fn pin_hastens_a_fetch_by_an_operator() {
    let (mut world, a, part) = one_written();
    evict(&mut world, part);
    copying(&mut world, a, part, Tier::Device);
    world.pin_call(a, 1, &[part]);
    assert_eq!(world.hastened.len(), 1);
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
}

#[test]
fn awaited_part_is_copied_as_demand() {
    let (mut world, a, part) = one_written();
    evict(&mut world, part);
    world.pin_call(a, 1, &[part]);
    until_copied(&mut world, a);
    assert_eq!((classes(&world), world.hastened.len()), (vec![CopyClass::Demand], 0));
}

/// A waiter needs more room than there is, and behind it a call pins the part.
#[test]
fn fetch_by_an_operator_is_copied_as_demand_if_a_session_waits() {
    let (mut world, a, away) = one_written();
    evict(&mut world, away);
    let [b, c] = ["b", "c"].map(|tenant| world.open_pinning(tenant));
    fill(&mut world, b, spec(4));
    let items = vec![spec(8)];
    world.start(c, None, ClientRequest::AllocateBatch { items, wait: Duration::from_secs(1) });
    world.pin_call(a, 1, &[away]);
    world.run_until_idle();
    assert_eq!((tier(&world, away), answer(&world, a, 1)), (Tier::Host, None));
    world.start_operator(None, to(away.allocation, Tier::Device));
    until_copied(&mut world, a);
    assert_eq!((classes(&world), world.hastened.len()), (vec![CopyClass::Demand], 0));
    world.run_until_idle();
    assert_eq!(answer(&world, a, 1), Some(&None));
}

#[test]
fn waiter_hastens_an_eviction_by_an_operator() {
    let (mut world, a, leaves) = one_written();
    let b = world.open_pinning("b");
    fill(&mut world, b, spec(4));
    copying(&mut world, a, leaves, Tier::Host);
    let items = vec![spec(4)];
    let call = world.start(b, None, ClientRequest::AllocateBatch { items, wait: Duration::from_secs(1) });
    assert_eq!(world.hastened.len(), 1);
    world.run_until_idle();
    assert!(world.replies[&call].is_ok());
}

/// As when all of them come back from the words in one turn of the daemon.
#[test]
fn revoke_frames_carry_a_bounded_number_of_parts() {
    let mut base = config(&[Bytes::mib(1024)]);
    base.devices[0].host = Bytes::mib(1024);
    let mut world = World::with(base, Default::default());
    let a = world.open_pinning("a");
    let id = world.allocate(a, spec(640)).expect("room");
    let count = parts(&world, id).len();
    assert_eq!(count, 160);
    let call = world.start_operator(None, to(id, Tier::Host));
    let asked = std::mem::take(&mut world.work);
    for command in asked {
        match command {
            Command::RevokeWords { part, .. } => {
                let outcome = WordsOutcome::Revoked;
                let done = Completion::WordsRevoked { part, outcome };
                world.broker.handle(world.now, Event::Completion(done));
            }
            other => world.work.push_back(other),
        }
    }
    world.event(Event::Tick);
    let frames = world.inboxes[&a.channel].iter().map(|frame| match frame {
        DaemonFrame::Revoke { parts, .. } => parts.len(),
        other => panic!("{other:?}"),
    });
    let together = limits::REVOKE_GROUP_MAX;
    assert_eq!(frames.collect::<Vec<_>>(), [together, together, count - 2 * together]);
    world.run_until_idle();
    assert!(world.replies[&call].is_ok());
    assert_eq!(charged(&world), mib(0, 640));
    world.call(a, ClientRequest::FreeBatch(vec![id])).expect("freed");
}
