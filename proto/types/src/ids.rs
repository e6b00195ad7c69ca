//! Ids of allocations, sessions and other objects, and their printed forms.
//!
//! Ids of allocations, sessions and extents are never reused: the high 24 bits are the boot epoch, the low 40 count up
//! from 1. Ids of waits count up from 1 with each start. The daemon shows the ids of allocations, sessions and waits
//! [permuted](crate::hide_counts). The printed form is a prefix and the same decimal number that JSON and `grpcurl` show,
//! so that either can be pasted anywhere.

use std::{fmt, str::FromStr};

use crate::shown_ids::{self, Kind};

pub(crate) const COUNTER_BITS: u32 = 40;
pub(crate) const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

/// The last boot epoch: the ids of a later one would be those of an earlier one.
pub const BOOT_EPOCH_MAX: u64 = (1 << (u64::BITS - COUNTER_BITS)) - 1;

/// The text is not an id of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseIdError {
    pub text: String,
    pub expected: &'static str,
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not an id like `{}123`", self.text, self.expected)
    }
}

impl std::error::Error for ParseIdError {}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The number by which the daemon counts and orders.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The id that is shown as that number.
            pub fn from_shown(shown: u64) -> Self {
                Self(shown_ids::read($kind, shown))
            }

            /// The number that clients, operators and logs see.
            pub fn shown(self) -> u64 {
                shown_ids::show($kind, self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!(concat!($prefix, "{}"), self.shown()))
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            /// Parses an id with or without its prefix.
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let digits = text.strip_prefix($prefix).unwrap_or(text);
                let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
                match digits.parse() {
                    Ok(shown) if plain => Ok(Self::from_shown(shown)),
                    _ => Err(ParseIdError { text: text.to_owned(), expected: $prefix }),
                }
            }
        }
    };
}

id!(
    /// One allocation, printed `a-…`.
    AllocationId, "a-", Some(Kind::Allocation)
);
id!(
    /// One session of a client process, printed `s-…`.
    SessionId, "s-", Some(Kind::Session)
);
id!(
    /// One wait for room on a device, printed as its bare number. Later waits have greater numbers inside the daemon.
    WaitId, "", Some(Kind::Wait)
);
id!(
    /// One extent, a physical piece of memory, printed `e-…`. It never leaves the daemon.
    ExtentId, "e-", None
);
id!(
    /// One copy between two extents, printed `c-…`. It never leaves the daemon.
    CopyId, "c-", None
);

/// The number of a prefetch request in its session. Clients count from 1. Requests that the daemon makes for a sequence
/// have numbers from [`Self::OWN`] on, which are printed `seq-…` and counted from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefetchNumber(pub u64);

impl PrefetchNumber {
    /// The first number of the daemon's own requests.
    pub const OWN: u64 = 1 << 63;
    const PREFIX: &str = "seq-";
}

impl fmt::Display for PrefetchNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.checked_sub(Self::OWN) {
            Some(number) => f.pad(&format!("{}{number}", Self::PREFIX)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

impl FromStr for PrefetchNumber {
    type Err = ParseIdError;

    /// Parses both printed forms, and the number of the daemon's own requests as JSON shows it.
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let (digits, first) = match text.strip_prefix(Self::PREFIX) {
            Some(digits) => (digits, Self::OWN),
            None => (text, 0),
        };
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number =
            digits.parse::<u64>().ok().filter(|_| plain).and_then(|number| number.checked_add(first));
        number.map(Self).ok_or_else(|| ParseIdError { text: text.to_owned(), expected: Self::PREFIX })
    }
}

/// The number of a device in the daemon's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A NUMA node of the host, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostNode(pub u16);

impl fmt::Display for HostNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a part in its allocation, in order of the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartIndex(pub u32);

impl fmt::Display for PartIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Returns the boot epoch in which the daemon gave out the id.
pub const fn epoch_of(raw: u64) -> u64 {
    raw >> COUNTER_BITS
}

/// Gives out ids of one kind, each once.
#[derive(Debug)]
pub struct IdSource {
    last: u64,
    end: u64,
}

impl IdSource {
    /// Bits of `boot_epoch` above [`BOOT_EPOCH_MAX`] are cut, and ids would repeat: the daemon refuses to start then.
    pub const fn new(boot_epoch: u64) -> Self {
        let base = (boot_epoch << COUNTER_BITS) & !COUNTER_MAX;
        Self { last: base, end: base | COUNTER_MAX }
    }

    /// Returns the next id, or `None` after 2^40 of them in one boot epoch.
    pub const fn next_raw(&mut self) -> Option<u64> {
        if self.last == self.end {
            return None;
        }
        self.last += 1;
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn print_and_parse_are_inverse() {
        let id = AllocationId::from_raw(1_099_511_627_777);
        assert_eq!(id.to_string(), "a-1099511627777");
        assert_eq!("a-1099511627777".parse(), Ok(id));
        assert_eq!("1099511627777".parse(), Ok(id));
        for bad in ["", "a-", "s-1", "a--1", "-1", "+1", "a-1x", "a-99999999999999999999", " 1"] {
            assert!(bad.parse::<AllocationId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn epochs_never_meet() {
        let mut first = IdSource::new(1);
        let mut second = IdSource::new(2);
        assert_eq!(first.next_raw(), Some((1 << 40) + 1));
        assert_eq!(second.next_raw(), Some((2 << 40) + 1));
        first.last = first.end - 1;
        assert!(first.next_raw().is_some_and(|last| last < 2 << 40));
        assert_eq!(first.next_raw(), None);
    }

    #[test]
    fn numbers_of_prefetches_are_short_and_parse_again() {
        for (number, text) in [
            (7, "7"),
            (PrefetchNumber::OWN + 1_101, "seq-1101"),
            (PrefetchNumber::OWN - 1, "9223372036854775807"),
        ] {
            assert_eq!(PrefetchNumber(number).to_string(), text);
            assert_eq!(text.parse(), Ok(PrefetchNumber(number)));
            assert_eq!(number.to_string().parse(), Ok(PrefetchNumber(number)), "as JSON has it");
        }
        for wrong in ["", "seq-", "seq--1", "seq-9223372036854775808", "+1", "s-1", "18446744073709551616"] {
            assert!(wrong.parse::<PrefetchNumber>().is_err(), "{wrong}");
        }
    }
}
