//! `AdminService`: the requests of operators. Each method first checks that the caller is an operator.

mod apply;
mod moves;
mod prefetches;
mod settings;
mod tenants;
mod trace;
mod turns;

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use broker_core::{Broker, Event, OperatorRequest, Refusal, Reply, RequestKey, SessionState, Target};
use tokio_stream::{StreamExt as _, adapters::Map};
use tonic::{Request, Response, Status, async_trait};
use vramd_proto::v1::{self, admin_service_server::AdminService};
use vramd_types::{AllocationId, PartIndex, SessionId};

use super::{
    caller::Operator,
    convert::{
        page::{Page, next_token},
        request as convert,
        view::{self, For},
    },
    decision,
    serve::GrpcOptions,
    status::{self, refused},
};
use crate::{
    channel::Channels,
    events::{Events, Watch, WatchError},
    moves::Moves,
    node_report::NodeReport,
    reactor::Inbox,
    recorder::Recorder,
    telemetry::Telemetry,
    tenants::TenantStore,
};

/// The facts in `GetNode` that the broker does not know.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub version: String,
    /// `sim` or `cuda`.
    pub driver: String,
    pub driver_reason: String,
    pub report: NodeReport,
    /// The wall clock's time when the broker's time was 0.
    pub started_at: SystemTime,
}

#[derive(Clone, Debug)]
pub(super) struct Admin {
    inbox: Inbox,
    events: Events,
    moves: Moves,
    recorder: Recorder,
    operators: Arc<BTreeSet<u32>>,
    facts: Arc<NodeFacts>,
    telemetry: Telemetry,
    channels: Arc<Channels>,
    tenants: TenantStore,
}

impl Admin {
    pub(super) fn new(inbox: Inbox, events: Events, options: &GrpcOptions) -> Self {
        Self {
            inbox,
            events,
            moves: options.moves.clone(),
            recorder: options.recorder.clone(),
            operators: Arc::new(options.operators.clone()),
            facts: Arc::new(options.facts.clone()),
            telemetry: options.telemetry.clone(),
            channels: Arc::clone(&options.channels),
            tenants: options.tenants.clone(),
        }
    }

    fn operator<T>(&self, request: &Request<T>) -> Result<Operator, Status> {
        Operator::of(request, &self.operators)
    }

    async fn submit(
        &self,
        operator: Operator,
        key: Option<RequestKey>,
        request: OperatorRequest,
    ) -> Result<Reply, Status> {
        // The core resolves other targets.
        let about = |request: &OperatorRequest| match request {
            OperatorRequest::FreeAllocation(Target::Id(id))
            | OperatorRequest::RevokeMappings { target: Target::Id(id), .. }
            | OperatorRequest::MoveParts { target: Target::Id(id), .. }
            | OperatorRequest::WriteBackParts { target: Target::Id(id), .. } => vec![*id],
            _ => Vec::new(),
        };
        // Such a change waits for its turn, since a tenants file is many of them.
        let turn = match &request {
            OperatorRequest::SetQuota { .. }
            | OperatorRequest::DeleteQuota { .. }
            | OperatorRequest::SetTenant { .. }
            | OperatorRequest::ResetTenant { .. } => Some(self.tenants.turn().await),
            _ => None,
        };
        decision::decide(&self.telemetry, request, about, |request| {
            let event = |call| Event::Operator { call, uid: operator.uid, key, request };
            self.inbox.operator_request_holding(turn, event)
        })
        .await
        .map_err(decision::Fault::for_operator)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Broker) -> T + Send + 'static,
    ) -> Result<T, Status> {
        self.inbox.read(read).await.ok_or_else(status::stopping)
    }
}

/// The key of a mutation.
macro_rules! key {
    ($message:expr) => {
        convert::key(&$message.request_id, &$message).map_err(|refusal| refused(&refusal))?
    };
}

