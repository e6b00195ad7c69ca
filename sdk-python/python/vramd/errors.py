"""What can go wrong: the registry of reasons (`docs/ERRORS.md`) as a tree of classes.

Every class is an `Error`. Below it there is one class for each gRPC code, and below these one for each reason that a
program may want to tell from the others; of all others `Error.reason` speaks. The facts of a refusal are attributes of the
classes that list them, and all of them are in `Error.metadata`; numbers are bytes unless their name says otherwise.
"""

from collections.abc import Mapping


class Error(Exception):
    """Anything that vramd refuses or fails to do."""

    reason: str | None
    """The name in the registry, like `QUOTA_LIMIT`; `None` where this package alone refuses."""
    code: str | None
    """The gRPC code, like `RESOURCE_EXHAUSTED`."""
    metadata: dict[str, str]
    """The facts as they came."""
    retry_after: float | None
    """Seconds after which it may be worth trying again, where the daemon says so."""

    def __init__(
        self,
        message: str = "",
        *,
        reason: str | None = None,
        code: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason, self.code, self.retry_after = reason, code, retry_after
        self.metadata = dict(metadata or {})
        for key, kind in _facts(type(self)).items():
            setattr(self, key, _fact(self.metadata.get(key), kind))

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), str(self), self.reason, self.code, self.metadata, self.retry_after)


class InvalidArgument(Error, ValueError):
    """INVALID_ARGUMENT: the request means nothing."""


class DeviceUnknown(InvalidArgument):
    """No device of this node has that UUID or index."""

    device: str | None


class NotFound(Error, LookupError):
    """NOT_FOUND: no such allocation, session or quota, or none that the caller may see."""


class PermissionDenied(Error):
    """PERMISSION_DENIED: somebody else's."""


class NotOwner(PermissionDenied):
    """The allocation belongs to another session or tenant."""

    allocation: str | None


class SessionForeign(PermissionDenied):
    """The session belongs to another process."""


class Forked(SessionForeign):
    """The object was made before this process was forked. Connect a client of its own."""


class Unauthenticated(Error):
    """UNAUTHENTICATED: the kernel does not say who the caller is."""


class ResourceExhausted(Error):
    """RESOURCE_EXHAUSTED: of something there is no more."""


class QuotaExceeded(ResourceExhausted, MemoryError):
    """It would take the tenant above its limit."""

    tenant: str | None
    device: str | None
    tier: str | None
    limit: int | None
    held: int | None
    asked: int | None


class DeviceFull(ResourceExhausted, MemoryError):
    """There is no room left that is not guaranteed to somebody else."""

    device: str | None
    tier: str | None
    free: int | None
    asked: int | None


class SetTooLarge(ResourceExhausted, MemoryError):
    """More of another tenant's memory is to be pinned together than that tenant may have there at once: pin fewer parts."""

    device: str | None
    tier: str | None
    asked: int | None


class FailedPrecondition(Error):
    """FAILED_PRECONDITION: not in this state."""


class NotSealed(FailedPrecondition):
    """Only a sealed allocation can be attached or replaced."""

    allocation: str | None


class AlreadySealed(FailedPrecondition):
    """The allocation is sealed, or is being sealed."""

    allocation: str | None


class SessionLost(FailedPrecondition):
    """The session has ended; what it maps stands, and a new client can be connected."""

    session: str | None


class Pinned(FailedPrecondition):
    """Buffers, tensors or pins of the memory are alive: it is neither sealed, freed nor detached before they are gone."""

    allocation: str | None
    pins: int | None


class StreamCapturing(FailedPrecondition):
    """The stream is being captured, and cannot be waited for: pin around the graph's launch."""

    allocation: str | None


class MapFailed(FailedPrecondition):
    """The process could not map what the daemon sent."""

    allocation: str | None
    problem: str | None


class DeviceMemory(MapFailed, BufferError):
    """The memory lies on a GPU, where the CPU cannot follow: use copies, or DLPack."""


class NotMapped(MapFailed, BufferError):
    """The memory is not mapped any more, or not for that."""


class CopyFailed(MapFailed):
    """Bytes could not be copied."""


class Aborted(Error):
    """ABORTED: something else came in between; it may be tried again."""


class PinStalled(Aborted):
    """The pin waited for sessions that wait themselves, perhaps for its own: release what is pinned, and try again."""


class WaitCancelled(Aborted):
    """An operator ended the wait for room on the device."""

    wait: int | None
    """Its number."""


