"""The native half: the classes of `vramd`."""

import os
from collections import abc
from collections.abc import Callable
from typing import Any, Generic, Literal, NoReturn, TypeVar, final

from typing_extensions import Buffer, CapsuleType, Self, disjoint_base

__all__ = [
    "AdvisedParts", "Allocation", "AllocationInfo", "Client", "Device", "FileCheck", "MappedFile", "Memory", "NotInPlace", "OwnQuota", "Pin", "PinSet", "Prefetch", "Pressure", "Released", "Sealed", "Sequence", "StagingBuffer", "Tensor",
    "Turn", "WorkingSet",
    "__version__", "_Away", "_Interrupt", "_ManagedPool", "_Pool", "_PressureStream", "_Scope", "_SignalWatch", "connect", "reasons", "socket_dir",
]

__version__: str

_Value = TypeVar("_Value")
_Begun = TypeVar("_Begun")

def connect(
    name: str | None = None,
    *,
    socket_dir: str | os.PathLike[str] | None = None,
    devices: abc.Sequence[str] | None = None,
    timeout: float | None = None,
    on_pressure: Callable[[Pressure], object] | None = None,
) -> Client:
    """Opens a session with the daemon of this node.

    `name` is what operators see beside the session. `devices` are the UUIDs of the devices that this process sees; by
    default CUDA is asked. `timeout` bounds every later call, in seconds; the default is 300.

    `on_pressure` is called with each pressure report: once for each device and tier at the beginning, then at every
    change. A thread of its own calls it, so it may take its time; it then gets only the newest report of each device
    and tier. An exception that it raises goes to `threading.excepthook`, and the next report is delivered all the
    same. Objects that it refers to live as long as the session.
    """

def socket_dir() -> str:
    """The folder where the daemon's sockets are looked for, unless `connect` gets another."""

def reasons() -> list[tuple[str, str, list[str], str]]:
    """Every reason of the registry: its name, gRPC code, facts and meaning."""

