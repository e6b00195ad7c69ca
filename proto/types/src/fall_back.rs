//! Why a client copied a file to a device, although the device was to read it in place or could have.

use std::fmt;

/// The reason of one such copy. Daemon, SDKs and tools use the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallBack {
    SeparateTiers,
    FileMutable,
    RegisterUnsupported,
    RegisterFailed,
    MapFailed,
    Misaligned,
    NotRequested,
    FileUnchecked,
}

impl FallBack {
    pub const ALL: [Self; 8] = [
        Self::SeparateTiers,
        Self::FileMutable,
        Self::RegisterUnsupported,
        Self::RegisterFailed,
        Self::MapFailed,
        Self::Misaligned,
        Self::NotRequested,
        Self::FileUnchecked,
    ];

    /// The number in messages. 0 is none.
    #[must_use]
    pub const fn number(self) -> i32 {
        self as i32 + 1
    }

    #[must_use]
    pub fn of_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.number() == number)
    }

    /// The name in metrics, readings and the SDKs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SeparateTiers => "separate_tiers",
            Self::FileMutable => "file_mutable",
            Self::RegisterUnsupported => "register_unsupported",
            Self::RegisterFailed => "register_failed",
            Self::MapFailed => "map_failed",
            Self::Misaligned => "misaligned",
            Self::NotRequested => "not_requested",
            Self::FileUnchecked => "file_unchecked",
        }
    }

    /// The reason in words, and the remedy where there is one.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::SeparateTiers => "the device reads no pageable host memory, or its platform is unknown",
            Self::FileMutable => {
                "the file may change; fs-verity or files.immutable_paths mark one that does not"
            }
            Self::RegisterUnsupported => "the driver registers no read-only memory; a newer one may",
            Self::RegisterFailed => {
                "the driver did not register the mapping; see the client's RLIMIT_MEMLOCK"
            }
            Self::MapFailed => "the client could not map the file; see its RLIMIT_AS and vm.max_map_count",
            Self::Misaligned => "a tensor begins at no multiple of 16 bytes; spaces after the header move it",
            Self::NotRequested => {
                "the program did not ask to read in place; where=\"in_place\" or load_in_place does"
            }
            Self::FileUnchecked => "the daemon could not look at the file, or not in time; load it again",
        }
    }
}

impl fmt::Display for FallBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_stands_at_its_own_place() {
        for (at, reason) in FallBack::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
            assert_eq!(FallBack::of_number(reason.number()), Some(reason));
            assert!(FallBack::ALL.iter().filter(|other| other.name() == reason.name()).count() == 1);
        }
        assert!([-1, 0, 99].into_iter().all(|number| FallBack::of_number(number).is_none()));
    }
}
