//! Both services over real sockets; the test answers in the broker's place.

use std::{
    collections::BTreeSet,
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    time::{Duration, SystemTime},
};

use broker_core::{ClientRequest, Event, OperatorRequest, Refusal, Reply};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::{Code, Status, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;
use vramd_proto::v1::{
    self, admin_service_client::AdminServiceClient, memory_service_client::MemoryServiceClient,
};
use vramd_types::{AllocationId, Bytes, WaitId};

use super::*;
use crate::{
    events::{EventLimits, Events},
    reactor::{Clock, Inbox, InboxLimits, Message, Queue, inbox},
};

mod watch;

struct Served {
    folder: tempfile::TempDir,
    queue: Queue,
    inbox: Inbox,
    events: Events,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ServeError>>,
}

/// Longer than any test takes: a stop that waits for its grace to end does not end here.
const LONG: Duration = Duration::from_secs(3600);

fn served(operators: &[u32]) -> Served {
    served_with_grace(operators, Duration::from_secs(1))
}

fn served_with_grace(operators: &[u32], stop_grace: Duration) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let bind = |name| UnixListener::bind(folder.path().join(name)).unwrap();
    let listener = |name| OwnedFd::from(bind(name)).into();
    let unreachable = tokio::sync::watch::channel(None).1;
    let listeners = Listeners { memory: listener("vramd.sock"), admin: listener("admin.sock"), unreachable };
    let (inbox, queue) = inbox(InboxLimits { client_requests_max: 3, ..InboxLimits::default() });
    let options = GrpcOptions {
        operators: operators.iter().copied().collect::<BTreeSet<_>>(),
        call_timeout: Duration::from_secs(300),
        stop_grace,
        connections_per_uid_max: 4,
        held_bytes_per_uid_max: 1 << 20,
        request_read_timeout: Duration::from_secs(10),
        descriptors: crate::platform::descriptor_shares::DescriptorShares::default(),
        batch_items_max: 4096,
        readers_max: 64,
        telemetry: crate::telemetry::Telemetry::default(),
        moves: crate::moves::tests::moves(),
        recorder: crate::recorder::Recorder::new(Clock::start(), 10),
        files: super::Loading::new(crate::reactor::Files::default(), &[], false),
        facts: NodeFacts {
            version: "1.2.3".to_owned(),
            driver: "sim".to_owned(),
            driver_reason: "a test".to_owned(),
            started_at: SystemTime::UNIX_EPOCH,
            report: crate::node_report::NodeReport::default(),
        },
        channels: std::sync::Arc::default(),
        tenants: crate::tenants::TenantStore::new(
            inbox.clone(),
            crate::tenants::Node::new(&[], &crate::config::DefaultQuota::default()),
            Vec::new(),
            crate::state::Stored::default(),
            |_| Ok(()),
        ),
    };
    let (stop, stopped) = oneshot::channel();
    let events = Events::new(Clock::start(), 1, Vec::new(), EventLimits { watches_max: 1, events_max: 8 });
    let server = tokio::spawn(serve(listeners, inbox.clone(), events.clone(), options, async {
        let _ = stopped.await;
    }));
    Served { folder, queue, inbox, events, stop, server }
}

impl Served {
    async fn connect(&self, socket: &str) -> Channel {
        let path = self.folder.path().join(socket);
        let address = format!("unix://{}", path.display());
        tonic::transport::Endpoint::from_shared(address).unwrap().connect().await.unwrap()
    }

    async fn memory(&self) -> MemoryServiceClient<Channel> {
        MemoryServiceClient::new(self.connect("vramd.sock").await)
    }

    async fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.connect("admin.sock").await)
    }

    /// Answers the next request as the broker would, and returns the request.
    async fn answer(&mut self, outcome: Result<Reply, Refusal>) -> Event {
        match self.queue.next().await {
            Some(Message::Request { event, caller, .. }) => {
                caller.answer(outcome);
                event
            }
            other => panic!("{other:?}"),
        }
    }
}

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().unwrap().reason.clone()
}

fn seal(allocation_id: u64) -> v1::SealRequest {
    v1::SealRequest { session_id: 5, request_id: vec![1; 16], allocation_id }
}