@final
class Client:
    """One session with the daemon. As a context manager it is closed at the end."""

    @property
    def session_id(self) -> int: ...
    @property
    def tenant(self) -> str:
        """The tenant that is charged for this session."""
    @property
    def devices(self) -> list[Device]:
        """The daemon's devices that this session sees."""
    @property
    def daemon_version(self) -> str: ...
    @property
    def is_connected(self) -> bool:
        """Whether the session is live. Its mappings stay usable after its end."""
    @property
    def is_draining(self) -> bool:
        """Whether an operator is taking the node out of service."""
    def pressure(self, device: str | int | None = None) -> Pressure:
        """The daemon's last report on how full a device is, named by UUID or index; without a name, of the session's
        only device. It makes no call.
        """
    def quota(self) -> list[OwnQuota]:
        """The limits, the use and the free room of the client's tenant: on each device that this session sees, and in
        each tier there.
        """
    def pressures(self) -> list[Pressure]:
        """The last report of each device that the session sees, and of the tiers below them."""
    def allocate(
        self,
        size: int | str,
        *,
        name: str | None = None,
        device: str | int | None = None,
        lifetime: Literal["session", "persistent"] = "session",
        readers: abc.Sequence[str] = (),
        part_size: int | str | None = None,
        replace: bool = False,
        uninitialized: bool = False,
        unpinned: bool = False,
        discardable: bool = False,
        wait: float = 0.0,
    ) -> Allocation:
        """Allocates zeroed memory, and waits until it is mapped for writing.

        `size` is in bytes, or a text like `"24GiB"`. `device` is a UUID or an index. Persistent memory needs a name.
        Once sealed, it stays with its tenant until it is freed or the daemon ends. `readers` are tenants that may attach it then; `*` means every
        tenant. `replace` takes the name from the sealed allocation that has it, at the moment when this one is
        sealed. `uninitialized` memory may begin with bytes of the tenant's own freed memory, and can be had sooner.

        `unpinned` memory has no handle pin: nothing is mapped before the program accesses, copies or pins it. The
        call does not wait for it, and it may be larger than the device. When room is needed, unpinned parts of
        `discardable` memory are dropped instead of copied, and `Pin.drop_count` shows it; such memory cannot be
        sealed. `wait` is how many seconds the request may wait for room.
        """
    def load(
        self,
        path: str | os.PathLike[str],
        *,
        offset: int = 0,
        size: int | str | None = None,
        name: str | None = None,
        device: str | int | None = None,
        lifetime: Literal["session", "persistent"] = "session",
        readers: abc.Sequence[str] = (),
        part_size: int | str | None = None,
        replace: bool = False,
        unpinned: bool = False,
        copy: bool = True,
        wait: float = 0.0,
    ) -> Sealed:
        """Loads a file from `offset` on, up to its end unless `size` is given, as sealed memory.

        If the daemon knows that the file never changes (fs-verity, or the operator's `files.immutable_paths`), the
        file itself is the backing: unused parts leave the device without a copy, and cost nothing there. Any other
        file is copied, or with `copy=False` refused (`FILE_MUTABLE`). If an immutable file is changed after all, accesses raise `ContentLost`. Loading takes as long
        as reading the file, at most the client's timeout and a second more for each 16 MiB. `wait` counts only if the
        file is copied; the other arguments are those of `allocate`.
        """
    def check_file(self, descriptor: int, *, device: str | int | None = None) -> FileCheck:
        """Asks the daemon whether a device reads an open file in place. `vramd.load(…, where="in_place")` does that."""
    def map_file(self, descriptor: int, check: FileCheck) -> MappedFile | NotInPlace:
        """Maps a file that was checked, and waits until its bytes are in memory. Nothing is allocated or charged."""
    def report_fall_back(self, reason: str, copied: int) -> None:
        """Has the daemon count a file that was copied to a device instead, with its reason and its bytes."""
    def attach(self, name_or_id: str | int, *, unpinned: bool = False) -> Sealed:
        """Maps a sealed allocation read-only: by `name`, by `tenant/name`, or by its id. Objects of one allocation share
        its mapping, which ends with the last of them.

        With `unpinned` nothing is mapped before the program accesses, copies or pins it, so it may be larger than the
        device.
        """
    def pin_set(
        self, read: abc.Sequence[Memory] = (), *, write: abc.Sequence[Memory] = (), wait: float | None = None
    ) -> PinSet:
        """Pins several allocations together, all or none, and waits until they have arrived.

        The allocations in `write` are pinned for writing. Two programs that pin the same allocations this way do not wait for
        each other's; a program that pins one after the other may (`PinStalled`). At most 1,024 parts in all. `wait`
        is how many seconds it may wait (`Deadline`); the default is the client's timeout.
        """
    def prefetch(
        self,
        *memory: Memory | tuple[Memory, range],
        partial: bool = False,
        within: float | None = None,
        priority: int = 0,
    ) -> Prefetch:
        """Asks for memory ahead of its use, and returns once the daemon has answered.

        All of it is of one device, and at most 1,024 parts: whole allocations, or pairs of an allocation and a range of its
        parts. The daemon fetches all or none, or with `partial` as much as finds room. It is needed `within` so many
        seconds, if that is given: the earliest deadline goes first. Of the requests of one tenant, those of higher
        `priority` (0 to 255) go first. A request that can never be served raises its error (`DeviceFull`, `QuotaExceeded`,
        `SetTooLarge`). A pin needs no prefetch: it waits only for what is not there yet.
        """
    def sequence(
        self,
        steps: abc.Sequence[Memory | tuple[Memory, range] | list[Memory | tuple[Memory, range]]],
        *,
        passes: int = 0,
    ) -> Sequence:
        """Declares in which order the program will use memory, so many times; 0 means for ever.

        A step is an allocation, a pair of an allocation and a range of its parts, or a list of these. All of it is of one
        device: at most 2,048 steps with 1 to 1,024 parts each. The daemon has the next steps on the device, or on their
        way, and lets the memory leave first that is used last. Call `Sequence.begin` before each step. The program pins
        as always: a pin in another order is slower and not wrong.
        """
    def working_set(self, name: str, memory: abc.Sequence[Memory]) -> WorkingSet:
        """Names memory as a working set, which the program uses in turns with other programs where there is too little
        room for all.

        It is one or more allocations of one device, none of them with a handle pin: allocate or attach them `unpinned`.
        `Pinned` is raised if this client has one; a handle pin of another client is not seen, and keeps the memory from
        leaving. No other set of this client may have the name.
        """
    def list(self, prefix: str = "") -> list[AllocationInfo]:
        """The tenant's allocations whose name begins with `prefix`. A prefix `tenant/…` lists those that this tenant may
        read.
        """
    def describe(self, name_or_id: str | int) -> AllocationInfo: ...
    def flush(self) -> None:
        """Waits until everything that was dropped so far is unmapped and freed or detached."""
    @property
    def is_away(self) -> bool:
        """Whether `detach_all` has taken the session's memory away, and `attach_all` has not brought it back."""
    def detach_all(self) -> None:
        """Takes all memory of the session away from this process, so that it can be frozen and continued.

        Afterwards nothing of the daemon is mapped here and no handle of it is open, so that `cuda-checkpoint` can
        freeze the process. Addresses stay reserved, and the daemon keeps the bytes: what this session owns leaves its
        device for a lower tier, and sealed memory of others stays for those that use it. The call waits for the work on
        the devices that was launched.

        It raises `Pinned`, which names what is in use, and changes nothing: pins, buffers, tensors, pools that are awake,
        turns, declared sequences and fixed memory. Until `attach_all`, calls of any thread that need the memory raise
        `Away`, a second `detach_all` as well. Handle pins do not count; they are taken again by `attach_all`.
        """
    def attach_all(self, *, wait: float | None = None) -> None:
        """Brings back what `detach_all` has taken away: to the same addresses, with the same bytes, pinned as before.

        It waits up to `wait` seconds for room; by default as long as any call. Without a `detach_all` it does nothing. On
        an error all of it is away as before, and the call may be repeated.
        """
    def away(self, *, wait: float | None = None) -> _Away:
        """Takes the session's memory away in a `with` block: `detach_all` before it, `attach_all` after it."""
    def close(self) -> None:
        """Ends the calls of this object. The session ends with the last of its memory."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class _Away:
    """A `with` block in which the memory is away: `Client.away`."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...

