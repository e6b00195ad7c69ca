//! A single-thread client with one call in flight: the same for the daemon and for the bare echo.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use vramd_proto::v1::{
    Allocation, DescribeAllocationRequest, describe_allocation_request::Target,
    memory_service_client::MemoryServiceClient,
};

#[derive(Debug)]
pub(crate) struct Caller {
    runtime: Runtime,
    client: MemoryServiceClient<Channel>,
    request: DescribeAllocationRequest,
}

impl Caller {
    /// Connects to describe one allocation repeatedly.
    pub(crate) fn connect(socket: &Path, session_id: u64, allocation_id: u64) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let connected = runtime.block_on(endpoint.connect());
        let client = MemoryServiceClient::new(connected.with_context(|| socket.display().to_string())?);
        let target = Some(Target::AllocationId(allocation_id));
        Ok(Self { runtime, client, request: DescribeAllocationRequest { session_id, target } })
    }

    pub(crate) fn answer(&mut self) -> Result<Allocation> {
        let answer = self.runtime.block_on(self.client.describe_allocation(self.request.clone()))?;
        answer.into_inner().allocation.context("an answer without an allocation")
    }

    /// Makes `calls` calls in sequence, and times each from before it is sent until its answer is decoded.
    pub(crate) fn time(&mut self, calls: usize) -> Result<Vec<Duration>> {
        let Self { runtime, client, request } = self;
        runtime.block_on(async {
            let mut times = Vec::with_capacity(calls);
            for _ in 0..calls {
                let request = request.clone();
                let started = Instant::now();
                let answer = client.describe_allocation(request).await?;
                times.push(started.elapsed());
                ensure!(answer.get_ref().allocation.is_some(), "an answer without an allocation");
            }
            Ok(times)
        })
    }
}
