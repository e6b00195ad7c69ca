//! The operators' client: `AdminService` over `admin.sock`, blocking, with the same errors.
//!
//! Messages are those of the protocol. Lists are fetched to their end, and mutations with an empty `request_id` get
//! one, so that a retry of the transport changes nothing twice.

use std::{
    future::Future,
    io::ErrorKind,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tonic::{Request, Response, Status, Streaming, transport::Channel};
use vramd_proto::v1::{self, admin_service_client::AdminServiceClient};
use vramd_types::Reason;

use crate::{
    error::{Error, Result},
    rpc::{Rpc, request_id::RequestId},
    session::{
        missing_field,
        socket_paths::{self, SocketPlaces},
    },
};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const REPLY_BYTES_MAX: usize = 64 << 20;
const PAGE_SIZE: u32 = 1000;

#[derive(Debug)]
pub struct AdminClient {
    rpc: Rpc,
    socket: PathBuf,
    /// Where it looked for the daemon, unless the caller named the folder.
    places: Option<SocketPlaces>,
    request_timeout: Duration,
}

impl AdminClient {
    /// Makes a client of the daemon in that socket folder. Connects at the first call.
    pub fn new(socket_dir: &Path) -> Result<Self> {
        Self::of(socket_dir, None)
    }

    /// Makes a client of the daemon that [`crate::socket_dir`] finds. Connects at the first call.
    pub fn find() -> Result<Self> {
        let places = SocketPlaces::of_process();
        Self::of(&places.find(), Some(places))
    }

    fn of(socket_dir: &Path, places: Option<SocketPlaces>) -> Result<Self> {
        let socket = socket_paths::admin_socket(socket_dir);
        Ok(Self { rpc: Rpc::open(&socket)?, socket, places, request_timeout: REQUEST_TIMEOUT })
    }

    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    pub fn set_quota(&self, mut request: v1::SetQuotaRequest) -> Result<v1::Quota> {
        fill(&mut request.request_id);
        let answer =
            self.call(request, |mut client, request| async move { client.set_quota(request).await })?;
        answer.quota.ok_or_else(|| missing_field("quota"))
    }

    pub fn get_quota(&self, request: v1::GetQuotaRequest) -> Result<v1::Quota> {
        let answer =
            self.call(request, |mut client, request| async move { client.get_quota(request).await })?;
        answer.quota.ok_or_else(|| missing_field("quota"))
    }

    pub fn delete_quota(&self, mut request: v1::DeleteQuotaRequest) -> Result<()> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.delete_quota(request).await }).map(drop)
    }

    /// Lists those of one tenant, or of all if none is named.
    pub fn quotas(&self, tenant: Option<&str>) -> Result<Vec<v1::Quota>> {
        let deadline = self.deadline();
        pages(|page_token| {
            let request = v1::ListQuotasRequest {
                tenant: tenant.map(str::to_owned),
                page_size: Some(PAGE_SIZE),
                page_token,
            };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_quotas(request).await
            })?;
            Ok((page.quotas, page.next_page_token))
        })
    }

    pub fn set_tenant(&self, mut request: v1::SetTenantRequest) -> Result<v1::Tenant> {
        fill(&mut request.request_id);
        let answer =
            self.call(request, |mut client, request| async move { client.set_tenant(request).await })?;
        answer.tenant.ok_or_else(|| missing_field("tenant"))
    }

    pub fn reset_tenant(&self, mut request: v1::ResetTenantRequest) -> Result<v1::Tenant> {
        fill(&mut request.request_id);
        let answer =
            self.call(request, |mut client, request| async move { client.reset_tenant(request).await })?;
        answer.tenant.ok_or_else(|| missing_field("tenant"))
    }

    /// Has the daemon apply a tenants file, or say what that would change.
    pub fn apply_tenants(&self, request: v1::ApplyTenantsRequest) -> Result<v1::ApplyTenantsResponse> {
        self.call(request, |mut client, request| async move { client.apply_tenants(request).await })
    }

    /// Lists one tenant, or all if none is named, with classes and weights.
    pub fn tenants(&self, tenant: Option<&str>) -> Result<Vec<v1::Tenant>> {
        let deadline = self.deadline();
        pages(|page_token| {
            let request = v1::ListTenantsRequest {
                tenant: tenant.map(str::to_owned),
                page_size: Some(PAGE_SIZE),
                page_token,
            };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_tenants(request).await
            })?;
            Ok((page.tenants, page.next_page_token))
        })
    }

    /// Lists those of one tenant, or of all if none is named.
    pub fn sessions(&self, tenant: Option<&str>) -> Result<Vec<v1::Session>> {
        let deadline = self.deadline();
        pages(|page_token| {
            let request = v1::ListSessionsRequest {
                tenant: tenant.map(str::to_owned),
                page_size: Some(PAGE_SIZE),
                page_token,
            };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_sessions(request).await
            })?;
            Ok((page.sessions, page.next_page_token))
        })
    }

    pub fn end_session(&self, mut request: v1::EndSessionRequest) -> Result<v1::EndSessionResponse> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.end_session(request).await })
    }

    /// Lists the allocations of one tenant, or of all if none is named, without parts.
    pub fn allocations(&self, tenant: Option<&str>) -> Result<Vec<v1::Allocation>> {
        let deadline = self.deadline();
        pages(|page_token| {
            let request = v1::ListAllAllocationsRequest {
                tenant: tenant.map(str::to_owned),
                page_size: Some(PAGE_SIZE),
                page_token,
            };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_all_allocations(request).await
            })?;
            Ok((page.allocations, page.next_page_token))
        })
    }

    /// One allocation with its parts and their mappers.
    pub fn show_allocation(&self, request: v1::ShowAllocationRequest) -> Result<v1::Allocation> {
        let answer =
            self.call(request, |mut client, request| async move { client.show_allocation(request).await })?;
        answer.allocation.ok_or_else(|| missing_field("allocation"))
    }

    pub fn free_allocation(
        &self,
        mut request: v1::FreeAllocationRequest,
    ) -> Result<v1::FreeAllocationResponse> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.free_allocation(request).await })
    }

    /// Revokes the mappings of an allocation; its tenant keeps it. Returns when the outcome of each part is known.
    pub fn revoke_mappings(
        &self,
        mut request: v1::RevokeMappingsRequest,
    ) -> Result<v1::RevokeMappingsResponse> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.revoke_mappings(request).await })
    }

    /// Moves parts of an allocation to another tier. Returns when the outcome of each is known.
    pub fn move_parts(&self, mut request: v1::MovePartsRequest) -> Result<v1::MovePartsResponse> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.move_parts(request).await })
    }

    /// Writes dirty parts of an allocation back, while they stay mapped. Returns when the outcome of each is known.
    pub fn write_back_parts(
        &self,
        mut request: v1::WriteBackPartsRequest,
    ) -> Result<v1::WriteBackPartsResponse> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.write_back_parts(request).await })
    }

    /// Holds parts of an allocation on their device, or lets them go.
    pub fn hold_parts(&self, mut request: v1::HoldPartsRequest) -> Result<v1::HoldPartsResponse> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.hold_parts(request).await })
    }

    /// Advises which parts of an allocation leave their device first, in the owner's stead, or clears that advice.
    pub fn advise_parts(&self, mut request: v1::AdvisePartsRequest) -> Result<v1::Allocation> {
        fill(&mut request.request_id);
        let answer =
            self.call(request, |mut client, request| async move { client.advise_parts(request).await })?;
        Ok(answer.allocation.unwrap_or_default())
    }

    /// Lists the waits for room on devices, in order of arrival: of one tenant, or of all if none is named.
    pub fn waits(&self, tenant: Option<&str>) -> Result<Vec<v1::Wait>> {
        let deadline = self.deadline();
        pages(|page_token| {
            let request = v1::ListWaitsRequest {
                tenant: tenant.map(str::to_owned),
                page_size: Some(PAGE_SIZE),
                page_token,
            };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_waits(request).await
            })?;
            Ok((page.waits, page.next_page_token))
        })
    }

    /// Cancels one wait: its request is refused.
    pub fn cancel_wait(&self, mut request: v1::CancelWaitRequest) -> Result<()> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.cancel_wait(request).await }).map(drop)
    }

    /// Lists the prefetch requests that have not ended: of one tenant, or of all if none is named.
    pub fn prefetches(&self, tenant: Option<&str>) -> Result<Vec<v1::PrefetchEntry>> {
        let deadline = self.deadline();
        pages(|page_token| {
            let request = v1::ListPrefetchesRequest {
                tenant: tenant.map(str::to_owned),
                page_size: Some(PAGE_SIZE),
                page_token,
            };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_prefetches(request).await
            })?;
            Ok((page.prefetches, page.next_page_token))
        })
    }

    /// Lists the working sets of all sessions with their turns: of one tenant, or of all if none is named.
    pub fn turns(&self, tenant: Option<&str>) -> Result<Vec<v1::TurnEntry>> {
        let deadline = self.deadline();
        pages(|page_token| {
            let tenant = tenant.map(str::to_owned);
            let request = v1::ListTurnsRequest { tenant, page_size: Some(PAGE_SIZE), page_token };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_turns(request).await
            })?;
            Ok((page.turns, page.next_page_token))
        })
    }

    /// Asks the client that has the turn of a working set to yield it.
    pub fn yield_turn(&self, mut request: v1::YieldTurnRequest) -> Result<()> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.yield_turn(request).await }).map(drop)
    }

    /// Cancels one prefetch request.
    pub fn cancel_prefetch(&self, mut request: v1::CancelPrefetchRequest) -> Result<()> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.cancel_prefetch(request).await })
            .map(drop)
    }

    /// Lists the migrations under way, and those that ended last: of one tenant, or of all if none is named.
    pub fn moves(&self, tenant: Option<&str>) -> Result<Moves> {
        let mut ended = Vec::new();
        let deadline = self.deadline();
        let moving = pages(|page_token| {
            let request = v1::ListMovesRequest {
                tenant: tenant.map(str::to_owned),
                page_size: Some(PAGE_SIZE),
                page_token,
            };
            let page = self.call_until(deadline, request, |mut client, request| async move {
                client.list_moves(request).await
            })?;
            ended.extend(page.ended);
            Ok((page.moves, page.next_page_token))
        })?;
        Ok(Moves { moving, ended })
    }

    /// Lists the links, with what they carry and the copies that were begun on them.
    pub fn links(&self) -> Result<v1::ListLinksResponse> {
        let request = v1::ListLinksRequest {};
        self.call(request, |mut client, request| async move { client.list_links(request).await })
    }

    /// The settings: levels of pressure, sizes of tiers, shares of links and the eviction policy, as they are and as
    /// configured.
    pub fn settings(&self) -> Result<v1::GetSettingsResponse> {
        self.call(v1::GetSettingsRequest {}, |mut client, request| async move {
            client.get_settings(request).await
        })
    }

    /// Changes settings until the daemon ends: all that are named, or none.
    pub fn change_settings(
        &self,
        mut request: v1::ChangeSettingsRequest,
    ) -> Result<v1::ChangeSettingsResponse> {
        fill(&mut request.request_id);
        self.call(request, |mut client, request| async move { client.change_settings(request).await })
    }

    pub fn node(&self) -> Result<v1::GetNodeResponse> {
        self.call(v1::GetNodeRequest {}, |mut client, request| async move { client.get_node(request).await })
    }

    /// Reads the node as its daemon sees it: a JSON object.
    pub fn readings(&self) -> Result<String> {
        let answer = self.call(v1::GetReadingsRequest {}, |mut client, request| async move {
            client.get_readings(request).await
        })?;
        Ok(answer.json)
    }

    pub fn devices(&self) -> Result<Vec<v1::DeviceStatus>> {
        let answer = self.call(v1::ListDevicesRequest {}, |mut client, request| async move {
            client.list_devices(request).await
        })?;
        Ok(answer.devices)
    }

    /// Takes the node out of service, or puts it back.
    pub fn drain(&self, cancel: bool) -> Result<v1::DrainResponse> {
        let request = v1::DrainRequest { request_id: RequestId::random().to_vec(), cancel };
        self.call(request, |mut client, request| async move { client.drain(request).await })
    }

    /// Watches events from now on. A watch that is too slow receives the number of events that it missed.
    pub fn watch(&self, request: v1::WatchRequest) -> Result<Watch<'_>> {
        let stream = self.call(request, |mut client, request| async move { client.watch(request).await })?;
        Ok(Watch { rpc: &self.rpc, stream })
    }

    /// Begins to record a trace of at most so many records, or of as many as the daemon allows. Returns the bound.
    pub fn start_trace(&self, records_max: Option<u64>) -> Result<u64> {
        let request = v1::StartTraceRequest { records_max };
        let answer =
            self.call(request, |mut client, request| async move { client.start_trace(request).await })?;
        Ok(answer.records_max)
    }

    /// Ends the recording of a trace, which the daemon keeps until the next one begins.
    pub fn stop_trace(&self) -> Result<v1::TraceSummary> {
        let request = v1::StopTraceRequest {};
        let answer =
            self.call(request, |mut client, request| async move { client.stop_trace(request).await })?;
        answer.trace.ok_or_else(|| missing_field("trace"))
    }

    /// Fetches the recorded trace as a file, piece by piece.
    pub fn save_trace(&self) -> Result<TraceFile<'_>> {
        let request = v1::SaveTraceRequest {};
        let stream =
            self.call(request, |mut client, request| async move { client.save_trace(request).await })?;
        Ok(TraceFile { rpc: &self.rpc, stream })
    }

    fn call<Q, A, Method, Answer>(&self, request: Q, method: Method) -> Result<A>
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(AdminServiceClient<Channel>, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send,
    {
        self.call_until(self.deadline(), request, method)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// The calls for all pages of a list have one deadline.
    fn call_until<Q, A, Method, Answer>(&self, deadline: Instant, request: Q, method: Method) -> Result<A>
    where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        Method: Fn(AdminServiceClient<Channel>, Request<Q>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let answer = self.rpc.call(deadline, None, request, move |connection, request| {
            method(AdminServiceClient::new(connection).max_decoding_message_size(REPLY_BYTES_MAX), request)
        });
        answer.map_err(|error| match error {
            Error::BrokerGone { .. } if self.is_closed_to_us() => {
                Error::refused(Reason::NotOperator, &[("uid", &rustix::process::geteuid().as_raw())])
            }
            error => self.places.iter().fold(error, |error, places| places.explain(error)),
        })
    }

    /// Whether the socket's mode keeps this user out: then the user is no operator, and a daemon may well be there.
    fn is_closed_to_us(&self) -> bool {
        UnixStream::connect(&self.socket).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }
}

/// Migrations: those under way, and those that ended last.
#[derive(Clone, Debug)]
pub struct Moves {
    /// Sorted by allocation and part.
    pub moving: Vec<v1::Move>,
    /// Newest first.
    pub ended: Vec<v1::EndedMove>,
}

/// The events of the node: an iterator that waits for the next event. It ends after the daemon has announced its end,
/// and with [`Error::BrokerGone`] if the daemon could not.
#[derive(Debug)]
pub struct Watch<'a> {
    rpc: &'a Rpc,
    stream: Streaming<v1::WatchResponse>,
}

