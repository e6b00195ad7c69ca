//! Checks whether memory of another tenant is zero when the driver hands it out again.
//!
//! CUDA does not promise it. The driver zeroes released memory, unless a parameter of its kernel module
//! disables that. So the check has two parts: no parameter mentions scrubbing, and memory that was written and
//! released reads zero when it is created again. The second is a sample and no proof; together they are as
//! certain as it gets from outside. If either fails, the daemon zeroes extents when it creates them.

use std::{fs, path::Path};

use vramd_types::Bytes;

use crate::cuda::{
    api::{Access, CudaError, KeepAlive, Mapping, Physical, Stream},
    device::Device,
    start::facts::Scrub,
};

/// The parameters of the driver's kernel module.
pub(crate) const PARAMS: &str = "/proc/driver/nvidia/params";

const ROUNDS: usize = 3;
const SIZE: Bytes = Bytes::mib(64);
const PIECE: usize = 8 << 20;
const MARK: u8 = 0xa5;

pub(crate) fn check(device: &Device, params: &Path) -> Result<Scrub, CudaError> {
    match fs::read_to_string(params) {
        Err(error) => return Ok(Scrub::Zeroing(format!("{}: {error}", params.display()))),
        Ok(text) => {
            if let Some(line) = text.lines().find(|line| mentions_scrubbing(line)) {
                return Ok(Scrub::Zeroing(format!("{} contains `{}`", params.display(), line.trim())));
            }
        }
    }
    let stream = Stream::new(device.context())?;
    let (mut buffer, zeros) = (vec![0; PIECE], vec![0; PIECE]);
    for _ in 0..ROUNDS {
        write(device, &stream)?;
        let again = device.physical(SIZE)?;
        if !is_zero(device, &again, &mut buffer, &zeros)? {
            return Ok(Scrub::Zeroing("released memory was not zero when it was created again".to_owned()));
        }
    }
    Ok(Scrub::Certain)
}

/// Whether the driver's pinned host memory is zero when fresh, which only a module parameter tells. The kernel
/// zeroes all other host memory.
pub(crate) fn zeroes_host(params: &Path) -> bool {
    let text = fs::read_to_string(params).unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().eq(["InitializeSystemMemoryAllocations:", "1"]))
}

/// As in `RegistryDwords: "RMDisableScrubOnFree=1"`.
fn mentions_scrubbing(line: &str) -> bool {
    line.to_ascii_lowercase().contains("scrub")
}

impl KeepAlive for (Mapping, Physical) {}

fn write(device: &Device, stream: &Stream) -> Result<(), CudaError> {
    let physical = device.physical(SIZE)?;
    let mapping = physical.map(device.context().device(), Access::ReadWrite)?;
    let address = mapping.address();
    stream.fill((mapping, physical), address, MARK, SIZE)?.end().map(drop)
}

fn is_zero(device: &Device, physical: &Physical, buffer: &mut [u8], zeros: &[u8]) -> Result<bool, CudaError> {
    let mapping = physical.map(device.context().device(), Access::ReadOnly)?;
    for offset in (0..SIZE.get()).step_by(PIECE) {
        device.context().read(mapping.address() + offset, buffer)?;
        if buffer != zeros {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_zeroed_only_if_the_module_says_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let says = |text: &str| {
            fs::write(file.path(), text).unwrap();
            zeroes_host(file.path())
        };
        assert!(says("EnableMSI: 1\nInitializeSystemMemoryAllocations: 1\n"));
        assert!(!says("InitializeSystemMemoryAllocations: 0\n"));
        assert!(!says("EnableMSI: 1\n"));
        assert!(!zeroes_host(Path::new("/nowhere")));
    }

    #[test]
    fn an_override_is_recognised() {
        assert!(mentions_scrubbing("RegistryDwords: \"RMDisableScrubOnFree=1\""));
        assert!(!mentions_scrubbing("RegistryDwords: \"\""));
        assert!(!mentions_scrubbing("CoherentGPUMemoryMode: \"\""));
    }
}