#[tokio::test]
async fn a_request_reaches_the_broker_with_the_callers_pid() {
    let mut served = served(&[]);
    let mut memory = served.memory().await;
    let free = v1::FreeBatchRequest { session_id: 5, request_id: vec![2; 16], allocation_ids: vec![9] };
    let call = tokio::spawn(async move { memory.free_batch(free).await });
    let id = AllocationId::from_shown(9);
    let event =
        served.answer(Ok(Reply::Released(vec![(id, Err(Refusal::NotOwner { allocation: id }))]))).await;
    let Event::Client { session, peer, key, request: ClientRequest::FreeBatch(ids), .. } = event else {
        panic!()
    };
    let own = broker_core::Peer { pid: std::process::id(), uid: own_uid() };
    assert_eq!((session.shown(), peer, ids), (5, own, vec![id]));
    assert_eq!(key.unwrap().id, [2; 16]);
    let answer = call.await.unwrap().unwrap().into_inner();
    assert_eq!(answer.results[0].error.as_ref().unwrap().reason, "NOT_OWNER");
}

#[tokio::test]
async fn a_refusal_travels_with_its_details() {
    let mut served = served(&[]);
    let mut memory = served.memory().await;
    let call = tokio::spawn(async move { memory.seal(seal(9)).await });
    served
        .answer(Err(Refusal::QuotaLimit {
            tenant: "team-a".to_owned(),
            device: "GPU-0".to_owned(),
            tier: broker_core::Tier::Device,
            limit: Bytes::mib(64),
            charged: Bytes::mib(60),
            requested: Bytes::mib(8),
            is_whole_tier: false,
        }))
        .await;
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let details = status.get_error_details();
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, "tenant:team-a");
    assert_eq!(details.error_info().unwrap().metadata["limit"], "67108864");
}

#[tokio::test]
async fn bad_requests_never_reach_the_broker() {
    let mut served = served(&[own_uid()]);
    let (mut memory, mut admin) = (served.memory().await, served.admin().await);
    let cases = [
        (memory.seal(v1::SealRequest::default()).await.unwrap_err(), "SESSION_MISSING"),
        (
            memory.seal(v1::SealRequest { request_id: vec![1], ..seal(1) }).await.unwrap_err(),
            "REQUEST_INVALID",
        ),
        (
            memory.attach(v1::AttachRequest { session_id: 5, ..Default::default() }).await.unwrap_err(),
            "REQUEST_INVALID",
        ),
        (
            admin
                .list_sessions(v1::ListSessionsRequest { page_size: Some(1001), ..Default::default() })
                .await
                .unwrap_err(),
            "REQUEST_INVALID",
        ),
        (
            admin
                .set_quota(v1::SetQuotaRequest { limit: Some("24 gigs".to_owned()), ..Default::default() })
                .await
                .unwrap_err(),
            "QUANTITY_INVALID",
        ),
    ];
    for (status, expected) in cases {
        assert_eq!(reason(&status), expected);
    }
    assert!(served.queue.ready().is_none());
}

#[tokio::test]
async fn a_passed_deadline_is_reported_as_one() {
    let served = served_with_grace(&[], LONG);
    let socket = tokio::net::UnixStream::connect(served.folder.path().join("vramd.sock")).await.unwrap();
    // A raw HTTP/2 client: tonic's client would read the header too, and give up before the daemon answers.
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let whole = framed(&seal(9));
    for (timeout, sent) in [("1m", &whole[..]), ("20m", &whole), ("20000u", &whole), ("20m", &[])] {
        let request = tonic::codegen::http::Request::post("http://localhost/vramd.v1.MemoryService/Seal")
            .header("content-type", "application/grpc")
            .header("grpc-timeout", timeout)
            .body(())
            .unwrap();
        client = client.ready().await.unwrap();
        let (answer, mut body) = client.send_request(request, false).unwrap();
        // A request without its message is never read to its end.
        body.send_data(sent.to_vec().into(), !sent.is_empty()).unwrap();
        let status = Status::from_header_map(answer.await.unwrap().headers()).unwrap();
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::DeadlineExceeded, "DEADLINE"),
            "{timeout}, {} bytes",
            sent.len()
        );
    }
}

