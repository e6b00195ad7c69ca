//! Classes and weights of tenants: whose memory leaves first, whose prefetches begin first and are paused.

use std::time::Duration;

use crate::world::{
    Client, World, config,
    moving::{evict, fill as pin_all, tier, tiers},
    pressing::{COLD, SECOND, fill, free, node, on_device, pass_time},
    revoking::part,
    spec,
};
use broker_core::{
    AllocationSpec, Cause, ClientFrame, Deferral, Event, EvictionPolicy, Notice, OperatorRequest, PartRef,
    PrefetchSpec, PrefetchState, Reply, Standing, StandingSource, StoredQuotas, TenantClass, TenantView,
    TenantWeight, Tier,
};
use vramd_types::{Bytes, Reason};

fn set(world: &mut World, tenant: &str, class: TenantClass, weight: u32) {
    let request = OperatorRequest::SetTenant {
        tenant: tenant.to_owned(),
        class: Some(class),
        weight: Some(weight),
        advice: None,
    };
    world.operate(request).expect("valid");
}

fn standing(class: TenantClass, weight: u32) -> Standing {
    Standing { class, weight: TenantWeight::new(weight).expect("valid"), ..Standing::default() }
}

/// A part of that many MiB in host memory.
fn below(world: &mut World, client: Client, mib: u32) -> PartRef {
    let spec = AllocationSpec { part_size: Some(Bytes::mib(mib)), ..spec(mib) };
    let part = part(world.allocate(client, spec).expect("room"), 0);
    world.write(client, part, 1);
    evict(world, part);
    part
}

fn ask(world: &mut World, client: Client, number: u64, part: PartRef, within: Option<Duration>) {
    let spec = PrefetchSpec { parts: vec![part], whole: true, within, priority: 0 };
    world.frame(client, ClientFrame::Prefetch { number, spec });
}

fn last(world: &World, client: Client, number: u64) -> &PrefetchState {
    world.prefetch_states[&(client.channel, number)].last().expect("it was told")
}

const READY: PrefetchState = PrefetchState::Ready { left_out: 0, is_late: false };

#[test]
fn pressure_demotes_the_lowest_class_first() {
    for policy in [EvictionPolicy::Lru, EvictionPolicy::HitDensity] {
        let mut config = config(&[Bytes::mib(40)]);
        config.devices[0].host = Bytes::mib(80);
        config.part_size = Bytes::mib(2);
        config.eviction = policy;
        config.tenants.insert("night".to_owned(), standing(TenantClass::Background, 100));
        let mut world = World::with(config, StoredQuotas::default());
        let [chat, night] = ["chat", "night"].map(|tenant| world.open_pinning(tenant));
        let older = fill(&mut world, chat, 10);
        let newer = fill(&mut world, night, 10);
        pass_time(&mut world, COLD + SECOND * 2);
        // 85 percent are 34 MiB, so three parts leave.
        assert_eq!((on_device(&world, &older), on_device(&world, &newer)), (10, 7), "{policy}");
    }
}

#[test]
fn pressure_demotes_the_higher_class_once_the_lower_one_cannot_leave() {
    let mut world = node(80, 0);
    set(&mut world, "night", TenantClass::Background, 100);
    let [chat, night] = ["chat", "night"].map(|tenant| world.open_pinning(tenant));
    let held = fill(&mut world, night, 2);
    held.iter().for_each(|part| world.pin(night, *part));
    let cold = fill(&mut world, night, 1);
    let higher = fill(&mut world, chat, 17);
    pass_time(&mut world, COLD + SECOND * 4);
    assert_eq!((on_device(&world, &held), on_device(&world, &cold), on_device(&world, &higher)), (2, 0, 15));
}

#[test]
fn class_of_memory_below_the_device_decides_too() {
    let mut config = config(&[Bytes::mib(80)]);
    (config.devices[0].host, config.devices[0].disk) = (Bytes::mib(40), Bytes::mib(80));
    config.part_size = Bytes::mib(2);
    let mut world = World::with(config, StoredQuotas::default());
    set(&mut world, "night", TenantClass::Background, 100);
    let [chat, night] = ["chat", "night"].map(|tenant| world.open_pinning(tenant));
    let older = fill(&mut world, chat, 10);
    let newer = fill(&mut world, night, 10);
    for part in older.iter().chain(&newer) {
        evict(&mut world, *part);
    }
    let in_host = |world: &World, parts: &[PartRef]| {
        parts.iter().filter(|part| tier(world, **part) == Tier::Host).count()
    };
    pass_time(&mut world, COLD + SECOND * 4);
    let (of_chat, of_night) = (in_host(&world, &older), in_host(&world, &newer));
    assert!(of_chat == 10 && of_night < 10, "{of_chat} and {of_night}");
}

