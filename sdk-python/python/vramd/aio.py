"""The client for asyncio: each call of `vramd.Client` that may wait is a coroutine here.

    import asyncio
    import vramd.aio

    async def main():
        async with vramd.aio.connect("server") as client:
            weights = await client.attach("llama", unpinned=True)
            prefetch = await client.prefetch(weights, within=2)
            print(await prefetch)
            async with weights.pin(wait=10) as pin:
                print(hex(pin.device_ptr), pin.size)
            async for report in client.pressure_reports():
                print(report.tier, report.level)

    asyncio.run(main())

**Objects.** `Client`, `Allocation`, `Sealed`, `Prefetch` and `WorkingSet` wrap the objects of `vramd` that make calls;
`blocking` is the wrapped object. Methods that wait for nothing are plain methods. Pins, pin sets, sequences, turns,
tensors and descriptions are those of `vramd` itself.

**Cancelling.** A cancelled task goes on at once, whether `asyncio.timeout` or Ctrl-C cancelled it. The client ends the
call, which leaves the daemon's line, and undoes what has arrived: it releases a pin, frees an allocation, and cancels
a prefetch. A call such as `seal` or `free` is finished once it has begun.

**Threads.** Calls run in threads of the client, which starts them when it needs them. At most `waits_max` calls wait for
memory at a time, 64 by default; later ones stand in a queue. There are 16 more threads for copies and tensors, and 16
for all other calls, so a task can free what the others wait for. An idle thread ends after 5 seconds. The
interpreter waits for no thread at its end.

A client belongs to the event loop in which it was connected, and to its process.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from collections.abc import Sequence as Items
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Self, TypeAlias, TypeVar, overload

import vramd
from vramd._aio_calls import Call, Calls

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Acquisition", "Allocation", "Client", "Memory", "Prefetch", "Sealed", "WorkingSet", "connect"]

WAITS_MAX = 64
CANCELLED_CLOSE_SECONDS = 0.5
PIECE_BYTES = 4 << 20

T = TypeVar("T")
Place: TypeAlias = tuple[str, str]


def connect(
    name: str | None = None,
    *,
    socket_dir: str | os.PathLike[str] | None = None,
    devices: Items[str] | None = None,
    timeout: float | None = None,
    waits_max: int = WAITS_MAX,
) -> Acquisition[Client]:
    """Opens a session with the daemon of this node, for the running event loop.

    The arguments are those of `vramd.connect`. At most `waits_max` calls of the client wait for memory at a time.
    Use it as `async with connect(…) as client`, which closes the client, or as `client = await connect(…)`.
    """
    if isinstance(waits_max, bool) or not isinstance(waits_max, int) or waits_max < 1:
        raise ValueError(f"waits_max must be a number of calls, at least 1, but is {waits_max!r}")
    return Acquisition(_open(name, socket_dir, devices, timeout, waits_max), _close_client)


async def _open(
    name: str | None,
    socket_dir: str | os.PathLike[str] | None,
    devices: Items[str] | None,
    timeout: float | None,
    waits_max: int,
) -> Client:
    calls = Calls(waits_max)
    reports = _PressureHub(asyncio.get_running_loop())

    def open_session(_call: Call[vramd.Client]) -> vramd.Client:
        return vramd.connect(
            name, socket_dir=socket_dir, devices=devices, timeout=timeout, on_pressure=reports.receive
        )  # fmt: skip

    try:
        blocking = await calls.run(calls.others, open_session, undo=vramd.Client.close)
    except BaseException:
        calls.end()
        raise
    return Client(blocking, calls, reports)


async def _close_client(client: Client, error: BaseException | None) -> None:
    if error is None:
        await client.close()
        return
    # The error is what the program is to see, not what it does to the close.
    with suppress(vramd.Error):
        if isinstance(error, Exception):
            await client.close()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCELLED_CLOSE_SECONDS):
                    await client.close()


class Acquisition(Coroutine[Any, Any, T]):
    """An object on its way: `await` returns it. `async with` does too, and releases it at the end of the block."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], leave: Callable[[T, BaseException | None], Awaitable[None]]
    ) -> None:
        self._coroutine, self._leave = coroutine, leave

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> T:
        self._entered = await self._coroutine
        return self._entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._entered
        del self._entered
        await self._leave(entered, error)


