//! `MemoryService`: the requests of client processes.
//!
//! A method identifies the caller by its socket, converts the request for the core, and waits for the answer. The core
//! decides everything else, also whether the session is the caller's.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use broker_core::{
    AllocationSpec, Broker, ClientRequest, Event, FileId, FileSpan, Refusal, Reply, RequestKey,
};
use tonic::{Request, Response, Status, async_trait};
use vramd_proto::v1::{self, memory_service_server::MemoryService};
use vramd_types::{AllocationId, Bytes, SessionId};

use super::{
    caller::Caller,
    convert::{
        page::{Page, next_token},
        request as convert,
        view::{self, For},
    },
    decision,
    file_loading::Loading,
    mapped_files::{self, MappedFiles},
    status::{self, refused},
};
use crate::{reactor::Inbox, telemetry::Telemetry};

#[derive(Clone, Debug)]
pub(super) struct Memory {
    inbox: Inbox,
    /// Maximum time of a call.
    call_timeout: Duration,
    telemetry: Telemetry,
    files: Loading,
    mapped_files: MappedFiles,
}

impl Memory {
    pub(super) fn new(
        inbox: Inbox,
        call_timeout: Duration,
        telemetry: Telemetry,
        files: Loading,
        mapped_files: MappedFiles,
    ) -> Self {
        Self { inbox, call_timeout, telemetry, files, mapped_files }
    }

    async fn submit(
        &self,
        caller: Caller,
        session: SessionId,
        key: Option<RequestKey>,
        request: ClientRequest,
    ) -> Result<Reply, Status> {
        let (peer, held) = (caller.living(session)?, caller.held());
        let about = |request: &ClientRequest| match request {
            ClientRequest::FreeBatch(ids) | ClientRequest::Detach(ids) => ids.clone(),
            ClientRequest::Seal(id) | ClientRequest::Advise(id, _) | ClientRequest::Evict(id, _) => vec![*id],
            ClientRequest::AllocateBatch { .. }
            | ClientRequest::CancelBatch(_)
            | ClientRequest::Load { .. }
            | ClientRequest::Attach(_)
            | ClientRequest::AttachUnpinned(_) => Vec::new(),
        };
        decision::decide(&self.telemetry, request, about, |request| {
            self.inbox.request(held, |call| Event::Client { call, session, peer, key, request })
        })
        .await
        .map_err(decision::Fault::for_client)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Broker) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        decision::read(&self.telemetry, self.inbox.read(read)).await.map_err(decision::Fault::for_client)
    }
}

/// Reads the fields that every mutation carries.
macro_rules! opened {
    ($request:expr) => {{
        let caller = Caller::of(&$request)?;
        let message = $request.into_inner();
        let session = convert::session(message.session_id).map_err(|refusal| refused(&refusal))?;
        let key = convert::key(&message.request_id, &message).map_err(|refusal| refused(&refusal))?;
        (caller, message, session, key)
    }};
}

#[async_trait]
impl MemoryService for Memory {
    async fn allocate_batch(
        &self,
        request: Request<v1::AllocateBatchRequest>,
    ) -> Result<Response<v1::AllocateBatchResponse>, Status> {
        // Benchmarks take the time of a batch from these log lines: from `batch decoded` to `batch answered`, or to the
        // last `packet sent`.
        let (decoded, items) = (Instant::now(), request.get_ref().items.len());
        tracing::debug!(items, "batch decoded");
        let (caller, message, session, key) = opened!(request);
        let specs = convert::specs(message.items).map_err(|refusal| refused(&refusal))?;
        let wait = convert::wait(message.wait_ms, self.call_timeout).map_err(|refusal| refused(&refusal))?;
        let batch = ClientRequest::AllocateBatch { items: specs, wait };
        match self.submit(caller, session, key, batch).await? {
            Reply::Allocated(views) => {
                let allocations =
                    views.into_iter().map(|view| view::allocation(view, For::Clients)).collect();
                let took_us = u64::try_from(decoded.elapsed().as_micros()).unwrap_or(u64::MAX);
                tracing::debug!(items, took_us, "batch answered");
                Ok(Response::new(v1::AllocateBatchResponse { allocations }))
            }
            other => Err(status::wrong_reply("AllocateBatch", &other)),
        }
    }

    async fn cancel_allocate_batch(
        &self,
        request: Request<v1::CancelAllocateBatchRequest>,
    ) -> Result<Response<v1::CancelAllocateBatchResponse>, Status> {
        let caller = Caller::of(&request)?;
        let message = request.into_inner();
        let session = convert::session(message.session_id).map_err(|refusal| refused(&refusal))?;
        let request_id = convert::request_id(&message.request_id).map_err(|refusal| refused(&refusal))?;
        match self.submit(caller, session, None, ClientRequest::CancelBatch(request_id)).await? {
            Reply::WaitCancelled => Ok(Response::new(v1::CancelAllocateBatchResponse {})),
            other => Err(status::wrong_reply("CancelAllocateBatch", &other)),
        }
    }