#[test]
fn weights_decide_which_cold_memory_of_a_class_leaves() {
    let mut world = node(80, 0);
    set(&mut world, "heavy", TenantClass::Initiated, 300);
    let [heavy, light] = ["heavy", "light"].map(|tenant| world.open_pinning(tenant));
    let older = fill(&mut world, heavy, 10);
    let newer = fill(&mut world, light, 10);
    pass_time(&mut world, COLD + SECOND * 2);
    assert_eq!((on_device(&world, &older), on_device(&world, &newer)), (10, 7));
    // With equal weights the one leaves first that has more.
    let mut world = node(80, 0);
    let [less, more] = ["less", "more"].map(|tenant| world.open_pinning(tenant));
    let older = fill(&mut world, less, 9);
    let newer = fill(&mut world, more, 11);
    pass_time(&mut world, COLD + SECOND * 2);
    assert_eq!((on_device(&world, &older), on_device(&world, &newer)), (8, 9));
}

#[test]
fn waiters_take_memory_of_the_lowest_class_first() {
    for policy in EvictionPolicy::ALL {
        let mut config = config(&[Bytes::mib(12)]);
        config.devices[0].host = Bytes::mib(64);
        config.eviction = policy;
        let mut world = World::with(config, StoredQuotas::default());
        let [chat, night, new] = ["chat", "night", "new"].map(|tenant| world.open_pinning(tenant));
        let higher = fill(&mut world, chat, 2);
        let lower = fill(&mut world, night, 4);
        // Its memory is there already.
        set(&mut world, "night", TenantClass::Background, 100);
        pin_all(&mut world, new, spec(4));
        assert_eq!((on_device(&world, &higher), on_device(&world, &lower)), (2, 2), "{policy}");
        // Back in the default class it has no precedence over what was used longer ago.
        world.operate(OperatorRequest::ResetTenant { tenant: "night".to_owned() }).expect("valid");
        if policy == EvictionPolicy::Lru {
            pin_all(&mut world, new, spec(4));
            assert_eq!((on_device(&world, &higher), on_device(&world, &lower)), (0, 2));
        }
    }
}

#[test]
fn prefetch_takes_cold_memory_of_the_lowest_class_first() {
    let mut world = node(80, 0);
    let [chat, night, asks] = ["chat", "night", "asks"].map(|tenant| world.open_pinning(tenant));
    let wanted = below(&mut world, asks, 16);
    let higher = fill(&mut world, chat, 2);
    let lower = fill(&mut world, night, 2);
    set(&mut world, "night", TenantClass::Utility, 100);
    // At 75 percent pressure does nothing by itself.
    pin_all(&mut world, asks, spec(22));
    pass_time(&mut world, COLD + SECOND);
    ask(&mut world, asks, 1, wanted, None);
    world.run_until_idle();
    assert_eq!(last(&world, asks, 1), &READY);
    let for_prefetch = |notice: &Notice| match notice {
        Notice::Moved { part, tier: Tier::Host, cause: Cause::Prefetch, .. } => Some(*part),
        _ => None,
    };
    let left: Vec<_> = world.notices.iter().filter_map(for_prefetch).collect();
    assert!(left.len() == 3 && left[..2] == lower && higher.contains(&left[2]), "{left:?}");
}

