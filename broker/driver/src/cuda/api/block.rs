//! Memory that is shared by a legacy handle.
#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::{ffi::c_char, sync::Arc};

use cudarc::driver::sys::CUipcMemHandle;
use vramd_types::Bytes;

use super::{Context, CudaError, physical::size_of};

/// Memory of `cuMemAlloc`.
#[derive(Debug)]
pub(crate) struct Block {
    context: Arc<Context>,
    address: u64,
}

/// A legacy handle, and whether it covers exactly the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Legacy {
    pub(crate) handle: [u8; 64],
    /// The driver may cut several blocks from one piece, and a handle opens the whole piece.
    pub(crate) whole: bool,
}

impl Block {
    pub(crate) fn allocate(context: &Arc<Context>, size: Bytes) -> Result<Self, CudaError> {
        let _entered = context.enter()?;
        let api = context.api();
        let mut address = 0;
        // SAFETY: A foreign call, which writes one address where it is told to.
        let code = unsafe { (api.functions.cuMemAlloc_v2)(&raw mut address, size_of(size)) };
        api.check("cuMemAlloc_v2", code)?;
        Ok(Self { context: Arc::clone(context), address })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn share(&self, size: Bytes) -> Result<Legacy, CudaError> {
        let _entered = self.context.enter()?;
        let api = self.context.api();
        let (mut base, mut length) = (0, 0_usize);
        // SAFETY: A foreign call, which writes one address and one size where it is told to.
        let code =
            unsafe { (api.functions.cuMemGetAddressRange_v2)(&raw mut base, &raw mut length, self.address) };
        api.check("cuMemGetAddressRange_v2", code)?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: A foreign call, which writes one handle where it is told to.
        let code = unsafe { (api.functions.cuIpcGetMemHandle)(&raw mut handle, self.address) };
        api.check("cuIpcGetMemHandle", code)?;
        Ok(Legacy {
            handle: handle.reserved.map(|byte| byte.to_ne_bytes()[0]),
            whole: base == self.address && length == size_of(size),
        })
    }
}

impl Drop for Block {
    /// Waits for kernels of this process.
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let api = self.context.api();
        // SAFETY: A foreign call, once for the one block that this value stands for.
        let code = unsafe { (api.functions.cuMemFree_v2)(self.address) };
        let _ = api.check("cuMemFree_v2", code);
    }
}

/// A block of another process, opened here.
#[derive(Debug)]
pub(crate) struct OpenBlock {
    context: Arc<Context>,
    address: u64,
}

impl OpenBlock {
    pub(crate) fn open(context: &Arc<Context>, handle: &[u8; 64]) -> Result<Self, CudaError> {
        const LAZY_PEER_ACCESS: u32 = 1;
        let _entered = context.enter()?;
        let api = context.api();
        let handle = CUipcMemHandle { reserved: handle.map(|byte| c_char::from_ne_bytes([byte])) };
        let mut address = 0;
        // SAFETY: A foreign call, which takes the handle by value and writes one address where it is told to.
        let code =
            unsafe { (api.functions.cuIpcOpenMemHandle_v2)(&raw mut address, handle, LAZY_PEER_ACCESS) };
        api.check("cuIpcOpenMemHandle_v2", code)?;
        Ok(Self { context: Arc::clone(context), address })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for OpenBlock {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let api = self.context.api();
        // SAFETY: A foreign call, once for the one time that this value opened it.
        let code = unsafe { (api.functions.cuIpcCloseMemHandle)(self.address) };
        let _ = api.check("cuIpcCloseMemHandle", code);
    }
}