@disjoint_base
class Memory(Buffer):
    """Mapped memory: an `Allocation` or a `Sealed`."""

    def _free_by_id(self) -> None:
        """Frees the allocation although this object no longer has it, as after a seal whose result is lost."""
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
        """The number of its parts, each of which is moved on its own."""
    @property
    def device(self) -> str:
        """UUID."""
    @property
    def device_ptr(self) -> int:
        """Its address: on a GPU, or in this process if devices are simulated. It never changes.

        It is 0 for `unpinned` memory until a part has been mapped.
        """
    @property
    def is_device_memory(self) -> bool:
        """Whether the address is a GPU's, which the CPU cannot access."""
    @property
    def is_mapped(self) -> bool: ...
    @property
    def info(self) -> AllocationInfo:
        """The allocation as the daemon described it when it was allocated, sealed or attached."""
    @property
    def has_handle_pin(self) -> bool:
        """Whether this object has its handle pin, as every object does at first unless it was requested as unpinned.
        """
    def repin(self) -> None:
        """Takes the handle pin again, and waits until all parts have arrived."""
    def unpin(self) -> None:
        """Gives up the handle pin: the daemon may unmap the memory while no view or pin uses it. The next access brings
        it back.
        """
    def evict(self, tier: Literal["host", "disk"] = "host") -> None:
        """Has all parts leave their device now, although no other client needs the room; only their owner may.

        Bytes and address stay, and the next access brings the memory back. It raises `Pinned` while something uses the
        memory, be it its own handle (`unpin` ends that) or another process. On any error some parts may have stayed.
        """
    def advise(
        self,
        advice: Literal[
            "set_accessed_by",
            "unset_accessed_by",
            "do_not_need",
            "need",
            "set_importance",
            "unset_importance",
            "set_class",
            "unset_class",
            "will_need",
            "set_location",
            "unset_location",
            "set_read_mostly",
            "unset_read_mostly",
            "set_pattern",
            "unset_pattern",
        ]
        | None = None,
        *,
        parts: range | None = None,
        importance_percent: int | None = None,
        memory_class: Literal["scratch", "weights", "activations", "cache"] | None = None,
        needed_within: float | None = None,
        location: Literal["device", "host", "disk"] | None = None,
        pattern: Literal["sequential", "strided", "window", "loop", "random", "sparse"] | None = None,
        preset: Literal["weights", "kv_cache", "activations", "staging"] | None = None,
    ) -> None:
        """Tells the daemon how memory is used; only its owner may. Advice holds until it is withdrawn; repeating it is
        no error. `parts` are some parts, like `range(2, 4)`; the default is all of them.

        The first two are about the whole allocation. The others say which parts leave their device first when another
        client needs room, among the parts of one tenant. `do_not_need`: these leave before all others, until they have
        left or `need` is given. `set_importance` takes `importance_percent`, 0 to 100: parts of lower importance leave
        first, and parts without it count as 50. `set_class` takes `memory_class`: among parts of the same importance,
        scratch leaves first, then weights, memory of no class, activations, and caches.

        `will_need` takes `needed_within`, in seconds: these leave after all others, until their first use that the
        daemon sees, or until twice that time is over. `set_location` takes `location`: those that should lie below the
        device leave first, and those that should lie on it last. `set_read_mostly`: these leave first among parts of
        the same class, and are written back ahead of need. `set_pattern` takes `pattern`: with `sequential`, `strided`
        and `window` those that lie behind the last use leave first, with `loop` the one that was used last.

        Without `advice` it takes a `preset`, several pieces of advice at once: `weights` (class weights, read mostly),
        `kv_cache` (class cache, location device), `activations` (class activations), `staging` (class scratch, location
        host, sequential).

        `set_accessed_by`: its device accesses it in place. Parts in host memory are mapped there for every session
        that pins them, at the same address, and are not fetched. That pays for memory that is read less than about
        once per fetch that it saves. `unset_accessed_by` ends this; the next pin fetches the part.
        """
    def pin(self, *, parts: range | None = None, write: bool = False, wait: float | None = None) -> Pin:
        """Keeps it mapped at its address until the pin is released, and waits until it has arrived.

        `parts` are some parts, like `range(2, 4)`; the default is all of them. A pin to write needs `write`: bytes
        written under a pin to read are lost when the memory leaves its device. More than 1,024 parts take several
        calls, each of which keeps the earlier ones; if they block each other, `PinStalled` is raised and none is
        kept. `wait` is how many seconds it may wait (`Deadline`); the default is the client's timeout.
        """
    def copy_to(self, offset: int = 0, length: int | None = None) -> bytes:
        """Copies bytes out, up to the end by default."""
    def copy_into(self, buffer: Buffer, offset: int = 0) -> None:
        """Copies bytes out into the whole of a writable, contiguous buffer."""
    def tensor(self, shape: int | abc.Sequence[int] | None = None, dtype: Any = "uint8", offset: int = 0) -> Tensor:
        """A tensor over its bytes, for NumPy, PyTorch and others. Without a shape it has one dimension, up to the end.

        `dtype` is a name like `"bfloat16"`, or a type of NumPy or PyTorch. `offset` is in bytes. Only the parts in
        which the tensor lies are pinned.
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
    """Memory of this session alone, mapped for reading and writing. Dropping it unsealed frees it."""

    def copy_from(self, buffer: Buffer, offset: int = 0) -> None:
        """Copies the whole of a contiguous buffer in."""
    def staging_buffer(self, size: int) -> StagingBuffer:
        """Host memory of `size` bytes to read into before `copy_from`: page-locked for the device of this allocation.

        It is ordinary memory if the allocation lies in no device memory, if no part of it was ever mapped, or if the
        driver cannot lock so much.
        """
    def seal(self) -> Sealed:
        """Ends writing for ever. The address stays; this object is closed. If sealing fails, nothing is lost."""
    def free(self) -> Released:
        """Unmaps and frees it."""

@final
class StagingBuffer(Buffer):
    """A writable buffer from which `Allocation.copy_from` runs at the speed of the link (`Allocation.staging_buffer`)."""

    @property
    def is_page_locked(self) -> bool: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Sealed(Memory):
    """Memory that no session can write any more, mapped read-only. Dropping it detaches the session."""

    @property
    def digest(self) -> str:
        """`blake3:` and 64 hexadecimal digits over its bytes, as the daemon hashed them."""
    def free(self) -> Released:
        """Unmaps it and frees the allocation; only its owner may. Other sessions keep their mappings."""
    def detach(self) -> None:
        """Unmaps it, and leaves the allocation as it is."""

@final
class Tensor(Buffer):
    """A C-contiguous tensor. While it, or anything made from it, lives, the memory stays mapped."""

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
        """Only for memory of a GPU."""
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
class FileCheck:
    """The daemon's answer on how a device reads a file (`Client.check_file`)."""

    @property
    def in_place_by_default(self) -> bool:
        """Whether device memory and host memory are one, so that programs should read the file in place."""
    @property
    def device(self) -> str:
        """UUID."""
    @property
    def not_in_place(self) -> NotInPlace | None:
        """Why the device does not read the file in place. `None` if it does."""
    def __reduce__(self) -> NoReturn: ...

