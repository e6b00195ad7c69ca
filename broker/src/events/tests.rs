//! Events on their way from the reactor to a watch.

use broker_core::{Pressure, Tier};
use tokio_stream::StreamExt as _;
use vramd_types::{AllocationId, Bytes, DeviceIndex, Quantity, SessionId};

use super::*;

fn events(watches_max: usize, events_max: usize) -> Events {
    Events::new(Clock::start(), 7, vec!["GPU-a".to_owned()], EventLimits { watches_max, events_max })
}

fn opened(tenant: &str) -> Notice {
    Notice::SessionOpened { session: SessionId::from_shown(4), tenant: Arc::from(tenant), pid: 9 }
}

fn quota(tenant: &str) -> Notice {
    let limit = Quantity::Bytes(Bytes::gib(24));
    let (tenant, guarantee) = (Arc::from(tenant), Quantity::Percent(0));
    Notice::QuotaSet { tenant, device: "*".to_owned(), tier: Tier::Device, guarantee, limit }
}

/// Reads the events that are there without waiting.
async fn ready(watch: &mut Watch) -> Vec<v1::WatchResponse> {
    let mut seen = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(std::time::Duration::ZERO, watch.next()).await {
        seen.push(event);
    }
    seen
}

async fn sequences(watch: &mut Watch) -> Vec<u64> {
    ready(watch).await.iter().map(|event| event.sequence).collect()
}

#[tokio::test]
async fn events_arrive_in_order_from_the_start_of_the_watch() {
    let events = events(1, 8);
    events.publish(&opened("a"));
    let mut watch = events.watch(Filter::default()).unwrap();
    events.publish(&opened("b"));
    events.publish(&quota("a"));
    let seen = ready(&mut watch).await;
    assert_eq!(seen.iter().map(|event| event.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(seen[0].event, Some(Event::Begun(v1::WatchBegun { boot_epoch: 7 })));
    assert_eq!((seen[1].tenant.as_str(), seen[2].tenant.as_str()), ("b", "a"));
    let Some(Event::Quota(quota)) = &seen[2].event else { panic!("{seen:?}") };
    assert_eq!((quota.limit.as_str(), quota.tier()), ("24GiB", v1::Tier::Device));
    assert!(seen.iter().all(|event| event.happened_at.is_some()));
}

#[tokio::test]
async fn a_filter_keeps_events_that_concern_no_tenant() {
    let events = events(3, 8);
    let mut of_a = events.watch(Filter { tenant: Some("a".to_owned()), kinds: vec![] }).unwrap();
    let mut quotas = events.watch(Filter { tenant: None, kinds: vec![EventKind::Quota] }).unwrap();
    events.publish(&opened("a"));
    events.publish(&opened("b"));
    events.publish(&quota("b"));
    events.publish(&Notice::Draining { draining: true });
    assert_eq!(sequences(&mut of_a).await, [0, 1, 4]);
    assert_eq!(sequences(&mut quotas).await, [0, 3]);
}

#[tokio::test]
async fn pressure_events_name_the_device_and_have_their_own_kind() {
    let events = events(2, 8);
    let filter = Filter { tenant: Some("a".to_owned()), kinds: vec![EventKind::Pressure] };
    let mut pressure = events.watch(filter).unwrap();
    let mut devices = events.watch(Filter { tenant: None, kinds: vec![EventKind::Device] }).unwrap();
    let (held, capacity) = (Bytes::mib(92), Bytes::mib(100));
    let (device, tier) = (DeviceIndex(0), Tier::Host);
    let (from, to) = (Pressure::Normal, Pressure::High);
    events.publish(&Notice::PressureChanged { device, tier, from, to, charged: held, capacity });
    assert_eq!(sequences(&mut devices).await, [0]);
    let seen = ready(&mut pressure).await;
    let expected = v1::PressureEvent {
        device: "GPU-a".to_owned(),
        tier: v1::Tier::Host.into(),
        from: v1::PressureLevel::Normal.into(),
        to: v1::PressureLevel::High.into(),
        held_bytes: 92 << 20,
        capacity_bytes: 100 << 20,
    };
    assert_eq!(seen[1].event, Some(Event::Pressure(expected)));
    assert_eq!(seen[1].tenant, "");
}

#[tokio::test]
async fn notices_for_the_log_alone_are_no_events() {
    let events = events(1, 8);
    let mut watch = events.watch(Filter::default()).unwrap();
    events.publish(&Notice::RoomMade { tenant: None });
    events.publish(&opened("a"));
    assert_eq!(sequences(&mut watch).await, [0, 1]);
}

#[tokio::test]
async fn a_slow_reader_gets_a_count_in_place_of_missed_events() {
    let events = events(1, 3);
    let mut watch = events.watch(Filter { tenant: Some("a".to_owned()), kinds: vec![] }).unwrap();
    for _ in 0..10_000 {
        events.publish(&opened("a"));
        events.publish(&opened("b"));
    }
    // The first message and two events were in time. Events of another tenant do not count as missed.
    let seen = ready(&mut watch).await;
    assert_eq!(seen.iter().map(|event| event.sequence).collect::<Vec<_>>(), [0, 1, 3, 19_999]);
    assert_eq!(seen[3].event, Some(Event::Missed(v1::Missed { count: 9998 })));
    events.publish(&opened("a"));
    assert_eq!(sequences(&mut watch).await, [20_001]);
}

#[tokio::test]
async fn an_unread_watch_keeps_no_more_than_its_bound() {
    let events = events(1, 64);
    let watch = events.watch(Filter::default()).unwrap();
    for _ in 0..100_000 {
        events.publish(&opened("a"));
    }
    assert_eq!(watch.queue.waiting(), 64);
}

#[tokio::test]
async fn watches_are_bounded() {
    let events = events(2, 8);
    let first = events.watch(Filter::default()).unwrap();
    let _second = events.watch(Filter::default()).unwrap();
    assert_eq!(events.watch(Filter::default()).err(), Some(WatchError::TooMany { limit: 2 }));
    drop(first);
    events.watch(Filter::default()).unwrap();
}

#[tokio::test]
async fn the_end_is_the_last_event_of_every_watch() {
    let events = events(2, 1);
    let filter = Filter { tenant: Some("b".to_owned()), kinds: vec![EventKind::Quota] };
    let (mut all, mut few) = (events.watch(Filter::default()).unwrap(), events.watch(filter).unwrap());
    events.publish(&opened("a"));
    events.end("asked to");
    events.end("asked again");
    events.publish(&opened("a"));
    assert_eq!(sequences(&mut all).await, [0, 1, 2], "the beginning, one missed, the end");
    let last_events = ready(&mut few).await;
    assert_eq!(last_events.last().unwrap().event, Some(message::ending("asked to")));
    assert_eq!((all.next().await, few.next().await), (None, None));
    assert_eq!(events.watch(Filter::default()).err(), Some(WatchError::Ended));
}

#[tokio::test]
async fn a_waiting_reader_is_woken() {
    let events = events(1, 8);
    let mut watch = events.watch(Filter::default()).unwrap();
    watch.next().await.unwrap();
    let waiting = tokio::spawn(async move { watch.next().await });
    tokio::task::yield_now().await;
    events.publish(&Notice::AllocationSealed {
        allocation: AllocationId::from_shown(3),
        tenant: Arc::from("a"),
    });
    let event = waiting.await.unwrap().unwrap().event;
    let Some(Event::Allocation(allocation)) = event else { panic!("{event:?}") };
    assert_eq!(allocation.allocation_id, 3);
}
