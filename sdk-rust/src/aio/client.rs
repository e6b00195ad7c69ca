//! A client whose operations are futures.

use std::path::PathBuf;

use tokio::task::spawn_blocking;
use vramd_types::AllocationId;

use crate::{
    client::ClientBuilder,
    error::{Error, Result},
    handles::{
        allocation::{Allocation, Sealed},
        info::{AllocationInfo, AllocationKind},
        load::{self, LoadedFile},
        operations,
        quota::OwnQuota,
        request::{AllocationRequest, Target},
    },
    pins::Pinnable,
    prefetch::{Prefetch, PrefetchRequest, prefetch},
    sequence::{Sequence, SequenceRequest, declare},
    session::{Released, call_style::CallStyle, missing_field, pressure::Pressure},
    turns::{WorkingSet, working_set},
};

/// A session with the daemon whose operations are futures; made by itself or from a [`crate::Client`].
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
}

impl Client {
    /// Opens a session with the daemon of this node.
    pub async fn connect() -> Result<Self> {
        crate::Client::builder().connect_async().await
    }

    /// The same session with blocking calls: for calls that do not wait, and for pools.
    pub fn blocking(&self) -> &crate::Client {
        &self.client
    }

    /// See [`crate::Client::reconnect`].
    pub async fn reconnect(&self) -> Result<Self> {
        let client = self.client.clone();
        blocking(move || client.reconnect()).await.map(Self::from)
    }

    /// Allocates zeroed memory, and waits until it is mapped for writing. It does not wait for
    /// [`AllocationRequest::unpinned`] memory.
    pub async fn allocate(&self, request: AllocationRequest) -> Result<Allocation> {
        let mut allocations = self.allocate_batch([request]).await?;
        allocations.pop().ok_or_else(|| missing_field("allocation"))
    }

    /// Allocates all or nothing, in the order of the requests.
    pub async fn allocate_batch(
        &self,
        requests: impl IntoIterator<Item = AllocationRequest>,
    ) -> Result<Vec<Allocation>> {
        let requests = requests.into_iter().collect();
        let handles = operations::claim_new(CallStyle::Async, self.client.session(), requests).await?;
        Ok(handles.into_iter().map(Allocation::new).collect())
    }

    /// Maps a sealed allocation read-only, by id, by `name` or by `tenant/name`.
    pub async fn attach(&self, target: impl Into<Target>) -> Result<Sealed> {
        let (session, kind) = (self.client.session(), AllocationKind::Movable);
        operations::claim_attached(CallStyle::Async, session, target.into(), kind, false)
            .await
            .map(Sealed::new)
    }

    /// Attaches a sealed allocation without mapping any of it: see [`crate::Client::attach_unpinned`].
    pub async fn attach_unpinned(&self, target: impl Into<Target>) -> Result<Sealed> {
        let (session, kind) = (self.client.session(), AllocationKind::Movable);
        operations::claim_attached(CallStyle::Async, session, target.into(), kind, true)
            .await
            .map(Sealed::new)
    }

    /// See [`crate::Client::load`].
    pub async fn load(
        &self,
        path: impl Into<PathBuf>,
        offset_bytes: u64,
        request: AllocationRequest,
    ) -> Result<Sealed> {
        let session = self.client.session();
        load::load(CallStyle::Async, session, path.into(), offset_bytes, request).await.map(Sealed::new)
    }

    /// See [`crate::Client::load_in_place`].
    pub async fn load_in_place(
        &self,
        path: impl Into<PathBuf>,
        request: AllocationRequest,
    ) -> Result<LoadedFile> {
        load::load_in_place(CallStyle::Async, self.client.session(), path.into(), request).await
    }

    /// Maps fixed memory of the tenant for writing, while the session that allocated it lives.
    pub async fn attach_fixed(&self, target: impl Into<Target>) -> Result<Allocation> {
        let (session, kind) = (self.client.session(), AllocationKind::Fixed);
        operations::claim_attached(CallStyle::Async, session, target.into(), kind, false)
            .await
            .map(Allocation::new)
    }

    /// See [`crate::Client::prefetch`].
    pub async fn prefetch(&self, request: PrefetchRequest<'_>) -> Result<Prefetch> {
        prefetch(CallStyle::Async, self.client.session(), request).await
    }

    /// See [`crate::Client::declare_sequence`].
    pub async fn declare_sequence(&self, request: SequenceRequest<'_>) -> Result<Sequence> {
        declare(CallStyle::Async, self.client.session(), request).await
    }

    /// See [`crate::Client::working_set`].
    pub async fn working_set(&self, name: &str, members: &[&dyn Pinnable]) -> Result<WorkingSet> {
        working_set(CallStyle::Async, self.client.session(), name, members).await
    }

    /// Frees an allocation of this session or its tenant that has no handle.
    pub async fn free(&self, id: AllocationId) -> Result<Released> {
        operations::free_by_id(CallStyle::Async, self.client.session(), id).await
    }

    pub async fn describe(&self, target: impl Into<Target>) -> Result<AllocationInfo> {
        operations::describe(CallStyle::Async, self.client.session(), target.into()).await
    }

    /// See [`crate::Client::list`].
    pub async fn list(&self, name_prefix: &str) -> Result<Vec<AllocationInfo>> {
        operations::list(CallStyle::Async, self.client.session(), name_prefix).await
    }

    /// See [`crate::Client::quota`].
    pub async fn quota(&self) -> Result<Vec<OwnQuota>> {
        operations::quota(CallStyle::Async, self.client.session()).await
    }

    /// See [`crate::Client::pressure`]. It does not wait.
    pub fn pressure<'a>(&self, device: impl Into<Option<&'a str>>) -> Option<Pressure> {
        self.client.pressure(device)
    }

    /// See [`crate::Client::detach_all`].
    pub async fn detach_all(&self) -> Result<()> {
        let client = self.client.clone();
        blocking(move || client.detach_all()).await
    }

    /// See [`crate::Client::attach_all`].
    pub async fn attach_all(&self) -> Result<()> {
        let client = self.client.clone();
        blocking(move || client.attach_all()).await
    }

    /// Waits until everything that was dropped so far is unmapped and freed or detached.
    pub async fn flush(&self) -> Result<()> {
        operations::flush(CallStyle::Async, self.client.session()).await
    }
}

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self { client }
    }
}

impl ClientBuilder {
    /// See [`Self::connect`].
    pub async fn connect_async(self) -> Result<Client> {
        blocking(move || self.connect()).await.map(Client::from)
    }
}

/// Runs blocking work on a thread of the runtime, in the caller's trace.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    #[cfg(feature = "trace-context")]
    let work = crate::rpc::trace::in_this_trace(work);
    match spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::broker_gone(format!("the runtime is shutting down: {error}"))),
        },
    }
}
