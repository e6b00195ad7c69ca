//! A client process's way to the daemon.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use vramd_proto::v1::Device;
use vramd_types::{AllocationId, SessionId};
use vramd_words::Access;

use crate::{
    error::Result,
    handles::{
        allocation::{Allocation, Sealed},
        handle::Handle,
        info::{AllocationInfo, AllocationKind},
        load, operations,
        raw::RawClient,
        request::{AllocationRequest, Target},
    },
    mapping::Mode,
    pins::{Pinnable, PinnedSet, pin_set},
    pool::{Pool, PoolConfig},
    process::fork::ProcessBound,
    session::{
        Released, Session,
        call_style::{CallStyle, run_ready},
        check_process, missing_field,
        pressure::{OnPressure, Pressure},
        socket_paths,
    },
};

/// As long as the daemon itself works on a call, unless configured.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A session with the daemon, open until the client, its clones and all handles made by it are dropped.
#[derive(Clone, Debug)]
pub struct Client {
    session: ProcessBound<Session>,
    /// As it was asked for.
    builder: Arc<ClientBuilder>,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    socket_dir: Option<PathBuf>,
    name: Option<String>,
    devices: Option<Vec<String>>,
    request_timeout: Duration,
    on_pressure: Option<OnPressure>,
}

impl Client {
    /// Opens a session with the daemon of this node.
    pub fn connect() -> Result<Self> {
        Self::builder().connect()
    }

