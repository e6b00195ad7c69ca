"""Errors: the registry of reasons (`docs/reference/errors.md`) as a tree of classes.

Every class is an `Error`. Below it there is one class for each gRPC code, and below these one for each reason that a
program may want to distinguish; for all others see `Error.reason`. The facts of a refusal are attributes of the
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
    """The facts as received."""
    retry_after: float | None
    """Seconds to wait before trying again, if the daemon says so."""

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
    """INVALID_ARGUMENT: an argument of the request is not valid."""


class FileMissing(InvalidArgument, FileNotFoundError):
    """The file to be loaded does not exist."""

    problem: str | None


class InvalidCheckpoint(InvalidArgument):
    """The file is no checkpoint in the format safetensors, or contradicts itself. Nothing was allocated."""


class DeviceUnknown(InvalidArgument):
    """No device of this node has that UUID or index."""

    device: str | None


class NotFound(Error, LookupError):
    """NOT_FOUND: no such allocation, session or quota, or none that the caller may see."""


class PermissionDenied(Error):
    """PERMISSION_DENIED: the object belongs to another session, tenant or process."""


class NotOwner(PermissionDenied):
    """The allocation belongs to another session or tenant."""

    allocation: str | None


class AdviceForbidden(PermissionDenied):
    """An operator forbids the advice of the tenant. Withdrawals are accepted."""

    tenant: str | None


class SessionForeign(PermissionDenied):
    """The session belongs to another process."""


class Forked(SessionForeign):
    """The object was made before this process was forked. Connect a client of its own."""


class Unauthenticated(Error):
    """UNAUTHENTICATED: the kernel does not say who the caller is."""


class ResourceExhausted(Error):
    """RESOURCE_EXHAUSTED: a limit is reached, or a resource is used up."""


class QuotaExceeded(ResourceExhausted, MemoryError):
    """The request would take the tenant above its limit."""

    tenant: str | None
    device: str | None
    tier: str | None
    limit: int | None
    held: int | None
    asked: int | None


class DeviceFull(ResourceExhausted, MemoryError):
    """The tier has no room left that is not guaranteed to other tenants."""

    device: str | None
    tier: str | None
    free: int | None
    asked: int | None


class SetTooLarge(ResourceExhausted, MemoryError):
    """The pin needs more of another tenant's memory at once than that tenant may have there: pin fewer parts."""

    device: str | None
    tier: str | None
    asked: int | None


class FailedPrecondition(Error):
    """FAILED_PRECONDITION: the state of the object does not allow the request."""


class OtherContent(FailedPrecondition):
    """The name has other content than the checkpoint that was asked for: a file has changed, or another one is meant."""


class NotResident(FailedPrecondition):
    """A tensor without a pin of its own was used outside of a pin. Only debug mode finds this (`vramd.torch.debug`)."""


class NotSealed(FailedPrecondition):
    """Only a sealed allocation can be attached or replaced."""

    allocation: str | None


class AlreadySealed(FailedPrecondition):
    """The allocation is sealed, or is being sealed."""

    allocation: str | None


class SessionLost(FailedPrecondition):
    """The session has ended; its mappings stand, and a new client can connect."""

    session: str | None


class Pinned(FailedPrecondition):
    """Buffers, tensors or pins of the memory are alive: release them before it is sealed, freed or detached."""

    allocation: str | None
    pins: int | None


class TurnHeld(FailedPrecondition):
    """The client has a turn or waits for one, and may not request another: it could wait for itself."""

    set: str | None


class StreamCapturing(FailedPrecondition):
    """The stream is being captured, and cannot be waited for: pin around the graph's launch."""

    allocation: str | None


class MapFailed(FailedPrecondition):
    """The process could not map a part that the daemon sent."""

    allocation: str | None
    problem: str | None


class DeviceMemory(MapFailed, BufferError):
    """The memory lies on a GPU, which the CPU cannot access: use copies, or DLPack."""


class NotMapped(MapFailed, BufferError):
    """The memory is no longer mapped, or not with this access."""


class Away(MapFailed, BufferError):
    """The session's memory is away, by `Client.detach_all` or `Client.away`: bring it back by `Client.attach_all`."""


class CopyFailed(MapFailed):
    """Bytes could not be copied."""


class Aborted(Error):
    """ABORTED: another operation interfered; the request may be tried again."""


class PinStalled(Aborted):
    """The pin waited for sessions that themselves wait, perhaps for its own pins: release pins, and try again."""


class WaitCancelled(Aborted):
    """An operator, or the client that made the request, cancelled the wait for room on the device."""

    wait: int | None
    """The number of the wait."""


class AlreadyExists(Error):
    """ALREADY_EXISTS: an object of that name exists."""


class NameTaken(AlreadyExists):
    """The tenant has an allocation of that name already."""

    name: str | None


class Unavailable(Error):
    """UNAVAILABLE: the daemon cannot serve the request now."""


class BrokerGone(Unavailable, ConnectionError):
    """The daemon cannot be reached."""

    problem: str | None


class Draining(Unavailable):
    """An operator is taking the node out of service."""


class DriverFailed(Unavailable):
    """The driver failed for another reason than a lack of memory."""

    device: str | None
    problem: str | None


class Unsupported(Error, NotImplementedError):
    """UNIMPLEMENTED: this driver or node does not support the request."""


class DataLoss(Error):
    """DATA_LOSS: stored bytes have changed or are lost."""


class ContentLost(DataLoss):
    """The bytes of one part of the allocation are lost; its other parts are not."""

    allocation: str | None
    part_index: int | None


class DigestMismatch(DataLoss):
    """The bytes do not have the digest that they were sealed with."""

    expected: str | None
    found: str | None


class Deadline(Error, TimeoutError):
    """DEADLINE_EXCEEDED: the deadline passed first; work that completes later stays done."""


class Internal(Error):
    """INTERNAL: a bug in the daemon, which counts and logs it."""


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
"""The class of every code; an unknown code makes an `Error`."""

BY_REASON: Mapping[str, type[Error]] = {
    "DEVICE_UNKNOWN": DeviceUnknown,
    "NOT_OWNER": NotOwner,
    "ADVICE_FORBIDDEN": AdviceForbidden,
    "SESSION_FOREIGN": SessionForeign,
    "QUOTA_LIMIT": QuotaExceeded,
    "DEVICE_FULL": DeviceFull,
    "SET_TOO_LARGE": SetTooLarge,
    "NOT_SEALED": NotSealed,
    "TURN_HELD": TurnHeld,
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
"""The class of each reason that has one of its own."""

_BY_NAME: Mapping[str, type[Error]] = {
    kind.__name__: kind for kind in (Error, DeviceMemory, NotMapped, Away, CopyFailed, FileMissing, Forked, HandleClosed)
}


def of(
    name: str | None,
    reason: str | None,
    code: str | None,
    message: str,
    metadata: Mapping[str, str],
    retry_after: float | None,
) -> Error:
    """Makes the error that the native half raises: of the named class, else of its reason's, else of its code's."""
    kind = _BY_NAME[name] if name else BY_REASON.get(reason or "") or BY_CODE.get(code or "", Error)
    return kind(message, reason=reason, code=code, metadata=metadata, retry_after=retry_after)


def _facts(kind: type[Error]) -> dict[str, object]:
    """The attributes that a class and its bases declare, below `Error` itself."""
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