@final
class NotInPlace:
    """Why a file is copied to a device instead of being read in place."""

    @property
    def reason(self) -> str:
        """The reason's name in metrics."""
    @property
    def problem(self) -> str:
        """The same in one sentence."""
    def __reduce__(self) -> NoReturn: ...

@final
class MappedFile(Buffer):
    """A file in this process's memory, read-only, which a device reads in place. Tensors in it keep it mapped.

    Kernels do not: before it and the last tensor in it go, wait for the kernels that read it (`torch.cuda.synchronize`).
    A kernel that reads unmapped addresses faults, and the process loses its CUDA context.
    """

    @property
    def size(self) -> int: ...
    @property
    def device(self) -> str:
        """UUID of the device that reads it."""
    @property
    def device_ptr(self) -> int:
        """The address at which kernels read it."""
    @property
    def is_device_memory(self) -> bool:
        """Whether a GPU reads it. If not, the device is simulated, and the CPU does."""
    @property
    def is_mapped(self) -> bool:
        """False once it is detached, and in a forked child."""
    def tensor(self, shape: int | abc.Sequence[int] | None = None, dtype: Any = "uint8", offset: int = 0) -> Tensor: ...
    def copy_to(self, offset: int = 0, length: int | None = None) -> bytes: ...
    def detach(self) -> None:
        """Forgets the file. It is unmapped once no tensor lies in it any more: kernels that read it must have ended."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __reduce__(self) -> NoReturn: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Pin(Buffer):
    """Memory that stays where it is while kernels use it. As a context manager it is released at the end.

    It is a buffer of the pinned bytes, as memory is of all its bytes. A view of them keeps their parts where they
    are, even after the pin is released.
    """

    @property
    def size(self) -> int:
        """The pinned bytes, of the requested ones."""
    @property
    def device_ptr(self) -> int:
        """The address where they begin."""
    @property
    def parts(self) -> range:
        """The parts that are pinned."""
    @property
    def write(self) -> bool: ...
    @property
    def drop_count(self) -> int:
        """How often the daemon has dropped its content since it was allocated, if it is `discardable`.

        Content that was written at another count is lost, all or some of it. The count does not change while the
        memory is pinned.
        """
    @property
    def is_released(self) -> bool: ...
    def tensor(self, shape: int | abc.Sequence[int] | None = None, dtype: Any = "uint8", offset: int = 0) -> Tensor:
        """A tensor over the pinned bytes, as `Memory.tensor` makes it; `offset` counts from where they begin.

        It is read-only unless the pin is to write.
        """
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def release(self) -> None: ...
    def unpin_after(self, *streams: int) -> None:
        """Releases it once these CUDA streams have done the work launched on them so far. Returns at once.

        A stream that is being captured is refused, and the pin stays: pin around the graph's launch.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class PinSet:
    """Pins that were taken together. As a context manager they are released at the end."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pins to read, then those to write, each in the order in which they were named."""
    def release(self) -> None: ...
    def unpin_after(self, *streams: int) -> None:
        """As `Pin.unpin_after`, for each that is not released."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Prefetch:
    """A prefetch request. Its end does not cancel the request."""

    @property
    def number(self) -> int:
        """The number that operators see (`vramctl prefetch list`)."""
    @property
    def state(self) -> str:
        """How far it is. Costs no call.

        `deferred`, `accepted`, `ready`, `late` (ready after its deadline), `dropped` (a part left unused) or `cancelled`. A
        request that failed raises its error.
        """
    @property
    def reason(self) -> str | None:
        """Why it is deferred or was dropped.

        Deferred: `demand`, `behind`, `link`, `room`, `room_on_its_way`, `moving` or `pressure`. Dropped: the cause of the move,
        such as `demand`.
        """
    @property
    def by_own_tenant(self) -> bool | None:
        """Whether the room of a dropped request served its own tenant, or none. Otherwise `None`."""
    @property
    def by_operator(self) -> bool | None:
        """Whether an operator cancelled it, or the program. `None` while it is not cancelled."""
    @property
    def expected(self) -> float | None:
        """Seconds until it is probably ready; only once it is accepted, and a fetch to the device was measured."""
    @property
    def parts_left_out(self) -> int:
        """Parts that found no room. Only with `partial`."""
    def wait(self, seconds: float | None = None) -> str:
        """Waits until its parts are there or will not come, and returns the state.

        `Deadline` after so many seconds; the default is the client's timeout. The request goes on.
        """
    def cancel(self) -> None:
        """Cancels it. Copies are stopped unless something else wants the memory."""
    def __reduce__(self) -> NoReturn: ...

@final
class Sequence:
    """A declared sequence. Its end ends the sequence, as `with` does."""

    @property
    def number(self) -> int:
        """The number that operators see beside its requests (`vramctl prefetch list`)."""
    @property
    def state(self) -> str:
        """`running` or `ended`. A sequence that ended with lost memory raises its error. Costs no call."""
    @property
    def window_steps(self) -> int:
        """How many steps the daemon works ahead; 0 once it has ended."""
    @property
    def window_bytes(self) -> int:
        """All parts of these steps together, in bytes."""
    @property
    def kept_bytes(self) -> int:
        """Bytes of a pass that stay on the device from one pass to the next. The others are copied in each pass."""
    @property
    def is_shortened(self) -> bool:
        """More room for the tenant would let the daemon work further ahead, as copies need."""
    def begin(self, step: int | None = None) -> int | None:
        """Begins the next step, or a later one by its number over all passes, from 0. Returns its number.

        The program has ended the earlier steps and pins their memory no longer. It waits for nothing. Once the sequence has
        ended it does nothing and returns `None`.
        """
    def end(self) -> None:
        """Ends it. Ending it again does nothing."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class WorkingSet:
    """Memory that belongs together. Its end gives the set up, as `with` does; the memory stays the program's."""

    @property
    def name(self) -> str:
        """The name that operators see (`vramctl turn list`)."""
    def turn(self, wait: float | None = None) -> Turn:
        """Waits for the turn: however long that takes, or at most so many seconds (then `Deadline`).

        During the turn all of the set is mapped and stays: on its device, except parts that an access advice has read in
        host memory. Pins of it succeed at once. A client has at most one turn: `TurnHeld` is raised for another, since it
        would wait for itself. Other threads go on, and Ctrl-C ends the wait.

        The wait may end with `Aborted`: with reason `RACED` if memory of the set changed just then, or as `PinStalled` if
        the set waited only for clients that wait themselves. Then the client has no turn, and may ask again.
        """
    def close(self) -> None:
        """Gives the set up, once its turn is yielded. Closing it again does nothing."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Turn:
    """The turn of a working set. Its end yields the turn, as `with` does."""

    @property
    def ending(self) -> bool:
        """Whether the daemon asks for the turn: end the step at hand, and yield. Costs no call.

        It is not set once the daemon has ended: then the program may go on with what it has.
        """
    @property
    def within(self) -> float | None:
        """In how many seconds the turn is overdue; `None` unless it is `ending`."""
    @property
    def state(self) -> str:
        """`held`, `ending`, `lost` (the session has ended; the memory stays mapped) or `yielded`. Costs no call."""
    def wait_ending(self, seconds: float | None = None) -> bool:
        """Waits until the daemon asks for the turn, at most so many seconds, and returns whether it does.

        A yield by another thread ends the wait. Once the session has ended it raises the error with which that ended.
        """
    def yield_now(self) -> None:
        """Yields. Pins of the set that are left keep their memory on the device. Yielding again does nothing."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce__(self) -> NoReturn: ...

