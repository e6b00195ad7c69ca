//! Errors: the registry of reasons as a Rust enum.
//!
//! A refusal that a program can handle has a variant with its facts, each written once in the table below. The
//! program's own mistakes, and refusals that only operators meet, are [`Error::Refused`]: its reason can be matched
//! too ([`Refusal::reason`]), and the daemon's sentence says more than the facts do. This is the inverse of the
//! daemon's map to gRPC, and a test walks the registry through it.

use std::{collections::BTreeMap, time::Duration};

use vramd_types::{Bytes, Reason, StatusCode};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// First the reasons with their facts, under the registry's names; then the variants that the registry does not have.
macro_rules! errors {
    (
        { $($(#[$doc:meta])* $variant:ident { $($fact:ident: $kind:ty),* }, $message:literal;)* }
        { $($own:tt)* }
    ) => {
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* #[error($message)] $variant { $($fact: $kind),* },)*
            $($own)*
            /// Any other refusal of the registry.
            #[error(transparent)]
            Refused(Refusal),
        }

        impl Error {
            /// The reason and facts of a variant that comes from the registry.
            fn registry_entry(&self) -> Option<(Reason, BTreeMap<String, String>)> {
                match self {
                    $(Self::$variant { $($fact),* } => {
                        let facts = [$((stringify!($fact).to_owned(), $fact.to_text())),*];
                        Some((Reason::$variant, facts.into()))
                    })*
                    _ => None,
                }
            }

            fn typed(refusal: &Refusal) -> Option<Self> {
                match refusal.reason {
                    $(Reason::$variant => Some(Self::$variant {
                        $($fact: Fact::parse(refusal.facts.get(stringify!($fact))?)?),*
                    }),)*
                    _ => None,
                }
            }
        }
    };
}

errors! {
    {
        QuotaLimit { tenant: String, device: String, tier: String, limit: Bytes, held: Bytes, asked: Bytes },
            "tenant `{tenant}` is limited to {limit} in tier {tier} of {device}: {held} held, {asked} asked";
        DeviceFull { device: String, tier: String, free: Bytes, asked: Bytes },
            "tier {tier} of {device} has {free} that is not guaranteed to others: {asked} asked";
        /// The pin is of another tenant's memory.
        SetTooLarge { device: String, tier: String, asked: Bytes },
            "{asked} of another tenant's memory are more than that may have in tier {tier} of {device} at once";
        SessionsTooMany { tenant: String, limit_count: u64 },
            "no more sessions for tenant `{tenant}`: the limit is {limit_count}";
        AllocationsTooMany { tenant: String, limit_count: u64 },
            "no more allocations or parts for tenant `{tenant}`: a limit of {limit_count} is reached";
        SlotsExhausted { session: String, limit_count: u64 },
            "session {session} has no slots left for these parts: its word table has {limit_count}";
        PoolFull { limit: Bytes, held: Bytes, asked: Bytes },
            "the pool is limited to {limit}: {held} held, {asked} more would be needed";
        NameTaken { name: String }, "the name `{name}` is taken";
        AllocationNotFound { allocation: String }, "no allocation `{allocation}`";
        NotOwner { allocation: String }, "{allocation} belongs to another session";
        NotSealed { allocation: String }, "{allocation} is not sealed";
        AlreadySealed { allocation: String }, "{allocation} is sealed, or being sealed";
        StillMapped { allocation: String },
            "an earlier mapping of {allocation} is still being unmapped by this session";
        Raced { allocation: String }, "{allocation} was changed by something else meanwhile";
        /// The call waited for pins whose holders all waited themselves, perhaps for this session's. Unpin what the
        /// session pins, then try again.
        PinStalled { session: String },
            "session {session} waited for parts that are pinned by sessions that wait themselves: unpin and try again";
        /// An operator cancelled the wait for room on the device.
        WaitCancelled { wait: u64 }, "an operator ended the wait for room, number {wait}";
        PinsTooMany { allocation: String, limit_count: u64 },
            "a part of {allocation} has {limit_count} pins, as many as can be counted";
        /// Guards are alive. Nothing was done, and no byte is lost.
        Pinned { allocation: String, pins: u64 },
            "{allocation} is in use: {pins} pins of this process are left";
        StreamCapturing { allocation: String },
            "a stream that {allocation} is to be unpinned after is being captured: pin around the graph's launch";
        StreamsUnsupported { allocation: String }, "{allocation} lies in memory that has no streams";
        DeviceNotVisible { device: String }, "device {device} is not among those the session sees";
        KindUnsupported { kind: String }, "there are no {kind} allocations here";
        SessionLost { session: String },
            "session {session} has ended; what it maps stands, and a new one can be opened";
        ProtocolBroken { problem: String }, "channel protocol broken: {problem}";
        DriverFailed { device: String, problem: String }, "the driver failed: {problem}";
        BrokerGone { problem: String }, "the daemon cannot be reached: {problem}";
        MapFailed { allocation: String, problem: String }, "{allocation} could not be mapped: {problem}";
        FileInvalid { problem: String }, "there is no such file to be loaded: {problem}";
        /// [`crate::Client::load`] copies such a file instead.
        FileMutable { path: String }, "{path} may change, so it cannot be what an allocation has below its device";
        /// Only that part is lost; all others can be read.
        ContentLost { allocation: String, part_index: u64 }, "part {part_index} of {allocation} is lost";
        DigestMismatch { expected: String, found: String }, "the bytes have the digest {found}, not {expected}";
    }
    {
        #[error("{limit_count} requests, or parts of pins, are waiting already")]
        QueueFull { limit_count: u64, retry_after: Option<Duration> },
        #[error("the node is being taken out of service")]
        Draining,
        #[error("the deadline passed first; what completes later stays")]
        Deadline,
        /// Slices alone are refused: copies and kernels work.
        #[error(
            "{allocation} lies in device memory, which the CPU cannot follow: use copy_to_host and copy_from_host"
        )]
        DeviceMemory { allocation: String },
        #[error("{allocation} is not mapped any more, or not for that")]
        NotMapped { allocation: String },
        /// The handle has given up its handle pin, so the daemon may unmap the memory.
        #[error("{allocation} is not held: pin it, or hold it again")]
        NotPinned { allocation: String },
        /// This process was forked from the session's process.
        #[error("session {session} belongs to the process that this one was forked from")]
        Forked { session: String },
        #[error("{allocation} could not be copied: {problem}")]
        CopyFailed { allocation: String, problem: String },
        /// [`crate::Client::allocate`] accepts such a size.
        #[error("{size} is no small allocation: the pool's blocks have at most {largest}")]
        NotSmall { size: Bytes, largest: Bytes },
        /// A refusal that is not in this build's registry, or a status that another program made.
        #[error("{message} (gRPC code {code})")]
        Unknown { code: i32, reason: String, message: String },
    }
}

