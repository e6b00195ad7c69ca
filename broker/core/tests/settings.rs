//! Operators change levels of pressure, sizes of tiers and the eviction policy while everything runs.

use std::time::Duration;

use crate::world::{
    Client, World, key,
    moving::{moved, to},
    pressing::{COLD, SECOND, fill, free, levels, node, on_device, pass_time, tier},
    spec,
};
use broker_core::{
    AllocationSpec, Caller, ClientRequest, DeviceSelector, EvictionPolicy, Notice, OperatorRequest, PartMove,
    PartRef, Pressure, PressureChange, Refusal, Reply, Settings, SettingsChange, ShareChange, Tier,
    TierChange,
};
use vramd_types::{Bytes, Quantity, Reason, Shares};

fn level_change(pressure: PressureChange) -> OperatorRequest {
    OperatorRequest::ChangeSettings(SettingsChange { pressure, ..SettingsChange::default() })
}

fn sizes(host: Option<u32>, disk: Option<u32>) -> OperatorRequest {
    let tiers = TierChange { host: host.map(Bytes::mib), disk: disk.map(Bytes::mib) };
    OperatorRequest::ChangeSettings(SettingsChange { tiers, ..SettingsChange::default() })
}

fn change(world: &mut World, request: OperatorRequest) -> Settings {
    let reply = world.operate(request);
    world.run_until_idle();
    match reply {
        Ok(Reply::SettingsChanged(now)) => *now,
        other => panic!("{other:?}"),
    }
}

fn high(percent: u32) -> PressureChange {
    PressureChange { high_percent: Some(percent), ..PressureChange::default() }
}

fn guarantee(tenant: &str, tier: Tier, mib: u32) -> OperatorRequest {
    OperatorRequest::SetQuota {
        tenant: tenant.to_owned(),
        device: DeviceSelector::All,
        tier,
        guarantee: Some(Quantity::Bytes(Bytes::mib(mib))),
        limit: None,
    }
}

#[test]
fn settings_begin_as_configured_and_a_change_is_partial() {
    let mut world = node(80, 40);
    let before = world.broker.settings();
    assert_eq!(before, world.broker.configured_settings());
    assert_eq!((before.tiers.host, before.tiers.disk), (Bytes::mib(80), Bytes::mib(40)));
    let now = change(&mut world, level_change(high(91)));
    assert_eq!((now.pressure.high_percent, now.tiers), (91, before.tiers));
    let after = change(&mut world, sizes(Some(20), None));
    assert_eq!(
        (after.pressure, after.tiers.host, after.tiers.disk),
        (now.pressure, Bytes::mib(20), Bytes::mib(40))
    );
    assert_eq!((world.broker.settings(), world.broker.configured_settings()), (after, before));
    let told = world.notices.iter().filter_map(|notice| match notice {
        Notice::SettingsChanged { uid, before, after } => Some((*uid, **before, **after)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(0, before, now), (0, now, after)]);
    // A value that is in force already is no change, and no one is told of it.
    world.notices.clear();
    assert_eq!(change(&mut world, level_change(high(91))), after);
    assert!(!world.notices.iter().any(|notice| matches!(notice, Notice::SettingsChanged { .. })));
}

#[test]
fn changed_pressure_levels_apply_at_once() {
    let mut world = node(0, 0);
    let client = world.open_pinning("a");
    fill(&mut world, client, 17);
    // 85 percent.
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Elevated]);
    let lower = PressureChange { elevated_percent: Some(70), evict_to_percent: Some(75), ..high(84) };
    change(&mut world, level_change(lower));
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::High]);
    // It is not left where it is entered: it would be at 83.
    change(&mut world, level_change(high(87)));
    assert_eq!(levels(&mut world, Tier::Device), []);
    change(&mut world, level_change(high(89)));
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Elevated]);
    change(
        &mut world,
        level_change(PressureChange {
            elevated_percent: Some(86),
            fall_percent: Some(0),
            ..PressureChange::default()
        }),
    );
    assert_eq!(levels(&mut world, Tier::Device), [Pressure::Normal]);
}

#[test]
fn part_cold_by_changed_levels_leaves_at_once() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 17);
    pass_time(&mut world, COLD * 2);
    assert_eq!(on_device(&world, &parts), 17);
    change(&mut world, level_change(PressureChange { evict_to_percent: Some(50), ..high(84) }));
    assert_eq!(on_device(&world, &parts), 10, "no sample was taken since");
}