@final
class AdvisedParts:
    """The advice of the owner or of an operator that stands for `count` parts from `first` on."""

    @property
    def first(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def not_needed(self) -> bool: ...
    @property
    def needed_within(self) -> float | None:
        """When they are needed, in seconds from now; 0 if that time has passed and the advice still stands."""
    @property
    def importance_percent(self) -> int | None: ...
    @property
    def memory_class(self) -> Literal["scratch", "weights", "activations", "cache"] | None: ...
    @property
    def location(self) -> Literal["device", "host", "disk"] | None: ...
    @property
    def read_mostly(self) -> bool: ...
    @property
    def pattern(self) -> Literal["sequential", "strided", "window", "loop", "random", "sparse"] | None: ...
    @property
    def by_operator(self) -> bool:
        """Whether an operator gave it. For these parts the owner's advice has no effect."""
    @property
    def without_effect(self) -> bool:
        """Whether an operator's advice stands over it, or the tenant's advice is forbidden."""

@final
class AllocationInfo:
    """One allocation as its tenant sees it. Requested, charged and resident bytes are three different numbers."""

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
        """Whether its device accesses parts in host memory in place, instead of fetching them."""
    @property
    def advised_parts(self) -> list[AdvisedParts]:
        """The advice that stands for its parts. Empty in lists."""
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
    def copied_because(self) -> str | None:
        """Of `load`: why the file was copied, instead of being used in place; None if it is used in place."""
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
    """The outcome of freeing memory."""

    @property
    def still_charged(self) -> int:
        """Bytes that are still charged to the tenant, because a session maps them or a process has them open."""
    @property
    def mapper_count(self) -> int:
        """How many sessions still map it."""

@final
class Pressure:
    """How full a device is, or a tier below it: the bytes charged to all tenants, as a share of the capacity there.
    """

    @property
    def device(self) -> str:
        """UUID."""
    @property
    def tier(self) -> Literal["device", "host", "disk", "unknown"]: ...
    @property
    def level(self) -> Literal["normal", "elevated", "high", "critical", "unknown"]: ...
    @property
    def batch_factor(self) -> float:
        """The factor by which a program should scale its batches: from 0.8, where room is short, to 1.2."""
    @property
    def full_in(self) -> float | None:
        """Seconds until the tier is full at the present rate. None if it does not fill, or needs more than 300."""

@final
class OwnQuota:
    """The quota, the use and the free room of the client's tenant in one tier of one device. All sizes are in bytes."""

    @property
    def device(self) -> str:
        """UUID."""
    @property
    def device_index(self) -> int: ...
    @property
    def tier(self) -> Literal["device", "host", "disk", "unknown"]: ...
    @property
    def guarantee(self) -> int:
        """Bytes that are kept free for the tenant."""
    @property
    def limit(self) -> int:
        """Bytes that the tenant may have at most."""
    @property
    def used(self) -> int:
        """Bytes that the tenant is charged: memory that exists, reservations, and cached memory."""
    @property
    def cached(self) -> int:
        """The part of `used` that is cached: freed memory that the tenant's next allocations may reuse."""
    @property
    def managed(self) -> int:
        """The part of `used` that is managed memory of the tenant's processes: not known to be resident."""
    @property
    def unreturned(self) -> int:
        """The part of `used` that was freed but that some process still has open."""
    @property
    def free(self) -> int:
        """Bytes that the tenant can get now, while nothing moves and no other client asks."""
    @property
    def capacity(self) -> int:
        """Bytes that the daemon may hand out here to all tenants together."""
    @property
    def is_default(self) -> bool:
        """Whether no quota is stored for the tenant here, so that the default quota applies."""

@final
class _Pool:
    """The native half of `vramd.torch.Pool`. `device` is a UUID, or PyTorch's number of a device."""

    def __new__(
        cls, client: Client, *, device: str | int | None = None, arena: int | str, wait: float
    ) -> Self: ...
    @staticmethod
    def uuid_of(client: Client, device: str | int) -> str:
        """The UUID of the device that has this number in PyTorch."""
    @property
    def symbols(self) -> tuple[str, str]:
        """The names of the C functions of this module that allocate from it and free to it."""
    @property
    def device(self) -> str:
        """UUID."""
    @property
    def ordinal(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def is_awake(self) -> bool: ...
    def contains(self, address: int) -> bool: ...
    def sleep(self, discard: bool) -> None: ...
    def wake_up(self, wait: float) -> None: ...
    def take_refusal(self) -> BaseException | None:
        """Why the last allocation failed, once."""
    def close(self) -> None: ...

@final
class _ManagedPool:
    """The native half of `vramd.torch.ManagedPool`. `device` is a UUID, or PyTorch's number of a device."""

    def __new__(cls, client: Client, *, device: str | int | None = None, wait: float) -> Self: ...
    @property
    def symbols(self) -> tuple[str, str]:
        """The names of the C functions of this module that allocate from it and free to it."""
    @property
    def device(self) -> str:
        """UUID."""
    @property
    def ordinal(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def failures(self) -> dict[str, int]:
        """How often each advice or prefetch has failed, by step and reason."""
    def contains(self, address: int) -> bool: ...
    def take_refusal(self) -> BaseException | None:
        """Why the last allocation failed, once."""
    def close(self) -> None: ...

@final
class _Interrupt:
    """Ends the calls of one thread from another. Once it is set, calls inside of a `with` block of it raise
    `InterruptedError`, and what they had begun is undone. Inside of it the thread heeds no signal.
    """

    def set(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...

@final
class _SignalWatch:
    """Has Ctrl-C end the allocations that the main thread makes for PyTorch, from `begin` to `end`."""

    def fileno(self) -> int:
        """Where Python is to write the numbers of signals (`signal.set_wakeup_fd`)."""
    def begin(self) -> None: ...
    def end(self) -> None: ...

@disjoint_base
class _Scope(Generic[_Value, _Begun]):
    """The base of context managers whose end Ctrl-C cannot skip.

    `_begin` returns the value of the `with` statement and what has begun, and undoes itself if it fails. By default these
    are the object and nothing. `_end(self, begun, error)` gets that and the error of the block. It may be called twice,
    and does nothing once it has been done.
    """

    def __new__(cls, *_arguments: object, **_named: object) -> Self: ...
    def __class_getitem__(cls, _types: object) -> type[Self]: ...
    def _begin(self) -> tuple[_Value, _Begun]: ...
    def __enter__(self) -> _Value: ...
    def __exit__(self, _kind: object = None, error: BaseException | None = None, _trace: object = None) -> None: ...

@final
class _PressureStream:
    """Where `vramd._pressure_stream` waits for reports."""

    def next(self) -> Pressure | None:
        """Returns the next report, and so acknowledges the one before it; `None` at the end of the session."""