impl Iterator for Watch<'_> {
    type Item = Result<v1::WatchResponse>;

    fn next(&mut self) -> Option<Self::Item> {
        next_message(self.rpc, &mut self.stream)
    }
}

/// The pieces of a trace's file, in order.
#[derive(Debug)]
pub struct TraceFile<'a> {
    rpc: &'a Rpc,
    stream: Streaming<v1::SaveTraceResponse>,
}

impl Iterator for TraceFile<'_> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        next_message(self.rpc, &mut self.stream).map(|piece| piece.map(|piece| piece.content))
    }
}

fn next_message<T: Send + Sync>(rpc: &Rpc, stream: &mut Streaming<T>) -> Option<Result<T>> {
    match rpc.wait(stream.message()) {
        Ok(Ok(message)) => message.map(Ok),
        Ok(Err(status)) => Some(Err(rpc.failed(status))),
        Err(error) => Some(Err(rpc.gone(&format!("a thread to wait on could not be started: {error}")))),
    }
}

fn pages<T>(mut page: impl FnMut(String) -> Result<(Vec<T>, String)>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    let mut token = String::new();
    loop {
        let (items, next) = page(token)?;
        all.extend(items);
        if next.is_empty() {
            return Ok(all);
        }
        token = next;
    }
}

fn fill(request_id: &mut Vec<u8>) {
    if request_id.is_empty() {
        *request_id = RequestId::random().to_vec();
    }
}