#[async_trait]
impl AdminService for Admin {
    type SaveTraceStream = trace::Answers;
    type WatchStream = Map<Watch, fn(v1::WatchResponse) -> Result<v1::WatchResponse, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.operator(&request)?;
        let filter = convert::filter(request.into_inner()).map_err(|refusal| refused(&refusal))?;
        let watch = self.events.watch(filter).map_err(|none| match none {
            WatchError::TooMany { limit } => status::too_many_watches(limit),
            WatchError::Ended => status::stopping(),
        })?;
        Ok(Response::new(watch.map(Ok)))
    }

    async fn set_quota(
        &self,
        request: Request<v1::SetQuotaRequest>,
    ) -> Result<Response<v1::SetQuotaResponse>, Status> {
        let operator = self.operator(&request)?;
        let message = request.into_inner();
        let key = key!(message);
        let change = set_quota(message).map_err(|refusal| refused(&refusal))?;
        match self.submit(operator, key, change).await? {
            Reply::QuotaSet(quota) => {
                Ok(Response::new(v1::SetQuotaResponse { quota: Some(view::quota(*quota)) }))
            }
            other => Err(status::wrong_reply("SetQuota", &other)),
        }
    }

    async fn get_quota(
        &self,
        request: Request<v1::GetQuotaRequest>,
    ) -> Result<Response<v1::GetQuotaResponse>, Status> {
        self.operator(&request)?;
        let message = request.into_inner();
        let tier = convert::tier(message.tier).map_err(|refusal| refused(&refusal))?;
        let quota =
            self.read(move |broker| broker.quota(&message.tenant, message.device.as_deref(), tier)).await?;
        let quota = quota.map_err(|refusal| refused(&refusal))?;
        Ok(Response::new(v1::GetQuotaResponse { quota: Some(view::quota(quota)) }))
    }

    async fn list_quotas(
        &self,
        request: Request<v1::ListQuotasRequest>,
    ) -> Result<Response<v1::ListQuotasResponse>, Status> {
        self.operator(&request)?;
        let message = request.into_inner();
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        let quotas = self.read(move |broker| broker.list_quotas(tenant.as_deref())).await?;
        let (quotas, next_page_token) = page.cut(quotas);
        let quotas = quotas.into_iter().map(view::quota).collect();
        Ok(Response::new(v1::ListQuotasResponse { quotas, next_page_token }))
    }

    async fn delete_quota(
        &self,
        request: Request<v1::DeleteQuotaRequest>,
    ) -> Result<Response<v1::DeleteQuotaResponse>, Status> {
        let operator = self.operator(&request)?;
        let message = request.into_inner();
        let key = key!(message);
        let tier = convert::tier(message.tier).map_err(|refusal| refused(&refusal))?;
        let device = convert::selector(message.device).map_err(|refusal| refused(&refusal))?;
        let change = OperatorRequest::DeleteQuota { tenant: message.tenant, device, tier };
        match self.submit(operator, key, change).await? {
            Reply::QuotaDeleted => Ok(Response::new(v1::DeleteQuotaResponse {})),
            other => Err(status::wrong_reply("DeleteQuota", &other)),
        }
    }

    async fn set_tenant(
        &self,
        request: Request<v1::SetTenantRequest>,
    ) -> Result<Response<v1::SetTenantResponse>, Status> {
        let operator = self.operator(&request)?;
        self.set_tenant_of(operator, request.into_inner()).await.map(Response::new)
    }

    async fn reset_tenant(
        &self,
        request: Request<v1::ResetTenantRequest>,
    ) -> Result<Response<v1::ResetTenantResponse>, Status> {
        let operator = self.operator(&request)?;
        self.reset_tenant_of(operator, request.into_inner()).await.map(Response::new)
    }

    async fn apply_tenants(
        &self,
        request: Request<v1::ApplyTenantsRequest>,
    ) -> Result<Response<v1::ApplyTenantsResponse>, Status> {
        let operator = self.operator(&request)?;
        self.apply_tenants_of(operator, request.into_inner()).await.map(Response::new)
    }

    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> Result<Response<v1::ListTenantsResponse>, Status> {
        self.operator(&request)?;
        self.tenants(request.into_inner()).await.map(Response::new)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        self.operator(&request)?;
        let message = request.into_inner();
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        let (views, more) = self
            .read(move |broker| {
                broker.list_sessions(tenant.as_deref(), page.after.map(SessionId::from_shown), page.size)
            })
            .await?;
        let next_page_token = next_token(views.last().map(|view| view.id.shown()), more);
        let sessions = views.into_iter().map(|view| view::session(view, self.facts.started_at)).collect();
        Ok(Response::new(v1::ListSessionsResponse { sessions, next_page_token }))
    }

    async fn end_session(
        &self,
        request: Request<v1::EndSessionRequest>,
    ) -> Result<Response<v1::EndSessionResponse>, Status> {
        let operator = self.operator(&request)?;
        let message = request.into_inner();
        let key = key!(message);
        let session = SessionId::from_shown(message.session_id);
        match self.submit(operator, key, OperatorRequest::EndSession { session, kill: message.kill }).await? {
            Reply::SessionEnded { gone, still_mapped } => {
                let state = if gone { SessionState::Gone } else { SessionState::Silent };
                let stays =
                    if gone { None } else { self.read(move |broker| broker.session(session)).await? };
                Ok(Response::new(v1::EndSessionResponse {
                    state: view::session_state(state).into(),
                    still_mapped_bytes: still_mapped.get(),
                    pid: stays.as_ref().map_or(0, |session| session.pid),
                    silent_reason: stays.and_then(|session| session.silent_reason).unwrap_or_default(),
                }))
            }
            other => Err(status::wrong_reply("EndSession", &other)),
        }
    }

    async fn list_all_allocations(
        &self,
        request: Request<v1::ListAllAllocationsRequest>,
    ) -> Result<Response<v1::ListAllAllocationsResponse>, Status> {
        self.operator(&request)?;
        let message = request.into_inner();
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let tenant = convert::tenant(message.tenant).map_err(|refusal| refused(&refusal))?;
        let (views, more) = self
            .read(move |broker| {
                broker.list_allocations(
                    tenant.as_deref(),
                    page.after.map(AllocationId::from_shown),
                    page.size,
                )
            })
            .await?;
        let next_page_token = next_token(views.last().map(|view| view.id.shown()), more);
        let allocations = views.into_iter().map(|view| view::allocation(view, For::Operators)).collect();
        Ok(Response::new(v1::ListAllAllocationsResponse { allocations, next_page_token }))
    }

    async fn show_allocation(
        &self,
        request: Request<v1::ShowAllocationRequest>,
    ) -> Result<Response<v1::ShowAllocationResponse>, Status> {
        self.operator(&request)?;
        let target = convert::target(request.into_inner().target).map_err(|refusal| refused(&refusal))?;
        let view =
            self.read(move |broker| broker.show(&target)).await?.map_err(|refusal| refused(&refusal))?;
        let is_pinned = |channel, slot| {
            let read = self.channels.read_words(channel, |words| words.use_of(slot));
            read.and_then(Result::ok).map(|part| part.pinned)
        };
        let allocation = Some(view::allocation_in_use(view, is_pinned));
        Ok(Response::new(v1::ShowAllocationResponse { allocation }))
    }

    async fn free_allocation(
        &self,
        request: Request<v1::FreeAllocationRequest>,
    ) -> Result<Response<v1::FreeAllocationResponse>, Status> {
        let operator = self.operator(&request)?;
        let message = request.into_inner();
        let key = key!(message);
        let target = convert::target(message.target).map_err(|refusal| refused(&refusal))?;
        match self.submit(operator, key, OperatorRequest::FreeAllocation(target)).await? {
            Reply::AllocationFreed { allocation, still_charged, mappers } => {
                Ok(Response::new(v1::FreeAllocationResponse {
                    allocation_id: allocation.shown(),
                    still_charged_bytes: still_charged.get(),
                    mapper_session_ids: mappers.iter().map(|session| session.shown()).collect(),
                }))
            }
            other => Err(status::wrong_reply("FreeAllocation", &other)),
        }
    }

    async fn revoke_mappings(
        &self,
        request: Request<v1::RevokeMappingsRequest>,
    ) -> Result<Response<v1::RevokeMappingsResponse>, Status> {
        let operator = self.operator(&request)?;
        let message = request.into_inner();
        let key = key!(message);
        let target = convert::target(message.target).map_err(|refusal| refused(&refusal))?;
        let parts = message.part_indexes.into_iter().map(PartIndex).collect();
        let change = OperatorRequest::RevokeMappings { target, parts, wait: message.wait };
        match self.submit(operator, key, change).await? {
            Reply::MappingsRevoked { allocation, parts } => Ok(Response::new(v1::RevokeMappingsResponse {
                allocation_id: allocation.shown(),
                parts: parts.into_iter().map(view::revocation).collect(),
            })),
            other => Err(status::wrong_reply("RevokeMappings", &other)),
        }
    }

    async fn move_parts(
        &self,
        request: Request<v1::MovePartsRequest>,
    ) -> Result<Response<v1::MovePartsResponse>, Status> {
        let operator = self.operator(&request)?;
        let message = request.into_inner();
        let key = key!(message);
        let target = convert::target(message.target).map_err(|refusal| refused(&refusal))?;
        let tier = convert::tier(message.tier).map_err(|refusal| refused(&refusal))?;
        let parts = message.part_indexes.into_iter().map(PartIndex).collect();
        match self.submit(operator, key, OperatorRequest::MoveParts { target, parts, tier }).await? {
            Reply::PartsMoved { allocation, parts } => Ok(Response::new(v1::MovePartsResponse {
                allocation_id: allocation.shown(),
                parts: parts.into_iter().map(view::part_move).collect(),
            })),
            other => Err(status::wrong_reply("MoveParts", &other)),
        }
    }

    async fn write_back_parts(
        &self,
        request: Request<v1::WriteBackPartsRequest>,
    ) -> Result<Response<v1::WriteBackPartsResponse>, Status> {
        let operator = self.operator(&request)?;
        self.write_back(operator, request.into_inner()).await.map(Response::new)
    }

    async fn hold_parts(
        &self,
        request: Request<v1::HoldPartsRequest>,
    ) -> Result<Response<v1::HoldPartsResponse>, Status> {
        let operator = self.operator(&request)?;
        self.hold(operator, request.into_inner()).await.map(Response::new)
    }

    async fn advise_parts(
        &self,
        request: Request<v1::AdvisePartsRequest>,
    ) -> Result<Response<v1::AdvisePartsResponse>, Status> {
        let operator = self.operator(&request)?;
        self.advise(operator, request.into_inner()).await.map(Response::new)
    }

    async fn list_waits(
        &self,
        request: Request<v1::ListWaitsRequest>,
    ) -> Result<Response<v1::ListWaitsResponse>, Status> {
        self.operator(&request)?;
        self.waits(request.into_inner()).await.map(Response::new)
    }

    async fn cancel_wait(
        &self,
        request: Request<v1::CancelWaitRequest>,
    ) -> Result<Response<v1::CancelWaitResponse>, Status> {
        let operator = self.operator(&request)?;
        self.cancel(operator, request.into_inner()).await.map(Response::new)
    }

    async fn list_prefetches(
        &self,
        request: Request<v1::ListPrefetchesRequest>,
    ) -> Result<Response<v1::ListPrefetchesResponse>, Status> {
        self.operator(&request)?;
        self.prefetches(request.into_inner()).await.map(Response::new)
    }

    async fn cancel_prefetch(
        &self,
        request: Request<v1::CancelPrefetchRequest>,
    ) -> Result<Response<v1::CancelPrefetchResponse>, Status> {
        let operator = self.operator(&request)?;
        self.cancel_prefetch_of(operator, request.into_inner()).await.map(Response::new)
    }

    async fn list_turns(
        &self,
        request: Request<v1::ListTurnsRequest>,
    ) -> Result<Response<v1::ListTurnsResponse>, Status> {
        self.operator(&request)?;
        self.turns(request.into_inner()).await.map(Response::new)
    }

    async fn yield_turn(
        &self,
        request: Request<v1::YieldTurnRequest>,
    ) -> Result<Response<v1::YieldTurnResponse>, Status> {
        let operator = self.operator(&request)?;
        self.yield_turn_of(operator, request.into_inner()).await.map(Response::new)
    }

    async fn get_settings(
        &self,
        request: Request<v1::GetSettingsRequest>,
    ) -> Result<Response<v1::GetSettingsResponse>, Status> {
        self.operator(&request)?;
        self.settings().await.map(Response::new)
    }

    async fn change_settings(
        &self,
        request: Request<v1::ChangeSettingsRequest>,
    ) -> Result<Response<v1::ChangeSettingsResponse>, Status> {
        let operator = self.operator(&request)?;
        self.change(operator, request.into_inner()).await.map(Response::new)
    }

    async fn list_moves(
        &self,
        request: Request<v1::ListMovesRequest>,
    ) -> Result<Response<v1::ListMovesResponse>, Status> {
        self.operator(&request)?;
        self.moving(request.into_inner()).await.map(Response::new)
    }

    async fn list_links(
        &self,
        request: Request<v1::ListLinksRequest>,
    ) -> Result<Response<v1::ListLinksResponse>, Status> {
        self.operator(&request)?;
        Ok(Response::new(self.links()))
    }

    async fn get_node(
        &self,
        request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::GetNodeResponse>, Status> {
        self.operator(&request)?;
        let node = self.read(Broker::node).await?;
        Ok(Response::new(v1::GetNodeResponse {
            version: self.facts.version.clone(),
            driver: self.facts.driver.clone(),
            driver_reason: self.facts.driver_reason.clone(),
            draining: node.draining,
            boot_epoch: node.boot_epoch,
            session_count: view::count(node.sessions),
            allocation_count: view::count(node.allocations),
            fds_in_flight: view::count(node.fds_in_flight),
            invariant_violations: node.invariant_violations,
            started_at: Some(self.facts.started_at.into()),
            applied_tenants: self.tenants.drift().map(apply::applied),
        }))
    }

    async fn get_readings(
        &self,
        request: Request<v1::GetReadingsRequest>,
    ) -> Result<Response<v1::GetReadingsResponse>, Status> {
        self.operator(&request)?;
        let facts = Arc::clone(&self.facts);
        // Files of `/proc` and `/sys` take time where the driver's module is busy.
        let read = tokio::task::spawn_blocking(move || facts.report.readings().to_json());
        let json = read.await.map_err(|_| status::stopping())?;
        Ok(Response::new(v1::GetReadingsResponse { json }))
    }

    async fn list_devices(
        &self,
        request: Request<v1::ListDevicesRequest>,
    ) -> Result<Response<v1::ListDevicesResponse>, Status> {
        self.operator(&request)?;
        let devices = self.read(Broker::devices).await?.into_iter().map(view::device).collect();
        Ok(Response::new(v1::ListDevicesResponse { devices }))
    }

    async fn start_trace(
        &self,
        request: Request<v1::StartTraceRequest>,
    ) -> Result<Response<v1::StartTraceResponse>, Status> {
        self.operator(&request)?;
        self.start(request.into_inner()).await.map(Response::new)
    }

    async fn stop_trace(
        &self,
        request: Request<v1::StopTraceRequest>,
    ) -> Result<Response<v1::StopTraceResponse>, Status> {
        self.operator(&request)?;
        self.stop().map(Response::new)
    }

    async fn save_trace(
        &self,
        request: Request<v1::SaveTraceRequest>,
    ) -> Result<Response<Self::SaveTraceStream>, Status> {
        self.operator(&request)?;
        self.save().map(Response::new)
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        let operator = self.operator(&request)?;
        let message = request.into_inner();
        let key = key!(message);
        match self.submit(operator, key, OperatorRequest::Drain { draining: !message.cancel }).await? {
            Reply::Drained { draining, sessions, charged } => Ok(Response::new(v1::DrainResponse {
                draining,
                session_count: view::count(sessions),
                held_bytes: charged.get(),
            })),
            other => Err(status::wrong_reply("Drain", &other)),
        }
    }
}

fn set_quota(message: v1::SetQuotaRequest) -> Result<OperatorRequest, Refusal> {
    Ok(OperatorRequest::SetQuota {
        tier: convert::tier(message.tier)?,
        guarantee: convert::quantity("guarantee", message.guarantee.as_deref())?,
        limit: convert::quantity("limit", message.limit.as_deref())?,
        device: convert::selector(message.device)?,
        tenant: message.tenant,
    })
}
