//! A client process's way to the daemon.

use std::{
    env,
    path::PathBuf,
    time::{Duration, Instant},
};

use vramd_proto::v1::{self, Device};
use vramd_types::{AllocationId, Reason, SessionId};
use vramd_words::Access;

use crate::{
    allocation::{Allocation, Sealed},
    error::{Error, Result},
    fork::ProcessBound,
    handle::Handle,
    info::{AllocationInfo, AllocationKind, AllocationState},
    mapping::Mode,
    paths,
    pins::{Pinnable, PinnedSet, pin_set},
    raw::RawClient,
    request::{AllocationRequest, Target},
    request_id::RequestId,
    session::{Parting, Released, Session, check_home, missing},
};

/// As long as the daemon itself works on a call, unless configured.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A session with the daemon, open until the client, its clones and all handles made by it are dropped.
#[derive(Clone, Debug)]
pub struct Client {
    session: ProcessBound<Session>,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    socket_dir: Option<PathBuf>,
    name: Option<String>,
    devices: Option<Vec<String>>,
    request_timeout: Duration,
}

impl Client {
    /// Opens a session with the daemon of this node.
    pub fn connect() -> Result<Self> {
        Self::builder().connect()
    }

    pub fn builder() -> ClientBuilder {
        ClientBuilder { socket_dir: None, name: None, devices: None, request_timeout: REQUEST_TIMEOUT }
    }

    /// Allocates, and waits until the memory is mapped: zero, writable.
    pub fn allocate(&self, request: AllocationRequest) -> Result<Allocation> {
        let mut allocations = self.allocate_batch([request])?;
        allocations.pop().ok_or_else(|| missing("allocation"))
    }

    /// Allocates all or nothing, in the order of the requests.
    pub fn allocate_batch(
        &self,
        requests: impl IntoIterator<Item = AllocationRequest>,
    ) -> Result<Vec<Allocation>> {
        let handles = self.claim_new(requests.into_iter().collect())?;
        Ok(handles.into_iter().map(Allocation::new).collect())
    }

    /// Maps a sealed allocation read-only, by id, by `name` or by `tenant/name`.
    pub fn attach(&self, target: impl Into<Target>) -> Result<Sealed> {
        self.claim_attached(target.into(), AllocationKind::Movable).map(Sealed::new)
    }

    /// Maps fixed memory of the tenant for writing, while the session that allocated it lives.
    pub fn attach_fixed(&self, target: impl Into<Target>) -> Result<Allocation> {
        self.claim_attached(target.into(), AllocationKind::Fixed).map(Allocation::new)
    }

    /// Pins several allocations together, all or none, so that two programs which need the same ones do not each wait for
    /// what the other has. Waits until all are here. At most 1,024 parts.
    pub fn pin_set(&self, set: &[(&dyn Pinnable, Access)]) -> Result<PinnedSet> {
        check_home(&self.session)?;
        pin_set(set, |handle| handle.is_of(&self.session), || self.session.deadline())
    }

    /// Frees an allocation that this session, or this tenant, owns and has no handle of.
    pub fn free(&self, id: AllocationId) -> Result<Released> {
        check_home(&self.session)?;
        self.session.free(id, self.session.deadline())
    }

    pub fn describe(&self, target: impl Into<Target>) -> Result<AllocationInfo> {
        check_home(&self.session)?;
        self.session.describe(target.into(), self.session.deadline())
    }

