//! Operators forbid a tenant's advice, or advise in the owner's stead.

use crate::{
    advised_order::{advise, advise_all, away, idle, press, touch},
    world::{Client, World, config, moving::tiers, spec},
};
use broker_core::{
    Advice, AdvicePermission, AdviceView, Adviser, AllocationSpec, ClientRequest, Kind, MemoryClass, Notice,
    OperatorRequest, PartRef, PartSpan, Pattern, Preset, Refusal, Reply, RequestKey, Retention,
    StandingSource, StoredQuotas, Target, Tier,
};
use vramd_types::{AllocationId, Bytes, Reason};

fn permit(world: &mut World, advice: AdvicePermission) {
    let tenant = "a".to_owned();
    let request = OperatorRequest::SetTenant { tenant, class: None, weight: None, advice: Some(advice) };
    world.operate(request).expect("valid");
}

fn order(id: AllocationId, parts: Option<PartSpan>, change: Option<Retention>) -> OperatorRequest {
    OperatorRequest::AdviseParts { target: Target::Id(id), parts, change }
}

/// An operator advises one part; `None` clears.
fn overrule(world: &mut World, part: PartRef, change: Option<Retention>) {
    let span = Some(PartSpan { first: part.part, count: 1 });
    world.operate(order(part.allocation, span, change)).expect("valid");
}

fn shown(world: &World, of: PartRef) -> Vec<AdviceView> {
    world.broker.show(&Target::Id(of.allocation)).expect("it is there").advice
}

/// First part, giver, and whether it counts.
fn givers(world: &World, of: PartRef) -> Vec<(u32, Adviser, bool)> {
    shown(world, of).iter().map(|view| (view.parts.first.0, view.by, view.counts)).collect()
}

const IMPORTANT: Retention = Retention::Importance(Some(100));

#[test]
fn forbidden_advice_has_no_effect_until_it_is_allowed() {
    for again in [false, true] {
        let mut world = tiers(16, 64);
        let (client, all) = idle(&mut world, "a", 4);
        advise(&mut world, client, all[0], IMPORTANT);
        permit(&mut world, AdvicePermission::Forbidden);
        assert_eq!(givers(&world, all[0]), [(0, Adviser::Owner, false)]);
        if again {
            permit(&mut world, AdvicePermission::Allowed);
            assert_eq!(givers(&world, all[0]), [(0, Adviser::Owner, true)]);
        }
        press(&mut world);
        assert_eq!(away(&world, &all), [usize::from(again)]);
    }
}

#[test]
fn pattern_of_forbidden_advice_does_not_count() {
    for is_forbidden in [false, true] {
        let mut world = tiers(16, 64);
        let (client, all) = idle(&mut world, "a", 4);
        advise_all(&mut world, client, all[0], Retention::Pattern(Some(Pattern::Loop))).expect("allowed");
        touch(&mut world, client, all[2]);
        if is_forbidden {
            permit(&mut world, AdvicePermission::Forbidden);
        }
        press(&mut world);
        assert_eq!(away(&world, &all), [if is_forbidden { 0 } else { 2 }]);
    }
}

