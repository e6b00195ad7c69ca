//! gRPC over the Unix sockets for synchronous tests, one call at a time.

use std::{future::Future, path::Path, sync::OnceLock, time::Duration};

use tokio::{runtime::Runtime, task::JoinHandle, time::timeout};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use vramd_proto::v1::{
    self, admin_service_client::AdminServiceClient, memory_service_client::MemoryServiceClient,
};

use crate::{refusal::Refused, wait::PATIENCE};

/// A call that was sent and has no answer yet.
#[must_use = "a test that does not wait for its call sees no answer"]
#[derive(Debug)]
pub struct Pending<T>(JoinHandle<Result<T, Status>>);

impl<T: Send + 'static> Pending<T> {
    fn start(call: impl Future<Output = Result<Response<T>, Status>> + Send + 'static) -> Self {
        Self(runtime().spawn(async { call.await.map(Response::into_inner) }))
    }

    #[track_caller]
    pub fn wait(self) -> Result<T, Status> {
        let answer = runtime().block_on(async { timeout(PATIENCE, self.0).await });
        answer.expect("a call is answered in time").expect("a client does not panic")
    }

    /// The answer of a call that must succeed.
    #[track_caller]
    pub fn ok(self) -> T {
        self.wait().unwrap_or_else(|status| panic!("refused: {:?}", Refused::from_status(&status)))
    }

    /// The refusal of a call that must be refused.
    #[track_caller]
    pub fn refused(self) -> Refused
    where
        T: std::fmt::Debug,
    {
        match self.wait() {
            Ok(answer) => panic!("was to be refused: {answer:?}"),
            Err(status) => Refused::from_status(&status),
        }
    }

    pub fn is_answered(&self) -> bool {
        self.0.is_finished()
    }

    /// Drops the call before its answer.
    pub fn cancel(self) {
        self.0.abort();
    }
}

/// `MemoryService` on `vramd.sock`.
#[derive(Clone, Debug)]
pub struct Memory {
    client: MemoryServiceClient<Channel>,
    said: Said,
}

/// `AdminService` on `admin.sock`.
#[derive(Clone, Debug)]
pub struct Admin {
    client: AdminServiceClient<Channel>,
    said: Said,
}

/// The metadata of every call.
#[derive(Clone, Debug, Default)]
struct Said {
    deadline: Option<Duration>,
    traceparent: Option<&'static str>,
}

impl Said {
    fn with<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        if let Some(parent) = self.traceparent {
            request.metadata_mut().insert("traceparent", MetadataValue::from_static(parent));
        }
        request
    }
}

impl Memory {
    pub fn new(socket_dir: &Path) -> Self {
        let client = MemoryServiceClient::new(channel(&socket_dir.join("vramd.sock")));
        Self { client, said: Said::default() }
    }

    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { client: self.client.clone(), said: Said { deadline: Some(deadline), ..self.said } }
    }
}

impl Admin {
    pub fn new(socket_dir: &Path) -> Self {
        let client = AdminServiceClient::new(channel(&socket_dir.join("admin.sock")));
        Self { client, said: Said::default() }
    }

    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { client: self.client.clone(), said: Said { deadline: Some(deadline), ..self.said } }
    }

    /// Makes the calls part of that trace.
    #[must_use]
    pub fn in_trace(&self, traceparent: &'static str) -> Self {
        Self { client: self.client.clone(), said: Said { traceparent: Some(traceparent), ..self.said } }
    }
}

macro_rules! calls {
    ($service:ident: $($method:ident($request:ident) -> $response:ident;)*) => {
        impl $service {
            $(pub fn $method(&self, request: v1::$request) -> Pending<v1::$response> {
                let mut client = self.client.clone();
                let request = self.said.with(request);
                Pending::start(async move { client.$method(request).await })
            })*
        }
    };
}