/// A refusal with its facts as received: keys as in the registry, numbers in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
    pub facts: BTreeMap<String, String>,
    /// How long to wait before trying again.
    pub retry_after: Option<Duration>,
}

/// How a fact is written in the metadata.
trait Fact: Sized {
    fn parse(text: &str) -> Option<Self>;
    fn to_text(&self) -> String;
}

impl Fact for String {
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn to_text(&self) -> String {
        self.clone()
    }
}

impl Fact for u64 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Fact for Bytes {
    fn parse(text: &str) -> Option<Self> {
        u64::parse(text).map(Self::new)
    }

    fn to_text(&self) -> String {
        self.get().to_string()
    }
}

impl Error {
    /// The reason in the registry, if the error has one.
    pub fn reason(&self) -> Option<Reason> {
        Some(match self {
            Self::QueueFull { .. } => Reason::QueueFull,
            Self::Draining => Reason::Draining,
            Self::Deadline => Reason::Deadline,
            // Programs that know only the registry see memory that cannot be used as not mapped.
            Self::DeviceMemory { .. }
            | Self::NotMapped { .. }
            | Self::NotPinned { .. }
            | Self::CopyFailed { .. } => Reason::MapFailed,
            Self::Forked { .. } => Reason::SessionForeign,
            Self::NotSmall { .. } => Reason::SizeInvalid,
            Self::Refused(refusal) => refusal.reason,
            Self::Unknown { .. } => return None,
            known => known.registry_entry()?.0,
        })
    }

    pub fn code(&self) -> Option<StatusCode> {
        self.reason().map(Reason::code)
    }

    /// How long to wait before trying again, if the daemon says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { retry_after, .. } | Self::Refused(Refusal { retry_after, .. }) => *retry_after,
            _ => None,
        }
    }

    /// The facts under the registry's keys; numbers in bytes.
    pub fn facts(&self) -> BTreeMap<String, String> {
        let facts = |pairs: &[(&str, &dyn ToString)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect()
        };
        match self {
            Self::QueueFull { limit_count, .. } => facts(&[("limit_count", limit_count)]),
            Self::CopyFailed { allocation, problem } => {
                facts(&[("allocation", allocation), ("problem", problem)])
            }
            Self::DeviceMemory { allocation }
            | Self::NotMapped { allocation }
            | Self::NotPinned { allocation } => facts(&[("allocation", allocation), ("problem", self)]),
            Self::Forked { session } => facts(&[("session", session), ("pid", &std::process::id())]),
            Self::NotSmall { size, .. } => facts(&[("field", &"size"), ("size", &size.get())]),
            Self::Refused(refusal) => refusal.facts.clone(),
            Self::Draining | Self::Deadline | Self::Unknown { .. } => BTreeMap::new(),
            known => known.registry_entry().map(|(_, facts)| facts).unwrap_or_default(),
        }
    }

    /// A refusal that the SDK makes itself.
    pub(crate) fn refused(reason: Reason, facts: &[(&str, &dyn ToString)]) -> Self {
        let facts: BTreeMap<_, _> =
            facts.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect();
        Self::from_refusal(Refusal { reason, message: reason.meaning().to_owned(), facts, retry_after: None })
    }

    /// The variant with the refusal's facts as fields, if there is one and no fact is missing.
    pub(crate) fn from_refusal(refusal: Refusal) -> Self {
        let limit = || u64::parse(refusal.facts.get("limit_count")?);
        match (refusal.reason, limit()) {
            (Reason::Draining, _) => Self::Draining,
            (Reason::Deadline, _) => Self::Deadline,
            (Reason::QueueFull, Some(limit_count)) => {
                Self::QueueFull { limit_count, retry_after: refusal.retry_after }
            }
            _ => Self::typed(&refusal).unwrap_or(Self::Refused(refusal)),
        }
    }
}