    async fn free_batch(
        &self,
        request: Request<v1::FreeBatchRequest>,
    ) -> Result<Response<v1::FreeBatchResponse>, Status> {
        let (caller, message, session, key) = opened!(request);
        let ids = convert::allocations(&message.allocation_ids);
        match self.submit(caller, session, key, ClientRequest::FreeBatch(ids)).await? {
            Reply::Released(items) => {
                let results = items.into_iter().map(|(id, outcome)| view::released(id, outcome)).collect();
                Ok(Response::new(v1::FreeBatchResponse { results }))
            }
            other => Err(status::wrong_reply("FreeBatch", &other)),
        }
    }

    async fn attach(
        &self,
        request: Request<v1::AttachRequest>,
    ) -> Result<Response<v1::AttachResponse>, Status> {
        let (caller, message, session, key) = opened!(request);
        let target = convert::target(message.target).map_err(|refusal| refused(&refusal))?;
        let attach = if message.unheld { ClientRequest::AttachUnpinned } else { ClientRequest::Attach };
        match self.submit(caller, session, key, attach(target)).await? {
            Reply::Attached(view) => {
                let allocation = Some(view::allocation(*view, For::Clients));
                Ok(Response::new(v1::AttachResponse { allocation }))
            }
            other => Err(status::wrong_reply("Attach", &other)),
        }
    }

    async fn detach(
        &self,
        request: Request<v1::DetachRequest>,
    ) -> Result<Response<v1::DetachResponse>, Status> {
        let (caller, message, session, key) = opened!(request);
        let ids = convert::allocations(&message.allocation_ids);
        match self.submit(caller, session, key, ClientRequest::Detach(ids)).await? {
            Reply::Released(items) => {
                let results = items.into_iter().map(|(id, outcome)| view::released(id, outcome)).collect();
                Ok(Response::new(v1::DetachResponse { results }))
            }
            other => Err(status::wrong_reply("Detach", &other)),
        }
    }

    async fn seal(&self, request: Request<v1::SealRequest>) -> Result<Response<v1::SealResponse>, Status> {
        let (caller, message, session, key) = opened!(request);
        let id = AllocationId::from_shown(message.allocation_id);
        match self.submit(caller, session, key, ClientRequest::Seal(id)).await? {
            Reply::Sealed(view) => {
                let allocation = Some(view::allocation(*view, For::Clients));
                Ok(Response::new(v1::SealResponse { allocation }))
            }
            other => Err(status::wrong_reply("Seal", &other)),
        }
    }

    async fn advise(
        &self,
        request: Request<v1::AdviseRequest>,
    ) -> Result<Response<v1::AdviseResponse>, Status> {
        let (caller, message, session, key) = opened!(request);
        let id = AllocationId::from_shown(message.allocation_id);
        let advice = convert::advice(&message).map_err(|refusal| refused(&refusal))?;
        match self.submit(caller, session, key, ClientRequest::Advise(id, advice)).await? {
            Reply::Advised(view) => {
                let allocation = Some(view::allocation(*view, For::Clients));
                Ok(Response::new(v1::AdviseResponse { allocation }))
            }
            other => Err(status::wrong_reply("Advise", &other)),
        }
    }

    async fn evict(&self, request: Request<v1::EvictRequest>) -> Result<Response<v1::EvictResponse>, Status> {
        let (caller, message, session, key) = opened!(request);
        let id = AllocationId::from_shown(message.allocation_id);
        let tier = convert::tier(message.tier).map_err(|refusal| refused(&refusal))?;
        match self.submit(caller, session, key, ClientRequest::Evict(id, tier)).await? {
            Reply::PartsMoved { allocation, parts } => Ok(Response::new(v1::EvictResponse {
                allocation_id: allocation.shown(),
                parts: parts.into_iter().map(view::part_move).collect(),
            })),
            other => Err(status::wrong_reply("Evict", &other)),
        }
    }

