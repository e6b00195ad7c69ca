"""RMM over memory of the daemon: cuDF, cuML, CuPy and Dask then allocate through their tenant's quota.

    import rmm, vramd.rmm

    rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(vramd.rmm.resource(), initial_pool_size="1GiB"))

RMM calls the daemon for each allocation, and memory comes in whole granules. So a pool of RMM's belongs on top, as above.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from vramd import _native
from vramd.errors import ResourceExhausted
from vramd.weights import shared_client

__all__ = ["Blocks", "resource"]


class Stream(Protocol):
    """A stream of RMM's."""

    def synchronize(self) -> None: ...


def resource(client: _native.Client | None = None, *, device: str | int | None = None, wait: float = 0.0) -> Any:
    """An `rmm.mr.CallbackMemoryResource` on a device, by default the session's only one.

    `wait`: the seconds that an allocation waits for room. If there is none then, RMM raises `MemoryError` with the
    daemon's words: the tenant, its limit and what it holds.
    """
    import rmm.mr

    blocks = Blocks(client if client is not None else shared_client(), device=device, wait=wait)
    return rmm.mr.CallbackMemoryResource(blocks.allocate, blocks.deallocate)


class Blocks:
    """The two functions of the resource, and the memory that RMM has now."""

    def __init__(self, client: _native.Client, *, device: str | int | None = None, wait: float = 0.0) -> None:
        self._client, self._device, self._wait = client, device, wait
        self._lock = threading.Lock()
        self._live: dict[int, _native.Allocation] = {}

    def allocate(self, nbytes: int, stream: Stream) -> int:
        """Allocates memory that can be used on any stream. Returns its address."""
        try:
            memory = self._client.allocate(max(nbytes, 1), device=self._device, uninitialized=True, wait=self._wait)
        except ResourceExhausted as refused:
            # RMM makes its own error of this one, and of no other.
            raise MemoryError(str(refused)) from refused
        with self._lock:
            self._live[memory.device_ptr] = memory
        return memory.device_ptr

    def deallocate(self, address: int, nbytes: int, stream: Stream) -> None:
        """Frees memory once the work of the stream is done."""
        with self._lock:
            memory = self._live.pop(address)
        stream.synchronize()
        memory.free()