class AlreadyExists(Error):
    """ALREADY_EXISTS: it is there already."""


class NameTaken(AlreadyExists):
    """The tenant has an allocation of that name already."""

    name: str | None


class Unavailable(Error):
    """UNAVAILABLE: not now."""


class BrokerGone(Unavailable, ConnectionError):
    """The daemon cannot be reached."""

    problem: str | None


class Draining(Unavailable):
    """The node is being taken out of service."""


class DriverFailed(Unavailable):
    """The driver failed in a way that is not a lack of memory."""

    device: str | None
    problem: str | None


class Unsupported(Error, NotImplementedError):
    """UNIMPLEMENTED: this driver or node cannot do it."""


class DataLoss(Error):
    """DATA_LOSS: bytes are not what they were."""


class ContentLost(DataLoss):
    """The bytes of one part of the allocation are lost, and of no other."""

    allocation: str | None
    part_index: int | None


class DigestMismatch(DataLoss):
    """The bytes do not have the digest that they were sealed with."""

    expected: str | None
    found: str | None


class Deadline(Error, TimeoutError):
    """DEADLINE_EXCEEDED: the deadline passed first; what completes later stays."""


class Internal(Error):
    """INTERNAL: a bug of the daemon's, which it counts and logs."""


class HandleClosed(Error, ValueError):
    """The object was sealed, freed, detached or closed before."""


BY_CODE: Mapping[str, type[Error]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "DEADLINE_EXCEEDED": Deadline,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": AlreadyExists,
    "PERMISSION_DENIED": PermissionDenied,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "FAILED_PRECONDITION": FailedPrecondition,
    "ABORTED": Aborted,
    "UNIMPLEMENTED": Unsupported,
    "INTERNAL": Internal,
    "UNAVAILABLE": Unavailable,
    "DATA_LOSS": DataLoss,
    "UNAUTHENTICATED": Unauthenticated,
}
"""The class of every code; a code that is not here makes an `Error`."""

BY_REASON: Mapping[str, type[Error]] = {
    "DEVICE_UNKNOWN": DeviceUnknown,
    "NOT_OWNER": NotOwner,
    "SESSION_FOREIGN": SessionForeign,
    "QUOTA_LIMIT": QuotaExceeded,
    "DEVICE_FULL": DeviceFull,
    "SET_TOO_LARGE": SetTooLarge,
    "NOT_SEALED": NotSealed,
    "ALREADY_SEALED": AlreadySealed,
    "SESSION_LOST": SessionLost,
    "PINNED": Pinned,
    "STREAM_CAPTURING": StreamCapturing,
    "MAP_FAILED": MapFailed,
    "PIN_STALLED": PinStalled,
    "WAIT_CANCELLED": WaitCancelled,
    "NAME_TAKEN": NameTaken,
    "BROKER_GONE": BrokerGone,
    "DRAINING": Draining,
    "DRIVER_FAILED": DriverFailed,
    "CONTENT_LOST": ContentLost,
    "DIGEST_MISMATCH": DigestMismatch,
}
"""The class of a reason that has one of its own."""

_BY_NAME: Mapping[str, type[Error]] = {
    kind.__name__: kind for kind in (Error, DeviceMemory, NotMapped, CopyFailed, Forked, HandleClosed)
}


def of(
    name: str | None,
    reason: str | None,
    code: str | None,
    message: str,
    metadata: Mapping[str, str],
    retry_after: float | None,
) -> Error:
    """The error that the native half raises: of the class named, else of its reason's, else of its code's."""
    kind = _BY_NAME[name] if name else BY_REASON.get(reason or "") or BY_CODE.get(code or "", Error)
    return kind(message, reason=reason, code=code, metadata=metadata, retry_after=retry_after)


def _facts(kind: type[Error]) -> dict[str, object]:
    """Attributes that a class and those above it declare, below `Error` itself."""
    facts: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Error) and base is not Error:
            facts.update(base.__dict__.get("__annotations__", {}))
    return facts


def _fact(text: str | None, kind: object) -> str | int | None:
    return int(text) if text is not None and kind == (int | None) and text.isdecimal() else text


def _again(
    kind: type[Error],
    message: str,
    reason: str | None,
    code: str | None,
    metadata: Mapping[str, str],
    retry_after: float | None,
) -> Error:
    return kind(message, reason=reason, code=code, metadata=metadata, retry_after=retry_after)