#[test]
fn advice_of_a_forbidden_tenant_is_refused_and_withdrawals_are_not() {
    let mut world = tiers(16, 64);
    let (client, all) = idle(&mut world, "a", 4);
    let id = all[0].allocation;
    advise_all(&mut world, client, all[0], IMPORTANT).expect("allowed");
    permit(&mut world, AdvicePermission::Forbidden);
    let before = shown(&world, all[0]);
    let refused = Refusal::AdviceForbidden { tenant: "a".to_owned() };
    for change in [
        IMPORTANT,
        Retention::Needed(false),
        Retention::NeededWithin(std::time::Duration::from_secs(1)),
        Retention::Class(Some(MemoryClass::Cache)),
        Retention::Location(Some(Tier::Device)),
        Retention::ReadMostly(true),
        Retention::Pattern(Some(Pattern::Loop)),
        Retention::Preset(Preset::KvCache),
    ] {
        assert_eq!(advise_all(&mut world, client, all[0], change), Err(refused.clone()), "{change:?}");
    }
    let in_place = world.call(client, ClientRequest::Advise(id, Advice::SetAccessedBy));
    assert_eq!(in_place.map(|_| ()), Err(refused.clone()));
    assert_eq!((refused.reason(), shown(&world, all[0])), (Reason::AdviceForbidden, before));
    // Other tenants advise as before.
    let (other, theirs) = idle(&mut world, "b", 1);
    advise_all(&mut world, other, theirs[0], IMPORTANT).expect("allowed");
    for change in [
        Retention::Needed(true),
        Retention::Importance(None),
        Retention::Class(None),
        Retention::Location(None),
        Retention::ReadMostly(false),
        Retention::Pattern(None),
    ] {
        advise_all(&mut world, client, all[0], change).expect("a withdrawal");
    }
    world.call(client, ClientRequest::Advise(id, Advice::UnsetAccessedBy)).expect("a withdrawal");
    assert_eq!(shown(&world, all[0]), []);
}

#[test]
fn permission_is_stored_and_returns_to_the_configured_one() {
    let mut world = tiers(16, 64);
    permit(&mut world, AdvicePermission::Forbidden);
    let listed = |world: &World| {
        let view = world.broker.list_tenants(Some("a")).pop().expect("it is listed");
        (view.standing.advice, view.source)
    };
    let mut world = World::with(config(&[Bytes::mib(16)]), world.stored);
    assert_eq!(listed(&world), (AdvicePermission::Forbidden, StandingSource::Operator));
    world.operate(OperatorRequest::ResetTenant { tenant: "a".to_owned() }).expect("valid");
    assert_eq!((world.broker.list_tenants(None), &world.stored), (vec![], &StoredQuotas::default()));
    let told: Vec<_> = world
        .notices
        .iter()
        .filter_map(|notice| match notice {
            Notice::TenantChanged { standing, .. } => Some(standing.advice),
            _ => None,
        })
        .collect();
    assert_eq!(told, [AdvicePermission::Allowed]);
}

#[test]
fn operator_advice_stands_over_what_the_owner_says_before_and_after() {
    let mut world = tiers(16, 64);
    let (client, all) = idle(&mut world, "a", 4);
    advise(&mut world, client, all[3], IMPORTANT);
    overrule(&mut world, all[3], Some(Retention::Class(Some(MemoryClass::Scratch))));
    assert_eq!(givers(&world, all[0]), [(3, Adviser::Owner, false), (3, Adviser::Operator, true)]);
    advise_all(&mut world, client, all[0], Retention::Preset(Preset::KvCache)).expect("it is its own");
    press(&mut world);
    // Its neighbour keeps the owner's advice.
    assert_eq!(away(&world, &all), [3]);
    press(&mut world);
    assert_eq!(away(&world, &all), [0, 3]);
    overrule(&mut world, all[1], Some(Retention::Importance(Some(0))));
    overrule(&mut world, all[1], None);
    advise(&mut world, client, all[1], Retention::Importance(Some(90)));
    press(&mut world);
    assert_eq!(away(&world, &all), [0, 2, 3]);
}

#[test]
fn operator_advice_counts_for_a_forbidden_tenant() {
    let mut world = tiers(16, 64);
    let (client, all) = idle(&mut world, "a", 4);
    advise(&mut world, client, all[1], Retention::Needed(false));
    permit(&mut world, AdvicePermission::Forbidden);
    overrule(&mut world, all[2], Some(Retention::Needed(false)));
    press(&mut world);
    assert_eq!(away(&world, &all), [2]);
    // That it is not needed ends as the owner's would, and the operator's word stands.
    let stands = shown(&world, all[0]);
    let of_operator = stands.iter().find(|view| view.by == Adviser::Operator).expect("it stands");
    assert_eq!(of_operator.advice, broker_core::PartAdvice::default());
    press(&mut world);
    assert_eq!(away(&world, &all), [0, 2]);
}

