//! The reactor with a real broker, and a driver that completes every submission at once.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use broker_core::{
    AllocationSpec, ChannelId, ClientRequest, Config, DeviceConfig, DeviceSelector, Hello, Kind, Lifetime,
    Limits, OperatorRequest, Peer, Reply, StoredQuotas, Tier,
};
use broker_driver::{Completion, DeviceInfo, Driver, Export, ExtentKind, Submission};
use vramd_types::{Bytes, CopyId, DeviceIndex, HostNode, Quantity, SessionId};

use super::*;
use crate::{
    channel::Channels,
    events::{EventLimits, Events},
};

const PEER: Peer = Peer { pid: 4242, uid: 1000 };

#[derive(Debug)]
struct Prompt {
    inbox: Inbox,
    devices: Vec<DeviceInfo>,
}

impl Driver for Prompt {
    fn name(&self) -> &'static str {
        "prompt"
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn supports(&self, kind: ExtentKind) -> bool {
        kind == ExtentKind::Movable
    }

    fn host_node(&self, _: DeviceIndex) -> HostNode {
        HostNode(0)
    }

    fn copied_bytes(&self, _: CopyId) -> Option<Bytes> {
        None
    }

    fn submit(&self, submission: Submission) {
        self.inbox.completion(match submission {
            Submission::Create { extent, .. } => {
                let memfd =
                    rustix::fs::memfd_create("reactor-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                Completion::Created { extent, result: Ok(Export::Memfd(Arc::new(memfd.into()))) }
            }
            Submission::Release { extent } => Completion::Released { extent, returned: true },
            Submission::Digest { ticket, .. } => Completion::Digested { ticket, result: Ok([7; 32]) },
            Submission::Survey { device, .. } => Completion::Surveyed {
                device,
                unbrokered: Bytes::ZERO,
                contexts: 0,
                host_missing: Bytes::ZERO,
            },
            Submission::CreateHost { .. }
            | Submission::CreateDisk { .. }
            | Submission::OpenFile { .. }
            | Submission::PinAhead { .. }
            | Submission::Copy { .. }
            | Submission::CancelCopy { .. }
            | Submission::HastenCopy { .. }
            | Submission::SetShares { .. }
            | Submission::ReleaseNow { .. } => {
                panic!("unexpected {submission:?}")
            }
        });
    }
}

/// A driver that reports its submissions and does nothing.
#[derive(Debug)]
pub(crate) struct Silent<K> {
    pub(crate) asked: tokio::sync::mpsc::UnboundedSender<Submission>,
    /// Kept until the driver ends.
    pub(crate) _keeps: K,
}

impl<K: Debug + Send + Sync> Driver for Silent<K> {
    fn name(&self) -> &'static str {
        "silent"
    }

    fn devices(&self) -> &[DeviceInfo] {
        &[]
    }

    fn supports(&self, _: ExtentKind) -> bool {
        false
    }

    fn host_node(&self, _: DeviceIndex) -> HostNode {
        HostNode(0)
    }

    fn copied_bytes(&self, _: CopyId) -> Option<Bytes> {
        None
    }

    fn submit(&self, submission: Submission) {
        self.asked.send(submission).unwrap();
    }
}

/// A configuration with one device.
fn config() -> Config {
    let total = Bytes::gib(1);
    Config {
        boot_epoch: 1,
        sessions_reserved: 0,
        eviction: broker_core::EvictionPolicy::default(),
        victim_script: Vec::new(),
        check_clean_backings: false,
        files: false,
        pressure: broker_core::PressureBounds::default(),
        shares: vramd_types::Shares::default(),
        devices: vec![DeviceConfig {
            host: Bytes::ZERO,
            disk: Bytes::ZERO,
            context_bytes: Bytes::ZERO,
            maps_host: true,
            makes_fixed: false,
            uuid: "GPU-test".to_owned(),
            name: "test".to_owned(),
            total,
            share: total,
        }],
        part_size: Bytes::mib(256),
        default_limit: Quantity::Percent(100),
        default_host_limit: Quantity::Percent(100),
        default_disk_limit: Quantity::Percent(100),
        tenants: std::collections::BTreeMap::new(),
        limits: Limits { survey_interval: Duration::from_millis(20), ..Limits::default() },
    }
}

fn events() -> Events {
    Events::new(Clock::start(), 1, Vec::new(), EventLimits { watches_max: 1, events_max: 1 })
}

type Written = Arc<Mutex<Vec<StoredQuotas>>>;

fn start() -> (Inbox, Written, tokio::task::JoinHandle<Result<(), DriverLost>>) {
    let (inbox, written, reactor) = made();
    (inbox, written, tokio::spawn(reactor.run()))
}

/// A reactor that does not run yet.
fn made() -> (Inbox, Written, Reactor) {
    let (inbox, queue) = inbox(InboxLimits { client_requests_max: 3 * BATCH_MAX, ..InboxLimits::default() });
    let total = Bytes::gib(1);
    let info =
        DeviceInfo { uuid: "GPU-test".to_owned(), name: "test".to_owned(), total, context: Bytes::ZERO };
    let driver = Arc::new(Prompt { inbox: inbox.clone(), devices: vec![info] });
    let written = Written::default();
    let writer: QuotaWriter = {
        let written = Arc::clone(&written);
        Arc::new(move |quotas| {
            written.lock().unwrap().push(quotas.clone());
            Ok(())
        })
    };
    let config = config();
    let clock = Clock::start();
    let broker = Broker::new(config, StoredQuotas::default(), clock.now());
    let executor = Executor::new(inbox.clone(), driver, Arc::new(Channels::default()), writer, events());
    (inbox, written, Reactor::new(broker, queue, executor, clock))
}

