//! `vramd.connect` and `vramd.Client`: a session with the node's daemon.

use std::{
    fmt::Display,
    path::PathBuf,
    process,
    sync::{Arc, Mutex, PoisonError},
};

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
};
use vramd_client::{Access, AllocationRequest, Bytes, FileMapping, Reason};

use crate::{
    allocation::Allocation,
    arguments::{self, DeviceName, Name, Size},
    error::Fault,
    info::{AllocationInfo, Device, OwnQuota, Pressure},
    interrupt::without_gil,
    mapped_file::{self, FileCheck, MappedFile, NotInPlace},
    memory::Memory,
    pin_set::PinSet,
    prefetch::{self, Prefetch, Urgency, Wanted},
    pressure_stream,
    sealed::Sealed,
    sequence::{self, Sequence, StepOf},
    shared::{Handle, Shared, check_process},
    turns::WorkingSet,
};

/// One session, which ends when the client is closed and its memory is gone.
#[pyclass(frozen, module = "vramd")]
#[derive(Debug)]
pub(crate) struct Client {
    pid: u32,
    /// Locked for a moment only, never during a wait, so that a forked child finds it free too.
    sdk: Mutex<Option<vramd_client::Client>>,
}

/// Opens a session with the daemon of this node.
#[pyfunction]
#[pyo3(signature = (name = None, *, socket_dir = None, devices = None, timeout = None, on_pressure = None))]
pub(crate) fn connect(
    py: Python<'_>,
    name: Option<String>,
    socket_dir: Option<PathBuf>,
    devices: Option<Vec<String>>,
    timeout: Option<f64>,
    on_pressure: Option<Py<PyAny>>,
) -> PyResult<Client> {
    let mut builder = vramd_client::Client::builder();
    if let Some(name) = name {
        builder = builder.name(name);
    }
    if let Some(dir) = socket_dir {
        builder = builder.socket_dir(dir);
    }
    if let Some(devices) = devices {
        builder = builder.devices(devices);
    }
    if let Some(seconds) = timeout {
        builder = builder.request_timeout(arguments::timeout(seconds)?);
    }
    let mut listener = None;
    if let Some(on_pressure) = on_pressure {
        pressure_stream::check_callable(on_pressure.bind(py))?;
        let (call, stream) = pressure_stream::channel();
        builder = builder.on_pressure(call);
        listener = Some((stream, on_pressure));
    }
    let sdk = without_gil(py, || builder.connect().map_err(Fault::from))?;
    let client = Client { pid: process::id(), sdk: Mutex::new(Some(sdk)) };
    if let Some((stream, on_pressure)) = listener {
        pressure_stream::start(py, stream, on_pressure)?;
    }
    Ok(client)
}

/// The folder where the daemon's sockets are looked for, unless `connect` gets another.
#[pyfunction]
pub(crate) fn socket_dir() -> PathBuf {
    vramd_client::socket_dir()
}

impl Client {
    pub(crate) fn sdk(&self) -> Result<vramd_client::Client, Fault> {
        check_process(self.pid)?;
        let sdk = self.sdk.lock().unwrap_or_else(PoisonError::into_inner);
        sdk.clone().ok_or_else(|| Fault::own("HandleClosed", "the client was closed"))
    }

    /// Calls the SDK without the GIL.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&vramd_client::Client) -> Result<T, vramd_client::Error> + Send,
    ) -> Result<T, Fault> {
        let sdk = self.sdk()?;
        // The client is dropped without the GIL too.
        without_gil(py, move || work(&sdk).map_err(Fault::from))
    }

    /// A handle of memory that the SDK makes.
    fn claim(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&vramd_client::Client) -> Result<Handle, vramd_client::Error> + Send,
    ) -> PyResult<Arc<Shared>> {
        let (sdk, handle) = self.call(py, |sdk| Ok((sdk.clone(), work(sdk)?)))?;
        Ok(Shared::new(sdk, handle)?)
    }
}

