//! Errors: the registry of reasons as a Rust enum.
//!
//! A refusal that a program can handle has a variant with its facts, each written once in the table below. The
//! program's own mistakes, and refusals that only operators meet, are [`Error::Refused`]: its reason can be matched
//! too ([`Refusal::reason`]). Every error from the daemon displays the daemon's sentence, which says more than the facts
//! do. This is the inverse of the daemon's map to gRPC, and a test walks the registry through it.

use std::{collections::BTreeMap, fmt, time::Duration};

use vramd_types::{Bytes, Reason, StatusCode};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// First the reasons with their facts, under the registry's names; then the variants that the registry does not have.
macro_rules! errors {
    (
        { $($(#[$doc:meta])* $variant:ident { $($fact:ident: $kind:ty),* }, $message:literal $(($($arg:tt)*))?;)* }
        { $($own:tt)* }
    ) => {
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        pub enum Error {
            $(
                $(#[$doc])*
                #[error("{}", said.or(format_args!($message $(, $($arg)*)?)))]
                $variant { $($fact: $kind,)* said: Sentence },
            )*
            $($own)*
            /// Any other refusal of the registry.
            #[error(transparent)]
            Refused(Refusal),
        }

        impl Error {
            /// The reason and facts of a variant that comes from the registry.
            fn registry_entry(&self) -> Option<(Reason, BTreeMap<String, String>)> {
                match self {
                    $(Self::$variant { $($fact,)* .. } => {
                        let facts = [$((stringify!($fact).to_owned(), $fact.to_text())),*];
                        Some((Reason::$variant, facts.into()))
                    })*
                    _ => None,
                }
            }

            fn typed(refusal: &Refusal, said: Sentence) -> Option<Self> {
                match refusal.reason {
                    $(Reason::$variant => Some(Self::$variant {
                        $($fact: Fact::parse(refusal.facts.get(stringify!($fact))?)?,)*
                        said,
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
            "tenant `{tenant}` is at its limit in tier {tier} of {device}: {asked} requested, {held} of {limit} in use. Free \
             memory, or ask an operator to raise the limit";
        DeviceFull { device: String, tier: String, free: Bytes, asked: Bytes },
            "tier {tier} of {device} is full: {asked} requested, {free} available. Free memory, or allow the request to wait";
        /// The pin is of another tenant's memory.
        SetTooLarge { device: String, tier: String, asked: Bytes },
            "a pin of {asked} of another tenant's memory exceeds what that tenant may have in tier {tier} of {device}: \
             pin fewer parts at once";
        SessionsTooMany { tenant: String, limit_count: u64 },
            "tenant `{tenant}` cannot open another session: it, or the node, has reached the limit of {limit_count}. End a session, \
             or ask an operator to raise the limit";
        AllocationsTooMany { tenant: String, limit_count: u64 },
            "tenant `{tenant}` has reached a limit of {limit_count} allocations or parts: free some first";
        SlotsExhausted { session: String, limit_count: u64 },
            "session {session} has too few free slots for these parts, of {limit_count} in its word table: free or detach \
             allocations, or use larger parts";
        PoolFull { limit: Bytes, held: Bytes, asked: Bytes },
            "the pool is at its limit of {limit}: it has {held} and needs {asked} more; free blocks, or raise its limit";
        NameTaken { name: String }, "the name `{name}` is taken: choose another, or replace the sealed allocation that has it";
        AllocationNotFound { allocation: String },
            "no allocation `{allocation}` exists that the caller may see. Check the name, its tenant and its readers";
        NotOwner { allocation: String }, "{allocation} belongs to another session or tenant. Only its owner can do this";
        /// Withdrawals are accepted. A program that goes on without advice loses no memory by it.
        AdviceForbidden { tenant: String },
            "advice of tenant `{tenant}` is forbidden on this node. Go on without, or ask an operator to allow it";
        NotSealed { allocation: String }, "{allocation} is not sealed, and the request needs a sealed allocation";
        AlreadySealed { allocation: String }, "{allocation} is sealed or being sealed. Allocate new memory to write";
        StillMapped { allocation: String },
            "this session is still unmapping {allocation}. Try again";
        Raced { allocation: String }, "another operation changed {allocation} meanwhile: try again";
        /// The call waited only for sessions that waited themselves, perhaps for this session. Unpin the session's other
        /// parts, then try again.
        PinStalled { session: String },
            "session {session} waited only for parts that are pinned by sessions which wait themselves. Unpin other parts and try \
             again";
        /// An operator cancelled the wait for room on the device, or the client that made the request did.
        WaitCancelled { wait: u64 }, "wait {wait} for room was cancelled, by an operator or by its own client. A new request waits again";
        /// A program that has one turn and waits for another could wait for itself.
        TurnHeld { session: String, set: String },
            "session {session} has the turn of `{set}` or waits for it, and may not request another. Yield first";
        PinsTooMany { allocation: String, limit_count: u64 },
            "a part of {allocation} has {limit_count} pins, as many as can be counted: unpin some first";
        /// Guards are alive. Nothing was done, and no byte is lost.
        Pinned { allocation: String, pins: u64 },
            "{allocation} is in use: {pins} pins of this process are left, which must end first";
        StreamCapturing { allocation: String },
            "a stream that should end a pin of {allocation} is being captured: pin around the graph's launch instead";
        StreamsUnsupported { allocation: String }, "{allocation} is not GPU memory, so no stream can end its pin: drop the guard instead";
        DeviceNotVisible { device: String }, "this session does not see device {device}: connect with it among the visible devices";
        KindUnsupported { kind: String }, "{kind} allocations are not supported here";
        SessionLost { session: String },
            "session {session} has ended: its mappings stand; connect a new client";
        ProtocolBroken { problem: String }, "the channel protocol was broken: {problem}";
        DriverFailed { device: String, problem: String }, "the driver failed: {problem}";
        BrokerGone { problem: String }, "the daemon cannot be reached: {problem}";
        MapFailed { allocation: String, problem: String }, "mapping {allocation} failed: {problem}";
        FileInvalid { problem: String }, "the file cannot be loaded: {problem}";
        /// [`crate::Client::load`] copies such a file instead.
        FileMutable { path: String, problem: String }, "{path} may change, so it cannot be the backing of an allocation: {problem}";
        /// Only that part is lost; all others can be read.
        ContentLost { allocation: String, part_index: u64 }, "the content of part {part_index} of {allocation} is lost. Load or compute it again; other parts are not affected";
        DigestMismatch { expected: String, found: String }, "the content has the digest {found}, not {expected}";
    }
    {
        #[error("{}", said.or(format_args!(
            "{limit_count} requests, or parts of pins, are waiting, which is the limit. Try again later"
        )))]
        QueueFull { limit_count: u64, retry_after: Option<Duration>, said: Sentence },
        #[error("{}", said.or(format_args!("the node is being taken out of service and admits nothing new")))]
        Draining { said: Sentence },
        /// The daemon's sentence, if it has answered, says what the call waited for.
        #[error("{}", said.or(format_args!("the deadline passed first; work that completes later stays done")))]
        Deadline { said: Sentence },
        #[error("cannot read {path}: {problem}")]
        FileUnreadable { path: String, kind: std::io::ErrorKind, problem: String },
        /// Only under [`crate::interruptible`].
        #[error("the call was interrupted, and what it had begun is undone")]
        Interrupted,
        /// Slices alone are refused: copies and kernels work.
        #[error(
            "{allocation} lies in device memory, which the CPU cannot access: use copy_to_host and copy_from_host"
        )]
        DeviceMemory { allocation: String },
        #[error("{allocation} is no longer mapped, or not with this access")]
        NotMapped { allocation: String },
        /// The handle has given up its handle pin, so the daemon may unmap the memory.
        #[error("{allocation} has no handle pin: pin it, or take the handle pin again (repin)")]
        NotPinned { allocation: String },
        /// The program has called [`crate::Client::detach_all`] and not yet [`crate::Client::attach_all`].
        #[error("the session's memory is away: call attach_all to bring it back")]
        Away,
        /// This process was forked from the session's process.
        #[error("session {session} belongs to the parent of this forked process: connect a new client")]
        Forked { session: String },
        #[error("copying {allocation} failed: {problem}")]
        CopyFailed { allocation: String, problem: String },
        /// [`crate::Client::allocate`] accepts such a size.
        #[error("{size} requested, and a block of this pool has at most {largest}: allocate it from the client instead")]
        BlockTooLarge { size: Bytes, largest: Bytes },
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

/// The daemon's own sentence about an error: what happened, the figures, what stood in the way, and what to do. Errors
/// with the same facts are equal, whatever was said.
#[derive(Clone, Default)]
pub struct Sentence(Option<Box<Text>>);

/// Behind one pointer, so that an error stays small.
#[derive(Clone)]
struct Text(String);

impl Sentence {
    fn new(sentence: &str) -> Self {
        Self((!sentence.is_empty()).then(|| Box::new(Text(sentence.to_owned()))))
    }

    /// The sentence; `None` if the client itself made the error and has no more to say than its facts.
    pub fn sentence(&self) -> Option<&str> {
        self.0.as_ref().map(|sentence| sentence.0.as_str())
    }

    /// The sentence, or these words about an error that the client itself made.
    fn or(&self, words: fmt::Arguments<'_>) -> String {
        self.sentence().map_or_else(|| words.to_string(), str::to_owned)
    }
}

impl fmt::Debug for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sentence().fmt(f)
    }
}

impl PartialEq for Sentence {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Sentence {}

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
            Self::Draining { .. } => Reason::Draining,
            Self::Deadline { .. } => Reason::Deadline,
            // Programs that know only the registry see memory that cannot be used as not mapped.
            Self::DeviceMemory { .. }
            | Self::NotMapped { .. }
            | Self::NotPinned { .. }
            | Self::Away
            | Self::CopyFailed { .. } => Reason::MapFailed,
            Self::Forked { .. } => Reason::SessionForeign,
            Self::FileUnreadable { .. } => Reason::FileInvalid,
            Self::BlockTooLarge { .. } => Reason::SizeInvalid,
            Self::Refused(refusal) => refusal.reason,
            Self::Unknown { .. } | Self::Interrupted => return None,
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
            Self::Away => facts(&[("problem", self)]),
            Self::Forked { session } => facts(&[("session", session), ("pid", &std::process::id())]),
            Self::BlockTooLarge { size, .. } => facts(&[("field", &"size"), ("size", &size.get())]),
            Self::FileUnreadable { .. } => facts(&[("problem", self)]),
            Self::Refused(refusal) => refusal.facts.clone(),
            Self::Draining { .. } | Self::Deadline { .. } | Self::Interrupted | Self::Unknown { .. } => {
                BTreeMap::new()
            }
            known => known.registry_entry().map(|(_, facts)| facts).unwrap_or_default(),
        }
    }

    /// A refusal that the SDK makes itself.
    pub(crate) fn refused(reason: Reason, facts: &[(&str, &dyn ToString)]) -> Self {
        Self::refused_because(reason, reason.meaning().to_owned(), facts)
    }

    /// A refusal that the SDK makes itself, with a sentence of its own for the reasons that have no variant.
    pub(crate) fn refused_because(reason: Reason, message: String, facts: &[(&str, &dyn ToString)]) -> Self {
        let facts = facts.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect();
        Self::of_refusal(Refusal { reason, message, facts, retry_after: None }, Sentence::default())
    }

    /// A refusal that the SDK makes itself, with a sentence that says more than the facts of its variant.
    pub(crate) fn explained(reason: Reason, message: String, facts: &[(&str, &dyn ToString)]) -> Self {
        let facts = facts.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect();
        Self::from_refusal(Refusal { reason, message, facts, retry_after: None })
    }

    /// The refusal of a size, as the daemon says it.
    pub(crate) fn size_invalid(field: &str, size: u64) -> Self {
        let message = format!("{field}: {size} bytes is not a valid size");
        Self::refused_because(Reason::SizeInvalid, message, &[("field", &field), ("size", &size)])
    }

    /// The client's own deadline has passed.
    pub(crate) fn deadline() -> Self {
        Self::Deadline { said: Sentence::default() }
    }

    pub(crate) fn broker_gone(problem: impl Into<String>) -> Self {
        Self::BrokerGone { problem: problem.into(), said: Sentence::default() }
    }

    /// The variant with the facts of a refusal as fields, if there is one and no fact is missing.
    pub(crate) fn from_refusal(refusal: Refusal) -> Self {
        let said = Sentence::new(&refusal.message);
        Self::of_refusal(refusal, said)
    }

    fn of_refusal(refusal: Refusal, said: Sentence) -> Self {
        let limit = || u64::parse(refusal.facts.get("limit_count")?);
        match (refusal.reason, limit()) {
            (Reason::Draining, _) => Self::Draining { said },
            (Reason::Deadline, _) => Self::Deadline { said },
            (Reason::QueueFull, Some(limit_count)) => {
                Self::QueueFull { limit_count, retry_after: refusal.retry_after, said }
            }
            _ => Self::typed(&refusal, said).unwrap_or(Self::Refused(refusal)),
        }
    }
}
