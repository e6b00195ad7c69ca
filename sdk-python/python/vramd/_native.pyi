"""The native half: what the classes of `vramd` do."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, final

from typing_extensions import Buffer, CapsuleType, Self, disjoint_base

__all__ = [
    "Allocation", "AllocationInfo", "Client", "Device", "Memory", "Pin", "PinSet", "Pressure", "Released", "Sealed", "Tensor", "__version__",
    "_PressureStream", "connect", "reasons", "socket_dir",
]

__version__: str

def connect(
    name: str | None = None,
    *,
    socket_dir: str | os.PathLike[str] | None = None,
    devices: Sequence[str] | None = None,
    timeout: float | None = None,
    on_pressure: Callable[[Pressure], object] | None = None,
) -> Client:
    """Opens a session with the daemon of this node.

    `name` is what operators read beside it. `devices` are UUIDs of the devices that this process sees, if CUDA is not
    to be asked. `timeout` bounds every later call, in seconds; it is 300 unless told. `on_pressure` is called whenever the daemon tells how
    full a device is, or a tier below it: once for each at the beginning, then with every change. A thread that does nothing else
    calls it, so it may take its time; of what comes meanwhile it is told the newest of each device and tier. What it raises goes to
    `threading.excepthook`, and the next is told all the same. What it refers to lives as long as the session.
    """

def socket_dir() -> str:
    """Where the daemon's sockets are looked for, unless `connect` is told."""

def reasons() -> list[tuple[str, str, list[str], str]]:
    """Every reason of the registry: its name, gRPC code, facts and meaning."""

