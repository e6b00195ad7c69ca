"""The memory of a process, driven by llm-d's time-slicing agent, or by anything that calls `snapshot` and `restore`.

    from timeslice.snapshot_agent import register_workload
    from vramd.integrations.llm_d import Workload

    workload = Workload({"cache": [cache]})
    register_workload("127.0.0.1:9001", job_id="trainer", workload=workload, tags=workload.tags)

The agent's package is not needed here: it takes any object with these two methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, Literal, Protocol

import torch

from vramd import _native
from vramd._torch_pool import Pool, all_pools
from vramd.errors import NotOwner, Pinned
from vramd.integrations import modules
from vramd.weights import Weights

LEVELS: Final[dict[str, Literal[1, 2]]] = {"offload": 1, "discard": 2}
SHARED_TAG = "weights"
"""The tag of parameters that processes share, as engines call them."""
WAIT_SECONDS = 60.0


class Region(Protocol):
    """Memory that leaves its device and comes back as one."""

    def leave(self, level: Literal[1, 2]) -> None: ...
    def come_back(self, wait: float) -> None: ...


class Workload:
    """All pools of `vramd.torch`, all shared modules of engines, and `memory`, by tag.

    A tag of `memory` may be that of pools too. The objects are allocations, sealed memory and weights.
    """

    supported_modes: Final = tuple(LEVELS)
    default_mode: Final = "offload"

    def __init__(
        self, memory: Mapping[str, Iterable[_native.Memory | Weights]] | None = None, *, wait: float = WAIT_SECONDS
    ) -> None:
        self._memory = {tag: [_Handle(each) for each in group] for tag, group in (memory or {}).items()}
        self._wait = wait
        self._lock = threading.Lock()

    @property
    def tags(self) -> list[str]:
        """The tags that there are now."""
        return sorted(self._regions())

    def snapshot(self, mode: str = default_mode, tags: Collection[str] = ()) -> None:
        """Has the memory of these tags, or all, leave the device. Returns once it has left. Addresses stay.

        `"offload"` keeps all bytes in a lower tier. `"discard"` drops those of pools; `memory` and shared modules keep
        theirs. Sealed memory that other processes have pinned stays for them. If something cannot leave, what this call
        has sent away comes back, and the error says why.
        """
        if mode not in LEVELS:
            raise ValueError(f"a mode is one of {sorted(LEVELS)}, not {mode!r}")
        with self._lock:
            gone: list[Region] = []
            chosen = self._chosen(tags)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            try:
                for region in chosen:
                    gone.append(region)
                    region.leave(LEVELS[mode])
            except BaseException as error:
                _undo(error, [partial(region.come_back, self._wait) for region in gone])
                raise

    def restore(self, tags: Collection[str] = ()) -> None:
        """Brings the memory of these tags, or all, back to its addresses.

        If something cannot come back, what this call has brought leaves again, and the error says why.
        """
        with self._lock:
            back: list[Region] = []
            try:
                for region in self._chosen(tags):
                    region.come_back(self._wait)
                    back.append(region)
            except BaseException as error:
                _undo(error, [partial(region.leave, 1) for region in back])
                raise

    @contextmanager
    def away(self, *clients: _native.Client) -> Iterator[None]:
        """In a `with` block nothing of the daemon is mapped in this process, so that it can be checkpointed.

        All memory leaves as by `snapshot`, and then whatever else these sessions have (`vramd.Client.detach_all`); the
        block's end brings all of it back, what left alone before it too. Name every client of the process whose memory is
        mapped. If one has memory in use, everything comes back, and the error names it.
        """
        self.snapshot()
        with ExitStack() as stack:
            stack.callback(self.restore)
            for client in clients:
                if not client.is_away:
                    # First, since an interrupt may come as soon as the memory is away. It does nothing if nothing is.
                    stack.callback(client.attach_all)
                client.detach_all()
            yield

    def _chosen(self, tags: Collection[str]) -> list[Region]:
        wanted = {tags} if isinstance(tags, str) else set(tags)
        regions = self._regions()
        missing = wanted - regions.keys()
        if missing:
            raise ValueError(f"there is no memory with the tag {', '.join(sorted(missing))}: the tags are {sorted(regions)}")
        return [region for tag, group in regions.items() if not wanted or tag in wanted for region in group]

    def _regions(self) -> dict[str, list[Region]]:
        found: dict[str, list[Region]] = {tag: list(group) for tag, group in self._memory.items()}
        for pool in all_pools():
            found.setdefault(pool.tag, []).append(_PoolRegion(pool))
        for shared in modules.all_shared():
            found.setdefault(SHARED_TAG, []).append(_SharedRegion(shared))
        return found


def _undo(error: BaseException, steps: Iterable[Callable[[], None]]) -> None:
    """Takes all steps, also after one that fails, and notes on `error` which failed."""
    for step in steps:
        try:
            step()
        except Exception as failed:
            error.add_note(f"and what this call had done could not all be undone: {failed}")


class _PoolRegion:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def leave(self, level: Literal[1, 2]) -> None:
        self._pool.sleep(level)

    def come_back(self, wait: float) -> None:
        self._pool.wake_up(wait)


class _SharedRegion:
    def __init__(self, shared: modules.SharedModule) -> None:
        self._shared = shared

    def leave(self, level: Literal[1, 2]) -> None:
        self._shared.sleep()

    def come_back(self, wait: float) -> None:
        self._shared.wake_up()


class _Handle:
    """One object of `Workload.memory`. Its handle pin is taken again if it had one."""

    def __init__(self, memory: _native.Memory | Weights) -> None:
        if isinstance(memory, Weights) and memory.always_held:
            raise TypeError(f"{memory!r} cannot leave: mapped files are no allocation (load by `where=\"device\"`)")
        self._memory = memory.memory if isinstance(memory, Weights) else memory
        self._was_pinned = False

    def leave(self, level: Literal[1, 2]) -> None:
        if self._memory.has_handle_pin:
            self._memory.unpin()
            self._was_pinned = True
        try:
            self._memory.evict()
        except (Pinned, NotOwner):
            # Others use what is shared, and it leaves when they are done or its owner says so.
            if isinstance(self._memory, _native.Allocation):
                raise

    def come_back(self, wait: float) -> None:
        if self._was_pinned:
            self._memory.repin()
            self._was_pinned = False