/// Frames a message as gRPC does: uncompressed, with its length.
fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), &message].concat()
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let served = served(&[]);
    let _waiting = [(); 3].map(|()| served.inbox.request((), |_| Event::Tick));
    let status = served.memory().await.seal(seal(9)).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    assert!(status.get_error_details().retry_info().unwrap().retry_delay.is_some());
}

#[tokio::test]
async fn only_operators_administer() {
    let served = served(&[own_uid().wrapping_add(1)]);
    let status = served.admin().await.get_node(v1::GetNodeRequest {}).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::PermissionDenied, "NOT_OPERATOR"));
}

#[tokio::test]
async fn an_operator_is_known_by_uid() {
    let mut served = served(&[own_uid()]);
    let mut admin = served.admin().await;
    let call =
        tokio::spawn(
            async move { admin.drain(v1::DrainRequest { cancel: true, ..Default::default() }).await },
        );
    let event =
        served.answer(Ok(Reply::Drained { draining: false, sessions: 3, charged: Bytes::mib(2) })).await;
    let Event::Operator { uid, request: OperatorRequest::Drain { draining }, .. } = event else { panic!() };
    assert_eq!((uid, draining), (own_uid(), false));
    assert_eq!(call.await.unwrap().unwrap().into_inner().session_count, 3);
}

#[tokio::test]
async fn a_batch_waits_as_long_as_it_says() {
    let mut served = served(&[]);
    let mut memory = served.memory().await;
    let batch = v1::AllocateBatchRequest {
        session_id: 5,
        items: vec![v1::AllocationSpec { size_bytes: 1, unheld: true, ..Default::default() }],
        wait_ms: 1500,
        ..Default::default()
    };
    let too_long = v1::AllocateBatchRequest { wait_ms: 300_000, ..batch.clone() };
    let refused = memory.allocate_batch(too_long).await.unwrap_err();
    assert_eq!(refused.get_error_details().error_info().unwrap().metadata["field"], "wait_ms");

    let call = tokio::spawn(async move { memory.allocate_batch(batch).await });
    let event = served.answer(Err(Refusal::WaitCancelled { wait: WaitId::from_shown(9) })).await;
    let Event::Client { request: ClientRequest::AllocateBatch { items, wait }, .. } = event else { panic!() };
    assert_eq!((wait, items[0].unpinned), (Duration::from_millis(1500), true));
    let status = call.await.unwrap().unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Aborted, "WAIT_CANCELLED"));
}