calls! { Memory:
    allocate_batch(AllocateBatchRequest) -> AllocateBatchResponse;
    cancel_allocate_batch(CancelAllocateBatchRequest) -> CancelAllocateBatchResponse;
    free_batch(FreeBatchRequest) -> FreeBatchResponse;
    attach(AttachRequest) -> AttachResponse;
    detach(DetachRequest) -> DetachResponse;
    seal(SealRequest) -> SealResponse;
    advise(AdviseRequest) -> AdviseResponse;
    load_file(LoadFileRequest) -> LoadFileResponse;
    describe_allocation(DescribeAllocationRequest) -> DescribeAllocationResponse;
    list_allocations(ListAllocationsRequest) -> ListAllocationsResponse;
    get_own_quota(GetOwnQuotaRequest) -> GetOwnQuotaResponse;
    check_file(CheckFileRequest) -> CheckFileResponse;
    report_fall_back(ReportFallBackRequest) -> ReportFallBackResponse;
}

calls! { Admin:
    set_quota(SetQuotaRequest) -> SetQuotaResponse;
    get_quota(GetQuotaRequest) -> GetQuotaResponse;
    list_quotas(ListQuotasRequest) -> ListQuotasResponse;
    delete_quota(DeleteQuotaRequest) -> DeleteQuotaResponse;
    set_tenant(SetTenantRequest) -> SetTenantResponse;
    reset_tenant(ResetTenantRequest) -> ResetTenantResponse;
    apply_tenants(ApplyTenantsRequest) -> ApplyTenantsResponse;
    list_tenants(ListTenantsRequest) -> ListTenantsResponse;
    list_sessions(ListSessionsRequest) -> ListSessionsResponse;
    end_session(EndSessionRequest) -> EndSessionResponse;
    list_all_allocations(ListAllAllocationsRequest) -> ListAllAllocationsResponse;
    show_allocation(ShowAllocationRequest) -> ShowAllocationResponse;
    free_allocation(FreeAllocationRequest) -> FreeAllocationResponse;
    move_parts(MovePartsRequest) -> MovePartsResponse;
    write_back_parts(WriteBackPartsRequest) -> WriteBackPartsResponse;
    hold_parts(HoldPartsRequest) -> HoldPartsResponse;
    advise_parts(AdvisePartsRequest) -> AdvisePartsResponse;
    revoke_mappings(RevokeMappingsRequest) -> RevokeMappingsResponse;
    list_waits(ListWaitsRequest) -> ListWaitsResponse;
    cancel_wait(CancelWaitRequest) -> CancelWaitResponse;
    list_moves(ListMovesRequest) -> ListMovesResponse;
    get_node(GetNodeRequest) -> GetNodeResponse;
    get_readings(GetReadingsRequest) -> GetReadingsResponse;
    list_devices(ListDevicesRequest) -> ListDevicesResponse;
    list_links(ListLinksRequest) -> ListLinksResponse;
    get_settings(GetSettingsRequest) -> GetSettingsResponse;
    change_settings(ChangeSettingsRequest) -> ChangeSettingsResponse;
    start_trace(StartTraceRequest) -> StartTraceResponse;
    stop_trace(StopTraceRequest) -> StopTraceResponse;
    drain(DrainRequest) -> DrainResponse;
}

impl Admin {
    pub fn watch(&self, request: v1::WatchRequest) -> Pending<Streaming<v1::WatchResponse>> {
        let mut client = self.client.clone();
        Pending::start(async move { client.watch(request).await })
    }
}

/// Whether the health service on a socket says SERVING for a service. The empty name is the whole daemon.
#[track_caller]
pub fn is_serving(socket: &Path, service: &str) -> bool {
    Health::new(socket).is_serving(service)
}

/// A connection to the health service on a socket, which stands if the socket is removed.
#[derive(Clone, Debug)]
pub struct Health(HealthClient<Channel>);

impl Health {
    pub fn new(socket: &Path) -> Self {
        Self(HealthClient::new(channel(socket)))
    }

    /// Whether it says SERVING for a service. The empty name is the whole daemon.
    #[track_caller]
    pub fn is_serving(&self, service: &str) -> bool {
        let mut client = self.0.clone();
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = Pending::start(async move { client.check(request).await }).wait();
        answer.is_ok_and(|answer| answer.status() == ServingStatus::Serving)
    }
}

/// Connects at its first use, and again after the daemon was away.
fn channel(socket: &Path) -> Channel {
    let _inside = runtime().enter();
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("a path makes a URI");
    endpoint.connect_lazy()
}

pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime starts")
    })
}
