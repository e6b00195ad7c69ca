//! The client of the blocking API, and its builder.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use vramd_proto::v1::Device;
use vramd_types::{AllocationId, Bytes, SessionId};
use vramd_words::Access;

use crate::{
    away,
    error::Result,
    handles::{
        addresses::{Addresses, AllocateAtFailed, allocate_at},
        allocation::{Allocation, Sealed},
        charge::Charge,
        handle::Handle,
        info::{AllocationInfo, AllocationKind},
        load::{self, LoadedFile},
        managed::{ManagedMemory, ManagedRequest},
        operations,
        quota::OwnQuota,
        raw::RawClient,
        request::{AllocationRequest, Target},
    },
    mapping::Mode,
    pins::{Pinnable, PinnedSet, pin_set},
    pool::{Pool, PoolConfig},
    prefetch::{Prefetch, PrefetchRequest, prefetch},
    process::fork::ProcessBound,
    sequence::{Sequence, SequenceRequest, declare},
    session::{
        Released, Session,
        call_style::{CallStyle, run_ready},
        check_process, missing_field,
        pressure::{OnPressure, Pressure},
        socket_paths::SocketPlaces,
    },
    turns::{WorkingSet, working_set},
};

/// As long as the daemon itself works on a call by default.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A session with the daemon, open until the client, its clones and all handles made by it are dropped.
#[derive(Clone, Debug)]
pub struct Client {
    session: ProcessBound<Session>,
    /// How it was opened, for [`Self::reconnect`].
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

    /// Opens a new session with the running daemon, with this one's settings: for use after a session has ended.
    /// Handles of the old session stay with it: their mappings stand, and their calls return
    /// [`crate::Error::SessionLost`]. In a forked child the new session is the child's own.
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

    /// Allocates zeroed memory, and waits until it is mapped for writing. It does not wait for
    /// [`AllocationRequest::unpinned`] memory.
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

    /// Allocates managed memory (`cuMemAllocManaged`) in this process, charged to the tenant on its device; refused where
    /// [`Self::allocate`] would be. It prefers its device. If it has less than 2 GiB, it is brought there at once. On
    /// coherent platforms the CPU may access it there. If one of these steps fails, the memory is allocated all the same
    /// ([`ManagedMemory::failures`]).
    pub fn allocate_managed(&self, request: ManagedRequest) -> Result<ManagedMemory> {
        ManagedMemory::allocate(&self.session, request)
    }