async fn session(inbox: &Inbox) -> SessionId {
    let hello = Hello {
        tenant: "me".to_owned(),
        pid: PEER.pid,
        uid: PEER.uid,
        client_name: "test".to_owned(),
        managed_orders: false,
        pressure: false,
        pins: false,
        devices: None,
        unmapped_sessions: vec![],
    };
    inbox.event(Event::Hello { channel: ChannelId(1), hello });
    inbox.wait_until_handled().await.unwrap();
    let (sessions, _) = inbox.read(|broker| broker.list_sessions(None, None, 10)).await.unwrap();
    sessions[0].id
}

fn spec(size: Bytes) -> AllocationSpec {
    AllocationSpec {
        size,
        device: None,
        kind: Kind::Movable,
        lifetime: Lifetime::Session,
        name: None,
        readers: vec![],
        part_size: None,
        replace: false,
        uninitialized: false,
        unpinned: false,
        discardable: false,
    }
}

#[tokio::test]
async fn an_allocation_is_answered_after_the_driver_created_it() {
    let (inbox, _, reactor) = start();
    let session = session(&inbox).await;
    let request = ClientRequest::allocate(vec![spec(Bytes::mib(4))]);
    let answer =
        inbox.request((), |call| Event::Client { call, session, peer: PEER, key: None, request }).unwrap();
    let Ok(Reply::Allocated(views)) = answer.await.unwrap() else { panic!("an allocation") };
    assert_eq!(views[0].resident, Bytes::mib(4));
    assert_eq!(inbox.read(|broker| broker.devices()[0].charged).await, Some(Bytes::mib(4)));
    inbox.stop();
    reactor.await.unwrap().unwrap();
}

/// The new broker surveys by itself.
#[tokio::test]
async fn devices_are_surveyed_without_a_request() {
    let (inbox, queue) = inbox(InboxLimits::default());
    let (asked, mut surveys) = tokio::sync::mpsc::unbounded_channel();
    let driver = Arc::new(Silent { asked, _keeps: () });
    let limits = Limits { survey_interval: Duration::from_secs(3600), ..Limits::default() };
    let config = Config { limits, ..config() };
    let clock = Clock::start();
    let broker = Broker::new(config, StoredQuotas::default(), clock.now());
    let executor =
        Executor::new(inbox.clone(), driver, Arc::new(Channels::default()), Arc::new(|_| Ok(())), events());
    let _reactor = tokio::spawn(Reactor::new(broker, queue, executor, clock).run());
    assert!(matches!(surveys.recv().await, Some(Submission::Survey { .. })));
    assert_eq!(inbox.read(Broker::is_surveyed).await, Some(false));
    inbox.completion(Completion::Surveyed {
        device: DeviceIndex(0),
        unbrokered: Bytes::mib(6),
        contexts: 0,
        host_missing: Bytes::ZERO,
    });
    inbox.wait_until_handled().await.unwrap();
    assert_eq!(inbox.read(Broker::is_surveyed).await, Some(true));
}

#[tokio::test]
async fn a_quota_is_on_disk_before_its_answer() {
    let (inbox, written, _reactor) = start();
    let request = OperatorRequest::SetQuota {
        tenant: "me".to_owned(),
        device: DeviceSelector::All,
        tier: Tier::Device,
        guarantee: None,
        limit: Some(Quantity::Bytes(Bytes::mib(64))),
    };
    let answer = inbox.operator_request(|call| Event::Operator { call, uid: 0, key: None, request }).unwrap();
    assert!(matches!(answer.await.unwrap(), Ok(Reply::QuotaSet(_))));
    let written = written.lock().unwrap();
    assert_eq!(written.last().unwrap().quotas[0].limit, Quantity::Bytes(Bytes::mib(64)));
}

#[tokio::test]
async fn every_request_of_a_flood_is_answered_before_the_stop() {
    let (inbox, _, reactor) = start();
    let unknown = SessionId::from_shown(77);
    let ask = |_| {
        let request = ClientRequest::FreeBatch(vec![]);
        inbox
            .request((), |call| Event::Client { call, session: unknown, peer: PEER, key: None, request })
            .unwrap()
    };
    let answers: Vec<_> = (0..2 * BATCH_MAX + 1).map(ask).collect();
    inbox.stop();
    for answer in answers {
        assert!(answer.await.expect("an answer").is_err());
    }
    reactor.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stopped_reactor_answers_no_more() {
    let (inbox, _, reactor) = start();
    inbox.stop();
    reactor.await.unwrap().unwrap();
    assert_eq!(inbox.read(|_| ()).await, None);
    assert!(inbox.request((), |_| Event::Tick).unwrap().await.is_err());
}

#[tokio::test]
async fn a_reader_waits_only_while_the_reactor_works() {
    let (inbox, _, reactor) = made();
    assert_eq!(
        inbox.read(Broker::is_surveyed).await,
        Some(false),
        "the reactor does not run, and a read needs none"
    );
    let mut read = std::pin::pin!(inbox.read(Broker::is_surveyed));
    {
        let _at_work = reactor.broker.lock();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(read.as_mut().poll(&mut context).is_pending());
    }
    inbox.stop();
    reactor.run().await.unwrap();
    assert!(read.await.is_some(), "it was in the queue before the stop");
}

#[tokio::test]
async fn a_reader_that_panics_harms_no_other() {
    let (inbox, _, reactor) = start();
    let other = inbox.clone();
    tokio::spawn(async move { other.read(|_| panic!("on purpose")).await }).await.unwrap_err();
    assert_eq!(inbox.read(|broker| broker.devices()[0].charged).await, Some(Bytes::ZERO));
    inbox.stop();
    reactor.await.unwrap().unwrap();
}