#[test]
fn prefetches_of_the_lower_classes_are_paused_under_pressure() {
    let mut world = node(200, 0);
    let classes = [TenantClass::Background, TenantClass::Utility, TenantClass::Initiated];
    for class in classes {
        set(&mut world, class.name(), class, 100);
    }
    let clients = classes.map(|class| world.open_pinning(class.name()));
    let mut wanted = Vec::new();
    for client in clients {
        wanted.push([(); 3].map(|()| below(&mut world, client, 2)));
    }
    let other = world.open_pinning("other");
    let ask_all = |world: &mut World, number: usize| {
        for (client, parts) in clients.iter().zip(&wanted) {
            ask(world, *client, number as u64, parts[number - 1], None);
        }
        world.run_until_idle();
        clients.map(|client| last(world, client, number as u64).clone())
    };
    let paused = PrefetchState::Deferred(Deferral::Pressure);
    // At 75 percent nothing is paused yet; with what the first round brings the level is elevated.
    let held: Vec<_> = fill(&mut world, other, 13);
    held.iter().for_each(|part| world.pin(other, *part));
    assert_eq!(ask_all(&mut world, 1), [READY, READY, READY]);
    assert_eq!(ask_all(&mut world, 2), [paused.clone(), READY, READY]);
    // The third request of the first tenant stands behind its second one.
    let behind = PrefetchState::Deferred(Deferral::Behind);
    assert_eq!(ask_all(&mut world, 3), [behind, paused, READY]);
    let view = world.broker.prefetches();
    let why =
        view.iter().filter(|it| it.phase == broker_core::PrefetchPhase::Queued(Deferral::Pressure)).count();
    assert_eq!(why, 2);
    // The level falls to elevated, then to normal.
    held.iter().for_each(|part| world.unpin(other, *part));
    free(&mut world, other, &held[..3]);
    assert_eq!(last(&world, clients[1], 3), &READY);
    assert_eq!(last(&world, clients[0], 2), &PrefetchState::Deferred(Deferral::Pressure));
    free(&mut world, other, &held[3..]);
    assert_eq!([2, 3].map(|number| last(&world, clients[0], number).clone()), [READY, READY]);
}

#[test]
fn paused_request_begins_once_its_tenant_is_of_a_higher_class() {
    let mut world = node(80, 0);
    set(&mut world, "night", TenantClass::Background, 100);
    let [night, other] = ["night", "other"].map(|tenant| world.open_pinning(tenant));
    let wanted = below(&mut world, night, 2);
    fill(&mut world, other, 16);
    ask(&mut world, night, 1, wanted, None);
    assert_eq!(last(&world, night, 1), &PrefetchState::Deferred(Deferral::Pressure));
    set(&mut world, "night", TenantClass::Initiated, 100);
    world.run_until_idle();
    assert_eq!(last(&world, night, 1), &READY);
}

/// Lets requests queue up behind one that fills the link, and returns the tenants in the order of their fetches.
fn order_of_fetches(world: &mut World, asked: &[(Client, PartRef, Option<Duration>)]) -> Vec<String> {
    let holder = world.open_pinning("holder");
    let first = below(world, holder, 512);
    ask(world, holder, 1, first, None);
    world.notices.clear();
    for (number, (client, part, within)) in (1..).zip(asked) {
        ask(world, *client, number, *part, *within);
    }
    world.run_until_idle();
    let fetched = |notice: &Notice| match notice {
        Notice::Moved { tenant, tier: Tier::Device, cause: Cause::Prefetch, .. } => Some(tenant.to_string()),
        _ => None,
    };
    world.notices.iter().filter_map(fetched).filter(|tenant| tenant != "holder").collect()
}

#[test]
fn prefetches_begin_by_class_and_then_by_deadline() {
    let mut world = tiers(8192, 16_384);
    set(&mut world, "chat", TenantClass::Interactive, 100);
    set(&mut world, "night", TenantClass::Background, 100);
    let clients = ["night", "batch", "eval", "chat"].map(|tenant| world.open_pinning(tenant));
    let minutes = |count: u64| Some(Duration::from_secs(60 * count));
    let within = [minutes(1), None, minutes(9), None];
    let asked: Vec<_> = clients
        .into_iter()
        .zip(within)
        .map(|(client, within)| (client, below(&mut world, client, 512), within))
        .collect();
    assert_eq!(order_of_fetches(&mut world, &asked), ["chat", "eval", "batch", "night"]);
}

#[test]
fn weights_decide_the_turns_of_prefetches_in_a_class() {
    let mut world = tiers(8192, 16_384);
    set(&mut world, "heavy", TenantClass::Initiated, 300);
    let [heavy, light] = ["heavy", "light"].map(|tenant| world.open_pinning(tenant));
    let mut asked = Vec::new();
    for _ in 0..4 {
        for client in [heavy, light] {
            asked.push((client, below(&mut world, client, 512), None));
        }
    }
    let order = order_of_fetches(&mut world, &asked);
    assert_eq!(order, ["heavy", "light", "heavy", "heavy", "heavy", "light", "light", "light"]);
}