    /// Charges bytes of a device, named by UUID or index, to the tenant, for memory that the program allocates by itself;
    /// refused where [`Self::allocate`] would be. The daemon has nothing of it but the charge, and shows it as managed
    /// memory. `wait` is as in [`AllocationRequest::wait`].
    pub fn charge<'a>(
        &self,
        size: Bytes,
        device: impl Into<Option<&'a str>>,
        wait: Duration,
    ) -> Result<Charge> {
        Charge::take(&self.session, size, device.into(), wait)
    }

    /// Allocates again what was freed by [`Allocation::free_keeping_addresses`], at the same addresses: all or nothing.
    /// The memory has arbitrary content of the tenant's own, or zeros. It begins unpinned: the first pin maps it. `wait` is
    /// as in [`AllocationRequest::wait`].
    pub fn allocate_at(
        &self,
        addresses: Vec<Addresses>,
        wait: Duration,
    ) -> Result<Vec<Allocation>, Box<AllocateAtFailed>> {
        allocate_at(&self.session, addresses, wait)
    }

    /// Maps a sealed allocation read-only, by id, by `name` or by `tenant/name`. If this session has mapped it already,
    /// the new handle shares that mapping.
    pub fn attach(&self, target: impl Into<Target>) -> Result<Sealed> {
        self.claim_attached(target.into(), AllocationKind::Movable, false).map(Sealed::new)
    }

    /// Attaches a sealed allocation without mapping any of it. The program reads one larger than the device by
    /// pinning some parts at a time ([`Sealed::pin_parts`]), or by copying it out. For a [`RawClient`] this has no
    /// effect: all parts arrive at once.
    pub fn attach_unpinned(&self, target: impl Into<Target>) -> Result<Sealed> {
        self.claim_attached(target.into(), AllocationKind::Movable, true).map(Sealed::new)
    }

    /// Loads a file from an offset on, as sealed memory: as many bytes as the request says, or all of them
    /// ([`AllocationRequest::whole_file`]). If the daemon knows that the file never changes (fs-verity, or the operator's `files.immutable_paths`), it
    /// reads the file itself, once, and uses it as backing: unused parts leave the device without a copy, and cost
    /// nothing there. Any other file is copied. If an immutable file is changed after all, pins of such a part are
    /// refused with [`crate::Error::ContentLost`].
    ///
    /// Loading takes as long as reading the file: the client's request timeout, and a second more for each 16 MiB. A
    /// daemon that answers nothing is given up sooner. The request's wait for room counts only if the file is copied. An [`AllocationRequest::unpinned`] one
    /// may be larger than the device.
    pub fn load(
        &self,
        path: impl Into<PathBuf>,
        offset_bytes: u64,
        request: AllocationRequest,
    ) -> Result<Sealed> {
        run_ready(load::load(CallStyle::Blocking, &self.session, path.into(), offset_bytes, request))
            .map(Sealed::new)
    }

    /// Maps a whole file into this process, for a device to read in place: nothing is allocated or charged, and all
    /// processes share the pages. That needs a device that reads pageable host memory, or registers it read-only where device
    /// and host are one pool, and a file that never changes. Otherwise the file is loaded as by [`Self::load`], and the daemon
    /// counts that by its reason.
    pub fn load_in_place(&self, path: impl Into<PathBuf>, request: AllocationRequest) -> Result<LoadedFile> {
        run_ready(load::load_in_place(CallStyle::Blocking, &self.session, path.into(), request))
    }

    /// Maps fixed memory of the tenant for writing, while the session that allocated it lives.
    pub fn attach_fixed(&self, target: impl Into<Target>) -> Result<Allocation> {
        self.claim_attached(target.into(), AllocationKind::Fixed, false).map(Allocation::new)
    }

    /// Pins several allocations together, all or none, and waits until all have arrived. Two programs that need the
    /// same allocations then do not wait for each other's. At most 1,024 parts.
    pub fn pin_set(&self, set: &[(&dyn Pinnable, Access)]) -> Result<PinnedSet> {
        check_process(&self.session)?;
        pin_set(set, |handle| handle.is_of(&self.session), || self.session.deadline())
    }

    /// Like [`Self::pin_set`], but waits at most `wait`.
    pub fn pin_set_timeout(&self, set: &[(&dyn Pinnable, Access)], wait: Duration) -> Result<PinnedSet> {
        check_process(&self.session)?;
        pin_set(set, |handle| handle.is_of(&self.session), || self.session.deadline_after(wait))
    }

    /// Asks for memory ahead of its use, and returns once the daemon has answered: the memory is on its way, or the request
    /// waits, with its reason in [`crate::Prefetch::state`]. A request that can never be served is an error. A pin of the
    /// memory needs no prefetch, and waits only for what is not there yet.
    pub fn prefetch(&self, request: PrefetchRequest<'_>) -> Result<Prefetch> {
        run_ready(prefetch(CallStyle::Blocking, &self.session, request))
    }

    /// Declares in which order the program will use memory, and returns once the daemon has taken it. The daemon then
    /// has the next steps on the device, or on their way, and lets the memory leave first that is used last.
    pub fn declare_sequence(&self, request: SequenceRequest<'_>) -> Result<Sequence> {
        run_ready(declare(CallStyle::Blocking, &self.session, request))
    }

    /// Names memory as a working set, which the program uses in turns with other programs where there is too little room
    /// for all: one or more allocations of one device that have no handle pin. No other set of the client may have the
    /// name. A handle pin of this client is refused ([`Error::Pinned`](crate::Error::Pinned)). One of another client is not
    /// seen here, and keeps the memory from leaving.
    pub fn working_set(&self, name: &str, members: &[&dyn Pinnable]) -> Result<WorkingSet> {
        run_ready(working_set(CallStyle::Blocking, &self.session, name, members))
    }

    /// Frees an allocation of this session or its tenant that has no handle.
    pub fn free(&self, id: AllocationId) -> Result<Released> {
        run_ready(operations::free_by_id(CallStyle::Blocking, &self.session, id))
    }

    pub fn describe(&self, target: impl Into<Target>) -> Result<AllocationInfo> {
        run_ready(operations::describe(CallStyle::Blocking, &self.session, target.into()))
    }

    /// Lists the tenant's allocations whose name starts with the prefix, without parts; all of them if it is empty. A
    /// prefix `tenant/…` lists those that this tenant may read.
    pub fn list(&self, name_prefix: &str) -> Result<Vec<AllocationInfo>> {
        run_ready(operations::list(CallStyle::Blocking, &self.session, name_prefix))
    }

    /// Returns what the client's tenant may have, has and can get now: on each device that this session sees, and in
    /// each tier there.
    pub fn quota(&self) -> Result<Vec<OwnQuota>> {
        run_ready(operations::quota(CallStyle::Blocking, &self.session))
    }

    /// Makes a pool of small allocations. It asks the daemon for nothing before the first.
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

    /// The tenant that is charged for this session.
    pub fn tenant(&self) -> &str {
        self.session.tenant()
    }

    /// The daemon's devices that this session sees.
    pub fn devices(&self) -> &[Device] {
        self.session.devices()
    }

    /// Whether the daemon gives turns to working sets ([`Self::working_set`]).
    pub fn takes_turns(&self) -> bool {
        self.session.takes_turns()
    }

    pub fn daemon_version(&self) -> &str {
        self.session.daemon_version()
    }

    /// Whether the session is live. Its mappings stay usable after its end; a new client can connect.
    pub fn is_connected(&self) -> bool {
        self.session.is_own_process() && self.session.table().ending().is_none()
    }

    /// Whether an operator is taking the node out of service.
    pub fn is_draining(&self) -> bool {
        self.session.is_own_process() && self.session.table().is_draining()
    }

    /// Returns the daemon's last report on how full a device is, named by UUID or index; without a name, of the
    /// session's only device. It makes no call. It is `None` if the session does not see the device, or sees several
    /// and none is named. After the end of the session it is the last report.
    pub fn pressure<'a>(&self, device: impl Into<Option<&'a str>>) -> Option<Pressure> {
        check_process(&self.session).ok()?;
        self.session.table().pressures.device(device.into())
    }

    /// Returns the last report of each device that the session sees, and of the tiers below them.
    pub fn pressures(&self) -> Vec<Pressure> {
        if self.session.is_own_process() { self.session.table().pressures.all() } else { Vec::new() }
    }

    /// Waits until everything that was dropped so far is unmapped and freed or detached, except for memory that
    /// guards still pin.
    pub fn flush(&self) -> Result<()> {
        run_ready(operations::flush(CallStyle::Blocking, &self.session))
    }

    /// Takes all memory of the session away from this process: nothing of the daemon is mapped here, and no handle of it
    /// is open, until [`Self::attach_all`]. The process can then be frozen and continued, by `cuda-checkpoint` too. The
    /// addresses stay reserved, the daemon keeps the bytes, and what this session owns leaves its device for the host, or
    /// else for the disk. Sealed memory stays on its device while other sessions use it.
    ///
    /// Handles keep their handle pins, which take effect again by [`Self::attach_all`]; so do blocks of a [`Pool`]. It
    /// waits for the work on this process's devices, and for guards that streams will end. No thread may launch work on
    /// this memory meanwhile, or capture a stream: a capture of another thread may fail. Prefetch requests that are on
    /// their way are cancelled.
    ///
    /// It is refused with [`Error::Pinned`](crate::Error::Pinned), which names what is in the way, and nothing has changed:
    /// guards; slices of a handle, which any call ends that borrows it mutably; slices of pool blocks; fixed memory; turns;
    /// declared sequences. Until the memory is back, calls of any thread that need it fail with
    /// [`Error::Away`](crate::Error::Away), a second `detach_all` as well. Memory can be described, freed and dropped
    /// meanwhile, and handles can give up their handle pins.
    ///
    /// Managed memory and mapped files are this process's own, and stay.
    pub fn detach_all(&self) -> Result<()> {
        away::detach_all(&self.session)
    }

    /// Brings all memory back that [`Self::detach_all`] has taken away: mapped at the same addresses, with the same bytes,
    /// and pinned by the handles that had it pinned. The rest comes with its next pin. Any thread may call it. If the
    /// memory is here it does nothing.
    ///
    /// On an error all of it is away as before, and the call may be repeated. If an allocation was freed meanwhile, drop its
    /// handle first. A session that has ended meanwhile has lost what was away: connect anew.
    pub fn attach_all(&self) -> Result<()> {
        away::attach_all(&self.session, self.session.deadline())
    }

    /// Like [`Self::attach_all`], but waits at most `wait` for room.
    pub fn attach_all_timeout(&self, wait: Duration) -> Result<()> {
        away::attach_all(&self.session, self.session.deadline_after(wait))
    }

    /// Whether [`Self::detach_all`] has taken the session's memory away, and [`Self::attach_all`] has not brought it back.
    pub fn is_away(&self) -> bool {
        self.session.is_own_process() && !self.session.table().is_here()
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
    /// The folder of the daemon's sockets, if not [`crate::socket_dir`].
    #[must_use]
    pub fn socket_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.socket_dir = Some(dir.into());
        self
    }

    /// The name that operators see beside the session; by default the program's own.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The UUIDs of the devices that this process sees. By default `VRAMD_VISIBLE_DEVICES` lists them (UUIDs,
    /// separated by commas). Without it, CUDA is asked if the daemon has several devices; a raw session then takes
    /// any.
    #[must_use]
    pub fn devices(mut self, uuids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.devices = Some(uuids.into_iter().map(Into::into).collect());
        self
    }

    /// How long a call may take, waiting for mappings included. 300 s by default.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Registers a callback for reports of pressure. The daemon reports each device and tier once when a session
    /// begins, also by [`Client::reconnect`], and then at every change. The thread `vramd-pressure` makes the calls
    /// and does nothing else, so a slow callback delays nothing; after it returns, it gets only the newest report of
    /// each device and tier. A panic in it is caught, and the next report is delivered as usual. The callback may use
    /// a client, but a clone that it keeps holds the session open.
    #[must_use]
    pub fn on_pressure(mut self, call: impl Fn(Pressure) + Send + Sync + 'static) -> Self {
        self.on_pressure = Some(OnPressure::new(call));
        self
    }

    pub fn connect(self) -> Result<Client> {
        self.open(Mode::Map)
    }

    /// Connects a client for programs that map parts themselves.
    pub fn connect_raw(self) -> Result<RawClient> {
        self.open(Mode::HandOver).map(RawClient::new)
    }

    fn open(self, mode: Mode) -> Result<Client> {
        let builder = Arc::new(self);
        let this = ClientBuilder::clone(&builder);
        let places = SocketPlaces::of_process();
        let explicit = this.socket_dir.is_some();
        let socket_dir = this.socket_dir.unwrap_or_else(|| places.find());
        let name = this.name.or_else(program_name).unwrap_or_default();
        let devices = this.devices.or_else(visible_devices);
        let session = Session::open(&socket_dir, name, devices, mode, this.request_timeout, this.on_pressure)
            .map_err(|error| if explicit { error } else { places.explain(error) })?;
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
