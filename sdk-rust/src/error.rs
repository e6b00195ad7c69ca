//! What can go wrong: the registry of reasons as a Rust enum.
//!
//! Refusals that a program handles have a variant with their facts; all others are [`Error::Refused`]. This is the
//! inverse of the daemon's map to gRPC, and a test walks the registry through it.

use std::{collections::BTreeMap, time::Duration};

use vramd_types::{Bytes, Reason, StatusCode};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("tenant `{tenant}` is limited to {limit} in tier {tier} of {device}: {held} held, {asked} asked")]
    QuotaLimit { tenant: String, device: String, tier: String, limit: Bytes, held: Bytes, asked: Bytes },
    #[error("tier {tier} of {device} has {free} that is not guaranteed to others: {asked} asked")]
    DeviceFull { device: String, tier: String, free: Bytes, asked: Bytes },
    #[error("the name `{name}` is taken")]
    NameTaken { name: String },
    #[error("no allocation `{allocation}`")]
    AllocationNotFound { allocation: String },
    #[error("session {session} has ended; what it maps stands, and a new one can be opened")]
    SessionLost { session: String },
    #[error("the daemon cannot be reached: {problem}")]
    BrokerGone { problem: String },
    #[error("the node is being taken out of service")]
    Draining,
    #[error("the deadline passed first; what completes later stays")]
    Deadline,
    #[error("{allocation} could not be mapped: {problem}")]
    MapFailed { allocation: String, problem: String },
    /// Only of slices: copies and kernels work.
    #[error(
        "{allocation} lies in device memory, which the CPU cannot follow: use copy_to_host and copy_from_host"
    )]
    DeviceMemory { allocation: String },
    #[error("{allocation} is not mapped any more, or not for that")]
    NotMapped { allocation: String },
    /// Its handle has let go of it: the daemon may take it back while nobody pins it.
    #[error("{allocation} is not held: pin it, or hold it again")]
    NotPinned { allocation: String },
    /// Guards are alive. Nothing was done, and nothing is lost.
    #[error("{allocation} is in use: {pins} pins of this process are left")]
    Pinned { allocation: String, pins: u64 },
    /// This process was forked from the one that the session belongs to.
    #[error("session {session} belongs to the process that this one was forked from")]
    Forked { session: String },
    #[error("{allocation} could not be copied: {problem}")]
    CopyFailed { allocation: String, problem: String },
    #[error("the bytes have the digest {found}, not {expected}")]
    DigestMismatch { expected: String, found: String },
    /// For [`crate::Client::allocate`] it is not too large.
    #[error("{size} is no small allocation: the pool's blocks have at most {largest}")]
    NotSmall { size: Bytes, largest: Bytes },
    #[error("the pool is limited to {limit}: {held} held, {asked} more would be needed")]
    PoolFull { limit: Bytes, held: Bytes, asked: Bytes },
    /// Any other refusal of the registry.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// A refusal that this build's registry does not have, or a status that no part of vramd made.
    #[error("{message} (gRPC code {code})")]
    Unknown { code: i32, reason: String, message: String },
}

