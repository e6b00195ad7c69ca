//! The registry of reasons: everything that vramd can refuse, each with its gRPC code and what it means.
//!
//! `ErrorInfo.reason` on the wire is [`Reason::name`], in the domain [`Reason::DOMAIN`]. The daemon's status
//! mapping, the Rust SDK's errors and `docs/ERRORS.md` are all made from this one table.

use std::fmt;

/// The gRPC codes that are used here, with their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum StatusCode {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl StatusCode {
    /// All codes of gRPC by their numbers, as its documentation writes them: also those that vramd never sends.
    pub const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];

    /// As the gRPC documentation writes it.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

macro_rules! reasons {
    ($($variant:ident, $name:literal, $code:ident, [$($fact:literal),*], $meaning:literal;)*) => {
        /// Why something was refused or failed. The name is part of the protocol: it never changes its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the registry.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// `ErrorInfo.reason`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The gRPC status code that it travels with.
            pub const fn code(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$code,)* }
            }

            /// Keys of `ErrorInfo.metadata` that it carries; numbers are bytes unless the key says otherwise.
            pub const fn facts(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$($fact),*],)* }
            }

            /// One sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    SizeInvalid, "SIZE_INVALID", InvalidArgument, ["field", "size"],
        "A size is zero, or so large that its sum does not fit in 64 bits.";
    PartSizeInvalid, "PART_SIZE_INVALID", InvalidArgument, ["field", "size"],
        "A part size is no multiple of 2 MiB, or larger than the daemon allows.";
    NameInvalid, "NAME_INVALID", InvalidArgument, ["field", "name"],
        "A name of an allocation, tenant or reader is missing, too long, or has characters that names may not have.";
    QuantityInvalid, "QUANTITY_INVALID", InvalidArgument, ["field", "quantity"],
        "A quantity does not parse, or a guarantee is above its limit.";
    SettingInvalid, "SETTING_INVALID", InvalidArgument, ["field", "given", "allowed"],
        "A setting cannot have that value, or not with the others; `allowed` is what it could be, in percent or bytes.";
    DeviceUnknown, "DEVICE_UNKNOWN", InvalidArgument, ["field", "device"],
        "No device of this node has that UUID or index.";
    RequestInvalid, "REQUEST_INVALID", InvalidArgument, ["field", "problem"],
        "A field is missing, or has a value that means nothing.";
    RequestIdReused, "REQUEST_ID_REUSED", InvalidArgument, ["request_id"],
        "The request id was used before for a request with other content.";
    BatchTooLarge, "BATCH_TOO_LARGE", InvalidArgument, ["items_max", "items"],
        "The batch has more items than one call may carry.";
    AllocationNotFound, "ALLOCATION_NOT_FOUND", NotFound, ["allocation"],
        "No such allocation, or none that the caller may see.";
    SessionNotFound, "SESSION_NOT_FOUND", NotFound, ["session"],
        "No such session.";
    QuotaNotFound, "QUOTA_NOT_FOUND", NotFound, ["tenant", "device"],
        "The tenant has no stored quota there.";
    NotOwner, "NOT_OWNER", PermissionDenied, ["allocation"],
        "The allocation belongs to another session or tenant.";
    NotOperator, "NOT_OPERATOR", PermissionDenied, ["uid"],
        "The caller is not one of the operators.";
    SessionForeign, "SESSION_FOREIGN", PermissionDenied, ["session", "pid"],
        "The session belongs to another process.";
    PeerUnidentified, "PEER_UNIDENTIFIED", Unauthenticated, [],
        "The kernel does not say who the caller is, so nobody could be charged.";
    QuotaLimit, "QUOTA_LIMIT", ResourceExhausted, ["tenant", "device", "tier", "limit", "held", "asked"],
        "It would take the tenant above its limit.";
    DeviceFull, "DEVICE_FULL", ResourceExhausted, ["device", "tier", "free", "asked"],
        "There is no room left that is not guaranteed to somebody else.";
    SetTooLarge, "SET_TOO_LARGE", ResourceExhausted, ["device", "tier", "asked"],
        "Parts of another tenant's memory that are to be pinned together are more than that tenant may have there at once; pin fewer.";
    SessionsTooMany, "SESSIONS_TOO_MANY", ResourceExhausted, ["tenant", "limit_count"],
        "The tenant, or the node, has as many sessions as it may.";
    AllocationsTooMany, "ALLOCATIONS_TOO_MANY", ResourceExhausted, ["tenant", "limit_count"],
        "The tenant, or the node, has as many allocations or parts as it may.";
    PoolFull, "POOL_FULL", ResourceExhausted, ["limit", "held", "asked"],
        "It would take a program's pool of small allocations above its own limit. Never sent by the daemon.";
    QueueFull, "QUEUE_FULL", ResourceExhausted, ["limit_count"],
        "More requests, or parts of pin calls, are waiting than the daemon takes; try again.";
    SlotsExhausted, "SLOTS_EXHAUSTED", ResourceExhausted, ["session", "limit_count"],
        "The session maps, or keeps to map again, as many parts as its word table has slots.";
    WatchesTooMany, "WATCHES_TOO_MANY", ResourceExhausted, ["limit_count"],
        "As many operators watch the node as may at once.";
    PinsTooMany, "PINS_TOO_MANY", ResourceExhausted, ["allocation", "limit_count"],
        "A part has as many pins as its word can count.";
    NotSealed, "NOT_SEALED", FailedPrecondition, ["allocation"],
        "Only a sealed allocation can be attached or replaced.";
    AlreadySealed, "ALREADY_SEALED", FailedPrecondition, ["allocation"],
        "The allocation is sealed, or is being sealed.";
    StillMapped, "STILL_MAPPED", FailedPrecondition, ["allocation"],
        "The session still unmaps an earlier mapping of the allocation.";
    Pinned, "PINNED", FailedPrecondition, ["allocation", "pins"],
        "The process itself still uses the allocation: its own pins must end first.";
    StreamCapturing, "STREAM_CAPTURING", FailedPrecondition, ["allocation"],
        "A stream is being captured, and can't be waited for: pin around the graph's launch. Never sent by the daemon.";
    DeviceNotVisible, "DEVICE_NOT_VISIBLE", FailedPrecondition, ["device"],
        "The session does not see the device.";
    SessionLost, "SESSION_LOST", FailedPrecondition, ["session"],
        "The session has ended; what it maps stands, and a new session can be opened.";
    SessionMissing, "SESSION_MISSING", FailedPrecondition, [],
        "The call names no session: open one on the channel first.";
    ProtocolVersion, "PROTOCOL_VERSION", FailedPrecondition, ["daemon_major", "client_major"],
        "Client and daemon speak different major versions of the protocol.";
    ProtocolBroken, "PROTOCOL_BROKEN", FailedPrecondition, ["problem"],
        "A frame on the channel was malformed or did not fit; the session is quarantined.";
    GuaranteeUnbacked, "GUARANTEE_UNBACKED", FailedPrecondition, ["tenant", "device", "tier", "guarantee", "capacity", "committed"],
        "The guarantee could not be kept: what is guaranteed and held already would exceed the capacity.";
    TierGuaranteed, "TIER_GUARANTEED", FailedPrecondition, ["device", "tier", "guaranteed", "asked"],
        "The tier cannot be made smaller than what is guaranteed there: lower the guarantees first.";
    Raced, "RACED", Aborted, ["allocation"],
        "Something else changed the allocation or its session meanwhile.";
    PinStalled, "PIN_STALLED", Aborted, ["session"],
        "The pin waited for sessions that all waited themselves; unpin what is held and try again.";
    WaitCancelled, "WAIT_CANCELLED", Aborted, ["wait"],
        "An operator ended the wait for room on the device.";
    WaitNotFound, "WAIT_NOT_FOUND", NotFound, ["wait"],
        "Nothing waits for room under that number: it has been served, or was given up.";
    NameTaken, "NAME_TAKEN", AlreadyExists, ["name"],
        "The tenant has an allocation of that name already.";
    Draining, "DRAINING", Unavailable, [],
        "The node is being taken out of service.";
    DriverFailed, "DRIVER_FAILED", Unavailable, ["device", "problem"],
        "The driver failed in a way that is not a lack of memory.";
    StoreFailed, "STORE_FAILED", Unavailable, ["problem"],
        "The quota could not be written to disk, and was not changed.";
    BrokerGone, "BROKER_GONE", Unavailable, ["problem"],
        "The daemon cannot be reached.";
    KindUnsupported, "KIND_UNSUPPORTED", Unimplemented, ["kind"],
        "There are no allocations of that kind here: the driver cannot make them, or nobody can do that with them.";
    TierUnsupported, "TIER_UNSUPPORTED", Unimplemented, ["tier"],
        "This node has no such tier, or one that cannot do what was asked: not every host tier can be mapped by clients.";
    StreamsUnsupported, "STREAMS_UNSUPPORTED", Unimplemented, ["allocation"],
        "The allocation lies in memory that has no streams. Never sent by the daemon.";
    FileInvalid, "FILE_INVALID", InvalidArgument, ["problem"],
        "The descriptor is not of a regular file that the calling process has open for reading, or there are not so many bytes.";
    FileMutable, "FILE_MUTABLE", FailedPrecondition, ["path"],
        "The file may change: it lies on no fs-verity, and below no path of `files.immutable_paths`. Copy it into an allocation.";
    ContentLost, "CONTENT_LOST", DataLoss, ["allocation", "part_index"],
        "The bytes of that part of the allocation are lost, and of no other.";
    DigestMismatch, "DIGEST_MISMATCH", DataLoss, ["expected", "found"],
        "The bytes do not have the digest that they were sealed with.";
    Deadline, "DEADLINE", DeadlineExceeded, [],
        "The deadline passed first; a mutation that completes later stays, and a retry with its id returns it.";
    MapFailed, "MAP_FAILED", FailedPrecondition, ["allocation", "problem"],
        "The client could not map what the daemon sent, for want of descriptors, say. The memory is as it was: ask again.";
    InvariantBroken, "INVARIANT_BROKEN", Internal, ["invariant"],
        "The broker found itself in a state that must not be: a bug, counted and logged.";
}

impl Reason {
    /// `ErrorInfo.domain`.
    pub const DOMAIN: &'static str = "vramd";

    /// The reason of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.name() == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found_again() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.name()), Some(*reason));
            assert!(reason.name().bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{reason}");
            assert!(reason.meaning().ends_with('.'), "{reason}");
        }
        assert_eq!(Reason::from_name("NO_SUCH"), None);
    }
}
