//! The policies that a replay can run.

use std::{fmt, str::FromStr};

use broker_core::EvictionPolicy;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// A policy of the daemon.
    Eviction(EvictionPolicy),
    /// Evicts the part that is needed furthest ahead. Only a replay knows it.
    KnownFuture,
}

const KNOWN_FUTURE: &str = "known-future";

impl Policy {
    /// Returns every policy, in the order of reports.
    pub fn all() -> impl Iterator<Item = Self> {
        EvictionPolicy::ALL.into_iter().map(Self::Eviction).chain([Self::KnownFuture])
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Eviction(policy) => policy.name(),
            Self::KnownFuture => KNOWN_FUTURE,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No policy has that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = EvictionPolicy::NAMES;
        write!(f, "no eviction policy has that name; the names are {names}, {KNOWN_FUTURE}")
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::all().find(|policy| policy.name() == name).ok_or(UnknownPolicy)
    }
}
