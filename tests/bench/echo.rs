//! The cost of a call that does nothing: a tonic server that answers every `DescribeAllocation` with the same message. It is a process of
//! its own, with as many threads as the daemon.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use prost::Message as _;
use tokio::{net::UnixListener, runtime::Builder};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, async_trait, transport::Server};
use vramd_proto::v1::{
    self,
    memory_service_server::{MemoryService, MemoryServiceServer},
};

use crate::bare::end_with_input;

/// The number of threads that the daemon has for its calls.
const WORKER_THREADS: usize = 2;

/// Serves until the input ends. `answer` is a file with an encoded `DescribeAllocationResponse`.
pub(crate) fn serve(socket: &Path, answer: &Path) -> Result<()> {
    end_with_input();
    let answer = fs::read(answer).with_context(|| answer.display().to_string())?;
    let answer = v1::DescribeAllocationResponse::decode(answer.as_slice())?;
    let runtime = Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build()?;
    let service = MemoryServiceServer::new(Echo { answer });
    runtime.block_on(async {
        let connections = UnixListenerStream::new(UnixListener::bind(socket)?);
        Ok(Server::builder().add_service(service).serve_with_incoming(connections).await?)
    })
}

#[derive(Debug)]
struct Echo {
    answer: v1::DescribeAllocationResponse,
}

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl MemoryService for Echo {
    async fn describe_allocation(
        &self,
        _: Request<v1::DescribeAllocationRequest>,
    ) -> Answer<v1::DescribeAllocationResponse> {
        Ok(Response::new(self.answer.clone()))
    }

    async fn allocate_batch(
        &self,
        _: Request<v1::AllocateBatchRequest>,
    ) -> Answer<v1::AllocateBatchResponse> {
        Err(no_echo())
    }

    async fn free_batch(&self, _: Request<v1::FreeBatchRequest>) -> Answer<v1::FreeBatchResponse> {
        Err(no_echo())
    }

    async fn cancel_allocate_batch(
        &self,
        _: Request<v1::CancelAllocateBatchRequest>,
    ) -> Answer<v1::CancelAllocateBatchResponse> {
        Err(no_echo())
    }

    async fn attach(&self, _: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        Err(no_echo())
    }

    async fn detach(&self, _: Request<v1::DetachRequest>) -> Answer<v1::DetachResponse> {
        Err(no_echo())
    }

    async fn seal(&self, _: Request<v1::SealRequest>) -> Answer<v1::SealResponse> {
        Err(no_echo())
    }

    async fn advise(&self, _: Request<v1::AdviseRequest>) -> Answer<v1::AdviseResponse> {
        Err(no_echo())
    }

    async fn evict(&self, _: Request<v1::EvictRequest>) -> Answer<v1::EvictResponse> {
        Err(no_echo())
    }

    async fn load_file(&self, _: Request<v1::LoadFileRequest>) -> Answer<v1::LoadFileResponse> {
        Err(no_echo())
    }

    async fn check_file(&self, _: Request<v1::CheckFileRequest>) -> Answer<v1::CheckFileResponse> {
        Err(no_echo())
    }

    async fn report_fall_back(
        &self,
        _: Request<v1::ReportFallBackRequest>,
    ) -> Answer<v1::ReportFallBackResponse> {
        Err(no_echo())
    }

    async fn list_allocations(
        &self,
        _: Request<v1::ListAllocationsRequest>,
    ) -> Answer<v1::ListAllocationsResponse> {
        Err(no_echo())
    }

    async fn get_own_quota(&self, _: Request<v1::GetOwnQuotaRequest>) -> Answer<v1::GetOwnQuotaResponse> {
        Err(no_echo())
    }
}

fn no_echo() -> Status {
    Status::unimplemented("only DescribeAllocation is echoed")
}
