//! Where an extent lies.

use std::fmt;

use vramd_types::DeviceIndex;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Location {
    Device(DeviceIndex),
    Host,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => write!(f, "device {device}"),
            Self::Host => f.write_str("the host"),
        }
    }
}