#[test]
fn part_becomes_cold_once_cold_after_is_set() {
    let mut world = node(80, 0);
    change(
        &mut world,
        level_change(PressureChange { cold_after: Some(Duration::ZERO), ..PressureChange::default() }),
    );
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 19);
    pass_time(&mut world, COLD * 2);
    assert_eq!(on_device(&world, &parts), 19);
    change(
        &mut world,
        level_change(PressureChange { cold_after: Some(COLD * 3), ..PressureChange::default() }),
    );
    assert_eq!(on_device(&world, &parts), 19);
    pass_time(&mut world, COLD + SECOND);
    assert_eq!(on_device(&world, &parts), 17);
}

#[test]
fn shrunk_tier_admits_nothing_below_its_charge_until_it_grows() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 10);
    for part in &parts[..4] {
        moved(world.operate(to(part.allocation, Tier::Host)));
    }
    assert_eq!(world.charged_in_host(), Bytes::mib(20));
    change(&mut world, sizes(Some(8), None));
    assert_eq!(levels(&mut world, Tier::Host).last(), Some(&Pressure::Critical));
    assert_eq!(world.charged_in_host(), Bytes::mib(20), "the memory there stays");
    // A part without backing cannot leave.
    let more = fill(&mut world, client, 2);
    let refused = moved(world.operate(to(more[0].allocation, Tier::Host)));
    assert!(matches!(refused, PartMove::Refused { .. }), "{refused:?}");
    // A part with backing there uses it.
    let gone = moved(world.operate(to(parts[9].allocation, Tier::Host)));
    assert!(matches!(gone, PartMove::Moved), "{gone:?}");
    world.pin_call(client, 1, &[parts[0]]);
    world.run_until_idle();
    assert_eq!(world.read(client, parts[0]), 1);
    change(&mut world, sizes(Some(80), None));
    assert_eq!(levels(&mut world, Tier::Host).last(), Some(&Pressure::Normal));
    assert_eq!(world.charged_in_host(), Bytes::mib(24), "the part without backing has it now");
    let gone = moved(world.operate(to(more[0].allocation, Tier::Host)));
    assert!(matches!(gone, PartMove::Moved), "{gone:?}");
}

#[test]
fn cold_part_leaves_a_shrunk_tier() {
    let mut world = node(40, 80);
    let client = world.open_pinning("a");
    let parts = fill(&mut world, client, 10);
    for part in &parts {
        moved(world.operate(to(part.allocation, Tier::Host)));
    }
    pass_time(&mut world, COLD * 2);
    assert_eq!((world.charged_in_host(), world.charged_on_disk()), (Bytes::mib(20), Bytes::ZERO));
    change(&mut world, sizes(Some(0), None));
    assert_eq!((world.charged_in_host(), world.charged_on_disk()), (Bytes::ZERO, Bytes::mib(20)));
    let there: Vec<Tier> = parts.iter().map(|part| tier(&world, *part)).collect();
    assert!(there.iter().all(|tier| *tier == Tier::Disk), "{there:?}");
    // New memory has its bytes on disk.
    fill(&mut world, client, 1);
    assert_eq!((world.charged_in_host(), world.charged_on_disk()), (Bytes::ZERO, Bytes::mib(22)));
}

#[test]
fn waiting_batch_beyond_a_shrunk_tier_is_refused_at_once() {
    let mut world = node(80, 0);
    let (a, b) = (world.open_pinning("a"), world.open_pinning("b"));
    for part in fill(&mut world, a, 20) {
        world.pin(a, part);
    }
    let wait = Duration::from_secs(600);
    let first = world.start(b, None, ClientRequest::AllocateBatch { items: vec![spec(2)], wait });
    // Behind that one: a part that begins below, and one that waits for the device.
    let unpinned = AllocationSpec { unpinned: true, ..spec(4) };
    let items = vec![unpinned, spec(2)];
    let call = world.start(b, None, ClientRequest::AllocateBatch { items, wait });
    world.run_until_idle();
    assert!(!world.replies.contains_key(&call), "{:?}", world.replies.get(&call));
    change(&mut world, sizes(Some(44), None));
    assert!(!world.replies.contains_key(&call), "there is room below still");
    change(&mut world, sizes(Some(42), None));
    match world.replies.get(&call) {
        Some(Err(Refusal::DeviceFull { tier, free, .. })) => {
            assert_eq!((*tier, *free), (Tier::Host, Bytes::mib(2)))
        }
        other => panic!("{other:?}"),
    }
    assert!(!world.replies.contains_key(&first), "it wants nothing below");
}

fn refusal(world: &mut World, request: OperatorRequest) -> (Reason, Vec<String>) {
    let before = world.broker.settings();
    let refused = world.operate(request).expect_err("it makes no sense");
    assert_eq!(world.broker.settings(), before, "nothing of it holds");
    let told = world.notices.drain(..).any(|notice| {
        matches!(&notice, Notice::Refused { by: Caller::Operator { .. }, request: "ChangeSettings", .. })
    });
    assert!(told, "it is an event too");
    (refused.reason(), refused.facts().into_iter().map(|(_, value)| value).collect())
}

