"""Pools: what PyTorch allocates inside of a block lies in memory of the daemon, and can leave its device and come back.

See `vramd.torch.pool`, and `vramd.torch.managed_pool` for managed memory that the driver moves.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import torch

from vramd import _native
from vramd.errors import Error, FailedPrecondition
from vramd.weights import shared_client

if TYPE_CHECKING:
    from typing import Self

WAIT_SECONDS = 10.0
ARENA = "64MiB"
ALLOCATIONS_SHOWN = 5
"""How many of the tenant's allocations an out-of-memory error names."""
EXIT_SECONDS = 2.0
"""How long the end of the interpreter waits for other threads that are in a block."""

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXCLUDED = re.compile(r"expandable_segments\s*:\s*true|backend\s*:\s*cudaMallocAsync", re.IGNORECASE)

_pools: dict[tuple[str, int], Pool] = {}
_managed_pools: dict[tuple[str, int], ManagedPool] = {}
_lock = threading.RLock()
_open_blocks: dict[Any, Any] = {}
"""PyTorch's pools of the `with` blocks that all threads are in, by the context managers of PyTorch that use them."""
_watches: dict[Any, _native._SignalWatch] = {}
"""The watches that have Ctrl-C end the allocations of a block, by the same."""
_is_exiting = False
"""Whether the interpreter ends, so that no further block may begin."""
_past_blocks: list[Any] = []
"""PyTorch's pools of blocks that have ended."""
_allocators: dict[str, Any] = {}
"""PyTorch's objects for the symbols. PyTorch keeps only pointers to them in segments, so they are never given up."""

Handler = Callable[[int, FrameType | None], Any]
OutOfMemory: type[RuntimeError] = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError


class Uninterrupted(_native._Scope[None, "Handler | None"]):
    """A block of the main thread that Ctrl-C does not interrupt. Its handler runs at the end of the block.

    PyTorch's functions in Python do not undo what they have done if they are interrupted.
    """

    _was_called = False

    def _begin(self) -> tuple[None, Handler | None]:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            return None, None
        try:
            signal.signal(signal.SIGINT, self._keep)
            return None, before
        except BaseException:
            signal.signal(signal.SIGINT, before)
            raise

    def _keep(self, _number: int, _frame: FrameType | None) -> None:
        self._was_called = True

    def _end(self, before: Handler | None, error: BaseException | None) -> None:
        if before is None:
            return
        signal.signal(signal.SIGINT, before)
        was_called, self._was_called = self._was_called, False
        if was_called:
            before(signal.SIGINT, None)


