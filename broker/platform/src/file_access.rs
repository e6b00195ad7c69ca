//! Decides how a device reads a file that a client maps.
//!
//! The bytes of such a file are page cache, which the kernel shares among processes and takes back under pressure.
//! Registering a mapping pins its pages: they can then not be taken back, and no tenant is charged for them. So direct
//! reads come first wherever the device makes them, and registering only where it is the one way to read in place.

use std::fmt;

use crate::readings::DeviceReadings;

/// How a device reads a file that a client maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// At the address of the mapping.
    Direct,
    /// At an address of the driver's, once the mapping is registered read-only.
    Registered,
    /// Not in place: the client copies the file to the device.
    Copy(NotInPlace),
}

/// Why a device reads no file in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInPlace {
    /// Device memory and host memory are apart, or the readings do not say.
    SeparateTiers,
    /// The memory is one, but the device reads neither pageable memory nor what is registered read-only.
    RegisterUnsupported,
}

impl fmt::Display for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => {
                f.write_str("the device reads mapped files in place; their pages stay page cache")
            }
            Self::Registered => f.write_str(
                "the device reads mapped files in place once they are registered, which pins their pages",
            ),
            Self::Copy(why) => write!(f, "files are copied to the device: {why}"),
        }
    }
}

impl fmt::Display for NotInPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SeparateTiers => "it reads no pageable host memory (PAGEABLE_MEMORY_ACCESS)",
            Self::RegisterUnsupported => {
                "it reads neither pageable memory (PAGEABLE_MEMORY_ACCESS) nor read-only registered memory \
                 (READ_ONLY_HOST_REGISTER_SUPPORTED)"
            }
        })
    }
}

/// Tells how the device reads a mapped file. A reading that is missing counts as a no.
pub fn file_access(device: &DeviceReadings) -> FileAccess {
    let is = |reading: Option<bool>| reading == Some(true);
    let registers = is(device.host_register_supported) && is(device.read_only_host_register_supported);
    if is(device.pageable_memory_access) {
        FileAccess::Direct
    } else if !is(device.integrated) {
        FileAccess::Copy(NotInPlace::SeparateTiers)
    } else if registers {
        FileAccess::Registered
    } else {
        FileAccess::Copy(NotInPlace::RegisterUnsupported)
    }
}

/// Whether clients read files in place on this device unless the program asks for a copy. That is so where device
/// memory and host memory are the same bytes: a copy would take the room of the file a second time, and be no faster.
pub fn is_in_place_by_default(device: &DeviceReadings) -> bool {
    device.integrated == Some(true) && !matches!(file_access(device), FileAccess::Copy(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;

    fn device(integrated: bool, pageable: bool, register: bool, read_only: bool) -> DeviceReadings {
        DeviceReadings {
            integrated: Some(integrated),
            pageable_memory_access: Some(pageable),
            host_register_supported: Some(register),
            read_only_host_register_supported: Some(read_only),
            ..DeviceReadings::default()
        }
    }

    #[test]
    fn access_follows_from_the_readings() {
        use FileAccess::{Copy, Direct, Registered};
        use NotInPlace::{RegisterUnsupported, SeparateTiers};
        // Integrated, pageable, registers, registers read-only: the access, and whether it is the default.
        let table = [
            ((true, true, true, true), Direct, true),
            ((true, true, false, false), Direct, true),
            ((true, false, true, true), Registered, true),
            ((true, false, true, false), Copy(RegisterUnsupported), false),
            ((true, false, false, true), Copy(RegisterUnsupported), false),
            ((true, false, false, false), Copy(RegisterUnsupported), false),
            ((false, true, true, true), Direct, false),
            ((false, true, false, false), Direct, false),
            ((false, false, true, true), Copy(SeparateTiers), false),
            ((false, false, false, false), Copy(SeparateTiers), false),
        ];
        for ((integrated, pageable, register, read_only), access, by_default) in table {
            let device = device(integrated, pageable, register, read_only);
            assert_eq!(
                (file_access(&device), is_in_place_by_default(&device)),
                (access, by_default),
                "{device:?}"
            );
        }
    }

    #[test]
    fn an_unknown_platform_has_separate_tiers() {
        let unknown = DeviceReadings { host_register_supported: Some(true), ..DeviceReadings::default() };
        assert_eq!(file_access(&unknown), FileAccess::Copy(NotInPlace::SeparateTiers));
        assert!(!is_in_place_by_default(&unknown));
        let half_known = DeviceReadings { integrated: Some(true), ..unknown };
        assert_eq!(file_access(&half_known), FileAccess::Copy(NotInPlace::RegisterUnsupported));
    }

    #[test]
    fn each_platform_that_is_simulated_has_its_access() {
        let of = |platform| {
            let device = DeviceReadings::simulated("GPU-1".to_owned(), String::new(), 1, platform);
            (file_access(&device), is_in_place_by_default(&device))
        };
        let apart = FileAccess::Copy(NotInPlace::SeparateTiers);
        for (platform, access, by_default) in [
            (Platform::Discrete, apart, false),
            (Platform::Hmm, FileAccess::Direct, false),
            (Platform::CoherentNuma, FileAccess::Direct, false),
            (Platform::CoherentCdmm, FileAccess::Direct, false),
            (Platform::OnePool, FileAccess::Direct, true),
        ] {
            assert_eq!(of(platform), (access, by_default), "{platform}");
        }
    }
}
