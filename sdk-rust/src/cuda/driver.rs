//! The CUDA driver of this process: loaded and initialised once, with its visible devices.

use std::{
    env,
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use super::{
    api::{Api, Device},
    context::Context,
    fault::{Fault, LoadError},
    managed::ManagedCalls,
};

/// The driver's own name for its library. Not `libcuda.so`, which may be a stub where a toolkit is installed.
const LIBRARY: &str = "libcuda.so.1";

#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) api: Api,
    devices: Vec<VisibleDevice>,
    pid: u32,
    /// Found at the first managed allocation.
    managed: OnceLock<Option<ManagedCalls>>,
}

/// A device that this process sees.
#[derive(Debug)]
struct VisibleDevice {
    device: Device,
    /// 32 hexadecimal digits and four dashes, without the `GPU-` or `MIG-` that tools print before them.
    uuid: String,
    /// Alive while a session uses it.
    context: Mutex<Weak<Context>>,
}

/// Set once loading succeeds; a failure is retried, since a library may be mounted late.
static DRIVER: Mutex<Option<Arc<Driver>>> = Mutex::new(None);

impl Driver {
    /// The driver that all sessions of this process share.
    pub(crate) fn of_process() -> Result<Arc<Self>, LoadError> {
        let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*driver {
            return Ok(Arc::clone(driver));
        }
        let path = env::var_os("VRAMD_LIBCUDA").map_or_else(|| PathBuf::from(LIBRARY), PathBuf::from);
        Ok(Arc::clone(driver.insert(Arc::new(Self::load(&path)?))))
    }

    pub(super) fn load(path: &Path) -> Result<Self, LoadError> {
        let api = Api::open(path)?;
        let devices =
            visible_devices(&api).map_err(|fault| LoadError::Unusable { library: path.to_owned(), fault })?;
        Ok(Self { api, devices, pid: process::id(), managed: OnceLock::new() })
    }

    /// The calls for managed memory, if the driver has them.
    pub(super) fn managed(&self) -> Option<&ManagedCalls> {
        self.managed.get_or_init(|| ManagedCalls::find(&self.api)).as_ref()
    }

    /// Whether this process sees the device of a UUID as the daemon prints it.
    pub(crate) fn sees(&self, uuid: &str) -> bool {
        self.find(uuid).is_some()
    }

    /// The ordinal of the device in this process's CUDA.
    pub(crate) fn ordinal(&self, uuid: &str) -> Option<i32> {
        let found = self.find(uuid)?;
        let at = self.devices.iter().position(|visible| std::ptr::eq(visible, found))?;
        i32::try_from(at).ok()
    }

    /// The primary context of a device, retained until its last user is gone.
    pub(super) fn context(self: &Arc<Self>, uuid: &str) -> Result<Arc<Context>, String> {
        if process::id() != self.pid {
            return Err(LoadError::Forked.to_string());
        }
        let visible = self.find(uuid).ok_or_else(|| format!("CUDA does not show {uuid} to this process"))?;
        let mut context = visible.context.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = context.upgrade() {
            return Ok(context);
        }
        let retained = Context::retain(Arc::clone(self), visible.device)
            .map_err(|fault| format!("the primary context of {uuid} could not be retained: {fault}"))?;
        let retained = Arc::new(retained);
        *context = Arc::downgrade(&retained);
        Ok(retained)
    }

    fn find(&self, uuid: &str) -> Option<&VisibleDevice> {
        let plain = uuid.strip_prefix("GPU-").or_else(|| uuid.strip_prefix("MIG-"))?;
        self.devices.iter().find(|visible| visible.uuid.eq_ignore_ascii_case(plain))
    }
}

fn visible_devices(api: &Api) -> Result<Vec<VisibleDevice>, Fault> {
    api.initialise()?;
    let visible = |device| {
        let uuid = uuid_text(&api.uuid(device)?);
        Ok(VisibleDevice { device, uuid, context: Mutex::default() })
    };
    api.devices()?.into_iter().map(visible).collect()
}

/// The UUID as tools print it: 8-4-4-4-12.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(digits).join("-")
}
