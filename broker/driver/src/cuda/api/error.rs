//! Errors of the CUDA driver, and their mapping to driver errors.

use std::fmt;

use cudarc::driver::sys::CUresult;
use thiserror::Error;

use crate::{DriverError, HostLimit};

/// A result code, known to cudarc or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(u32);

impl Code {
    pub(super) const fn new(number: u32) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> u32 {
        self.0
    }

    pub(super) fn is_success(self) -> bool {
        self.is(CUresult::CUDA_SUCCESS)
    }

    fn is(self, known: CUresult) -> bool {
        self.0 == known as u32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{call}: {name} ({code})")]
pub struct CudaError {
    call: &'static str,
    code: Code,
    /// The driver's name for the code.
    name: String,
}

impl CudaError {
    pub(super) fn new(call: &'static str, code: Code, name: String) -> Self {
        Self { call, code, name }
    }

    pub(crate) fn is_not_ready(&self) -> bool {
        self.code.is(CUresult::CUDA_ERROR_NOT_READY)
    }

    /// Whether the error ends its context, which then answers every call with it. `UNKNOWN` is such an error
    /// too, but single calls return it for other reasons. So it counts only as the answer to a plain query.
    pub(super) fn ends_context(&self) -> bool {
        const STICKY: [CUresult; 16] = [
            CUresult::CUDA_ERROR_DEINITIALIZED,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUresult::CUDA_ERROR_CONTAINED,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
        ];
        let question = self.call == "cuStreamQuery" && self.code.is(CUresult::CUDA_ERROR_UNKNOWN);
        question || STICKY.into_iter().any(|sticky| self.code.is(sticky))
    }
}

impl CudaError {
    /// The same for pinning host memory: the host is out of memory, and not the device.
    pub(crate) fn of_pinned(self) -> DriverError {
        match DriverError::from(self) {
            DriverError::OutOfMemory => DriverError::OutOfHostMemory(HostLimit::Pinned),
            error => error,
        }
    }
}

impl From<CudaError> for DriverError {
    fn from(error: CudaError) -> Self {
        if error.code.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
            Self::OutOfMemory
        } else {
            Self::Failed(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(call: &'static str, code: u32) -> CudaError {
        CudaError::new(call, Code::new(code), "NAME".to_owned())
    }

    #[test]
    fn out_of_memory_is_an_ordinary_event() {
        assert_eq!(DriverError::from(error("cuMemCreate", 2)), DriverError::OutOfMemory);
        assert!(!error("cuMemCreate", 2).ends_context());
    }

    #[test]
    fn an_unknown_error_code_is_shown() {
        let unknown = error("cuMemMap", 54_321);
        assert_eq!(DriverError::from(unknown.clone()), DriverError::Failed("cuMemMap: NAME (54321)".into()));
        assert!(!unknown.ends_context());
    }

    #[test]
    fn errors_that_end_a_context_are_known() {
        for code in [4, 214, 700, 719] {
            assert!(error("cuMemcpyDtoHAsync_v2", code).ends_context(), "{code}");
        }
        assert!(
            !error("cuMemExportToShareableHandle", 999).ends_context(),
            "no descriptor was left, perhaps"
        );
        assert!(error("cuStreamQuery", 999).ends_context());
    }
}