#[test]
fn change_with_an_invalid_value_is_refused_whole() {
    let mut world = node(80, 0);
    let some = PressureChange::default();
    let mib = |mib: u64| (mib << 20).to_string();
    let multiples = |most: u64| format!("0 to {}, multiples of {}", most << 20, 2 << 20);
    for (request, reason, facts) in [
        (
            level_change(some),
            Reason::RequestInvalid,
            vec!["change".to_owned(), "the change is empty; name at least one setting".to_owned()],
        ),
        (
            level_change(high(101)),
            Reason::SettingInvalid,
            vec!["high_percent".into(), "101".into(), "89 to 91".into()],
        ),
        (
            level_change(high(95)),
            Reason::SettingInvalid,
            vec!["high_percent".into(), "95".into(), "89 to 91".into()],
        ),
        (
            level_change(PressureChange { cold_after: Some(SECOND), elevated_percent: Some(0), ..some }),
            Reason::SettingInvalid,
            vec!["elevated_percent".into(), "0".into(), "4 to 86".into()],
        ),
        (
            level_change(PressureChange { evict_to_percent: Some(95), ..high(70) }),
            Reason::SettingInvalid,
            vec!["high_percent".into(), "70".into(), "no value, given the others".into()],
        ),
        (sizes(Some(82), None), Reason::SettingInvalid, vec!["host_bytes".into(), mib(82), multiples(80)]),
        (sizes(Some(3), None), Reason::SettingInvalid, vec!["host_bytes".into(), mib(3), multiples(80)]),
        (sizes(None, Some(2)), Reason::TierUnsupported, vec!["disk".into()]),
    ] {
        assert_eq!(refusal(&mut world, request.clone()), (reason, facts), "{request:?}");
    }
    // Good levels with a bad size.
    let pressure = PressureChange { cold_after: Some(SECOND), ..high(91) };
    let tiers = TierChange { host: Some(Bytes::mib(100)), disk: None };
    let both = OperatorRequest::ChangeSettings(SettingsChange { pressure, tiers, ..Default::default() });
    assert_eq!(refusal(&mut world, both).0, Reason::SettingInvalid);
}

fn shares(demand: u32, write_back: u32) -> OperatorRequest {
    let shares = ShareChange {
        demand_percent: Some(demand),
        write_back_percent: Some(write_back),
        ..ShareChange::default()
    };
    OperatorRequest::ChangeSettings(SettingsChange { shares, ..SettingsChange::default() })
}

#[test]
fn changed_shares_of_links_are_sent_to_the_driver() {
    let mut world = node(80, 0);
    let now = change(&mut world, shares(10, 40));
    let told = Shares::new(10, 50, 40).expect("all of a link");
    assert_eq!((now.shares, &world.shares_sent[..]), (told, &[told][..]));
    change(&mut world, shares(10, 40));
    change(&mut world, level_change(high(91)));
    assert_eq!(world.shares_sent.len(), 1, "only then");
    let refused = |demand: u32, allowed: &str| {
        vec!["demand_percent".to_owned(), demand.to_string(), allowed.to_owned()]
    };
    for (demand, write_back, facts) in [
        (31, 20, refused(31, "0 to 30")),
        (1000, 20, refused(1000, "0 to 30")),
        (60, 55, refused(60, "no value, given the others")),
    ] {
        assert_eq!(refusal(&mut world, shares(demand, write_back)), (Reason::SettingInvalid, facts));
    }
    assert_eq!((world.broker.settings().shares, world.shares_sent.len()), (told, 1));
}

#[test]
fn tier_smaller_than_its_guarantees_is_refused() {
    let mut world = node(80, 0);
    world.operate(guarantee("a", Tier::Host, 10)).expect("there is so much");
    world.operate(guarantee("b", Tier::Host, 6)).expect("there is so much");
    let facts = ["GPU-0".into(), "host".into(), (16u64 << 20).to_string(), (14u64 << 20).to_string()];
    assert_eq!(refusal(&mut world, sizes(Some(14), None)), (Reason::TierGuaranteed, facts.to_vec()));
    change(&mut world, sizes(Some(16), None));
    // And no more is guaranteed than it has now.
    let refused = world.operate(guarantee("b", Tier::Host, 8)).expect_err("it has no more");
    assert_eq!(refused.reason(), Reason::GuaranteeUnbacked);
    let client = world.open_pinning("a");
    let parts: Vec<PartRef> = fill(&mut world, client, 6);
    assert_eq!(world.charged_in_host(), Bytes::mib(10), "the guarantee of b is there for no other tenant");
    assert_eq!(on_device(&world, &parts), 6);
}