@final
class Client:
    """One session with the daemon. As a context it is closed at the end."""

    @property
    def session_id(self) -> int: ...
    @property
    def tenant(self) -> str:
        """Whom this session is charged to."""
    @property
    def devices(self) -> list[Device]:
        """The daemon's devices that this session sees."""
    @property
    def daemon_version(self) -> str: ...
    @property
    def is_connected(self) -> bool:
        """Whether the session stands. What it maps stays usable even if not."""
    @property
    def is_draining(self) -> bool:
        """Whether the node is being taken out of service."""
    def pressure(self, device: str | None = None) -> Pressure:
        """How full a device is, by its UUID or index, as the daemon told last; the only one, if none is named. No call."""
    def pressures(self) -> list[Pressure]:
        """The same of all devices that the session sees, and of the tiers below them."""
    def allocate(
        self,
        size: int | str,
        *,
        name: str | None = None,
        device: str | None = None,
        lifetime: Literal["session", "persistent"] = "session",
        readers: Sequence[str] = (),
        part_size: int | str | None = None,
        replace: bool = False,
        uninitialized: bool = False,
        unpinned: bool = False,
        discardable: bool = False,
        wait: float = 0.0,
    ) -> Allocation:
        """Allocates, and waits until the memory is mapped: zero, writable.

        `size` is bytes, or a text like `"24GiB"`. `device` is a UUID or an index. What is persistent stays with its
        tenant once it is sealed, and needs a name. `readers` are tenants that may attach it then; `*` is everybody.
        `replace` takes the name from the sealed allocation that bears it, at the moment this one is sealed.
        `uninitialized` memory may begin with what the tenant's own freed memory held, and can be had sooner. Of `unpinned`
        memory nothing is mapped before somebody looks, copies or pins, so the call does not wait for it, and it may be
        larger than the device. Parts of `discardable` memory that nobody holds or pins are dropped where somebody needs their
        room, not copied: `Pin.drop_count` says so. It can't be sealed. Where there is no room, `wait` is for how many seconds it waits for some.
        """
    def load(
        self,
        path: str | os.PathLike[str],
        *,
        offset: int = 0,
        size: int | str | None = None,
        name: str | None = None,
        device: str | None = None,
        lifetime: Literal["session", "persistent"] = "session",
        readers: Sequence[str] = (),
        part_size: int | str | None = None,
        replace: bool = False,
        unpinned: bool = False,
        wait: float = 0.0,
    ) -> Sealed:
        """Loads what a file has from `offset` on, all of it unless `size` is given, as sealed memory.

        Where the daemon knows that the file never changes (fs-verity, or the operator's `files.immutable_paths`) the file
        itself is what the memory has below its device: what nobody uses leaves without being copied, and costs nothing. Any
        other file is copied. One that was changed all the same is found out: who looks is told `ContentLost`. It takes as long as
        it takes to read the file. `wait` counts where it is copied; all else is as for `allocate`.
        """
    def attach(self, name_or_id: str | int, *, unpinned: bool = False) -> Sealed:
        """Maps a sealed allocation read-only: by `name`, by `tenant/name`, or by its id.

        Of an `unpinned` one nothing is mapped before somebody looks, copies or pins, so it may be larger than the device.
        """
    def pin_set(
        self, read: Sequence[Memory] = (), *, write: Sequence[Memory] = (), wait: float | None = None
    ) -> PinSet:
        """Pins several allocations together, all or none, and waits until they are here.

        Those of `write` are pinned to be written. Two programs that pin the same ones so do not each wait for what the
        other has; who pins one after the other may (`PinStalled`). At most 1,024 parts in all. `wait` is for how many
        seconds it waits (`Deadline`); as long as any call of the client unless told.
        """
    def list(self, prefix: str = "") -> list[AllocationInfo]:
        """What the tenant owns whose name begins so. `tenant/…` shows what that tenant lets this one read."""
    def describe(self, name_or_id: str | int) -> AllocationInfo: ...
    def flush(self) -> None:
        """Waits until what was dropped so far is unmapped and freed or detached."""
    def close(self) -> None:
        """Makes no more calls. The session ends with the last of its memory."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@disjoint_base
class Memory(Buffer):
    """Mapped memory: an `Allocation` or a `Sealed`."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str | None:
        """As `tenant/name`."""
    @property
    def size(self) -> int:
        """The bytes that were asked for."""
    @property
    def part_count(self) -> int:
        """Of how many parts it is made, which come and go each for itself."""
    @property
    def device(self) -> str:
        """UUID."""
    @property
    def device_ptr(self) -> int:
        """Where it lies: on a GPU, or where devices are simulated in this process. It never changes.

        0 while it is `unpinned` and nothing of it has been mapped.
        """
    @property
    def is_device_memory(self) -> bool:
        """Whether it lies on a GPU, where the CPU cannot follow its address."""
    @property
    def is_mapped(self) -> bool: ...
    @property
    def info(self) -> AllocationInfo:
        """As the daemon described it when it was made, sealed or attached."""
    @property
    def has_handle_pin(self) -> bool:
        """Whether this object pins it, as every one does at first."""
    def repin(self) -> None:
        """Pins it by this object again, and waits until it is here."""
    def unpin(self) -> None:
        """Gives up this object's own pin: the daemon may unmap it while nobody looks. Whoever looks brings it back."""
    def advise(self, advice: Literal["set_accessed_by", "unset_accessed_by"]) -> None:
        """Says how it is used, which its owner may. It holds until other advice is given; what it says already is no error.

        `set_accessed_by`: its device accesses it in place. What of it lies in the host's memory is mapped there for whoever
        pins it, at the same address, and does not come to the device. That pays for what is read less than about once each
        time it would have come. `unset_accessed_by`: no more; the next pin has it come.
        """
    def pin(self, *, parts: range | None = None, write: bool = False, wait: float | None = None) -> Pin:
        """Keeps it mapped at its address until the pin is released, and waits until it is here.

        `parts` are those wanted, like `range(2, 4)`; all of them unless told. Who writes says `write`: what is written
        under a pin to read is lost when the memory leaves its device. More than 1,024 parts are asked for by several
        calls, each while those before it are kept; if they stand in their own way it is `PinStalled`, and none is kept.
        `wait` is for how many seconds it waits (`Deadline`); as long as any call of the client unless told.
        """
    def copy_to(self, offset: int = 0, length: int | None = None) -> bytes:
        """Copies bytes out, up to the end unless told."""
    def copy_into(self, buffer: Buffer, offset: int = 0) -> None:
        """Copies bytes out into the whole of a writable, contiguous buffer."""
    def tensor(self, shape: int | Sequence[int] | None = None, dtype: Any = "uint8", offset: int = 0) -> Tensor:
        """A tensor in it, for NumPy, PyTorch and their like. Without a shape: one dimension, up to the end.

        `dtype` is a name like `"bfloat16"`, or a type of NumPy's or PyTorch's. `offset` is in bytes.
        """
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __reduce__(self) -> NoReturn: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Allocation(Memory):
    """Memory of this session alone, mapped for reading and writing. Dropped unsealed it is freed."""

    def copy_from(self, buffer: Buffer, offset: int = 0) -> None:
        """Copies the whole of a contiguous buffer in."""
    def seal(self) -> Sealed:
        """Ends writing for ever. The address stays; this object is closed. If it fails, nothing is lost."""
    def free(self) -> Released:
        """Unmaps and frees it."""