class _Fact(Generic[T]):
    """A property of the blocking object, with the same name."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, wrapper: None, _owner: type) -> Self: ...
    @overload
    def __get__(self, wrapper: _Wrapper, _owner: type) -> T: ...
    def __get__(self, wrapper: _Wrapper | None, _owner: type) -> Self | T:
        if wrapper is None:
            return self
        fact: T = getattr(wrapper.blocking, self._name)
        return fact

    def __set__(self, _wrapper: _Wrapper, _value: Never) -> None:
        raise AttributeError(f"{self._name} cannot be set")


class _Wrapper:
    """An object of `vramd`, and the calls of its client."""

    def __init__(self, blocking: Any, calls: Calls) -> None:
        self._blocking, self._calls = blocking, calls

    @property
    def blocking(self) -> Any:
        """The object of `vramd` that this one wraps."""
        return self._blocking

    def __repr__(self) -> str:
        return repr(self.blocking).replace("<vramd.", "<vramd.aio.", 1)

    def __reduce__(self) -> Never:
        raise TypeError(f"{self!r} belongs to its process and its event loop: make another one there")


class Client(_Wrapper):
    """One session with the daemon, for one event loop. `connect` makes it."""

    session_id = _Fact[int]("The number of the session.")
    tenant = _Fact[str]("The tenant that is charged for this session.")
    devices = _Fact["list[vramd.Device]"]("The daemon's devices that this session sees.")
    daemon_version = _Fact[str]("The version of the daemon.")
    is_connected = _Fact[bool]("Whether the session is live. Its mappings stay usable after its end.")
    is_draining = _Fact[bool]("Whether an operator is taking the node out of service.")

    def __init__(self, blocking: vramd.Client, calls: Calls, reports: _PressureHub) -> None:
        super().__init__(blocking, calls)
        self._reports = reports

    @property
    def blocking(self) -> vramd.Client:
        """The blocking client of the same session. Its calls block the event loop, except in a thread."""
        blocking: vramd.Client = self._blocking
        return blocking

    async def allocate(
        self,
        size: int | str,
        *,
        name: str | None = None,
        device: str | int | None = None,
        lifetime: Literal["session", "persistent"] = "session",
        readers: Items[str] = (),
        part_size: int | str | None = None,
        replace: bool = False,
        uninitialized: bool = False,
        unpinned: bool = False,
        discardable: bool = False,
        wait: float = 0.0,
    ) -> Allocation:
        """Allocates zeroed memory, and waits until it is mapped for writing.

        The arguments are those of `vramd.Client.allocate`. `wait` is how many seconds the request may wait for room.
        An allocation that arrives for a cancelled task is freed.
        """

        def allocate() -> vramd.Allocation:
            return self.blocking.allocate(
                size, name=name, device=device, lifetime=lifetime, readers=readers, part_size=part_size,
                replace=replace, uninitialized=uninitialized, unpinned=unpinned, discardable=discardable, wait=wait,
            )  # fmt: skip

        made = await self._calls.wait(allocate, undo=vramd.Allocation.free)
        return Allocation(made, self._calls)

    async def load(
        self,
        path: str | os.PathLike[str],
        *,
        offset: int = 0,
        size: int | str | None = None,
        name: str | None = None,
        device: str | int | None = None,
        lifetime: Literal["session", "persistent"] = "session",
        readers: Items[str] = (),
        part_size: int | str | None = None,
        replace: bool = False,
        unpinned: bool = False,
        copy: bool = True,
        wait: float = 0.0,
    ) -> Sealed:
        """Loads a file as sealed memory.

        The arguments are those of `vramd.Client.load`. The daemon reads the file to its end for a cancelled task too,
        and the memory is then freed.
        """

        def load() -> vramd.Sealed:
            return self.blocking.load(
                path, offset=offset, size=size, name=name, device=device, lifetime=lifetime, readers=readers,
                part_size=part_size, replace=replace, unpinned=unpinned, copy=copy, wait=wait,
            )  # fmt: skip

        made = await self._calls.wait(load, undo=vramd.Sealed.free)
        return Sealed(made, self._calls)

    async def attach(self, name_or_id: str | int, *, unpinned: bool = False) -> Sealed:
        """Maps a sealed allocation read-only: by `name`, by `tenant/name`, or by its id.

        It waits until all parts have arrived, for as long as the client's timeout. With `unpinned` nothing is mapped
        before the program pins or copies it.
        """

        def attach() -> vramd.Sealed:
            return self.blocking.attach(name_or_id, unpinned=unpinned)

        attached = await self._calls.wait(attach, undo=vramd.Sealed.detach)
        return Sealed(attached, self._calls)

    def pin_set(
        self, read: Items[AnyMemory] = (), *, write: Items[AnyMemory] = (), wait: float | None = None
    ) -> Acquisition[vramd.PinSet]:
        """Pins several allocations together, all or none, and waits until they have arrived.

        The arguments are those of `vramd.Client.pin_set`. Use it as `async with`, which releases the pins at the end,
        or await it and call `release`.
        """
        to_read, to_write = [_blocking(memory) for memory in read], [_blocking(memory) for memory in write]

        def pin_set() -> vramd.PinSet:
            return self.blocking.pin_set(to_read, write=to_write, wait=wait)

        return Acquisition(self._calls.wait(pin_set, undo=vramd.PinSet.release), _release)

    async def prefetch(
        self,
        *memory: AnyMemory | tuple[AnyMemory, range],
        partial: bool = False,
        within: float | None = None,
        priority: int = 0,
    ) -> Prefetch:
        """Asks for memory ahead of its use, and returns once the daemon has answered.

        The arguments are those of `vramd.Client.prefetch`. Await the result to wait until the memory is there.
        """
        wanted = [_blocking_step(step) for step in memory]

        def prefetch(_call: object) -> vramd.Prefetch:
            return self.blocking.prefetch(*wanted, partial=partial, within=within, priority=priority)

        asked = await self._calls.run(self._calls.others, prefetch, undo=vramd.Prefetch.cancel)
        return Prefetch(asked, self._calls)

    def sequence(
        self,
        steps: Items[AnyMemory | tuple[AnyMemory, range] | list[AnyMemory | tuple[AnyMemory, range]]],
        *,
        passes: int = 0,
    ) -> Acquisition[vramd.Sequence]:
        """Declares in which order the program will use memory, so many times; 0 means for ever.

        The arguments are those of `vramd.Client.sequence`. Use it as `async with`, which ends the sequence. Call
        `begin` of the sequence before each step; it waits for nothing.
        """
        declared = [
            [_blocking_step(part) for part in step] if isinstance(step, list) else _blocking_step(step)
            for step in steps
        ]

        def sequence(_call: object) -> vramd.Sequence:
            return self.blocking.sequence(declared, passes=passes)

        return Acquisition(self._calls.run(self._calls.others, sequence, undo=vramd.Sequence.end), _end_sequence)

    def working_set(self, name: str, memory: Items[AnyMemory]) -> Acquisition[WorkingSet]:
        """Names memory as a working set, which the program uses in turns with other programs.

        The arguments are those of `vramd.Client.working_set`. Use it as `async with`, which gives the set up, or await it
        and call `close`.
        """
        members = [_blocking(one) for one in memory]

        def working_set(_call: object) -> vramd.WorkingSet:
            return self.blocking.working_set(name, members)

        async def named() -> WorkingSet:
            taken = await self._calls.run(self._calls.others, working_set, undo=vramd.WorkingSet.close)
            return WorkingSet(taken, self._calls)

        return Acquisition(named(), _close_set)

    async def list(self, prefix: str = "") -> builtins.list[vramd.AllocationInfo]:
        """Lists the tenant's allocations whose name begins with `prefix`.

        A prefix `tenant/…` lists those that this tenant may read.
        """
        return await self._calls.other(lambda: self.blocking.list(prefix))

    async def describe(self, name_or_id: str | int) -> vramd.AllocationInfo:
        """Describes one allocation, by its name or id."""
        return await self._calls.other(lambda: self.blocking.describe(name_or_id))

    async def quota(self) -> builtins.list[vramd.OwnQuota]:
        """Returns the limits, the use and the free room of the client's tenant, on each device and in each tier."""
        return await self._calls.other(self.blocking.quota)

    async def detach_all(self) -> None:
        """See `vramd.Client.detach_all`."""
        await self._calls.other(self.blocking.detach_all)

    async def attach_all(self, *, wait: float | None = None) -> None:
        """See `vramd.Client.attach_all`."""
        await self._calls.other(lambda: self.blocking.attach_all(wait=wait))

    async def flush(self) -> None:
        """Waits until everything that was dropped so far is unmapped and freed or detached."""
        await self._calls.other(self.blocking.flush)

    def pressure(self, device: str | int | None = None) -> vramd.Pressure:
        """Returns the daemon's last report on how full a device is, without a call.

        Name the device by UUID or index if the session sees several.
        """
        return self.blocking.pressure(device)

    def pressures(self) -> builtins.list[vramd.Pressure]:
        """Returns the last report of each device that the session sees, and of the tiers below them."""
        return self.blocking.pressures()

    def pressure_reports(self) -> AsyncIterator[vramd.Pressure]:
        """Iterates over pressure reports: first the last one of each device and tier, then each change.

        A slow loop gets only the newest report of each device and tier. The iteration ends when the client is closed,
        and raises `BrokerGone` once the session has ended otherwise.
        """
        self._calls.check()
        return _PressureReports(self, self._reports)

    async def close(self) -> None:
        """Ends the calls of this object: those that wait raise `HandleClosed`. Closing again does nothing.

        It waits until everything that was dropped is freed. The session ends with the last of its memory.
        """
        if not self._calls.is_open or not self._calls.is_own_process:
            return
        self._calls.check()
        self._reports.end()
        await self._calls.close(self.blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _close_client(self, error)


class Memory(_Wrapper):
    """Mapped memory: an `Allocation` or a `Sealed`.

    `blocking` is also a buffer, and has what may wait for another call on the same memory (`is_mapped`,
    `has_handle_pin`).
    """

    id = _Fact[int]("The number of the allocation.")
    name = _Fact["str | None"]("The name, as `tenant/name`.")
    size = _Fact[int]("The bytes that were asked for.")
    part_count = _Fact[int]("The number of its parts, each of which is moved on its own.")
    device = _Fact[str]("The UUID of its device.")
    device_ptr = _Fact[int]("Its address, which never changes. It is 0 for unpinned memory until a part was mapped.")
    is_device_memory = _Fact[bool]("Whether the address is a GPU's, which the CPU cannot access.")
    info = _Fact["vramd.AllocationInfo"]("The allocation as it was when it was allocated, sealed or attached.")

    @property
    def blocking(self) -> vramd.Memory:
        """The memory of `vramd` that this object wraps: a buffer, for NumPy and others."""
        blocking: vramd.Memory = self._blocking
        return blocking

    def pin(
        self, *, parts: range | None = None, write: bool = False, wait: float | None = None
    ) -> Acquisition[vramd.Pin]:
        """Keeps it mapped at its address until the pin is released, and waits until it has arrived.

        The arguments are those of `vramd.Memory.pin`. Use it as `async with`, which releases the pin at the end, or
        await it and call `release`. A pin that arrives for a cancelled task is released.
        """
        return Acquisition(self._pin(parts, write, wait), _release)

    async def _pin(self, parts: range | None, write: bool, wait: float | None) -> vramd.Pin:
        def pin() -> vramd.Pin:
            return self.blocking.pin(parts=parts, write=write, wait=wait)

        return await self._calls.wait(pin, undo=vramd.Pin.release)

    async def repin(self) -> None:
        """Takes the handle pin again, and waits until all parts have arrived."""
        await self._calls.wait(self.blocking.repin)

    async def unpin(self) -> None:
        """Gives up the handle pin: the daemon may unmap the memory while no view or pin uses it."""
        await self._calls.other(self.blocking.unpin)

    async def evict(self, tier: Literal["host", "disk"] = "host") -> None:
        """Has all parts leave their device now. The next access brings them back."""
        await self._calls.wait(lambda: self.blocking.evict(tier))

    async def advise(
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
        """Tells the daemon how memory is used. `vramd.Memory.advise` explains each piece of advice."""
        await self._calls.other(
            lambda: self.blocking.advise(
                advice, parts=parts, importance_percent=importance_percent, memory_class=memory_class,
                needed_within=needed_within, location=location, pattern=pattern, preset=preset,
            )
        )  # fmt: skip

    async def copy_to(self, offset: int = 0, length: int | None = None) -> bytes:
        """Copies bytes out, up to the end by default."""
        return await self._calls.copy(lambda _call: self.blocking.copy_to(offset, length))

    async def copy_into(self, buffer: Buffer, offset: int = 0) -> None:
        """Copies bytes out into the whole of a writable, contiguous buffer.

        Once the task is cancelled, the buffer is not written to any more.
        """
        view = _bytes_of(buffer)
        if not _lies_within(view, offset, self.size):
            await self._calls.copy(lambda _call: self.blocking.copy_into(buffer, offset))
            return

        def copy(call: Call[None]) -> None:
            for start in range(0, view.nbytes, PIECE_BYTES):
                piece = bytearray(min(PIECE_BYTES, view.nbytes - start))
                self.blocking.copy_into(piece, offset + start)
                with call.unless_abandoned() as goes_on:
                    if not goes_on:
                        return
                    view[start : start + len(piece)] = piece

        await self._calls.copy(copy)

    async def tensor(
        self, shape: int | Items[int] | None = None, dtype: Any = "uint8", offset: int = 0
    ) -> vramd.Tensor:
        """Returns a tensor over its bytes, for NumPy, PyTorch and others, and waits until its parts have arrived.

        The arguments are those of `vramd.Memory.tensor`. The tensor is dropped if the task is cancelled.
        """
        return await self._calls.copy(lambda _call: self.blocking.tensor(shape, dtype, offset))


class Allocation(Memory):
    """Memory of this session alone, mapped for reading and writing. Dropping it unsealed frees it."""

    @property
    def blocking(self) -> vramd.Allocation:
        """The allocation of `vramd` that this object wraps: a buffer, for NumPy and others."""
        blocking: vramd.Allocation = self._blocking
        return blocking

    async def copy_from(self, buffer: Buffer, offset: int = 0) -> None:
        """Copies the whole of a contiguous buffer in.

        Once the task is cancelled, the buffer is not read any more.
        """
        view = _bytes_of(buffer)
        if not _lies_within(view, offset, self.size):
            await self._calls.copy(lambda _call: self.blocking.copy_from(buffer, offset))
            return

        def copy(call: Call[None]) -> None:
            for start in range(0, view.nbytes, PIECE_BYTES):
                with call.unless_abandoned() as goes_on:
                    if not goes_on:
                        return
                    piece = bytes(view[start : start + PIECE_BYTES])
                self.blocking.copy_from(piece, offset + start)

        await self._calls.copy(copy)

    async def seal(self) -> Sealed:
        """Ends writing for ever. The address stays, and this object is closed. If sealing fails, nothing is lost.

        If the task is cancelled, persistent memory is sealed all the same, and other memory may be freed.
        """
        sealed = await self._calls.other(self.blocking.seal)
        return Sealed(sealed, self._calls)

    async def free(self) -> vramd.Released:
        """Unmaps and frees it. Once begun, this is finished for a cancelled task too."""
        return await self._calls.other(self.blocking.free)


class Sealed(Memory):
    """Memory that no session can write any more, mapped read-only. Dropping it detaches the session."""

    digest = _Fact[str]("`blake3:` and 64 hexadecimal digits over its bytes, as the daemon hashed them.")

    @property
    def blocking(self) -> vramd.Sealed:
        """The sealed memory of `vramd` that this object wraps: a buffer, for NumPy and others."""
        blocking: vramd.Sealed = self._blocking
        return blocking

    async def free(self) -> vramd.Released:
        """Unmaps it and frees the allocation; only its owner may. Once begun, this is finished for a cancelled task too."""
        return await self._calls.other(self.blocking.free)

    async def detach(self) -> None:
        """Unmaps it, and leaves the allocation as it is."""
        await self._calls.other(self.blocking.detach)


class Prefetch(_Wrapper):
    """A prefetch request. `await` waits until its parts are there or will not come, and returns the state."""

    number = _Fact[int]("The number that operators see (`vramctl prefetch list`).")
    state = _Fact[str]("How far it is, as `vramd.Prefetch.state` says. Costs no call.")
    reason = _Fact["str | None"]("Why it is deferred or was dropped, as `vramd.Prefetch.reason` says.")
    by_own_tenant = _Fact["bool | None"]("Whether the room of a dropped request served its own tenant, or none.")
    by_operator = _Fact["bool | None"]("Whether an operator cancelled it, or the program.")
    expected = _Fact["float | None"]("Seconds until it is probably ready, if it is accepted.")
    parts_left_out = _Fact[int]("Parts that found no room. Only with `partial`.")

    @property
    def blocking(self) -> vramd.Prefetch:
        """The request of `vramd` that this object wraps."""
        blocking: vramd.Prefetch = self._blocking
        return blocking

    def __await__(self) -> Generator[Any, Any, str]:
        return self.wait().__await__()

    async def wait(self, seconds: float | None = None) -> str:
        """Waits until its parts are there or will not come, and returns the state.

        `Deadline` after so many seconds; the request then goes on. Cancelling the task that waits cancels the request
        too, as with a task of asyncio.
        """
        try:
            return await self._calls.wait(lambda: self.blocking.wait(seconds))
        except asyncio.CancelledError:
            with suppress(vramd.Error):
                self.cancel()
            raise

    def cancel(self) -> None:
        """Cancels it. Copies are stopped unless something else wants the memory. It waits for nothing."""
        self.blocking.cancel()


class WorkingSet(_Wrapper):
    """Memory that belongs together. `Client.working_set` makes it."""

    name = _Fact[str]("The name that operators see.")

    @property
    def blocking(self) -> vramd.WorkingSet:
        """The working set of `vramd`."""
        blocking: vramd.WorkingSet = self._blocking
        return blocking

    def turn(self, wait: float | None = None) -> Acquisition[vramd.Turn]:
        """Waits for the turn, as `vramd.WorkingSet.turn` does.

        Use it as `async with`, which yields the turn at the end, or await it and call `yield_now`. A turn that arrives for
        a cancelled task is yielded.
        """
        return Acquisition(
            self._calls.wait(lambda: self.blocking.turn(wait), undo=vramd.Turn.yield_now), _yield_turn
        )

    def close(self) -> None:
        """Gives the set up. It waits for nothing."""
        self.blocking.close()


AnyMemory: TypeAlias = Memory | vramd.Memory
"""Memory of this module, or of `vramd`."""


def _blocking(memory: AnyMemory) -> vramd.Memory:
    return memory.blocking if isinstance(memory, Memory) else memory


def _blocking_step(step: AnyMemory | tuple[AnyMemory, range]) -> vramd.Memory | tuple[vramd.Memory, range]:
    # `vramd` refuses whatever else it is.
    return (_blocking(step[0]), *step[1:]) if isinstance(step, tuple) else _blocking(step)


async def _release(pin: vramd.Pin | vramd.PinSet, _error: object) -> None:
    pin.release()


async def _end_sequence(sequence: vramd.Sequence, _error: object) -> None:
    sequence.end()


async def _close_set(working_set: WorkingSet, _error: object) -> None:
    working_set.close()


async def _yield_turn(turn: vramd.Turn, _error: object) -> None:
    turn.yield_now()


def _bytes_of(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous: copy it first")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _lies_within(view: memoryview, offset: int, size: int) -> bool:
    """Whether a copy can be made; if not, `vramd` says why."""
    return isinstance(offset, int) and 0 <= offset <= size - view.nbytes


class _PressureHub:
    """Brings the reports of one session to its readers. It is referred to as long as the session lives."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self.last: dict[Place, vramd.Pressure] = {}
        self.readers: weakref.WeakSet[_PressureReports] = weakref.WeakSet()
        self.is_ended = False

    def receive(self, report: vramd.Pressure) -> None:
        """Runs on a thread of `vramd`."""
        loop = self._loop()
        # A loop that has ended has no readers.
        with suppress(RuntimeError):
            if loop is not None:
                loop.call_soon_threadsafe(self._hand_on, report)

    def _hand_on(self, report: vramd.Pressure) -> None:
        self.last[report.device, report.tier] = report
        for reader in self.readers:
            reader.add(report)

    def end(self) -> None:
        self.is_ended = True
        for reader in self.readers:
            reader.news.set()


class _PressureReports(AsyncIterator[vramd.Pressure]):
    """The reports that one loop of the program has not had yet."""

    def __init__(self, client: Client, hub: _PressureHub) -> None:
        self._client, self._hub = client, hub
        self._waiting = dict(hub.last)
        self.news = asyncio.Event()
        hub.readers.add(self)

    def add(self, report: vramd.Pressure) -> None:
        # The newest goes to the end.
        self._waiting.pop((report.device, report.tier), None)
        self._waiting[report.device, report.tier] = report
        self.news.set()

    async def __anext__(self) -> vramd.Pressure:
        while not self._hub.is_ended:
            if self._waiting:
                return self._waiting.pop(next(iter(self._waiting)))
            if not self._client.is_connected:
                raise vramd.BrokerGone("the session has ended: connect a new client once the daemon is back")
            self.news.clear()
            # Nothing tells the client that the session has ended.
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self.news.wait()
        raise StopAsyncIteration
