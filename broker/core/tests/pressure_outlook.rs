//! Outlooks: what counts as growth of a place, and what only looks so.

use crate::world::{
    World, config,
    pressing::{SECOND, fill, node, pass_time},
};
use broker_core::{OperatorRequest, SettingsChange, StoredQuotas, Tier, TierChange};
use vramd_types::{Bytes, DeviceIndex};

/// The outlooks that a new session is sent: of which places, and how soon each is full.
fn told_at_first(world: &mut World) -> Vec<(DeviceIndex, Tier, Option<u64>)> {
    world.subscribes_to_pressure = true;
    let client = world.open_pinning("late");
    let its = world.pressure_notes.drain(..).filter(|(channel, _)| *channel == client.channel);
    its.map(|(_, note)| (note.device, note.tier, note.full_in.map(|it| it.as_secs()))).collect()
}

#[test]
fn memory_found_by_the_first_survey_is_no_growth() {
    let mut world = World::unsurveyed(config(&[Bytes::mib(40), Bytes::mib(40)]), StoredQuotas::default());
    world.other_programs = Bytes::mib(30);
    assert!(world.work_once() && !world.broker.is_surveyed(), "one after the other");
    world.run_until_idle();
    assert!(world.broker.is_surveyed());
    pass_time(&mut world, SECOND * 2);
    let told = told_at_first(&mut world);
    assert_eq!(told, [0, 1].map(|device| (DeviceIndex(device), Tier::Device, None)));
}

#[test]
fn shrunk_tier_does_not_count_as_filling() {
    let mut world = node(80, 0);
    let client = world.open_pinning("a");
    fill(&mut world, client, 10);
    for _ in 0..60 {
        pass_time(&mut world, SECOND);
    }
    for host in [40, 80, 30] {
        let tiers = TierChange { host: Some(Bytes::mib(host)), disk: None };
        let change = SettingsChange { tiers, ..SettingsChange::default() };
        world.operate(OperatorRequest::ChangeSettings(change)).expect("it makes sense");
        pass_time(&mut world, SECOND);
        let told = told_at_first(&mut world);
        assert_eq!(told, [Tier::Device, Tier::Host].map(|tier| (DeviceIndex(0), tier, None)), "{host}");
    }
    // Charges from now on are growth as before: 4 of 10 MiB in a second, of which three tenths count.
    fill(&mut world, client, 2);
    pass_time(&mut world, SECOND);
    assert_eq!(told_at_first(&mut world)[1], (DeviceIndex(0), Tier::Host, Some(5)));
}

#[test]
fn new_session_hears_of_each_tier_even_if_never_charged() {
    let mut world = node(80, 80);
    let told = told_at_first(&mut world);
    assert_eq!(told, [Tier::Device, Tier::Host, Tier::Disk].map(|tier| (DeviceIndex(0), tier, None)));
}
