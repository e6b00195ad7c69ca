//! Serves both sockets until the daemon stops.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::sync::watch;
use tonic::{server::NamedService, service::Routes, transport::Server};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tonic_reflection::server::Builder as Reflection;
use tower::util::{MapFutureLayer, option_layer};
use vramd_proto::v1::{admin_service_server::AdminServiceServer, memory_service_server::MemoryServiceServer};

use super::{
    admin::{Admin, NodeFacts},
    connections::{Admission, incoming, listening},
    deadline::DeadlineLayer,
    file_loading::Loading,
    memory::Memory,
    observe::ObserveLayer,
    open_calls::OpenCalls,
};
use crate::{
    channel::Channels, events::Events, moves::Moves, reactor::Inbox, socket_keeper::Listener,
    telemetry::Telemetry,
};

const MEMORY_SERVICE: &str = MemoryServiceServer::<Memory>::NAME;
const ADMIN_SERVICE: &str = AdminServiceServer::<Admin>::NAME;

/// Maximum calls at once on one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 256;

/// Maximum bytes of the headers of one request.
const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// The listening sockets. They are bound before, so that no client finds a socket on which the daemon does not listen
/// yet.
#[derive(Debug)]
pub struct Listeners {
    /// `vramd.sock`.
    pub memory: Listener,
    /// `admin.sock`.
    pub admin: Listener,
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
    /// Observes each call.
    pub telemetry: Telemetry,
    pub moves: Moves,
    pub files: Loading,
    pub facts: NodeFacts,
    /// The pin words of sessions, for operators who look at an allocation.
    pub channels: Arc<Channels>,
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
    let health = HealthReporter::new();
    report(&health, ServingStatus::Serving).await;
    let memory =
        Memory::new(inbox.clone(), options.call_timeout, options.telemetry.clone(), options.files.clone());
    let memory = with_tools(Routes::new(MemoryServiceServer::new(memory)), MEMORY_SERVICE, &health)?;
    let admin = Admin::new(inbox.clone(), events.clone(), &options);
    let admin = with_tools(Routes::new(AdminServiceServer::new(admin)), ADMIN_SERVICE, &health)?;

    let calls = OpenCalls::default();
    let (stopping, stopped) = watch::channel(false);
    let sockets = async {
        tokio::try_join!(
            socket(listeners.memory, memory, &inbox, &options, BTreeSet::new(), &calls, stopped.clone()),
            socket(
                listeners.admin,
                admin,
                &inbox,
                &options,
                options.operators.clone(),
                &calls,
                stopped.clone()
            ),
        )
    };
    let end = async {
        stop.await;
        report(&health, ServingStatus::NotServing).await;
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
    always: BTreeSet<u32>,
    calls: &OpenCalls,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let Listener { socket, replacements } = listener;
    let door = Admission { per_uid_max: options.connections_per_uid_max, always };
    let connections = incoming(listening(socket)?, replacements, door);
    let stop = async move {
        // An error means that the sender is gone, and the server with it.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let calls = calls.clone();
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .layer(MapFutureLayer::new(move |call| calls.clone().during(call)))
        .layer(option_layer(ObserveLayer::new(&options.telemetry)))
        .layer(DeadlineLayer::new(options.call_timeout, inbox.clone()))
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, stop)
        .await?;
    Ok(())
}

/// Adds health and reflection to a service.
fn with_tools(service: Routes, name: &str, health: &HealthReporter) -> Result<Routes, ServeError> {
    let health = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let service = service.add_service(health);
    Ok(service.add_service(reflection(name).build_v1()?).add_service(reflection(name).build_v1alpha()?))
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

/// Sets the health of the whole daemon, and of each service.
async fn report(health: &HealthReporter, status: ServingStatus) {
    for service in ["", MEMORY_SERVICE, ADMIN_SERVICE] {
        health.set_service_status(service, status).await;
    }
}