#[test]
fn repeated_change_is_made_once() {
    let mut world = node(80, 0);
    let call = world.start_operator(key(1, 1), level_change(high(91)));
    world.run_until_idle();
    assert!(matches!(world.replies.get(&call), Some(Ok(Reply::SettingsChanged(_)))));
    change(&mut world, level_change(high(90)));
    let again = world.start_operator(key(1, 1), level_change(high(91)));
    world.run_until_idle();
    let now = match world.replies.get(&again) {
        Some(Ok(Reply::SettingsChanged(now))) => now.pressure.high_percent,
        other => panic!("{other:?}"),
    };
    assert_eq!(now, 90, "the answer has the settings in force");
}

fn policy(policy: EvictionPolicy) -> OperatorRequest {
    let eviction_policy = Some(policy);
    OperatorRequest::ChangeSettings(SettingsChange { eviction_policy, ..SettingsChange::default() })
}

/// So short that no part becomes cold.
const MOMENT: Duration = Duration::from_millis(10);

/// Parts of 2 MiB fill a device of 40 MiB; the client is seen to use some of them again.
fn used(world: &mut World) -> (Client, Vec<PartRef>) {
    let client = world.open_pinning("a");
    let parts = fill(world, client, 20);
    for _ in 0..3 {
        for part in &parts[..10] {
            pass_time(world, MOMENT);
            world.harvest(client, *part);
        }
    }
    (client, parts)
}

fn tiers_of(world: &World, parts: &[PartRef]) -> Vec<Tier> {
    parts.iter().map(|part| tier(world, *part)).collect()
}

#[test]
fn changed_policy_orders_all_parts_that_are_there() {
    for other in EvictionPolicy::ALL {
        let mut world = node(80, 0);
        let (client, parts) = used(&mut world);
        assert_eq!(change(&mut world, policy(other)).eviction_policy, other, "{other}");
        assert_eq!(world.broker.check(), [], "{other}");
        // As many leave as come; those that were not used again leave first.
        let more = fill(&mut world, client, 5);
        assert_eq!(tiers_of(&world, &parts[10..15]), [Tier::Host; 5], "{other}");
        assert_eq!(on_device(&world, &parts[..10]), 10, "{other}");
        change(&mut world, policy(EvictionPolicy::Lru));
        fill(&mut world, client, 4);
        assert_eq!(tiers_of(&world, &parts[15..19]), [Tier::Host; 4], "{other}");
        assert_eq!((on_device(&world, &parts[..10]), on_device(&world, &more)), (10, 5), "{other}");
        assert_eq!(world.broker.check(), [], "{other}");
    }
}

#[test]
fn policy_decides_whether_an_often_used_part_outlives_a_newer_one() {
    for (chosen, stays) in [(EvictionPolicy::Lru, false), (EvictionPolicy::Gdsf, true)] {
        let mut world = node(80, 0);
        change(&mut world, policy(chosen));
        let (client, parts) = used(&mut world);
        pass_time(&mut world, MOMENT);
        for part in &parts[10..] {
            world.harvest(client, *part);
        }
        fill(&mut world, client, 1);
        assert_eq!(tier(&world, parts[0]) == Tier::Device, stays, "{chosen}");
    }
}

#[test]
fn cold_parts_leave_by_last_use_whatever_the_policy() {
    for chosen in EvictionPolicy::ALL {
        let mut world = node(80, 0);
        change(&mut world, policy(chosen));
        let client = world.open_pinning("a");
        let parts = fill(&mut world, client, 17);
        for _ in 0..3 {
            world.harvest(client, parts[0]);
        }
        pass_time(&mut world, COLD);
        for part in &parts[1..] {
            world.harvest(client, *part);
        }
        pass_time(&mut world, SECOND);
        change(&mut world, level_change(PressureChange { evict_to_percent: Some(50), ..high(84) }));
        let left: Vec<usize> = (0..17).filter(|at| tier(&world, parts[*at]) != Tier::Device).collect();
        assert_eq!(left, [0], "{chosen}");
    }
}

#[test]
fn freed_parts_are_forgotten_by_every_policy() {
    for chosen in EvictionPolicy::ALL {
        let mut world = node(80, 0);
        change(&mut world, policy(chosen));
        let (client, mut parts) = used(&mut world);
        parts.extend(fill(&mut world, client, 10));
        assert_eq!(world.broker.check(), [], "{chosen}");
        free(&mut world, client, &parts);
        assert_eq!(world.broker.check(), [], "{chosen}");
    }
}