/// The request that all allocations have in common, wherever their bytes come from.
fn request(
    request: AllocationRequest,
    name: Option<String>,
    device: Option<DeviceName>,
    lifetime: &str,
    readers: Vec<String>,
    part_size: Option<Size>,
) -> PyResult<AllocationRequest> {
    let mut request = request;
    if let Some(name) = name {
        request = request.name(name);
    }
    if let Some(device) = device {
        request = request.device(device.0);
    }
    if arguments::is_persistent(lifetime)? {
        request = request.persistent();
    }
    for reader in readers {
        request = request.reader(reader);
    }
    if let Some(part_size) = part_size {
        request = request.part_size(part_size.0);
    }
    Ok(request)
}

#[pymethods]
impl Client {
    #[pyo3(
        signature = (
            size, *, name = None, device = None, lifetime = "session", readers = Vec::new(), part_size = None,
            replace = false, uninitialized = false, unpinned = false, discardable = false, wait = 0.0
        ),
        text_signature = "($self, size, *, name=None, device=None, lifetime='session', readers=(), part_size=None, \
                          replace=False, uninitialized=False, unpinned=False, discardable=False, wait=0.0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Python has names for them")]
    fn allocate(
        &self,
        py: Python<'_>,
        size: Size,
        name: Option<String>,
        device: Option<DeviceName>,
        lifetime: &str,
        readers: Vec<String>,
        part_size: Option<Size>,
        replace: bool,
        uninitialized: bool,
        unpinned: bool,
        discardable: bool,
        wait: f64,
    ) -> PyResult<Py<Allocation>> {
        let sized = AllocationRequest::new(size.0);
        let mut request = request(sized, name, device, lifetime, readers, part_size)?;
        request = request.replace(replace).wait(arguments::wait(wait)?);
        if uninitialized {
            request = request.uninitialized();
        }
        if unpinned {
            request = request.unpinned();
        }
        if discardable {
            request = request.discardable();
        }
        let shared = self.claim(py, |sdk| sdk.allocate(request).map(Handle::Open))?;
        Allocation::create(py, shared)
    }

    #[pyo3(
        signature = (
            path, *, offset = 0, size = None, name = None, device = None, lifetime = "session", readers = Vec::new(),
            part_size = None, replace = false, unpinned = false, copy = true, wait = 0.0
        ),
        text_signature = "($self, path, *, offset=0, size=None, name=None, device=None, lifetime='session', readers=(), \
                          part_size=None, replace=False, unpinned=False, copy=True, wait=0.0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "Python has names for them")]
    fn load(
        &self,
        py: Python<'_>,
        path: PathBuf,
        offset: u64,
        size: Option<Size>,
        name: Option<String>,
        device: Option<DeviceName>,
        lifetime: &str,
        readers: Vec<String>,
        part_size: Option<Size>,
        replace: bool,
        unpinned: bool,
        copy: bool,
        wait: f64,
    ) -> PyResult<Py<Sealed>> {
        let sized = size.map_or_else(AllocationRequest::whole_file, |size| AllocationRequest::new(size.0));
        let mut request = request(sized, name, device, lifetime, readers, part_size)?;
        request = request.replace(replace).wait(arguments::wait(wait)?);
        if unpinned {
            request = request.unpinned();
        }
        if !copy {
            request = request.in_place_only();
        }
        let shared = self.claim(py, |sdk| sdk.load(path, offset, request).map(Handle::Sealed))?;
        Sealed::create(py, shared)
    }

    #[pyo3(signature = (descriptor, *, device = None))]
    fn check_file(&self, py: Python<'_>, descriptor: i32, device: Option<DeviceName>) -> PyResult<FileCheck> {
        let file = mapped_file::borrowed(descriptor)?;
        let check = self.call(py, |sdk| sdk.check_file(file, device.as_ref().map(|device| &*device.0)))?;
        Ok(FileCheck(check))
    }

    fn map_file(&self, py: Python<'_>, descriptor: i32, check: &Bound<'_, FileCheck>) -> PyResult<Py<PyAny>> {
        let (file, check) = (mapped_file::borrowed(descriptor)?, check.get());
        match self.call(py, |sdk| sdk.map_file(file, &check.0))? {
            FileMapping::Mapped(file) => Ok(Py::new(py, MappedFile::new(file))?.into_any()),
            FileMapping::NotInPlace(not) => Ok(Py::new(py, NotInPlace(not))?.into_any()),
        }
    }

    fn report_fall_back(&self, py: Python<'_>, reason: &str, copied: u64) -> PyResult<()> {
        let reason = mapped_file::fall_back(reason)?;
        Ok(self.call(py, |sdk| sdk.report_fall_back(reason, Bytes::new(copied)))?)
    }

    #[pyo3(signature = (name_or_id, *, unpinned = false))]
    fn attach(&self, py: Python<'_>, name_or_id: Name, unpinned: bool) -> PyResult<Py<Sealed>> {
        let attach = |sdk: &vramd_client::Client| match unpinned {
            true => sdk.attach_unpinned(name_or_id),
            false => sdk.attach(name_or_id),
        };
        let shared = self.claim(py, |sdk| attach(sdk).map(Handle::Sealed))?;
        Sealed::create(py, shared)
    }

    #[pyo3(
        signature = (read = Vec::new(), *, write = Vec::new(), wait = None),
        text_signature = "($self, read=(), *, write=(), wait=None)"
    )]
    fn pin_set(
        &self,
        py: Python<'_>,
        read: Vec<Bound<'_, Memory>>,
        write: Vec<Bound<'_, Memory>>,
        wait: Option<f64>,
    ) -> PyResult<PinSet> {
        let wait = wait.map(arguments::wait).transpose()?;
        let sdk = self.sdk()?;
        let shared = |memory: &Bound<'_, Memory>| Arc::clone(memory.get().shared());
        let to_read = read.iter().map(|memory| (shared(memory), Access::Read));
        let set: Vec<_> = to_read.chain(write.iter().map(|memory| (shared(memory), Access::Write))).collect();
        PinSet::new(py, Shared::view_set(py, &sdk, &set, wait)?)
    }

    #[pyo3(signature = (*memory, partial = false, within = None, priority = 0))]
    fn prefetch(
        &self,
        py: Python<'_>,
        memory: Vec<Wanted>,
        partial: bool,
        within: Option<f64>,
        priority: i64,
    ) -> PyResult<Prefetch> {
        let (within, priority) = (within.map(arguments::wait).transpose()?, prefetch::priority(priority)?);
        Ok(Prefetch::ask(py, &self.sdk()?, &memory, Urgency { partial, within, priority })?)
    }

    #[pyo3(signature = (steps, *, passes = 0))]
    fn sequence(&self, py: Python<'_>, steps: Vec<StepOf>, passes: i64) -> PyResult<Sequence> {
        let passes = sequence::passes(passes)?;
        Ok(Sequence::declare(py, &self.sdk()?, &steps, passes)?)
    }

    fn working_set(
        &self,
        py: Python<'_>,
        name: &str,
        memory: Vec<Bound<'_, Memory>>,
    ) -> PyResult<WorkingSet> {
        Ok(WorkingSet::name(py, &self.sdk()?, name, &memory)?)
    }

    #[pyo3(signature = (prefix = ""))]
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<AllocationInfo>> {
        let all = self.call(py, |sdk| sdk.list(prefix))?;
        Ok(all.iter().map(AllocationInfo::from).collect())
    }

    fn describe(&self, py: Python<'_>, name_or_id: Name) -> PyResult<AllocationInfo> {
        let info = self.call(py, |sdk| sdk.describe(name_or_id))?;
        Ok(AllocationInfo::from(&info))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.call(py, vramd_client::Client::flush)?)
    }

    fn detach_all(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.call(py, vramd_client::Client::detach_all)?)
    }

    #[pyo3(signature = (*, wait = None))]
    fn attach_all(&self, py: Python<'_>, wait: Option<f64>) -> PyResult<()> {
        let wait = wait.map(arguments::wait).transpose()?;
        Ok(self.call(py, |sdk| match wait {
            Some(wait) => sdk.attach_all_timeout(wait),
            None => sdk.attach_all(),
        })?)
    }

    #[pyo3(signature = (*, wait = None))]
    fn away(slf: Py<Self>, wait: Option<f64>) -> Away {
        Away { client: slf, wait }
    }

    #[getter]
    fn is_away(&self) -> bool {
        self.sdk().is_ok_and(|sdk| sdk.is_away())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let sdk = self.sdk.lock().unwrap_or_else(PoisonError::into_inner).take();
        if process::id() != self.pid {
            // It belongs to the parent process.
            return Ok(());
        }
        Ok(without_gil(py, || sdk.map_or(Ok(()), |sdk| sdk.flush()).map_err(Fault::from))?)
    }

    #[getter]
    fn session_id(&self) -> PyResult<u64> {
        Ok(self.sdk()?.session_id().get())
    }

    #[getter]
    fn tenant(&self) -> PyResult<String> {
        Ok(self.sdk()?.tenant().to_owned())
    }

    #[getter]
    fn devices(&self) -> PyResult<Vec<Device>> {
        Ok(self.sdk()?.devices().iter().map(Device::from).collect())
    }

    #[getter]
    fn daemon_version(&self) -> PyResult<String> {
        Ok(self.sdk()?.daemon_version().to_owned())
    }

    #[getter]
    fn is_connected(&self) -> bool {
        self.sdk().is_ok_and(|sdk| sdk.is_connected())
    }

    #[getter]
    fn is_draining(&self) -> bool {
        self.sdk().is_ok_and(|sdk| sdk.is_draining())
    }

    #[pyo3(signature = (device = None))]
    fn pressure(&self, device: Option<DeviceName>) -> PyResult<Pressure> {
        let sdk = self.sdk()?;
        let device = device.as_ref().map(|device| device.0.as_str());
        match (sdk.pressure(device), device) {
            (Some(pressure), _) => Ok(Pressure::from(&pressure)),
            (None, Some(device)) => {
                let facts: [(&str, &dyn Display); 2] = [("field", &"device"), ("device", &device)];
                let message = format!("this session does not see device {device}");
                Err(Fault::refused(Reason::DeviceUnknown, message, &facts).into())
            }
            (None, None) => Err(PyValueError::new_err(format!(
                "this session sees {} devices: name one by `device`",
                sdk.devices().len()
            ))),
        }
    }

    fn quota(&self, py: Python<'_>) -> PyResult<Vec<OwnQuota>> {
        let places = self.call(py, vramd_client::Client::quota)?;
        Ok(places.iter().map(OwnQuota::from).collect())
    }

    fn pressures(&self) -> PyResult<Vec<Pressure>> {
        Ok(self.sdk()?.pressures().iter().map(Pressure::from).collect())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        match self.sdk() {
            Ok(sdk) => format!("<vramd.Client {} of {}>", sdk.session_id(), sdk.tenant()),
            Err(_) if process::id() != self.pid => "<vramd.Client of the parent process>".to_owned(),
            Err(_) => "<vramd.Client, closed>".to_owned(),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a client belongs to its process: connect a new one there"))
    }
}

/// A `with` block in which the memory is away: `Client.away`.
#[pyclass(frozen, module = "vramd._native", name = "_Away")]
#[derive(Debug)]
pub(crate) struct Away {
    client: Py<Client>,
    wait: Option<f64>,
}

#[pymethods]
impl Away {
    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        self.client.get().detach_all(py)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.client.get().attach_all(py, self.wait)
    }
}
