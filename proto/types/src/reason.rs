//! The registry of reasons: every refusal that vramd makes, with its gRPC code, its facts and its meaning.
//!
//! `ErrorInfo.reason` on the wire is [`Reason::name`], in the domain [`Reason::DOMAIN`]. Three things are made from this
//! one table: the daemon's map from refusals to gRPC statuses, the Rust SDK's errors, and `docs/reference/errors.md`.

use std::fmt;

/// The gRPC status codes that reasons use, with their numbers on the wire.
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
    /// The names of all gRPC status codes, indexed by number. vramd does not send all of them.
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

    /// The name as the gRPC documentation writes it.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

macro_rules! reasons {
    ($($variant:ident, $name:literal, $code:ident, [$($fact:literal),*], $meaning:literal;)*) => {
        /// Why the daemon or an SDK refused a request, or why a request failed.
        ///
        /// The name is part of the protocol: its meaning never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the registry.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name on the wire, in `ErrorInfo.reason`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The gRPC status code that the reason travels with.
            pub const fn code(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$code,)* }
            }

            /// The keys of `ErrorInfo.metadata` that a refusal carries. Numbers are bytes unless the key says otherwise.
            pub const fn facts(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$($fact),*],)* }
            }

            /// A text for people: the event, and the action to take.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    SizeInvalid, "SIZE_INVALID", InvalidArgument, ["field", "size"],
        "A size is zero, or so large that a sum of sizes does not fit in 64 bits.";
    PartSizeInvalid, "PART_SIZE_INVALID", InvalidArgument, ["field", "size"],
        "The part size is not a multiple of 2 MiB, or is larger than the daemon allows.";
    NameInvalid, "NAME_INVALID", InvalidArgument, ["field", "name"],
        "A name of an allocation, tenant or reader is missing, is too long, or has a character that names may not have.";
    QuantityInvalid, "QUANTITY_INVALID", InvalidArgument, ["field", "quantity"],
        "A quantity cannot be parsed, or a guarantee is above its limit.";
    SettingInvalid, "SETTING_INVALID", InvalidArgument, ["field", "given", "allowed"],
        "A setting cannot have the given value, alone or together with the others; `allowed` says which values it may have, in percent or bytes.";
    DeviceUnknown, "DEVICE_UNKNOWN", InvalidArgument, ["field", "device"],
        "No device of this node has the given UUID or index.";
    RequestInvalid, "REQUEST_INVALID", InvalidArgument, ["field", "problem"],
        "A field of the request is missing, or has a value without a meaning.";
    TenantsFileInvalid, "TENANTS_FILE_INVALID", InvalidArgument, ["line", "column", "field", "problem"],
        "The tenants file is wrong at that place, or this node cannot have what it says there; the daemon changed nothing.";
    RequestIdReused, "REQUEST_ID_REUSED", InvalidArgument, ["request_id"],
        "The caller used the request id before, for a request with other content.";
    BatchTooLarge, "BATCH_TOO_LARGE", InvalidArgument, ["items_max", "items"],
        "The batch has more items than one call may carry; split it.";
    AllocationNotFound, "ALLOCATION_NOT_FOUND", NotFound, ["allocation"],
        "The allocation does not exist, or the caller may not see it.";
    SessionNotFound, "SESSION_NOT_FOUND", NotFound, ["session"],
        "The session does not exist.";
    QuotaNotFound, "QUOTA_NOT_FOUND", NotFound, ["tenant", "device"],
        "The daemon stores no quota of the tenant on that device.";
    NotOwner, "NOT_OWNER", PermissionDenied, ["allocation"],
        "The allocation belongs to another session or tenant.";
    NotOperator, "NOT_OPERATOR", PermissionDenied, ["uid"],
        "The caller is not an operator: its uid is not in `daemon.operators`, or it is in a container (another pid namespace).";
    SessionForeign, "SESSION_FOREIGN", PermissionDenied, ["session", "pid"],
        "The session belongs to the process that forked this one. The daemon never sends it.";
    AdviceForbidden, "ADVICE_FORBIDDEN", PermissionDenied, ["tenant"],
        "An operator or the configuration forbids the advice of the tenant: it may only withdraw advice.";
    PeerUnidentified, "PEER_UNIDENTIFIED", Unauthenticated, [],
        "The kernel does not identify the calling process, so the daemon cannot charge a tenant.";
    QuotaLimit, "QUOTA_LIMIT", ResourceExhausted, ["tenant", "device", "tier", "limit", "held", "asked"],
        "The request would take the tenant above its limit: free memory, or ask an operator to raise the limit.";
    DeviceFull, "DEVICE_FULL", ResourceExhausted, ["device", "tier", "free", "asked"],
        "The device, or the tier below it, is full: it has too little room that is not guaranteed to other tenants.";
    SetTooLarge, "SET_TOO_LARGE", ResourceExhausted, ["device", "tier", "asked"],
        "The pin set has more bytes of another tenant than that tenant may have on the device at once; pin fewer parts.";
    SessionsTooMany, "SESSIONS_TOO_MANY", ResourceExhausted, ["tenant", "limit_count"],
        "The tenant or the node has reached its maximum number of sessions.";
    AllocationsTooMany, "ALLOCATIONS_TOO_MANY", ResourceExhausted, ["tenant", "limit_count"],
        "The tenant or the node has reached its maximum number of allocations or parts.";
    PoolFull, "POOL_FULL", ResourceExhausted, ["limit", "held", "asked"],
        "The request would take a program's pool of small allocations above the pool's own limit. The daemon never sends it.";
    QueueFull, "QUEUE_FULL", ResourceExhausted, ["limit_count"],
        "Too many requests, or parts of pin calls, already wait in the daemon; try again.";
    SlotsExhausted, "SLOTS_EXHAUSTED", ResourceExhausted, ["session", "limit_count"],
        "The session's word table has no free slot: each part that the session maps, or that is away, takes one.";
    UserLimit, "USER_LIMIT", ResourceExhausted, ["uid", "limit"],
        "The connections, requests and unread answers of the caller's user take as much of the daemon's memory as they may: wait for answers and read them, or close connections.";
    OpenFilesLimit, "OPEN_FILES_LIMIT", ResourceExhausted, ["limit_count"],
        "The daemon has too few open files left for another session of the caller's user: close sessions, or ask an operator to raise the daemon's limit of open files.";
    WatchesTooMany, "WATCHES_TOO_MANY", ResourceExhausted, ["limit_count"],
        "The node has reached its maximum number of watches.";
    PinsTooMany, "PINS_TOO_MANY", ResourceExhausted, ["allocation", "limit_count"],
        "The part has as many pins as its pin word can count.";
    NotSealed, "NOT_SEALED", FailedPrecondition, ["allocation"],
        "The allocation is not sealed; only a sealed allocation can be attached or replaced.";
    AlreadySealed, "ALREADY_SEALED", FailedPrecondition, ["allocation"],
        "The allocation is sealed, or is being sealed.";
    StillMapped, "STILL_MAPPED", FailedPrecondition, ["allocation"],
        "The session has not yet unmapped an earlier mapping of the allocation.";
    Pinned, "PINNED", FailedPrecondition, ["allocation", "pins"],
        "The process itself still pins the allocation; it must unpin first.";
    StreamCapturing, "STREAM_CAPTURING", FailedPrecondition, ["allocation"],
        "A CUDA stream is being captured, so the SDK cannot wait for it: pin around the launch of the graph. The daemon never sends it.";
    DeviceNotVisible, "DEVICE_NOT_VISIBLE", FailedPrecondition, ["device"],
        "The session does not see the device.";
    SessionLost, "SESSION_LOST", FailedPrecondition, ["session"],
        "The calling process has no such session, or it has ended; its mappings stand, and the client can open a new session.";
    SessionMissing, "SESSION_MISSING", FailedPrecondition, [],
        "The call names no session: open one on `channel.sock` first.";
    ProtocolVersion, "PROTOCOL_VERSION", FailedPrecondition, ["daemon_major", "client_major"],
        "Client and daemon speak different major versions of the protocol.";
    ProtocolBroken, "PROTOCOL_BROKEN", FailedPrecondition, ["problem"],
        "The client sent a frame that is malformed or not allowed at this point; the daemon puts the session in quarantine.";
    GuaranteeUnbacked, "GUARANTEE_UNBACKED", FailedPrecondition, ["tenant", "device", "tier", "guarantee", "capacity", "committed"],
        "The capacity does not cover the guarantee beside everything that is already guaranteed or charged.";
    TierGuaranteed, "TIER_GUARANTEED", FailedPrecondition, ["device", "tier", "guaranteed", "asked"],
        "The tier cannot become smaller than the guarantees in it: lower the guarantees first.";
    Raced, "RACED", Aborted, ["allocation"],
        "Another event changed the allocation or its session in the meantime.";
    PinStalled, "PIN_STALLED", Aborted, ["session"],
        "The pin waited only for sessions that wait themselves, so the daemon aborted it: unpin other parts and try again.";
    WaitCancelled, "WAIT_CANCELLED", Aborted, ["wait"],
        "An operator, or the client that made the request, cancelled the wait for room on the device.";
    WaitNotFound, "WAIT_NOT_FOUND", NotFound, ["wait"],
        "No waiter has that number, or that request id: it was served, or it gave up.";
    TraceRunning, "TRACE_RUNNING", FailedPrecondition, [],
        "The daemon is recording a trace: stop it first.";
    TraceNotFound, "TRACE_NOT_FOUND", NotFound, [],
        "The daemon has recorded no trace since its start.";
    PrefetchNotFound, "PREFETCH_NOT_FOUND", NotFound, ["session", "prefetch"],
        "The session has no prefetch request of that number: its parts were used, or it ended otherwise.";
    TurnHeld, "TURN_HELD", FailedPrecondition, ["session", "set"],
        "The session has a turn or waits for one, and may not request another: yield first.";
    TurnNotFound, "TURN_NOT_FOUND", NotFound, ["session", "set"],
        "The session has no turn of a working set of that name.";
    NameTaken, "NAME_TAKEN", AlreadyExists, ["name"],
        "The tenant already has an allocation of that name.";
    Draining, "DRAINING", Unavailable, [],
        "An operator is taking the node out of service: it admits nothing new.";
    DriverFailed, "DRIVER_FAILED", Unavailable, ["device", "problem"],
        "The driver failed for a reason other than a shortage of memory.";
    StoreFailed, "STORE_FAILED", Unavailable, ["problem"],
        "The daemon could not write the quota to disk, and did not change it.";
    BrokerGone, "BROKER_GONE", Unavailable, ["problem"],
        "The daemon cannot be reached, or is stopping.";
    AdviceContradicts, "ADVICE_CONTRADICTS", FailedPrecondition, ["allocation", "problem"],
        "The advice contradicts other advice that stands for the same parts; withdraw that first.";
    KindUnsupported, "KIND_UNSUPPORTED", Unimplemented, ["kind"],
        "The driver cannot create allocations of that kind, or the request is not possible for that kind.";
    TierUnsupported, "TIER_UNSUPPORTED", Unimplemented, ["tier"],
        "The node has no such tier, or the tier cannot do what was requested: clients cannot map every host tier.";
    StreamsUnsupported, "STREAMS_UNSUPPORTED", Unimplemented, ["allocation"],
        "The allocation lies in memory that has no CUDA streams. The daemon never sends it.";
    FileInvalid, "FILE_INVALID", InvalidArgument, ["problem"],
        "The descriptor is not of a regular file that the calling process has open for reading, or the file has fewer bytes than requested.";
    FileMutable, "FILE_MUTABLE", FailedPrecondition, ["path", "problem"],
        "The file may change: it has no fs-verity and lies below no path of `files.immutable_paths`. Copy it into an allocation.";
    ContentLost, "CONTENT_LOST", DataLoss, ["allocation", "part_index"],
        "The bytes of that part are lost; the other parts of the allocation are not affected.";
    DigestMismatch, "DIGEST_MISMATCH", DataLoss, ["expected", "found"],
        "The bytes do not have the digest that they were sealed with.";
    Deadline, "DEADLINE", DeadlineExceeded, [],
        "The deadline passed before the answer; a mutation that completes later stays, and a retry with its request id returns it.";
    MapFailed, "MAP_FAILED", FailedPrecondition, ["allocation", "problem"],
        "The client could not map what the daemon sent, for example because it has no descriptors left. The memory is unchanged: try again.";
    InvariantBroken, "INVARIANT_BROKEN", Internal, ["invariant"],
        "The daemon broke one of its own invariants. This is a bug; the daemon counts and logs it.";
}

impl Reason {
    /// The domain on the wire, in `ErrorInfo.domain`.
    pub const DOMAIN: &'static str = "vramd";

    /// Finds a reason by its name.
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
