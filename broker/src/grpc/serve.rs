//! Serves both sockets until the daemon stops.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::sync::watch;
use tonic::{service::Routes, transport::Server};
use tonic_reflection::server::Builder as Reflection;
use tower::util::{MapFutureLayer, option_layer};
use vramd_proto::v1::{admin_service_server::AdminServiceServer, memory_service_server::MemoryServiceServer};

use super::{
    admin::{Admin, NodeFacts},
    budget::Budgets,
    connections::{Admission, ClosedLines, incoming, listening},
    deadline::DeadlineLayer,
    file_loading::Loading,
    health::{ADMIN_SERVICE, MEMORY_SERVICE, Reports},
    intake::IntakeLayer,
    mapped_files::MappedFiles,
    memory::Memory,
    message_rules::MessageRules,
    observe::ObserveLayer,
    open_calls::OpenCalls,
};
use crate::{
    channel::Channels,
    events::Events,
    moves::Moves,
    platform::descriptor_shares::DescriptorShares,
    reactor::Inbox,
    recorder::Recorder,
    socket_keeper::{Listener, Unreachable},
    telemetry::Telemetry,
    tenants::TenantStore,
};

/// Maximum calls at once on one connection. Further ones wait at the client. Many clients begin a hundred before they
/// know the daemon's number, and would have some of them refused if it were lower.
const STREAMS_PER_CONNECTION_MAX: u32 = 100;

/// Maximum bytes of the headers of one request.
const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// Maximum bytes that the daemon receives on a connection and has not read from its call yet, and on one stream. Calls
/// read at once, so a small window costs them nothing.
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
const STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// Maximum bytes of one message of a client that sends a stream of them.
const STREAMED_MESSAGE_BYTES_MAX: usize = 16 << 10;

/// The listening sockets. They are bound before, so that no client finds a socket on which the daemon does not listen
/// yet.
#[derive(Debug)]
pub struct Listeners {
    /// `vramd.sock`.
    pub memory: Listener,
    /// `admin.sock`.
    pub admin: Listener,
    pub unreachable: Unreachable,
}

#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// Uids that may call `AdminService`, whatever the mode of the socket allows.
    pub operators: BTreeSet<u32>,
    /// Maximum time of a call, whatever its deadline.
    pub call_timeout: Duration,
    /// How long open calls may go on after the daemon stops. The core has their requests already.
    pub stop_grace: Duration,
    /// Maximum connections of one uid, on each socket.
    pub connections_per_uid_max: usize,
    /// Maximum bytes that the daemon holds for one uid: connections, requests, and answers that are not written.
    pub held_bytes_per_uid_max: usize,
    /// How long a request, and any part of it, may take to arrive as a whole.
    pub request_read_timeout: Duration,
    /// Shared with the sessions.
    pub descriptors: DescriptorShares,
    /// The core's bounds on the items of a batch, and on the readers of an item.
    pub batch_items_max: usize,
    pub readers_max: usize,
    /// Observes each call.
    pub telemetry: Telemetry,
    pub moves: Moves,
    pub recorder: Recorder,
    pub files: Loading,
    pub facts: NodeFacts,
    /// The pin words of sessions, for operators who look at an allocation.
    pub channels: Arc<Channels>,
    /// Makes the changes of quotas and standings one after the other.
    pub tenants: TenantStore,
}

#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot listen: {0}")]
    Listen(#[from] io::Error),
    #[error("cannot set up gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the gRPC server failed: {0}")]
    Server(#[from] tonic::transport::Error),
}

/// Serves until `stop` is done, then closes both sockets and lets open calls end for a moment. It ends with the last
/// call and not with the last connection: a client between two calls need not read what HTTP/2 sends it.
pub async fn serve(
    listeners: Listeners,
    inbox: Inbox,
    events: Events,
    options: GrpcOptions,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let health = Reports::new().await;
    let mapped_files =
        MappedFiles::new(&options.facts.report, options.files.clone(), options.telemetry.clone());
    let memory = Memory::new(
        inbox.clone(),
        options.call_timeout,
        options.telemetry.clone(),
        options.files.clone(),
        mapped_files,
    );
    let memory = with_tools(Routes::new(MemoryServiceServer::new(memory)), MEMORY_SERVICE, &health)?;
    let admin = Admin::new(inbox.clone(), events.clone(), &options);
    let admin = with_tools(Routes::new(AdminServiceServer::new(admin)), ADMIN_SERVICE, &health)?;

    let calls = OpenCalls::default();
    let budgets = Budgets::new(options.held_bytes_per_uid_max);
    // Operators have budgets of their own on their socket.
    let closed = ClosedLines::default();
    let memory_door = Admission::new(&options, budgets.clone(), BTreeSet::new(), closed.clone());
    let admin_door = Admission::new(&options, budgets, options.operators.clone(), closed);
    let (stopping, stopped) = watch::channel(false);
    let sockets = async {
        tokio::try_join!(
            socket(listeners.memory, memory, &inbox, &options, memory_door, &calls, stopped.clone()),
            socket(listeners.admin, admin, &inbox, &options, admin_door, &calls, stopped.clone()),
        )
    };
    let end = async {
        tokio::select! {
            () = stop => {}
            () = health.follow(listeners.unreachable, events.draining()) => {}
        }
        health.end().await;
        // Reading watches get it before the daemon ends; the daemon does not wait for others.
        events.end("the daemon was asked to stop");
        stopping.send_replace(true);
        // Calls that are still open then are cut off, which their callers see.
        let _ = tokio::time::timeout(options.stop_grace, calls.ended()).await;
    };
    tokio::select! {
        served = sockets => served.map(|_| ()),
        () = end => Ok(()),
    }
}

async fn socket(
    listener: Listener,
    routes: Routes,
    inbox: &Inbox,
    options: &GrpcOptions,
    door: Admission,
    calls: &OpenCalls,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let Listener { socket, replacements } = listener;
    let connections = incoming(listening(socket)?, replacements, door);
    let stop = async move {
        // An error means that the sender is gone, and the server with it.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let calls = calls.clone();
    let rules = MessageRules { batch_items_max: options.batch_items_max, readers_max: options.readers_max };
    let intake = IntakeLayer { read_timeout: options.request_read_timeout, rules };
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .layer(MapFutureLayer::new(move |call| calls.clone().during(call)))
        .layer(option_layer(ObserveLayer::new(&options.telemetry)))
        .layer(DeadlineLayer::new(options.call_timeout, inbox.clone()))
        .layer(intake)
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, stop)
        .await?;
    Ok(())
}

/// Adds health and reflection to a service.
fn with_tools(service: Routes, name: &str, health: &Reports) -> Result<Routes, ServeError> {
    let service = service.add_service(health.service());
    let v1 = reflection(name).build_v1()?.max_decoding_message_size(STREAMED_MESSAGE_BYTES_MAX);
    let v1alpha = reflection(name).build_v1alpha()?.max_decoding_message_size(STREAMED_MESSAGE_BYTES_MAX);
    Ok(service.add_service(v1).add_service(v1alpha))
}

/// Describes exactly the services of this socket.
fn reflection(name: &str) -> Reflection<'static> {
    Reflection::configure()
        .register_encoded_file_descriptor_set(vramd_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        // The details of refusals, so that a client without proto files can read them.
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
        .with_service_name(name)
        .with_service_name("grpc.health.v1.Health")
        .with_service_name("grpc.reflection.v1.ServerReflection")
        .with_service_name("grpc.reflection.v1alpha.ServerReflection")
}