#[tokio::test]
async fn an_operator_ends_a_wait() {
    let mut served = served(&[own_uid()]);
    let mut admin = served.admin().await;
    let cancel = v1::CancelWaitRequest { request_id: vec![3; 16], wait_id: 9 };
    let call = tokio::spawn(async move { admin.cancel_wait(cancel).await });
    let event = served.answer(Ok(Reply::WaitCancelled)).await;
    let Event::Operator { request: OperatorRequest::CancelWait { wait }, key: Some(_), .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!(wait, WaitId::from_shown(9));
    call.await.unwrap().unwrap();
    let mut admin = served.admin().await;
    let page = v1::ListMovesRequest { page_token: "x".to_owned(), ..Default::default() };
    assert_eq!(reason(&admin.list_moves(page).await.unwrap_err()), "REQUEST_INVALID");
    let page = v1::ListWaitsRequest { page_size: Some(1001), ..Default::default() };
    assert_eq!(reason(&admin.list_waits(page).await.unwrap_err()), "REQUEST_INVALID");
}

/// A process that connects and passes its connection on.
struct Connector(std::process::Child);

impl Connector {
    const SCRIPT: &str = "
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
heir = socket.socket(socket.AF_UNIX)
heir.connect(sys.argv[2])
socket.send_fds(heir, [b'x'], [connection.fileno()])
sys.stdin.read()
";

    fn start(served: &Served, socket: &str) -> (Self, UnixStream) {
        let heir = served.folder.path().join(format!("heir-of-{socket}"));
        let listener = UnixListener::bind(&heir).unwrap();
        let child = std::process::Command::new("python3")
            .args(["-c", Self::SCRIPT])
            .arg(served.folder.path().join(socket))
            .arg(heir)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0; 1];
        let buffers = &mut [std::io::IoSliceMut::new(&mut byte)];
        recvmsg(&stream, buffers, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let Some(RecvAncillaryMessage::ScmRights(mut fds)) = control.drain().next() else { panic!() };
        (Self(child), fds.next().unwrap().into())
    }

    fn end(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A client on a connection that another process has made; tonic's client can only connect by itself.
struct Heir(h2::client::SendRequest<tonic::codegen::Bytes>);

impl Heir {
    async fn of(connection: UnixStream) -> Self {
        connection.set_nonblocking(true).unwrap();
        let connection = tokio::net::UnixStream::from_std(connection).unwrap();
        let (client, connection) = h2::client::handshake(connection).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    /// Returns the status with which a call is refused.
    async fn refused(&self, method: &str, message: &impl prost::Message) -> Status {
        let request = tonic::codegen::http::Request::post(format!("http://localhost/vramd.v1.{method}"))
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let mut client = self.0.clone().ready().await.unwrap();
        let (answer, mut body) = client.send_request(request, false).unwrap();
        body.send_data(framed(message).into(), true).unwrap();
        Status::from_header_map(answer.await.unwrap().headers()).unwrap()
    }
}

/// The pid of a process that has ended can name another process while a third one keeps the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_speaks_for_its_maker_while_that_lives() {
    let mut served = served(&[]);
    let (maker, connection) = Connector::start(&served, "vramd.sock");
    let heir = Heir::of(connection).await;
    let request = seal(9);
    let (status, event) =
        tokio::join!(heir.refused("MemoryService/Seal", &request), served.answer(Err(Refusal::Draining)));
    let Event::Client { peer, .. } = event else { panic!("{event:?}") };
    assert_eq!(peer, broker_core::Peer { pid: maker.0.id(), uid: own_uid() });
    assert_eq!(reason(&status), "DRAINING");

    maker.end();
    let target = Some(v1::describe_allocation_request::Target::AllocationId(9));
    let describe = v1::DescribeAllocationRequest { session_id: 5, target };
    let list = v1::ListAllocationsRequest { session_id: 5, ..Default::default() };
    for status in [
        heir.refused("MemoryService/Seal", &seal(9)).await,
        heir.refused("MemoryService/DescribeAllocation", &describe).await,
        heir.refused("MemoryService/ListAllocations", &list).await,
    ] {
        assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "SESSION_LOST"));
    }
    assert!(served.queue.ready().is_none(), "the broker hears of none of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_one_while_its_process_lives() {
    let mut served = served(&[own_uid()]);
    let (maker, connection) = Connector::start(&served, "admin.sock");
    let heir = Heir::of(connection).await;
    let drain = v1::DrainRequest::default();
    let (status, _) =
        tokio::join!(heir.refused("AdminService/Drain", &drain), served.answer(Err(Refusal::Draining)));
    assert_eq!(reason(&status), "DRAINING");
    maker.end();
    for method in ["AdminService/Drain", "AdminService/GetNode"] {
        let status = heir.refused(method, &drain).await;
        assert_eq!((status.code(), reason(&status).as_str()), (Code::PermissionDenied, "NOT_OPERATOR"));
    }
}

#[tokio::test]
async fn connections_of_one_uid_are_bounded() {
    let served = served(&[]);
    let mut open = vec![];
    for _ in 0..4 {
        let mut health = HealthClient::new(served.connect("vramd.sock").await);
        health.check(HealthCheckRequest::default()).await.unwrap();
        open.push(health);
    }
    let path = served.folder.path().join("vramd.sock");
    let fifth = tokio::net::UnixStream::connect(path).await.unwrap();
    fifth.readable().await.unwrap();
    let read = fifth.try_read(&mut [0; 64]);
    assert!(matches!(read, Ok(0)) || read.is_err(), "{read:?}");
    open.pop().unwrap().check(HealthCheckRequest::default()).await.unwrap();
}

#[tokio::test]
async fn health_and_reflection_are_on_both_sockets() {
    let served = served(&[]);
    for (socket, own) in [("vramd.sock", "vramd.v1.MemoryService"), ("admin.sock", "vramd.v1.AdminService")] {
        let channel = served.connect(socket).await;
        let mut health = HealthClient::new(channel.clone());
        for service in ["", "vramd.v1.MemoryService", "vramd.v1.AdminService"] {
            let request = HealthCheckRequest { service: service.to_owned() };
            assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "{service}");
        }
        let listed = services(channel).await;
        assert!(listed.contains(&own.to_owned()), "{listed:?}");
        assert_eq!(listed.len(), 4, "its own, health, and reflection in two versions: {listed:?}");
    }
}

async fn services(channel: Channel) -> Vec<String> {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let asked = tokio_stream::once(ServerReflectionRequest { host: String::new(), message_request });
    let mut answers =
        ServerReflectionClient::new(channel).server_reflection_info(asked).await.unwrap().into_inner();
    match answers.message().await.unwrap().unwrap().message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => {
            list.service.into_iter().map(|service| service.name).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn stopping_ends_even_with_a_watcher_and_an_open_call() {
    let mut served = served(&[]);
    let mut watcher = HealthClient::new(served.connect("vramd.sock").await)
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(watcher.message().await.unwrap().unwrap().status, 1);
    let mut memory = served.memory().await;
    let _open = tokio::spawn(async move { memory.seal(seal(9)).await });
    let _unanswered = served.queue.next().await.unwrap();

    served.stop.send(()).unwrap();
    assert_eq!(watcher.message().await.unwrap().unwrap().status, 2, "not serving");
    served.server.await.unwrap().unwrap();
    let path = served.folder.path().join("vramd.sock");
    assert!(tokio::net::UnixStream::connect(path).await.is_err(), "the socket has no listener any longer");
}

/// A client drives its connection only during calls. Between two calls it reads nothing that HTTP/2 sends.
#[tokio::test]
async fn stopping_does_not_wait_for_an_idle_connection() {
    let served = served(&[]);
    let socket = tokio::net::UnixStream::connect(served.folder.path().join("vramd.sock")).await.unwrap();
    let (mut client, mut connection) = h2::client::handshake(socket).await.unwrap();
    let request = tonic::codegen::http::Request::post("http://localhost/vramd.v1.MemoryService/Seal")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let (answer, mut body) = client.send_request(request, false).unwrap();
    body.send_data(framed(&v1::SealRequest::default()).into(), true).unwrap();
    tokio::select! {
        answer = answer => assert!(answer.is_ok(), "refused, in the way of gRPC"),
        end = &mut connection => panic!("the connection ends: {end:?}"),
    }
    served.stop.send(()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), served.server).await;
    ended.expect("the server does not wait for the connection").unwrap().unwrap();
}

#[tokio::test]
async fn an_open_call_is_answered_though_the_daemon_stops() {
    let mut served = served_with_grace(&[], LONG);
    let mut memory = served.memory().await;
    let call = tokio::spawn(async move { memory.seal(seal(9)).await });
    let Some(Message::Request { caller, .. }) = served.queue.next().await else { panic!("a request") };
    served.stop.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    caller.answer(Err(Refusal::Draining));
    assert_eq!(reason(&call.await.unwrap().unwrap_err()), "DRAINING");
    served.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_gone_reactor_is_unavailable() {
    let served = served(&[own_uid()]);
    drop(served.queue);
    let connect = |socket| {
        let address = format!("unix://{}", served.folder.path().join(socket).display());
        async move { tonic::transport::Endpoint::from_shared(address).unwrap().connect().await.unwrap() }
    };
    let written = MemoryServiceClient::new(connect("vramd.sock").await).seal(seal(9)).await.unwrap_err();
    let read = AdminServiceClient::new(connect("admin.sock").await)
        .get_node(v1::GetNodeRequest {})
        .await
        .unwrap_err();
    for status in [written, read] {
        assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "BROKER_GONE"));
    }
}
