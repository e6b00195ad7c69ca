//! Devices, and their primary contexts.
//!
//! The primary context is the one that PyTorch and every other user of the runtime shares in a process. The
//! daemon leaves its flags unchanged, and restores the thread's current context after each use.
#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::{ffi::c_int, marker::PhantomData, ptr, sync::Arc};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUuuid};
use vramd_types::Bytes;

use super::{Api, CudaError, text};

/// A device as CUDA numbers them in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ordinal(pub(super) CUdevice);

pub(crate) type Attribute = CUdevice_attribute;

impl Api {
    pub(crate) fn devices(&self) -> Result<Vec<Ordinal>, CudaError> {
        let mut count: c_int = 0;
        // SAFETY: A foreign call, which writes one integer where it is told to.
        let code = unsafe { (self.functions.cuDeviceGetCount)(&raw mut count) };
        self.check("cuDeviceGetCount", code)?;
        let device = |index| {
            let mut device = 0;
            // SAFETY: As above.
            let code = unsafe { (self.functions.cuDeviceGet)(&raw mut device, index) };
            self.check("cuDeviceGet", code).map(|()| Ordinal(device))
        };
        (0..count).map(device).collect()
    }

    pub(crate) fn device_name(&self, device: Ordinal) -> Result<String, CudaError> {
        let mut name = [0_u8; 256];
        // SAFETY: A foreign call, which writes at most as many bytes as it is told that there are, 0 included.
        let code = unsafe { (self.functions.cuDeviceGetName)(name.as_mut_ptr().cast(), 256, device.0) };
        self.check("cuDeviceGetName", code).map(|()| text(&name))
    }

    /// Sixteen bytes. The UUID of a MIG instance, if the process sees that.
    pub(crate) fn device_uuid(&self, device: Ordinal) -> Result<[u8; 16], CudaError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: A foreign call, which writes a UUID where it is told to.
        let code = unsafe { (self.functions.cuDeviceGetUuid_v2)(&raw mut uuid, device.0) };
        self.check("cuDeviceGetUuid_v2", code).map(|()| uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
    }

    pub(crate) fn attribute(&self, device: Ordinal, attribute: Attribute) -> Result<c_int, CudaError> {
        let mut value = 0;
        // SAFETY: A foreign call, which writes one integer where it is told to. An attribute that the driver does
        // not know is an error.
        let code =
            unsafe { (self.functions.cuDeviceGetAttribute)(&raw mut value, attribute as u32, device.0) };
        self.check("cuDeviceGetAttribute", code).map(|()| value)
    }

    pub(crate) fn total_memory(&self, device: Ordinal) -> Result<Bytes, CudaError> {
        let mut total = 0_usize;
        // SAFETY: A foreign call, which writes one size where it is told to.
        let code = unsafe { (self.functions.cuDeviceTotalMem_v2)(&raw mut total, device.0) };
        self.check("cuDeviceTotalMem_v2", code).map(|()| Bytes::new(total as u64))
    }
}

/// This process's reference to the primary context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    api: Arc<Api>,
    device: Ordinal,
    raw: CUcontext,
}

// SAFETY: The driver's contexts may be made current and released by any thread, and by several at once; the pointer is
// a name for one, never followed here.
unsafe impl Send for Context {}
// SAFETY: As above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn retain(api: &Arc<Api>, device: Ordinal) -> Result<Self, CudaError> {
        let mut raw: CUcontext = ptr::null_mut();
        // SAFETY: A foreign call, which writes one pointer where it is told to.
        let code = unsafe { (api.functions.cuDevicePrimaryCtxRetain)(&raw mut raw, device.0) };
        api.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Self { api: Arc::clone(api), device, raw })
    }

    pub(crate) fn api(&self) -> &Arc<Api> {
        &self.api
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.raw
    }

    pub(crate) fn device(&self) -> Ordinal {
        self.device
    }

    /// Makes the context current in this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        // SAFETY: A foreign call. The context is alive for as long as it is retained, which is as long as `self`.
        let code = unsafe { (self.api.functions.cuCtxPushCurrent_v2)(self.raw) };
        self.api.check("cuCtxPushCurrent_v2", code)?;
        Ok(Entered { context: self, _of_this_thread: PhantomData })
    }

    /// Free and total memory, as CUDA sees the device now.
    pub(crate) fn memory(&self) -> Result<(Bytes, Bytes), CudaError> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: A foreign call, which writes two sizes where it is told to.
        let code = unsafe { (self.api.functions.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.api.check("cuMemGetInfo_v2", code)?;
        Ok((Bytes::new(free as u64), Bytes::new(total as u64)))
    }

    /// Whether the context is usable. A lost one answers every call with the error that ended it.
    pub(crate) fn is_sound(&self) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        // SAFETY: A foreign call. The null pointer names the default stream, where the daemon runs only short
        // copies that it waits for.
        let code = unsafe { (self.api.functions.cuStreamQuery)(ptr::null_mut()) };
        match self.api.check("cuStreamQuery", code) {
            Err(error) if !error.is_not_ready() => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: A foreign call, once for the one time that this value retained it. A failure here means a driver
        // that is going away itself, and then there is nothing to do.
        let _ = unsafe { (self.api.functions.cuDevicePrimaryCtxRelease_v2)(self.device.0) };
    }
}

/// Restores the context that was current before.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    context: &'a Context,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped: CUcontext = ptr::null_mut();
        // SAFETY: A foreign call, which writes one pointer where it is told to. Guards cannot leave their
        // thread, and are dropped in the opposite order of their making, so this pops their own context.
        let _ = unsafe { (self.context.api.functions.cuCtxPopCurrent_v2)(&raw mut popped) };
    }
}
