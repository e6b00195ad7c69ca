"""The threads in which `vramd.aio` makes blocking calls, and what becomes of a call whose task goes away."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Generic, TypeVar

import vramd
from vramd import _native

COPIES_MAX = 16
OTHER_CALLS_MAX = 16
IDLE_SECONDS = 5.0

T = TypeVar("T")


class Calls:
    """The calls of one client, and the threads in which they run."""

    def __init__(self, waits_max: int) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._running: set[Call[Any]] = set()
        self.is_open = True
        self.waits = Lane("vramd-aio-wait", waits_max)
        self.copies = Lane("vramd-aio-copy", COPIES_MAX)
        self.others = Lane("vramd-aio-call", OTHER_CALLS_MAX)

    @property
    def is_own_process(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Refuses a call that cannot be made."""
        if not self.is_own_process:
            raise vramd.Forked("the client belongs to the process that opened it: connect a new client in this one")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the client belongs to another event loop: connect a new client in this one")
        if not self.is_open:
            raise vramd.HandleClosed("the client was closed. Its memory is still there, by `blocking`")

    async def run(
        self,
        lane: Lane,
        work: Callable[[Call[T]], T],
        undo: Callable[[T], object] | None = None,
        *,
        is_finished: bool = False,
    ) -> T:
        """Runs work in a thread. If the task no longer waits for it, the work is interrupted, and its result undone.

        With `is_finished` work that has begun goes on to its end all the same.
        """
        self.check()
        return await self._run(lane, Call(work, undo, is_finished=is_finished))

    async def _run(self, lane: Lane, call: Call[T]) -> T:
        self._running.add(call)
        try:
            lane.submit(call)
            await call.answered
            return call.take()
        except BaseException:
            lane.discard(call)
            if call.abandon():
                self.undo(call.undo_arrived)
            raise
        finally:
            self._running.discard(call)
            # An error refers to this frame, and must not come back to itself through it.
            del call

    async def other(self, work: Callable[[], T]) -> T:
        """Runs a call that does not wait for room. Once begun, it is finished for a cancelled task too."""
        return await self.run(self.others, lambda _call: work(), is_finished=True)

    async def copy(self, work: Callable[[Call[T]], T]) -> T:
        """Runs a call that waits for room only if the memory is not pinned."""
        return await self.run(self.copies, work)

    async def wait(self, work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Runs a call that waits for room."""
        return await self.run(self.waits, lambda _call: work(), undo)

    def undo(self, undo: Callable[[], object]) -> None:
        """Undoes something in a thread, whatever the threads of the client do."""

        def run() -> None:
            with suppress(vramd.Error):
                undo()

        # An interpreter that ends starts no thread, and the session ends with it.
        with suppress(RuntimeError):
            threading.Thread(target=run, name="vramd-aio-undo", daemon=True).start()

    async def close(self, close: Callable[[], None]) -> None:
        self.is_open = False
        for call in self._running:
            _fail(call.answered, vramd.HandleClosed("the client was closed"))
        try:
            await self._run(self.others, Call(lambda _call: close(), None, is_finished=True))
        finally:
            self.end()

    def end(self) -> None:
        """Lets the threads end once their calls have ended."""
        self.is_open = False
        for lane in (self.waits, self.copies, self.others):
            lane.end()


class Call(Generic[T]):
    """One call in a thread. Its result goes to the task that waits for it, or is undone."""

    def __init__(
        self, work: Callable[[Call[T]], T], undo: Callable[[T], object] | None, *, is_finished: bool
    ) -> None:
        self._interrupt = None if is_finished else _native._Interrupt()
        self._loop = asyncio.get_running_loop()
        self._work, self._undo = work, undo
        self._lock = threading.Lock()
        self._arrived: list[T] = []
        self._error: BaseException | None = None
        self.is_abandoned = False
        self.answered: asyncio.Future[None] = self._loop.create_future()

    def run(self) -> None:
        """Runs in a thread."""
        if self.is_abandoned:
            return
        try:
            with self._interrupt or nullcontext():
                result = self._work(self)
        except BaseException as error:
            self._error = error
        else:
            self._arrived.append(result)
            del result
        if not self.is_abandoned:
            try:
                self._loop.call_soon_threadsafe(_succeed, self.answered)
            except RuntimeError:
                # The loop has ended.
                self.is_abandoned = True
        if self.is_abandoned:
            self._error = None
            self.undo_arrived()
        # The error refers to this frame, and must not come back to itself through it.
        del self

    def take(self) -> T:
        """Returns the result, which then belongs to the caller, or raises the error."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error
        return self._arrived.pop()

    def abandon(self) -> bool:
        """Lets go of the call, and returns whether its result is there and must be undone."""
        if self._interrupt is not None:
            self._interrupt.set()
        with self._lock:
            self.is_abandoned = True
        self._error = None
        return bool(self._arrived)

    def undo_arrived(self) -> None:
        try:
            result = self._arrived.pop()
        except IndexError:
            # The other thread undoes it.
            return
        if self._undo is not None:
            # If the daemon is gone, the result is too.
            with suppress(vramd.Error):
                self._undo(result)

    @contextmanager
    def unless_abandoned(self) -> Iterator[bool]:
        """Says whether the task still waits for the call, and keeps that so until the block ends."""
        with self._lock:
            yield not self.is_abandoned


def _succeed(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)


def _fail(answered: asyncio.Future[None], error: BaseException) -> None:
    if not answered.done():
        answered.set_exception(error)


class Lane:
    """Threads of one kind, at most so many, and the calls that stand in their queue.

    `concurrent.futures` will not do: the interpreter waits for its threads, and these may wait for minutes.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        self._name, self._threads_max = name, threads_max
        self._changed = threading.Condition()
        self._queue: deque[Call[Any]] = deque()
        self._thread_count = self._idle_count = 0
        self._is_ended = False

    def submit(self, call: Call[Any]) -> None:
        with self._changed:
            self._queue.append(call)
            if self._idle_count >= len(self._queue):
                self._changed.notify()
            elif self._thread_count < self._threads_max:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
                self._thread_count += 1

    def discard(self, call: Call[Any]) -> None:
        """Takes a call out of the queue, unless it has begun."""
        with self._changed, suppress(ValueError):
            self._queue.remove(call)

    def end(self) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            # The thread must not keep what the call refers to.
            del call

    def _next(self) -> Call[Any] | None:
        """Waits for a call; None if the thread is to end."""
        with self._changed:
            while not self._queue:
                if self._is_ended:
                    break
                self._idle_count += 1
                has_news = self._changed.wait(IDLE_SECONDS)
                self._idle_count -= 1
                if not has_news and not self._queue:
                    break
            else:
                return self._queue.popleft()
            self._thread_count -= 1
            return None
