//! Managed memory: allocated in this process, and charged to the tenant by the daemon.
//!
//! The daemon has nothing of it but the charge. It is charged before it is allocated, and freed before its charge ends.
//! So a tenant never has more of it on a device than it may, wherever the driver keeps its pages.

#![allow(unsafe_code, reason = "on simulated devices it is memory of the process's own")]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

use vramd_proto::v1::Device;
use vramd_types::{AllocationId, Bytes, Reason};

use crate::{
    cuda::{Context, Failure, Step},
    error::{Error, Result},
    handles::{
        advice::Advice,
        charge::Charge,
        info::Tier,
        operations::{advise, evict},
    },
    process::fork::ProcessBound,
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process,
    },
};

const PAGE: usize = 4096;

/// Managed memory of this process, charged to its tenant. Dropping it frees it.
#[derive(Debug)]
pub struct ManagedMemory {
    session: ProcessBound<Session>,
    id: AllocationId,
    size: Bytes,
    /// `None` once it is freed.
    memory: Option<(Memory, Charge)>,
    failures: Vec<ManagedFailure>,
}

/// A request for managed memory.
#[derive(Clone, Debug)]
pub struct ManagedRequest {
    size: Bytes,
    device: Option<String>,
    stream: u64,
    wait: Duration,
}

/// An advice, a prefetch or another step beside an allocation or a free that failed. The memory works all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedFailure {
    /// `preferred location`, `accessed by the host`, `prefetch`, `synchronize` or `free`.
    pub step: &'static str,
    /// The driver's name for the error.
    pub problem: String,
}

#[derive(Debug)]
enum Memory {
    OnDevice {
        context: Arc<Context>,
        address: u64,
    },
    /// Ordinary memory, for a simulated device.
    OfHost {
        start: NonNull<u8>,
        layout: Layout,
    },
}

// SAFETY: needed for the pointer, which only frees the memory. The allocator takes it from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference reads the address alone.
unsafe impl Sync for Memory {}

impl ManagedRequest {
    /// On the first device that the session sees.
    pub const fn new(size: Bytes) -> Self {
        Self { size, device: None, stream: 0, wait: Duration::ZERO }
    }

    /// The UUID or the index of the device.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// The CUDA stream that the memory is brought to its device by, as a number. By default the default stream.
    #[must_use]
    pub const fn stream(mut self, stream: u64) -> Self {
        self.stream = stream;
        self
    }