/// A refusal with its facts as they came: keys as in the registry, numbers in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
    pub facts: BTreeMap<String, String>,
    /// When it may be worth trying again.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// The reason's entry in the registry, if it has one.
    pub fn reason(&self) -> Option<Reason> {
        Some(match self {
            Self::QuotaLimit { .. } => Reason::QuotaLimit,
            Self::DeviceFull { .. } => Reason::DeviceFull,
            Self::NameTaken { .. } => Reason::NameTaken,
            Self::AllocationNotFound { .. } => Reason::AllocationNotFound,
            Self::SessionLost { .. } => Reason::SessionLost,
            Self::BrokerGone { .. } => Reason::BrokerGone,
            Self::Draining => Reason::Draining,
            Self::Deadline => Reason::Deadline,
            // To programs that know the registry alone, what cannot be used as mapped was not mapped.
            Self::MapFailed { .. }
            | Self::DeviceMemory { .. }
            | Self::NotMapped { .. }
            | Self::NotPinned { .. }
            | Self::CopyFailed { .. } => Reason::MapFailed,
            Self::Pinned { .. } => Reason::Pinned,
            Self::Forked { .. } => Reason::SessionForeign,
            Self::DigestMismatch { .. } => Reason::DigestMismatch,
            Self::NotSmall { .. } => Reason::SizeInvalid,
            Self::PoolFull { .. } => Reason::PoolFull,
            Self::Refused(refusal) => refusal.reason,
            Self::Unknown { .. } => return None,
        })
    }

    pub fn code(&self) -> Option<StatusCode> {
        self.reason().map(Reason::code)
    }

    /// The facts under the registry's keys; numbers in bytes.
    pub fn facts(&self) -> BTreeMap<String, String> {
        let facts = |pairs: &[(&str, &dyn ToString)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect()
        };
        match self {
            Self::QuotaLimit { tenant, device, tier, limit, held, asked } => facts(&[
                ("tenant", tenant),
                ("device", device),
                ("tier", tier),
                ("limit", &limit.get()),
                ("held", &held.get()),
                ("asked", &asked.get()),
            ]),
            Self::DeviceFull { device, tier, free, asked } => {
                facts(&[("device", device), ("tier", tier), ("free", &free.get()), ("asked", &asked.get())])
            }
            Self::NameTaken { name } => facts(&[("name", name)]),
            Self::AllocationNotFound { allocation } => facts(&[("allocation", allocation)]),
            Self::SessionLost { session } => facts(&[("session", session)]),
            Self::BrokerGone { problem } => facts(&[("problem", problem)]),
            Self::MapFailed { allocation, problem } | Self::CopyFailed { allocation, problem } => {
                facts(&[("allocation", allocation), ("problem", problem)])
            }
            Self::DeviceMemory { allocation }
            | Self::NotMapped { allocation }
            | Self::NotPinned { allocation } => facts(&[("allocation", allocation), ("problem", self)]),
            Self::Pinned { allocation, pins } => facts(&[("allocation", allocation), ("pins", pins)]),
            Self::Forked { session } => facts(&[("session", session), ("pid", &std::process::id())]),
            Self::DigestMismatch { expected, found } => facts(&[("expected", expected), ("found", found)]),
            Self::NotSmall { size, .. } => facts(&[("field", &"size"), ("size", &size.get())]),
            Self::PoolFull { limit, held, asked } => {
                facts(&[("limit", &limit.get()), ("held", &held.get()), ("asked", &asked.get())])
            }
            Self::Refused(refusal) => refusal.facts.clone(),
            Self::Draining | Self::Deadline | Self::Unknown { .. } => BTreeMap::new(),
        }
    }

    /// A refusal that this process makes itself.
    pub(crate) fn refused(reason: Reason, facts: &[(&str, &dyn ToString)]) -> Self {
        let facts: BTreeMap<_, _> =
            facts.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect();
        Self::from_refusal(Refusal { reason, message: reason.meaning().to_owned(), facts, retry_after: None })
    }

    /// The variant that has the refusal's facts as fields, if there is one and they are all there.
    pub(crate) fn from_refusal(refusal: Refusal) -> Self {
        Self::typed(&refusal).unwrap_or(Self::Refused(refusal))
    }

    fn typed(refusal: &Refusal) -> Option<Self> {
        let text = |key: &str| refusal.facts.get(key).cloned();
        let bytes = |key: &str| text(key)?.parse().ok().map(Bytes::new);
        Some(match refusal.reason {
            Reason::QuotaLimit => Self::QuotaLimit {
                tenant: text("tenant")?,
                device: text("device")?,
                tier: text("tier")?,
                limit: bytes("limit")?,
                held: bytes("held")?,
                asked: bytes("asked")?,
            },
            Reason::DeviceFull => Self::DeviceFull {
                device: text("device")?,
                tier: text("tier")?,
                free: bytes("free")?,
                asked: bytes("asked")?,
            },
            Reason::NameTaken => Self::NameTaken { name: text("name")? },
            Reason::AllocationNotFound => Self::AllocationNotFound { allocation: text("allocation")? },
            Reason::SessionLost => Self::SessionLost { session: text("session")? },
            Reason::BrokerGone => Self::BrokerGone { problem: text("problem")? },
            Reason::Draining => Self::Draining,
            Reason::Deadline => Self::Deadline,
            Reason::MapFailed => {
                Self::MapFailed { allocation: text("allocation")?, problem: text("problem")? }
            }
            Reason::Pinned => {
                Self::Pinned { allocation: text("allocation")?, pins: text("pins")?.parse().ok()? }
            }
            Reason::DigestMismatch => {
                Self::DigestMismatch { expected: text("expected")?, found: text("found")? }
            }
            Reason::PoolFull => {
                Self::PoolFull { limit: bytes("limit")?, held: bytes("held")?, asked: bytes("asked")? }
            }
            _ => return None,
        })
    }
}