    async fn load_file(
        &self,
        request: Request<v1::LoadFileRequest>,
    ) -> Result<Response<v1::LoadFileResponse>, Status> {
        let (caller, message, session, key) = opened!(request);
        let refused = |refusal| refused(&refusal);
        let item = message.item.unwrap_or_default();
        let mut spec = convert::spec(item).map_err(refused)?;
        match message.size_bytes.map(Bytes::new) {
            None => {}
            Some(Bytes::ZERO) => {
                return Err(refused(Refusal::SizeInvalid { field: "size_bytes", size: Bytes::ZERO }));
            }
            Some(size) => spec.size = size,
        }
        let peer = caller.living(session)?;
        let offset = Bytes::new(message.offset_bytes);
        let was_asked = self.inbox.read(move |broker| broker.was_asked_to_load(session, peer, key)).await;
        let reply = if was_asked == Some(true) {
            // The retry does not depend on the file's present state.
            let file = FileSpan { file: FileId(0), path: Arc::from(""), offset };
            self.submit(caller, session, key, ClientRequest::Load { spec, file }).await?
        } else {
            let opened = self.files.open(&caller, message.fd, offset, spec.size).await;
            // The core can find the file while `named` lives, which is until the answer.
            let (named, file, size) = opened.map_err(|why| refused(why.into()))?;
            let load = ClientRequest::Load { spec: AllocationSpec { size, ..spec }, file };
            let reply = self.submit(caller, session, key, load).await?;
            drop(named);
            reply
        };
        match reply {
            Reply::Sealed(view) => {
                let allocation = Some(view::allocation(*view, For::Clients));
                Ok(Response::new(v1::LoadFileResponse { allocation }))
            }
            other => Err(status::wrong_reply("LoadFile", &other)),
        }
    }

    async fn describe_allocation(
        &self,
        request: Request<v1::DescribeAllocationRequest>,
    ) -> Result<Response<v1::DescribeAllocationResponse>, Status> {
        let caller = Caller::of(&request)?;
        let message = request.into_inner();
        let session = convert::session(message.session_id).map_err(|refusal| refused(&refusal))?;
        let target = convert::target(message.target).map_err(|refusal| refused(&refusal))?;
        let peer = caller.living(session)?;
        let view = self.read(move |broker| broker.describe(session, peer, &target)).await?;
        let allocation = Some(view::allocation(view, For::Clients));
        Ok(Response::new(v1::DescribeAllocationResponse { allocation }))
    }

    async fn list_allocations(
        &self,
        request: Request<v1::ListAllocationsRequest>,
    ) -> Result<Response<v1::ListAllocationsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let message = request.into_inner();
        let session = convert::session(message.session_id).map_err(|refusal| refused(&refusal))?;
        let page =
            Page::parse(message.page_size, &message.page_token).map_err(|refusal| refused(&refusal))?;
        let peer = caller.living(session)?;
        let (views, more) = self
            .read(move |broker| {
                let after = page.after.map(AllocationId::from_shown);
                broker.list_visible(session, peer, &message.name_prefix, after, page.size)
            })
            .await?;
        let next_page_token = next_token(views.last().map(|view| view.id.shown()), more);
        let allocations = views.into_iter().map(|view| view::allocation(view, For::Clients)).collect();
        Ok(Response::new(v1::ListAllocationsResponse { allocations, next_page_token }))
    }

    async fn get_own_quota(
        &self,
        request: Request<v1::GetOwnQuotaRequest>,
    ) -> Result<Response<v1::GetOwnQuotaResponse>, Status> {
        let caller = Caller::of(&request)?;
        let message = request.into_inner();
        let session = convert::session(message.session_id).map_err(|refusal| refused(&refusal))?;
        let peer = caller.living(session)?;
        let (tenant, places) = self.read(move |broker| broker.own_quota(session, peer)).await?;
        let places = places.into_iter().map(view::own_quota).collect();
        Ok(Response::new(v1::GetOwnQuotaResponse { tenant, places }))
    }

    async fn check_file(
        &self,
        request: Request<v1::CheckFileRequest>,
    ) -> Result<Response<v1::CheckFileResponse>, Status> {
        let caller = Caller::of(&request)?;
        let message = request.into_inner();
        let session = convert::session(message.session_id).map_err(|refusal| refused(&refusal))?;
        let peer = caller.living(session)?;
        let requested = message.device;
        let device = self.read(move |broker| broker.device_for(session, peer, requested.as_deref())).await?;
        let checked = self.mapped_files.check(&caller, message.fd, &device).await;
        checked.map(Response::new).map_err(|refusal| refused(&refusal))
    }

    async fn report_fall_back(
        &self,
        request: Request<v1::ReportFallBackRequest>,
    ) -> Result<Response<v1::ReportFallBackResponse>, Status> {
        let caller = Caller::of(&request)?;
        let message = request.into_inner();
        let session = convert::session(message.session_id).map_err(|refusal| refused(&refusal))?;
        let peer = caller.living(session)?;
        // Refuses a session that is not the caller's.
        self.read(move |broker| broker.device_for(session, peer, None)).await?;
        let reason = mapped_files::of_message(message.reason).map_err(|refusal| refused(&refusal))?;
        self.mapped_files.count(reason, Bytes::new(message.size_bytes));
        Ok(Response::new(v1::ReportFallBackResponse {}))
    }
}