#[test]
fn operator_advice_is_told_once_and_ends_with_its_memory() {
    let mut world = tiers(16, 64);
    let (client, all) = idle(&mut world, "a", 2);
    let told = |world: &mut World| {
        let notices = std::mem::take(&mut world.notices);
        let each = notices.into_iter().filter_map(|notice| match notice {
            Notice::OperatorAdvised { parts, change, .. } => Some((parts.first.0, parts.count, change)),
            _ => None,
        });
        each.collect::<Vec<_>>()
    };
    world.notices.clear();
    for change in [Some(IMPORTANT), Some(IMPORTANT), None, None] {
        overrule(&mut world, all[1], change);
    }
    assert_eq!(told(&mut world), [(1, 1, Some(IMPORTANT)), (1, 1, None)]);
    let request = order(all[0].allocation, None, Some(IMPORTANT));
    let key = RequestKey { id: [3; 16], fingerprint: [4; 16] };
    for is_repeated in [0, 1] {
        let call = world.start_operator(Some(key), request.clone());
        world.run_until_idle();
        let Ok(Reply::Advised(view)) = &world.replies[&call] else { panic!("no answer") };
        assert_eq!(view.advice.iter().map(|view| view.parts.first.0).max(), Some(is_repeated));
        overrule(&mut world, all[0], None);
    }
    assert_eq!(told(&mut world).len(), 2);
    free(&mut world, client, all[0].allocation);
    let refused = world.operate(request).expect_err("it is gone");
    assert_eq!(refused.reason(), Reason::AllocationNotFound);
}

fn free(world: &mut World, client: Client, id: AllocationId) {
    world.call(client, ClientRequest::FreeBatch(vec![id])).expect("it is its own");
}

#[test]
fn operator_advice_without_a_meaning_is_refused_and_changes_nothing() {
    let mut config = config(&[Bytes::mib(32)]);
    (config.devices[0].host, config.devices[0].makes_fixed) = (Bytes::mib(64), true);
    let mut world = World::with(config, StoredQuotas::default());
    let (client, all) = idle(&mut world, "a", 4);
    let id = all[0].allocation;
    let fixed = AllocationSpec { kind: Kind::Fixed, ..spec(4) };
    let plain = world.open("a");
    let fixed = world.allocate(plain, fixed).expect("room");
    let discardable = world.allocate(client, AllocationSpec { discardable: true, ..spec(4) }).expect("room");
    advise(&mut world, client, all[1], Retention::ReadMostly(true));
    overrule(&mut world, all[2], Some(Retention::ReadMostly(true)));
    let before = shown(&world, all[0]);
    let scratch = Some(Retention::Class(Some(MemoryClass::Scratch)));
    let span = |first, count| Some(PartSpan::new(first, count));
    for (request, reason) in [
        (order(AllocationId::from_raw(77), None, scratch), Reason::AllocationNotFound),
        (order(fixed, None, scratch), Reason::KindUnsupported),
        (order(discardable, None, Some(Retention::ReadMostly(true))), Reason::KindUnsupported),
        (order(id, span(3, 2), scratch), Reason::RequestInvalid),
        (order(id, span(0, 0), None), Reason::RequestInvalid),
        (order(id, span(u32::MAX, 1), None), Reason::RequestInvalid),
        (order(id, None, Some(Retention::Importance(Some(101)))), Reason::RequestInvalid),
        (order(id, None, Some(Retention::Location(Some(Tier::Disk)))), Reason::TierUnsupported),
        (order(id, None, scratch), Reason::AdviceContradicts),
    ] {
        let refused = world.operate(request.clone()).expect_err("refused");
        assert_eq!(refused.reason(), reason, "{request:?}");
    }
    assert_eq!(shown(&world, all[0]), before);
    // The owner's advice for the same parts is no contradiction: it does not count.
    overrule(&mut world, all[1], scratch);
    // Memory that an operator prefers elsewhere is not accessed in place.
    overrule(&mut world, all[3], Some(Retention::Location(Some(Tier::Device))));
    let refused = world.call(client, ClientRequest::Advise(id, Advice::SetAccessedBy));
    assert_eq!(refused.expect_err("refused").reason(), Reason::AdviceContradicts);
}