class Block(_native._Scope[Any, Any]):
    """An allocator that PyTorch uses in a `with` block: what `Pool` and `ManagedPool` have in common."""

    def __init__(
        self, tag: str, client: _native.Client, native: _native._Pool | _native._ManagedPool
    ) -> None:
        self.tag, self.client = tag, client
        self._native = native

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

    @property
    def device(self) -> str:
        """UUID."""
        return self._native.device

    @property
    def ordinal(self) -> int:
        """The number of its device in PyTorch."""
        return self._native.ordinal

    @property
    def nbytes(self) -> int:
        """The bytes that its tenant is charged for it, or that it has in another tier."""
        return self._native.nbytes

    def contains(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in it, on its device or not."""
        return self._native.contains(tensor.data_ptr())

    def _begin(self) -> tuple[Self, Any]:
        check_settings()
        if not hasattr(torch.cuda, "MemPool") or not torch.cuda.is_available():
            raise RuntimeError(
                f"PyTorch {torch.__version__} cannot allocate from a pool: that needs PyTorch 2.7 or later, and a GPU"
            )
        inside: Any = None
        raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            with Uninterrupted(), _lock, torch.cuda.device(self.ordinal):
                if _is_exiting:
                    raise RuntimeError("the interpreter ends, and no block of a pool can begin")
                # One for each block: PyTorch returns what it caches in such a pool only when the pool ends.
                mempool = torch.cuda.MemPool(self._allocator())
                inside = torch.cuda.use_mem_pool(mempool, self.ordinal)
                inside.__enter__()
                _open_blocks[inside] = mempool
                del mempool
                if raises and threading.current_thread() is threading.main_thread():
                    watch_signals(inside)
            return self, inside
        except BaseException:
            self._leave(inside)
            raise

    def _end(self, inside: Any, error: BaseException | None) -> None:
        self._leave(inside)
        refusal = self._native.take_refusal()
        # Python raises a `KeyboardInterrupt` for the one that was interrupted.
        if isinstance(error, OutOfMemory) and refusal is not None and not isinstance(refusal, InterruptedError):
            raise OutOfMemory(self._explain(refusal)) from refusal

    def _leave(self, inside: Any) -> None:
        with Uninterrupted(), _lock:
            if inside in _open_blocks:
                inside.__exit__(None, None, None)
                _past_blocks.append(_open_blocks.pop(inside))
                watch = _watches.pop(inside, None)
                if watch is not None:
                    end_watch(watch)
                end_past_blocks()

    def _allocator(self) -> Any:
        alloc, free = self._native.symbols
        if alloc not in _allocators:
            _allocators[alloc] = torch.cuda.memory.CUDAPluggableAllocator(_native.__file__, alloc, free)
            keep_for_ever(_allocators[alloc])
        return _allocators[alloc].allocator()

    def _explain(self, refusal: BaseException) -> str:
        pools: list[Block] = [*_pools.values(), *_managed_pools.values()]
        held = [f"{pool.tag!r} has {pool.nbytes} B" for pool in pools if pool.device == self.device]
        return (
            f"pool {self.tag!r}: {refusal} (tenant `{self.client.tenant}`; of this process's pools there, {', '.join(held)}; "
            f"of the tenant's allocations there, {self._largest_allocations()})"
        )

    def _largest_allocations(self) -> str:
        """The allocations of the tenant that have most of the device now."""
        try:
            infos = [info for info in self.client.list() if info.device == self.device and info.resident]
        except Error as error:
            return f"nothing is known: {error}"
        infos.sort(key=lambda info: -info.resident)
        shown = [
            (f"`{info.name}`" if info.name else f"allocation {info.id}")
            + (f" of session {info.owner_session}" if info.owner_session is not None else "")
            + f" has {info.resident} B"
            for info in infos[:ALLOCATIONS_SHOWN]
        ]
        more = len(infos) - len(shown)
        return ", ".join(shown or ["none is resident"]) + (f" and {more} more" if more else "")

    def trim(self) -> None:
        """Gives back the memory that PyTorch caches and that no tensor uses. The end of a `with` block does so too.

        It does nothing while a thread is in such a block.
        """
        if end_past_blocks() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


class Pool(Block):
    """Memory of one tag on one device (`vramd.torch.pool`). In a `with` block PyTorch allocates from it.

    It stays when the block ends, as its tensors do. Tensors of it must not be used while it is asleep.
    """

    def __init__(self, tag: str, client: _native.Client, device: int | str | None, wait: float, arena: int | str) -> None:
        self._arenas = _native._Pool(client, device=device, arena=arena, wait=wait)
        self._level: Literal[1, 2] = 1
        """The deepest level of its current or last sleep."""
        super().__init__(tag, client, self._arenas)

    @property
    def used(self) -> int:
        """The bytes of these that PyTorch has, also where it caches them."""
        return self._arenas.used

    @property
    def is_awake(self) -> bool:
        return self._arenas.is_awake

    def sleep(self, level: Literal[1, 2] = 1) -> None:
        """See `vramd.torch.sleep`."""
        check_level(level)
        was_awake = self.is_awake
        if torch.cuda.is_initialized():
            torch.cuda.synchronize(self.ordinal)
            # Bytes that no tensor has would be copied.
            self.trim()
        # Before, so that Ctrl-C cannot come in between. Discarded bytes stay discarded, whatever level comes next.
        self._level = level if was_awake else max(level, self._level)
        self._arenas.sleep(level == 2)

    def wake_up(self, wait: float = WAIT_SECONDS) -> None:
        """See `vramd.torch.wake_up`."""
        self._arenas.wake_up(wait)

    def close(self) -> None:
        """Refuses further allocations. Tensors stay valid; their memory ends with the last of them."""
        with _lock:
            if _pools.get((self.tag, self.ordinal)) is self:
                del _pools[self.tag, self.ordinal]
        self._native.close()

    def __repr__(self) -> str:
        state = "awake" if self.is_awake else "asleep"
        return f"<vramd.torch.Pool {self.tag!r} on {self.device}, {state}: {self.used} of {self.nbytes} bytes used>"


class ManagedPool(Block):
    """Managed memory of one tag on one device (`vramd.torch.managed_pool`). In a `with` block PyTorch allocates from it.

    It stays when the block ends, as its tensors do. It does not sleep: the driver moves its pages.
    """

    def __init__(self, tag: str, client: _native.Client, device: int | str | None, wait: float) -> None:
        self._managed = _native._ManagedPool(client, device=device, wait=wait)
        super().__init__(tag, client, self._managed)

    @property
    def failures(self) -> dict[str, int]:
        """How often each advice, prefetch or other step has failed, by step and reason: `"prefetch: CUDA_ERROR_…"`.

        Such a failure fails no allocation. The memory is slower at its first use.
        """
        return self._managed.failures

    def close(self) -> None:
        """Refuses further allocations. Tensors stay valid; their memory ends with the last of them."""
        with _lock:
            if _managed_pools.get((self.tag, self.ordinal)) is self:
                del _managed_pools[self.tag, self.ordinal]
        self._native.close()

    def __repr__(self) -> str:
        return f"<vramd.torch.ManagedPool {self.tag!r} on {self.device}: {self.nbytes} bytes, {sum(self.failures.values())} failures>"


def pool(
    tag: str = "default",
    *,
    client: _native.Client | None = None,
    device: int | torch.device | str | None = None,
    wait: float = WAIT_SECONDS,
    arena: int | str = ARENA,
) -> Pool:
    """The pool of a tag on a device, made at the first call: `with vramd.torch.pool("kv"):`.

    PyTorch's allocations of this thread inside of the block, on that device, lie in memory of the daemon. The device is
    PyTorch's current one, or the one of that number. An allocation waits up to `wait` seconds for room, and then
    raises `torch.OutOfMemoryError`. Smaller segments share an arena, which is an allocation of at least `arena` bytes.
    """
    number = device_number(device)
    own = client if client is not None else shared_client()
    with _lock:
        found = _pools.get((tag, number))
        if found is not None and found.client.is_connected:
            if client is not None and found.client is not client:
                raise ValueError(f"pool {tag!r} on device {number} exists, and belongs to another client")
            return found
        made = _pools[tag, number] = Pool(tag, own, number, wait, arena)
    return made


def managed_pool(
    tag: str = "default",
    *,
    client: _native.Client | None = None,
    device: int | torch.device | str | None = None,
    wait: float = WAIT_SECONDS,
) -> ManagedPool:
    """The pool of managed memory of a tag on a device, made at the first call: `with vramd.torch.managed_pool("activations"):`.

    PyTorch's allocations of this thread inside of the block, on that device, are managed memory of this process
    (`cuMemAllocManaged`), and its tenant is charged for them on the device. The device is PyTorch's current one, or the one
    of that number. An allocation waits up to `wait` seconds for room, and then raises `torch.OutOfMemoryError`.

    The memory prefers its device. A block below 2 GiB is brought there at once; the pages of a larger one move when they are
    used. Which pages are resident is not known.
    """
    number = device_number(device)
    own = client if client is not None else shared_client()
    with _lock:
        found = _managed_pools.get((tag, number))
        if found is not None and found.client.is_connected:
            if client is not None and found.client is not client:
                raise ValueError(f"managed pool {tag!r} on device {number} exists, and belongs to another client")
            return found
        made = _managed_pools[tag, number] = ManagedPool(tag, own, number, wait)
    return made


def watch_signals(inside: Any) -> None:
    """Has Ctrl-C end the allocations of a block, unless a library uses Python's descriptor for signals: `asyncio` does."""
    watch = _native._SignalWatch()
    before = signal.set_wakeup_fd(watch.fileno(), warn_on_full_buffer=False)
    if before != -1:
        # Also of a block around this one.
        signal.set_wakeup_fd(before)
        return
    watch.begin()
    _watches[inside] = watch


def end_watch(watch: _native._SignalWatch) -> None:
    watch.end()
    current = signal.set_wakeup_fd(-1)
    if current not in (-1, watch.fileno()):
        signal.set_wakeup_fd(current)


def end_past_blocks() -> bool:
    """Ends PyTorch's pools of past blocks, which returns the segments that they cache; their tensors stay valid.

    PyTorch ends the process if one of its pools ends while it allocates from another, or captures. Some versions do so
    too if a CUDA graph shares the pool. Such pools wait for the next call. Returns whether all could end.
    """
    with _lock:
        if _open_blocks or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return False
        _past_blocks[:] = [mempool for mempool in _past_blocks if mempool.use_count() > 1]
        return True


def device_number(device: int | torch.device | str | None) -> int:
    """The number of a device in PyTorch. Simulated devices have those of the daemon."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    if index is not None:
        return int(index)
    return int(torch.cuda.current_device()) if torch.cuda.is_available() else 0


def check_settings() -> None:
    """Refuses settings of PyTorch with which it does not allocate from pools."""
    for name in _SETTINGS:
        found = _EXCLUDED.search(os.environ.get(name, ""))
        if found:
            raise RuntimeError(f"{name} has {found[0]}, with which PyTorch allocates from no pool: remove it")


def check_level(level: int) -> None:
    if level not in (1, 2):
        raise ValueError(f"a level of sleep is 1 (keep the bytes) or 2 (discard them), not {level!r}")


def sleep(level: Literal[1, 2] = 1, tags: Collection[str] | None = None) -> None:
    """Has the pools of these tags, or all, leave their devices. Returns once they have left.

    With level 1 the daemon keeps their bytes in a lower tier; with level 2 they are discarded. Addresses stay reserved,
    so that tensors and captured CUDA graphs are valid again after `wake_up`. A use in between reads an address at which
    nothing is mapped, which ends the CUDA context or the process; in `vramd.torch.debug` it raises `NotResident`. If the
    bytes of a pool cannot leave, that pool stays awake and the error says why.
    """
    check_level(level)
    for each in chosen(tags):
        each.sleep(level)


def wake_up(tags: Collection[str] | None = None, wait: float = WAIT_SECONDS) -> None:
    """Brings the pools of these tags, or all, back to their addresses: with their bytes after level 1, with arbitrary
    content after level 2.

    It waits up to `wait` seconds for room. If a pool cannot come back, the pools that this call has woken sleep again at
    the level that they had.
    """
    deadline = time.monotonic() + wait
    asleep = [each for each in chosen(tags) if not each.is_awake]
    try:
        for each in asleep:
            each.wake_up(max(0.0, deadline - time.monotonic()))
    except BaseException as error:
        for each in asleep:
            put_back(each, error)
        raise


def put_back(pool: Pool, error: BaseException) -> None:
    """Has a pool sleep as before `wake_up`, which failed. If it cannot, the error says so too."""
    try:
        if pool.is_awake:
            pool.sleep(pool._level)
    except Error as refused:
        error.add_note(f"{pool!r} cannot sleep again: {refused}")


def all_pools() -> list[Pool]:
    """The open pools of this process, asleep or not."""
    with _lock:
        return list(_pools.values())


def chosen(tags: Collection[str] | None) -> list[Pool]:
    if isinstance(tags, str):
        tags = [tags]
    found = [each for each in all_pools() if tags is None or each.tag in tags]
    missing = set(tags or ()) - {each.tag for each in found}
    if missing:
        raise ValueError(f"there is no pool {', '.join(sorted(missing))}")
    return found


def asleep_with(tensor: torch.Tensor) -> Pool | None:
    """The pool that a tensor lies in, if it is asleep."""
    return next((each for each in all_pools() if not each.is_awake and each.contains(tensor)), None)


class quota_as_memory(_native._Scope[None, "list[tuple[Any, Any]]"]):
    """Inside, `torch.cuda.mem_get_info` answers by the quota of the client's tenant: what it can get now, and its limit.

    Programs that size themselves by the free memory then stay within the quota.
    """

    def __init__(self, client: _native.Client | None = None) -> None:
        self._client = client if client is not None else shared_client()

    def _begin(self) -> tuple[None, list[tuple[Any, Any]]]:
        modules = [module for module in (torch.cuda, torch.cuda.memory) if hasattr(module, "mem_get_info")]
        before = [(module, module.mem_get_info) for module in modules]
        try:
            for module in modules:
                setattr(module, "mem_get_info", self._by_quota)
            return None, before
        except BaseException:
            self._end(before, None)
            raise

    def _end(self, before: list[tuple[Any, Any]], error: BaseException | None) -> None:
        for module, original in before:
            setattr(module, "mem_get_info", original)

    def _by_quota(self, device: int | torch.device | str | None = None) -> tuple[int, int]:
        uuid = _native._Pool.uuid_of(self._client, device_number(device))
        for place in self._client.quota():
            if place.device == uuid and place.tier == "device":
                return place.free, min(place.limit, place.capacity)
        raise FailedPrecondition(f"the daemon has no quota for device {uuid}")


def keep_for_ever(value: object) -> None:
    """Keeps an object also at the interpreter's end, which drops objects in no order that PyTorch could rely on."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _end_at_exit() -> None:
    """Has other threads leave their blocks: one that ends inside of PyTorch's code ends the process with an error."""
    global _is_exiting
    until = time.monotonic() + EXIT_SECONDS
    while time.monotonic() < until:
        with _lock:
            _is_exiting = True
            if not _open_blocks:
                break
        time.sleep(0.001)
    end_past_blocks()
    _keep_past_blocks()


def _keep_past_blocks() -> None:
    for mempool in _past_blocks:
        keep_for_ever(mempool)
    _past_blocks.clear()


def _forget_pools() -> None:
    """A forked child makes pools of its own, and another thread of its parent may have had the lock."""
    global _lock
    _lock = threading.RLock()
    # CUDA cannot be used there.
    for inside, mempool in _open_blocks.items():
        keep_for_ever(inside)
        keep_for_ever(mempool)
    _open_blocks.clear()
    _keep_past_blocks()
    for watch in _watches.values():
        end_watch(watch)
    _watches.clear()
    _pools.clear()
    _managed_pools.clear()


atexit.register(_end_at_exit)
os.register_at_fork(after_in_child=_forget_pools)
