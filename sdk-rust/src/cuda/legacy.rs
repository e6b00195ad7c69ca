//! Fixed memory, by a legacy CUDA IPC handle: the driver chooses the address, and every opener may write.

use std::sync::Arc;

use super::{context::Context, fault::Fault};

pub(crate) const HANDLE_BYTES: usize = 64;

/// An opened legacy handle.
#[derive(Debug)]
pub(crate) struct LegacyBlock {
    context: Arc<Context>,
    address: u64,
}

impl LegacyBlock {
    pub(crate) fn open(context: Arc<Context>, handle: [u8; HANDLE_BYTES]) -> Result<Self, String> {
        let open = |context: &Context| -> Result<u64, Fault> { context.enter()?.api().open_legacy(handle) };
        let address = open(&context).map_err(|fault| fault.to_string())?;
        Ok(Self { context, address })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn close(self) -> Result<(), String> {
        let close = || -> Result<(), Fault> { self.context.enter()?.api().close_legacy(self.address) };
        close().map_err(|fault| fault.to_string())
    }
}