    /// What the tenant owns whose name starts with the prefix, without parts; everything, if it is empty. A prefix
    /// `tenant/…` shows what that tenant lets this one read.
    pub fn list(&self, name_prefix: &str) -> Result<Vec<AllocationInfo>> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        let mut request = v1::ListAllocationsRequest {
            session_id: self.session.id().get(),
            name_prefix: name_prefix.to_owned(),
            ..Default::default()
        };
        let mut all = Vec::new();
        loop {
            let page = self.session.call(deadline, request.clone(), |mut client, request| async move {
                client.list_allocations(request).await
            })?;
            all.extend(page.allocations.into_iter().map(AllocationInfo::from));
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    pub fn session_id(&self) -> SessionId {
        self.session.id()
    }

    /// Whom this session is charged to.
    pub fn tenant(&self) -> &str {
        self.session.tenant()
    }

    /// The daemon's devices that this session sees.
    pub fn devices(&self) -> &[Device] {
        self.session.devices()
    }

    pub fn daemon_version(&self) -> &str {
        self.session.daemon_version()
    }

    /// Whether the session stands. What it maps stays usable even if not; a new client can be connected.
    pub fn is_connected(&self) -> bool {
        self.session.is_home() && self.session.table().ending().is_none()
    }

    /// Whether the node is being taken out of service.
    pub fn is_draining(&self) -> bool {
        self.session.is_home() && self.session.table().is_draining()
    }

    /// Waits until everything that was dropped so far is unmapped and freed or detached, but for what guards still pin.
    pub fn flush(&self) -> Result<()> {
        check_home(&self.session)?;
        self.flush_until(self.session.deadline())
    }

    fn flush_until(&self, deadline: Instant) -> Result<()> {
        if self.session.releases().flush(deadline) { Ok(()) } else { Err(Error::Deadline) }
    }

    /// Allocates and waits for all parts. What was dropped before makes room first.
    pub(crate) fn claim_new(&self, requests: Vec<AllocationRequest>) -> Result<Vec<Handle>> {
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        self.flush_until(deadline)?;
        let request_id = requests.first().and_then(|request| request.request_id);
        let request = v1::AllocateBatchRequest {
            session_id: self.session.id().get(),
            request_id: request_id.unwrap_or_else(RequestId::random).to_vec(),
            items: requests.into_iter().map(|request| request.spec).collect(),
        };
        let _expecting = self.session.table().expect();
        let _seat = self.session.sit();
        let answer = self.session.call(deadline, request, |mut client, request| async move {
            client.allocate_batch(request).await
        })?;
        let allocations = answer.allocations.into_iter().map(AllocationInfo::from);
        self.claim(allocations, Parting::Free, deadline)
    }

    pub(crate) fn claim_attached(&self, target: Target, kind: AllocationKind) -> Result<Handle> {
        use v1::attach_request::Target as Wire;
        check_home(&self.session)?;
        let deadline = self.session.deadline();
        self.flush_until(deadline)?;
        let target = match target {
            Target::Id(id) => Wire::AllocationId(id.get()),
            Target::Name(name) => Wire::Name(name),
        };
        let request = v1::AttachRequest {
            session_id: self.session.id().get(),
            request_id: RequestId::random().to_vec(),
            target: Some(target),
        };
        let _expecting = self.session.table().expect();
        let _seat = self.session.sit();
        let answer = self
            .session
            .call(deadline, request, |mut client, request| async move { client.attach(request).await })?;
        let info = AllocationInfo::from(answer.allocation.ok_or_else(|| missing("allocation"))?);
        let fixed = info.kind == AllocationKind::Fixed;
        let refusal = match kind {
            AllocationKind::Fixed if !fixed => {
                Some(Error::refused(Reason::KindUnsupported, &[("kind", &"movable")]))
            }
            AllocationKind::Fixed => None,
            // Its own session may map an open one again, which has a handle of its own already, or lost it.
            _ if info.state != AllocationState::Sealed => {
                Some(Error::refused(Reason::NotSealed, &[("allocation", &info.id)]))
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            // The daemon has attached it. Who had a handle before keeps it; otherwise it goes again.
            drop(Handle::claim(&self.session, info, Parting::Detach));
            return Err(refusal);
        }
        self.claim([info], Parting::Detach, deadline)?.pop().ok_or_else(|| missing("allocation"))
    }

    /// Handles for all of them, each with all its parts, or for none: then nothing of them is left when this returns.
    fn claim(
        &self,
        allocations: impl IntoIterator<Item = AllocationInfo>,
        parting: Parting,
        deadline: Instant,
    ) -> Result<Vec<Handle>> {
        let handles = allocations.into_iter().map(|info| Handle::claim(&self.session, info, parting));
        let claimed = handles.collect::<Result<Vec<_>>>().and_then(|mut handles| {
            handles.iter_mut().try_for_each(|handle| handle.wait_held(deadline))?;
            Ok(handles)
        });
        if claimed.is_err() {
            // The cause is what the caller should read, not what becomes of the clearing up.
            let _ = self.flush_until(self.session.deadline());
        }
        claimed
    }
}

impl ClientBuilder {
    /// Where the daemon's sockets are, if not at [`crate::socket_dir`].
    #[must_use]
    pub fn socket_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(dir.into());
        self
    }

    /// What operators read beside the session; the program's own name unless told.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// UUIDs of the devices that this process sees. Unless told, `VRAMD_VISIBLE_DEVICES` says (UUIDs, separated by
    /// commas). Without it, CUDA is asked where there are several; a raw session then takes any.
    #[must_use]
    pub fn devices(mut self, uuids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.devices = Some(uuids.into_iter().map(Into::into).collect());
        self
    }

    /// How long a call may take, waiting for mappings included. 300 s unless told.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    pub fn connect(self) -> Result<Client> {
        self.open(Mode::Map)
    }

    /// For programs that map parts themselves.
    pub fn connect_raw(self) -> Result<RawClient> {
        self.open(Mode::HandOver).map(RawClient::new)
    }

    fn open(self, mode: Mode) -> Result<Client> {
        let socket_dir = self.socket_dir.unwrap_or_else(paths::socket_dir);
        let name = self.name.or_else(program_name).unwrap_or_default();
        let devices = self.devices.or_else(visible_devices);
        let session = Session::open(&socket_dir, name, devices, mode, self.request_timeout)?;
        Ok(Client { session })
    }
}

fn program_name() -> Option<String> {
    let program = PathBuf::from(env::args_os().next()?);
    Some(program.file_name()?.to_string_lossy().into_owned())
}

fn visible_devices() -> Option<Vec<String>> {
    let list = env::var("VRAMD_VISIBLE_DEVICES").ok()?;
    Some(list.split(',').map(str::trim).filter(|uuid| !uuid.is_empty()).map(str::to_owned).collect())
}
