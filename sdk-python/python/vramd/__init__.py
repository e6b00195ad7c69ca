"""GPU memory that the node's daemon, `vramd`, owns: allocated, written, sealed, and shared with other processes.

A model's weights, once per node. The first process reads the files, every other one attaches what is there:

    import vramd, vramd.torch

    weights = vramd.load("llama/", name="llama")
    with vramd.torch.on_meta():
        model = Llama(config)
    weights.bind(model)                       # its parameters lie there now

Memory of your own, by a session with the daemon:

    with vramd.connect() as client:
        memory = client.allocate("2GiB", name="table", lifetime="persistent", readers=["team-b"])
        memory.copy_from(b"hello")
        sealed = memory.seal()

Any other process of the tenant, or of its readers, maps the same bytes by `client.attach("table")`.

- `vramd.load`, `vramd.save`, `vramd.Weights`: checkpoints, and tensors that no file has.
- `vramd.torch`: pools that sleep (`vramd.torch.pool`, `sleep`, `wake_up`), models larger than their quota
  (`vramd.torch.movable`), and a debug mode.
- `vramd.aio`: the same calls for asyncio.
- `vramd.testing`: a daemon on simulated devices for each test, also as fixtures of pytest.
- `vramd.rmm`, `vramd.integrations`: RMM; transformers, vLLM, SGLang and llm-d.
- `vramd.errors`: every error, by what went wrong.

Calls block, and let other threads run meanwhile. Code that writes memory without a handle pin pins it to write
(`memory.pin(write=True)`): bytes that kernels write under a pin to read, or under none, are lost silently once the
memory has left its device. The guide is `docs/guides/python.md`, and for PyTorch `docs/guides/pytorch.md`.
"""

from vramd._native import (
    AdvisedParts,
    Allocation,
    AllocationInfo,
    Client,
    Device,
    FileCheck,
    MappedFile,
    Memory,
    NotInPlace,
    OwnQuota,
    Pin,
    PinSet,
    Prefetch,
    Pressure,
    Released,
    Sealed,
    Sequence,
    StagingBuffer,
    Tensor,
    Turn,
    WorkingSet,
    __version__,
    connect,
    socket_dir,
)
from vramd.errors import (
    Aborted,
    AdviceForbidden,
    AlreadyExists,
    AlreadySealed,
    Away,
    BrokerGone,
    ContentLost,
    CopyFailed,
    DataLoss,
    Deadline,
    DeviceFull,
    DeviceMemory,
    DeviceUnknown,
    DigestMismatch,
    Draining,
    DriverFailed,
    Error,
    FailedPrecondition,
    FileMissing,
    Forked,
    HandleClosed,
    Internal,
    InvalidArgument,
    InvalidCheckpoint,
    MapFailed,
    NameTaken,
    NotFound,
    NotMapped,
    NotOwner,
    NotResident,
    NotSealed,
    OtherContent,
    PermissionDenied,
    Pinned,
    PinStalled,
    QuotaExceeded,
    ResourceExhausted,
    SessionForeign,
    SessionLost,
    SetTooLarge,
    StreamCapturing,
    TurnHeld,
    Unauthenticated,
    Unavailable,
    Unsupported,
    WaitCancelled,
)
from vramd.weights import Weights, load, save

__all__ = [
    "Aborted",
    "AdviceForbidden",
    "AdvisedParts",
    "Allocation",
    "AllocationInfo",
    "AlreadyExists",
    "AlreadySealed",
    "Away",
    "BrokerGone",
    "Client",
    "ContentLost",
    "CopyFailed",
    "DataLoss",
    "Deadline",
    "Device",
    "DeviceFull",
    "DeviceMemory",
    "DeviceUnknown",
    "DigestMismatch",
    "Draining",
    "DriverFailed",
    "Error",
    "FailedPrecondition",
    "FileCheck",
    "FileMissing",
    "Forked",
    "HandleClosed",
    "Internal",
    "InvalidArgument",
    "InvalidCheckpoint",
    "MapFailed",
    "MappedFile",
    "Memory",
    "NameTaken",
    "NotFound",
    "NotInPlace",
    "NotMapped",
    "NotOwner",
    "NotResident",
    "NotSealed",
    "OtherContent",
    "OwnQuota",
    "PermissionDenied",
    "Pin",
    "PinSet",
    "Prefetch",
    "PinStalled",
    "Pinned",
    "Pressure",
    "QuotaExceeded",
    "Released",
    "ResourceExhausted",
    "Sealed",
    "Sequence",
    "StagingBuffer",
    "SessionForeign",
    "SessionLost",
    "SetTooLarge",
    "StreamCapturing",
    "Tensor",
    "Turn",
    "TurnHeld",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "WaitCancelled",
    "Weights",
    "WorkingSet",
    "__version__",
    "connect",
    "load",
    "save",
    "socket_dir",
]
