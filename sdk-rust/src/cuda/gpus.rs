//! A session's devices: from the daemon's index to this process's context.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use vramd_proto::v1::Device;

use super::{context::Context, driver::Driver, fault::Fault};

/// How long a failure stands before it is retried, so that the other parts of a packet do not repeat a slow failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The devices of a session. Contexts are retained as long as the session lives, since making one takes a third of a
/// second.
#[derive(Debug)]
pub(crate) struct Gpus {
    devices: Mutex<BTreeMap<u32, Gpu>>,
    /// The process's driver, unless a test sets another.
    driver: Option<Arc<Driver>>,
}

#[derive(Debug)]
struct Gpu {
    uuid: String,
    context: ContextState,
}

#[derive(Debug)]
enum ContextState {
    /// No part of it has arrived yet.
    Unknown,
    /// Its memory is not CUDA's, or the session has ended.
    None,
    /// Retaining the context failed at that time.
    Failed {
        problem: String,
        when: Instant,
    },
    Retained(Arc<Context>),
}

impl Gpus {
    pub(crate) fn new(devices: &[Device]) -> Self {
        let gpu = |device: &Device| {
            (device.index, Gpu { uuid: device.uuid.clone(), context: ContextState::Unknown })
        };
        Self { devices: Mutex::new(devices.iter().map(gpu).collect()), driver: None }
    }

    #[cfg(test)]
    pub(crate) fn with_driver(self, driver: &Arc<Driver>) -> Self {
        Self { driver: Some(Arc::clone(driver)), ..self }
    }

    /// Whether there is a device of which no part has arrived yet.
    pub(crate) fn has_unknown(&self) -> bool {
        self.lock().values().any(|gpu| matches!(gpu.context, ContextState::Unknown))
    }

    /// Prepares a device in advance, which takes long or forks: the driver starts helper processes when it is
    /// initialised.
    pub(crate) fn prepare(&self, device: u32, by_cuda: bool) {
        if by_cuda {
            // The mapping of the part reports the failure.
            let _ = self.context(device);
        }
        if let Some(gpu) = self.lock().get_mut(&device)
            && matches!(gpu.context, ContextState::Unknown)
        {
            gpu.context = ContextState::None;
        }
    }

    pub(crate) fn context(&self, device: u32) -> Result<Arc<Context>, String> {
        let mut devices = self.lock();
        let gpu = devices
            .get_mut(&device)
            .ok_or_else(|| format!("device {device} of the daemon is not visible to this session"))?;
        if let ContextState::Retained(context) = &gpu.context {
            return Ok(Arc::clone(context));
        }
        if let ContextState::Failed { problem, when } = &gpu.context
            && when.elapsed() < RETRY_AFTER
        {
            return Err(problem.clone());
        }
        let retained = self.driver().and_then(|driver| driver.context(&gpu.uuid));
        gpu.context = match &retained {
            Ok(context) => ContextState::Retained(Arc::clone(context)),
            Err(problem) => ContextState::Failed { problem: problem.clone(), when: Instant::now() },
        };
        retained
    }

    fn driver(&self) -> Result<Arc<Driver>, String> {
        match &self.driver {
            Some(driver) => Ok(Arc::clone(driver)),
            None => Driver::of_process().map_err(|error| error.to_string()),
        }
    }

    /// Waits until all that was launched in the contexts of the session's devices is done.
    pub(crate) fn synchronize(&self) -> Result<(), (String, Fault)> {
        let retained = |gpu: &Gpu| match &gpu.context {
            ContextState::Retained(context) => Some((gpu.uuid.clone(), Arc::clone(context))),
            _ => None,
        };
        let contexts: Vec<_> = self.lock().values().filter_map(retained).collect();
        contexts
            .into_iter()
            .try_for_each(|(uuid, context)| context.synchronize().map_err(|fault| (uuid, fault)))
    }

    /// Releases the contexts at the end of the session; memory that is still mapped keeps contexts of its own.
    pub(crate) fn release(&self) {
        for gpu in self.lock().values_mut() {
            gpu.context = ContextState::None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Gpu>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
