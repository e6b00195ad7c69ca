//! `Watch` over a real socket.

use std::sync::Arc;

use broker_core::Notice;
use v1::watch_response::Event;
use vramd_types::SessionId;

use super::*;

fn opened(tenant: &str) -> Notice {
    Notice::SessionOpened { session: SessionId::from_shown(4), tenant: Arc::from(tenant), pid: 9 }
}

#[tokio::test]
async fn a_stop_is_the_last_event_of_a_watch() {
    let served = served(&[own_uid()]);
    let mut admin = served.admin().await;
    let mut stream = admin.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Begun(_))));
    served.events.publish(&opened("a"));
    let event = stream.message().await.unwrap().unwrap();
    assert_eq!((event.sequence, event.tenant.as_str()), (1, "a"));
    served.stop.send(()).unwrap();
    let Some(Event::Node(node)) = stream.message().await.unwrap().unwrap().event else { panic!("the end") };
    assert_eq!(node.change(), v1::node_event::Change::Ending);
    assert_eq!(stream.message().await.unwrap(), None, "and no error");
    served.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn invalid_watches_are_refused() {
    let served = served(&[own_uid()]);
    let mut admin = served.admin().await;
    let unknown = v1::WatchRequest { kinds: vec![99], ..Default::default() };
    assert_eq!(reason(&admin.watch(unknown).await.unwrap_err()), "REQUEST_INVALID");
    let nobody = v1::WatchRequest { tenant: Some("a/b".to_owned()), ..Default::default() };
    assert_eq!(reason(&admin.watch(nobody).await.unwrap_err()), "NAME_INVALID");
    let _one = admin.watch(v1::WatchRequest::default()).await.unwrap();
    let refused = admin.watch(v1::WatchRequest::default()).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused)), (Code::ResourceExhausted, "WATCHES_TOO_MANY".to_owned()));
}

#[tokio::test]
async fn only_operators_watch() {
    let served = served(&[]);
    let refused = served.admin().await.watch(v1::WatchRequest::default()).await.unwrap_err();
    assert_eq!(reason(&refused), "NOT_OPERATOR");
}

#[tokio::test]
async fn a_watch_that_ends_makes_room() {
    let served = served(&[own_uid()]);
    let first = served.admin().await.watch(v1::WatchRequest::default()).await.unwrap();
    drop(first);
    let mut admin = served.admin().await;
    let begun = std::time::Instant::now();
    while admin.watch(v1::WatchRequest::default()).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the one that left still counts");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