    /// How long it may wait for room on the device, as in [`crate::AllocationRequest::wait`].
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl ManagedMemory {
    /// Has the daemon charge it, then allocates it. On an error nothing is charged.
    pub(crate) fn allocate(session: &ProcessBound<Session>, request: ManagedRequest) -> Result<Self> {
        check_process(session)?;
        let ManagedRequest { size, device, stream, wait } = request;
        let at = device_of(session, device.as_deref())?.clone();
        let charge = Charge::take(session, size, Some(&at.uuid), wait)?;
        match Memory::allocate(session, &at, size, stream) {
            Ok((memory, failures)) => {
                let (session, id) = (session.clone(), charge.id());
                // Without orders it works all the same.
                let _ =
                    charge.take_orders(memory.address(), usize::try_from(size.get()).unwrap_or(usize::MAX));
                Ok(Self { session, id, size, memory: Some((memory, charge)), failures })
            }
            Err(problem) => {
                // The failure of the driver is the one to report. The charge ends with the session at the latest.
                let _ = charge.end();
                let facts: [(&str, &dyn ToString); 2] = [("device", &at.uuid), ("problem", &problem)];
                Err(Error::refused(Reason::DriverFailed, &facts))
            }
        }
    }

    pub fn id(&self) -> AllocationId {
        self.id
    }

    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Its address, for the CPU and the device. On a simulated device it is ordinary memory.
    pub fn as_device_ptr(&self) -> u64 {
        self.memory.as_ref().map_or(0, |(memory, _)| memory.address())
    }

    /// The steps of its allocation that failed.
    pub fn failures(&self) -> &[ManagedFailure] {
        &self.failures
    }

    /// Has the daemon order it to its device. The order is executed by a thread of this process, later: then its pages are
    /// preferred on the device, and have been brought there. Refused while the tenant would have more there than its
    /// limit.
    pub fn bring_in(&self) -> Result<()> {
        check_process(&self.session)?;
        let advice = Advice::SetLocation(Tier::Device);
        run_ready(advise(CallStyle::Blocking, &self.session, self.id, None, advice))
    }

    /// Has the daemon order it to the host, as [`Self::bring_in`] does to the device. The device accesses it there from
    /// then on. It stays charged, since the driver may bring its pages back.
    pub fn evict(&self) -> Result<()> {
        check_process(&self.session)?;
        run_ready(evict(CallStyle::Blocking, &self.session, self.id, Tier::Host)).map(drop)
    }

    /// Waits for the work of a CUDA stream, frees the memory, and has the charge end. Returns the steps that failed. If the
    /// driver does not free it, it stays charged until the session ends.
    pub fn free(mut self, stream: u64) -> Vec<ManagedFailure> {
        self.free_by(stream)
    }

    fn free_by(&mut self, stream: u64) -> Vec<ManagedFailure> {
        if !self.session.is_own_process() {
            return Vec::new();
        }
        let Some((memory, charge)) = self.memory.take() else { return Vec::new() };
        charge.end_orders();
        let failures = memory.free(stream);
        if failures.iter().any(|failure| failure.step == Step::Free.name()) {
            charge.keep();
        }
        failures
    }
}

impl Drop for ManagedMemory {
    fn drop(&mut self) {
        self.free_by(0);
    }
}

impl Memory {
    fn allocate(
        session: &Session,
        device: &Device,
        size: Bytes,
        stream: u64,
    ) -> Result<(Self, Vec<ManagedFailure>), String> {
        let bytes = usize::try_from(size.get()).map_err(|_| format!("{size} exceeds the address space"))?;
        if device.simulated {
            return Ok((Self::of_host(bytes).ok_or("the process has no memory left")?, Vec::new()));
        }
        let context = session.table().context_of_device(device.index)?;
        let (address, failures) =
            context.allocate_managed(bytes, stream).map_err(|fault| fault.to_string())?;
        Ok((Self::OnDevice { context, address }, shown(failures)))
    }

    /// Zeroed memory.
    fn of_host(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), PAGE).ok()?;
        // SAFETY: needed for memory of that alignment. The layout has at least one byte.
        NonNull::new(unsafe { alloc_zeroed(layout) }).map(|start| Self::OfHost { start, layout })
    }

    fn address(&self) -> u64 {
        match self {
            Self::OnDevice { address, .. } => *address,
            Self::OfHost { start, .. } => start.as_ptr().expose_provenance() as u64,
        }
    }

    fn free(self, stream: u64) -> Vec<ManagedFailure> {
        match self {
            Self::OnDevice { context, address } => match context.free_managed(address, stream) {
                Ok(failures) => shown(failures),
                Err(fault) => {
                    vec![ManagedFailure { step: Step::Free.name(), problem: fault.to_string() }]
                }
            },
            Self::OfHost { start, layout } => {
                // SAFETY: needed to free it. It was allocated with this layout, and this value alone had it.
                unsafe { dealloc(start.as_ptr(), layout) };
                Vec::new()
            }
        }
    }
}

fn shown(failures: Vec<Failure>) -> Vec<ManagedFailure> {
    let shown = |failure: Failure| ManagedFailure { step: failure.step.name(), problem: failure.problem };
    failures.into_iter().map(shown).collect()
}

/// The device of that UUID or index; without a name, the first that the session sees.
pub(crate) fn device_of<'a>(session: &'a Session, name: Option<&str>) -> Result<&'a Device> {
    let is_meant =
        |device: &&Device| name.is_none_or(|name| device.uuid == name || device.index.to_string() == name);
    session.devices().iter().find(is_meant).ok_or_else(|| {
        Error::refused(Reason::DeviceNotVisible, &[("device", &name.unwrap_or("0").to_owned())])
    })
}