    /// A new session with the daemon that is there now, as this one was opened: for when that has ended. Handles of the
    /// old session are its own still: what they map stands, and what else they are asked answers
    /// [`crate::Error::SessionLost`]. In a forked child it is a session of the child's own.
    pub fn reconnect(&self) -> Result<Self> {
        ClientBuilder::clone(&self.builder).connect()
    }

    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            socket_dir: None,
            name: None,
            devices: None,
            request_timeout: REQUEST_TIMEOUT,
            on_pressure: None,
        }
    }

    /// Allocates, and waits until the memory is mapped: zero, writable. What is [`AllocationRequest::unpinned`] is not waited for.
    pub fn allocate(&self, request: AllocationRequest) -> Result<Allocation> {
        let mut allocations = self.allocate_batch([request])?;
        allocations.pop().ok_or_else(|| missing_field("allocation"))
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
        self.claim_attached(target.into(), AllocationKind::Movable, false).map(Sealed::new)
    }

    /// Attaches a sealed allocation of which nothing is mapped until it is pinned: what is larger than the device is read by pins
    /// of some parts at a time ([`Sealed::pin_parts`]), or copied out. Where the program itself maps, all of it comes at once.
    pub fn attach_unpinned(&self, target: impl Into<Target>) -> Result<Sealed> {
        self.claim_attached(target.into(), AllocationKind::Movable, true).map(Sealed::new)
    }

    /// Loads what a file has from an offset on: as many bytes as the request says, or all there are if it says 0. It is sealed, as if a
    /// program had copied it in and sealed it. Where the daemon knows that the file never changes (fs-verity, or the operator's
    /// `files.immutable_paths`) it reads the file itself, once, and keeps that for what the memory has below its device: parts that
    /// nobody uses leave without being copied, and cost nothing. Any other file is copied. A file that is changed all the same is found
    /// out: whoever pins such a part is refused with [`crate::Error::ContentLost`].
    ///
    /// It takes as long as it takes to read the file: the client's request timeout is for each question whether that is done. What the
    /// request says of waiting for room counts where the file is copied. An [`AllocationRequest::unpinned`] one may be larger than the device.
    pub fn load(
        &self,
        path: impl Into<PathBuf>,
        offset_bytes: u64,
        request: AllocationRequest,
    ) -> Result<Sealed> {
        run_ready(load::load(CallStyle::Blocking, &self.session, path.into(), offset_bytes, request))
            .map(Sealed::new)
    }

    /// Maps fixed memory of the tenant for writing, while the session that allocated it lives.
    pub fn attach_fixed(&self, target: impl Into<Target>) -> Result<Allocation> {
        self.claim_attached(target.into(), AllocationKind::Fixed, false).map(Allocation::new)
    }

    /// Pins several allocations together, all or none, so that two programs which need the same ones do not each wait for
    /// what the other has. Waits until all are here. At most 1,024 parts.
    pub fn pin_set(&self, set: &[(&dyn Pinnable, Access)]) -> Result<PinnedSet> {
        check_process(&self.session)?;
        pin_set(set, |handle| handle.is_of(&self.session), || self.session.deadline())
    }

    /// The same, and waits for no longer than that.
    pub fn pin_set_timeout(&self, set: &[(&dyn Pinnable, Access)], wait: Duration) -> Result<PinnedSet> {
        check_process(&self.session)?;
        pin_set(set, |handle| handle.is_of(&self.session), || self.session.deadline_after(wait))
    }

    /// Frees an allocation that this session, or this tenant, owns and has no handle of.
    pub fn free(&self, id: AllocationId) -> Result<Released> {
        run_ready(operations::free_by_id(CallStyle::Blocking, &self.session, id))
    }

    pub fn describe(&self, target: impl Into<Target>) -> Result<AllocationInfo> {
        run_ready(operations::describe(CallStyle::Blocking, &self.session, target.into()))
    }

    /// What the tenant owns whose name starts with the prefix, without parts; everything, if it is empty. A prefix
    /// `tenant/…` shows what that tenant lets this one read.
    pub fn list(&self, name_prefix: &str) -> Result<Vec<AllocationInfo>> {
        run_ready(operations::list(CallStyle::Blocking, &self.session, name_prefix))
    }

    /// A source of small allocations, which asks the daemon for nothing until the first.
    pub fn pool(&self, config: PoolConfig) -> Result<Pool> {
        check_process(&self.session)?;
        Pool::new(self.clone(), config)
    }

    pub(crate) fn session(&self) -> &ProcessBound<Session> {
        &self.session
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
        self.session.is_own_process() && self.session.table().ending().is_none()
    }

    /// Whether the node is being taken out of service.
    pub fn is_draining(&self) -> bool {
        self.session.is_own_process() && self.session.table().is_draining()
    }

    /// How full a device is, by its UUID or index, as the daemon told last; the session's only one, if none is named. No call. `None`:
    /// the session does not see that device, or none was named and it sees several. Once the session has ended, it is what
    /// was told before.
    pub fn pressure<'a>(&self, device: impl Into<Option<&'a str>>) -> Option<Pressure> {
        check_process(&self.session).ok()?;
        self.session.table().pressures.device(device.into())
    }

    /// The same of all devices that the session sees, and of the tiers below them.
    pub fn pressures(&self) -> Vec<Pressure> {
        if self.session.is_own_process() { self.session.table().pressures.all() } else { Vec::new() }
    }

    /// Waits until everything that was dropped so far is unmapped and freed or detached, but for what guards still pin.
    pub fn flush(&self) -> Result<()> {
        run_ready(operations::flush(CallStyle::Blocking, &self.session))
    }

    pub(crate) fn claim_new(&self, requests: Vec<AllocationRequest>) -> Result<Vec<Handle>> {
        run_ready(operations::claim_new(CallStyle::Blocking, &self.session, requests))
    }

    pub(crate) fn claim_attached(
        &self,
        target: Target,
        kind: AllocationKind,
        unheld: bool,
    ) -> Result<Handle> {
        run_ready(operations::claim_attached(CallStyle::Blocking, &self.session, target, kind, unheld))
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

    /// UUIDs of the devices that this process sees. OnAbandon told, `VRAMD_VISIBLE_DEVICES` says (UUIDs, separated by
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

    /// Is called whenever the daemon tells how full a device is, or a tier below it: once for each at the beginning of a session,
    /// also one that is made by [`Client::reconnect`], and with every change. The thread that calls, `vramd-pressure`, does
    /// nothing else: while the program is in there nothing else waits, and of what comes meanwhile it is told only the
    /// newest of each device and tier. A panic in there is caught, and the next is told as ever. It may use a client, but a clone
    /// that it keeps holds the session open.
    #[must_use]
    pub fn on_pressure(mut self, call: impl Fn(Pressure) + Send + Sync + 'static) -> Self {
        self.on_pressure = Some(OnPressure::new(call));
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
        let builder = Arc::new(self);
        let this = ClientBuilder::clone(&builder);
        let socket_dir = this.socket_dir.unwrap_or_else(socket_paths::socket_dir);
        let name = this.name.or_else(program_name).unwrap_or_default();
        let devices = this.devices.or_else(visible_devices);
        let session =
            Session::open(&socket_dir, name, devices, mode, this.request_timeout, this.on_pressure)?;
        Ok(Client { session, builder })
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