@final
class Sealed(Memory):
    """Memory that nobody writes any more, mapped read-only. Dropped, the session lets go of it."""

    @property
    def digest(self) -> str:
        """`blake3:` and 64 hexadecimal digits over its bytes, as the daemon hashed them."""
    def free(self) -> Released:
        """Unmaps it and frees it for everybody, which its owner may. Others that map it keep their mappings."""
    def detach(self) -> None:
        """Unmaps it, and leaves it as it is."""

@final
class Tensor(Buffer):
    """A C-contiguous tensor. While it lives, or anything made of it, the memory stays."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device_ptr(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For memory of a GPU alone."""
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __reduce__(self) -> NoReturn: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Pin:
    """Memory that stays where it is while kernels use it. As a context it is released at the end."""

    @property
    def size(self) -> int:
        """The pinned bytes, of those that were asked for."""
    @property
    def device_ptr(self) -> int:
        """Where they begin."""
    @property
    def parts(self) -> range:
        """The parts that are pinned."""
    @property
    def write(self) -> bool: ...
    @property
    def drop_count(self) -> int:
        """How often content of it was given up since it was allocated, if it is `discardable`.

        What was written while it was another number is lost, all or some. It does not change while it is pinned.
        """
    @property
    def is_released(self) -> bool: ...
    def release(self) -> None: ...
    def unpin_after(self, *streams: int) -> None:
        """Releases it once these CUDA streams have done what was launched on them so far. Returns at once.

        A stream that is being captured is refused, and the pin stays: pin around the graph's launch.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class PinSet:
    """Pins that were taken together. As a context they are released at the end."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Those to read, then those to write, each in the order in which they were named."""
    def release(self) -> None: ...
    def unpin_after(self, *streams: int) -> None:
        """As `Pin.unpin_after`, for each that is not released."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class AllocationInfo:
    """One allocation as its tenant sees it. Asked, charged and resident bytes are three numbers."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str | None: ...
    @property
    def tenant(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def kind(self) -> Literal["movable", "fixed", "managed", "unknown"]: ...
    @property
    def lifetime(self) -> Literal["session", "persistent", "unknown"]: ...
    @property
    def state(self) -> Literal["creating", "open", "sealing", "sealed", "freeing", "unknown"]: ...
    @property
    def accessed_by_device(self) -> bool:
        """Whether what of it lies in the host's memory is mapped there, and does not come to the device."""
    @property
    def size(self) -> int: ...
    @property
    def charged(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def file(self) -> str | None: ...
    @property
    def in_file(self) -> int: ...
    @property
    def unreturned(self) -> int: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def readers(self) -> list[str]: ...
    @property
    def owner_session(self) -> int | None: ...
    @property
    def mapper_count(self) -> int: ...

@final
class Device:
    """One of the daemon's devices."""

    @property
    def uuid(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...

@final
class Released:
    """What became of memory that was freed."""

    @property
    def still_charged(self) -> int:
        """Bytes that are still charged to its tenant, because somebody maps or holds them."""
    @property
    def mapper_count(self) -> int:
        """How many sessions still map it."""

@final
class Pressure:
    """How full a device is, or a tier below it: what is charged to all tenants, of what the daemon may hand out there."""

    @property
    def device(self) -> str:
        """UUID."""
    @property
    def tier(self) -> Literal["device", "host", "disk", "unknown"]: ...
    @property
    def level(self) -> Literal["normal", "elevated", "high", "critical", "unknown"]: ...
    @property
    def batch_factor(self) -> float:
        """By what a program that chooses how much it asks for at once should multiply that: from 0.8, it is tight, to 1.2."""
    @property
    def full_in(self) -> float | None:
        """Seconds until the tier is full, if it goes on filling as it does. None: it does not, or that is more than 300 off."""

@final
class _PressureStream:
    """Where `vramd._pressure_stream` waits for reports."""

    def next(self) -> Pressure | None:
        """Returns the next report, and so acknowledges the one before it; `None` at the end of the session."""