#[test]
fn sessions_of_the_lowest_class_are_told_of_pressure_first() {
    let mut world = node(80, 0);
    world.subscribes_to_pressure = true;
    set(&mut world, "chat", TenantClass::Interactive, 100);
    set(&mut world, "night", TenantClass::Background, 100);
    let clients = ["chat", "batch", "night"].map(|tenant| world.open_pinning(tenant));
    world.run_until_idle();
    world.pressure_notes.clear();
    fill(&mut world, clients[0], 16);
    let told: Vec<_> = world.pressure_notes.iter().map(|(channel, _)| *channel).take(3).collect();
    assert_eq!(told, [clients[2].channel, clients[1].channel, clients[0].channel]);
}

fn listed(world: &World, tenant: &str) -> Option<TenantView> {
    world.broker.list_tenants(Some(tenant)).pop()
}

#[test]
fn operators_come_before_the_configuration_and_a_reset_returns_to_it() {
    let mut config = config(&[Bytes::mib(16)]);
    config.tenants.insert("a".to_owned(), standing(TenantClass::Utility, 7));
    let mut world = World::with(config.clone(), StoredQuotas::default());
    let shown = |world: &World| listed(world, "a").map(|it| (it.standing, it.source));
    let configured = Some((standing(TenantClass::Utility, 7), StandingSource::Configuration));
    assert_eq!(shown(&world), configured);
    // A value that is left out stays.
    let weight = OperatorRequest::SetTenant {
        tenant: "a".to_owned(),
        class: None,
        weight: Some(10_000),
        advice: None,
    };
    let Ok(Reply::TenantChanged(view)) = world.operate(weight) else { panic!("no answer") };
    assert_eq!(view.standing, standing(TenantClass::Utility, 10_000));
    let client = world.open("a");
    world.allocate(client, spec(4)).expect("room");
    let view = listed(&world, "a").expect("it is listed");
    assert_eq!((view.on_device, view.in_host, view.sessions), (Bytes::mib(4), Bytes::ZERO, 1));
    // It survives a restart, and a reset does as well.
    let mut world = World::with(config.clone(), world.stored);
    assert_eq!(shown(&world), Some((standing(TenantClass::Utility, 10_000), StandingSource::Operator)));
    world.notices.clear();
    world.operate(OperatorRequest::ResetTenant { tenant: "a".to_owned() }).expect("valid");
    let told = world
        .notices
        .iter()
        .any(|notice| matches!(notice, Notice::TenantChanged { source: StandingSource::Configuration, .. }));
    assert!(told);
    assert_eq!((shown(&world), world.stored.tenants.len()), (configured, 0));
    assert_eq!(shown(&World::with(config, world.stored)), configured);
}

#[test]
fn invalid_class_or_weight_changes_nothing() {
    let mut world = World::new(16);
    let set = |tenant: &str, class, weight| OperatorRequest::SetTenant {
        tenant: tenant.to_owned(),
        class,
        weight,
        advice: None,
    };
    for (request, reason, text) in [
        (set("a", None, None), Reason::RequestInvalid, "give a class, a weight, or whether"),
        (set("a", None, Some(0)), Reason::RequestInvalid, "a weight is between 1 and 10000"),
        (set("a", Some(TenantClass::Utility), Some(10_001)), Reason::RequestInvalid, "between 1 and 10000"),
        (set("a b", Some(TenantClass::Utility), None), Reason::NameInvalid, "a b"),
        (OperatorRequest::ResetTenant { tenant: String::new() }, Reason::NameInvalid, ""),
    ] {
        let refusal = world.operate(request).expect_err("invalid");
        assert_eq!(refusal.reason(), reason);
        assert!(refusal.to_string().contains(text), "{refusal}");
    }
    assert_eq!((world.broker.list_tenants(None), world.stored), (vec![], StoredQuotas::default()));
}

#[test]
fn class_that_could_not_be_stored_is_not_in_force() {
    let mut world = World::new(16);
    let request = OperatorRequest::SetTenant {
        tenant: "a".to_owned(),
        class: Some(TenantClass::Utility),
        weight: None,
        advice: None,
    };
    let call = world.start_operator(None, request);
    world.work.clear();
    world.event(Event::QuotasStored { result: Err("the disk is full".to_owned()) });
    let refusal = world.replies[&call].clone().expect_err("it was not stored");
    assert_eq!((refusal.reason(), listed(&world, "a")), (Reason::StoreFailed, None));
}
