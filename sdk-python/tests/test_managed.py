"""PyTorch's allocator over managed memory: its C symbols, called as PyTorch calls them, on simulated devices and over a
driver that writes down what is asked of it."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import vramd
import vramd.torch
from conftest import MIB, TARGET, Daemon
from vramd import _native
from vramd.errors import FailedPrecondition

LIBRARY = ctypes.CDLL(_native.__file__)
GIB = 1 << 30


class Driven:
    """A managed pool, and its symbols as PyTorch calls them."""

    def __init__(self, client: vramd.Client, *, device: int = 0, wait: float = 0.0) -> None:
        self.native = _native._ManagedPool(client, device=device, wait=wait)
        self.device = device
        alloc, free = self.native.symbols
        self._alloc, self._free = LIBRARY[alloc], LIBRARY[free]
        self._alloc.restype, self._alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def alloc(self, size: int, device: int | None = None, stream: int = 0) -> int:
        return int(self._alloc(size, self.device if device is None else device, stream) or 0)

    def free(self, address: int | None, stream: int = 0) -> None:
        self._free(address, 0, self.device, stream)

    def refusal(self) -> str:
        return str(self.native.take_refusal() or "")


def charged(client: vramd.Client) -> tuple[int, int]:
    """The tenant's charge on the device, and how much of it is managed."""
    client.flush()
    places = [place for place in client.quota() if place.tier == "device"]
    return sum(place.used - place.cached for place in places), sum(place.managed for place in places)


@pytest.fixture
def client(start: Callable[..., Daemon]) -> Iterator[vramd.Client]:
    daemon = start(memory="64MiB", more='[memory]\nhost_size = "64MiB"\n[quota.default]\nlimit = "32MiB"\n')
    with daemon.connect("managed") as client:
        yield client


@pytest.fixture
def pool(client: vramd.Client) -> Driven:
    return Driven(client)


def test_a_segment_is_charged_until_it_is_freed(client: vramd.Client, pool: Driven) -> None:
    first, second = pool.alloc(8 * MIB), pool.alloc(3 * MIB)
    assert charged(client) == (12 * MIB, 12 * MIB), "in multiples of 2 MiB"
    assert pool.native.nbytes == 11 * MIB
    ctypes.memset(first, 7, 8 * MIB)
    assert ctypes.string_at(second, 4096) == bytes(4096)
    assert pool.native.contains(first + 8 * MIB - 1) and not pool.native.contains(first - 1)
    pool.free(first)
    assert charged(client) == (4 * MIB, 4 * MIB)
    pool.free(second)
    assert charged(client) == (0, 0) and pool.native.nbytes == 0


def test_beyond_the_limit_is_null_and_names_tenant_and_limit(client: vramd.Client, pool: Driven) -> None:
    held = pool.alloc(24 * MIB)
    assert held and pool.alloc(10 * MIB) == 0
    refusal = pool.native.take_refusal()
    assert isinstance(refusal, vramd.QuotaExceeded), refusal
    assert (refusal.tenant, refusal.limit) == (client.tenant, 32 * MIB)
    assert charged(client) == (24 * MIB, 24 * MIB)
    assert pool.alloc(8 * MIB), "the rest of the limit"


def test_other_memory_of_the_tenant_counts_beside_it(client: vramd.Client, pool: Driven) -> None:
    memory = client.allocate("24MiB")
    assert pool.alloc(10 * MIB) == 0 and "limit" in pool.refusal()
    assert pool.alloc(8 * MIB)
    assert charged(client) == (32 * MIB, 8 * MIB)
    memory.free()


def test_unused_parts_leave_for_it(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="32MiB", more='[memory]\nhost_size = "64MiB"\n')
    with daemon.connect() as client:
        memory = client.allocate("24MiB", unpinned=True)
        with memory.pin(write=True):
            pass
        pool = Driven(client, wait=20)
        assert pool.alloc(24 * MIB), pool.refusal()
        assert charged(client)[1] == 24 * MIB


@pytest.mark.parametrize("size", [0, -1, -(1 << 63)])
def test_wrong_sizes_are_null_with_a_reason(pool: Driven, size: int) -> None:
    assert pool.alloc(size) == 0
    assert f"cannot have {size} bytes" in pool.refusal()


def test_huge_sizes_are_null_and_uncharged(client: vramd.Client, pool: Driven) -> None:
    for size in (1 << 50, (1 << 63) - 1):
        assert pool.alloc(size) == 0 and pool.refusal()
    assert charged(client) == (0, 0)


def test_another_device_is_null_with_a_reason(pool: Driven) -> None:
    assert pool.alloc(2 * MIB, device=1) == 0
    assert "device 1 was asked for" in pool.refusal()


def test_double_frees_and_foreign_pointers_are_ignored(client: vramd.Client, pool: Driven) -> None:
    kept, freed = pool.alloc(2 * MIB), pool.alloc(2 * MIB)
    ctypes.memset(kept, 9, 2 * MIB)
    for address in (freed, freed, kept + 4096, 4096, None, (1 << 64) - 1):
        pool.free(address)
    assert charged(client) == (2 * MIB, 2 * MIB)
    assert ctypes.string_at(kept, 2 * MIB) == bytes([9]) * (2 * MIB)


def test_threads_allocate_and_free_each_others(client: vramd.Client, pool: Driven) -> None:
    handed: list[int] = []

    def allocate() -> None:
        for _ in range(20):
            if address := pool.alloc(2 * MIB):
                handed.append(address)

    def free() -> None:
        for _ in range(2000):
            if handed:
                pool.free(handed.pop())

    threads = [threading.Thread(target=work) for work in (allocate, allocate, free, free)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while handed:
        pool.free(handed.pop())
    assert charged(client) == (0, 0)


def test_memory_outlives_its_closed_client_and_is_charged(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="64MiB")
    with daemon.connect("watcher") as watcher:
        client = daemon.connect("closed")
        pool = Driven(client)
        address = pool.alloc(4 * MIB)
        client.close()
        ctypes.memset(address, 3, 4 * MIB)
        assert charged(watcher) == (4 * MIB, 4 * MIB), "the pool keeps the session"
        pool.native.close()
        assert pool.alloc(2 * MIB) == 0 and "closed" in pool.refusal()
        pool.free(address)
        # The session's own thread says so to the daemon.
        deadline = threading.Event()
        for _ in range(200):
            if charged(watcher) == (0, 0):
                break
            deadline.wait(0.02)
        assert charged(watcher) == (0, 0)


def test_closed_pools_give_their_symbols_back_when_empty(client: vramd.Client) -> None:
    first = Driven(client)
    address = first.alloc(2 * MIB)
    first.native.close()
    second = Driven(client)
    assert second.native.symbols != first.native.symbols
    first.free(address)
    assert Driven(client).native.symbols == first.native.symbols


def test_charge_ends_with_a_killed_client(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="64MiB")
    source = """
import sys, vramd
from vramd import _native
import ctypes
client = vramd.connect("killed")
pool = _native._ManagedPool(client, device=0, wait=0)
alloc = ctypes.CDLL(_native.__file__)[pool.symbols[0]]
alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
assert alloc(16 << 20, 0, None)
print("allocated", flush=True)
sys.stdin.read()
"""
    with daemon.connect("watcher") as watcher, daemon.child(source) as child:
        assert child.stdout is not None and child.stdout.readline() == "allocated\n"
        assert charged(watcher) == (16 * MIB, 16 * MIB)
        child.kill()
        child.wait()
        waiting = threading.Event()
        for _ in range(500):
            if charged(watcher) == (0, 0):
                return
            waiting.wait(0.02)
        assert charged(watcher) == (0, 0)


def test_a_forked_child_neither_allocates_nor_frees(client: vramd.Client, pool: Driven) -> None:
    address = pool.alloc(2 * MIB)
    ctypes.memset(address, 5, 4096)
    if (child := os.fork()) == 0:
        status = 1
        try:
            refused = pool.alloc(2 * MIB) == 0
            pool.free(address)
            pool.native.close()
            # The child's own copy of the parent's memory is still there.
            status = 0 if refused and ctypes.string_at(address, 1) == b"\x05" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert charged(client) == (2 * MIB, 2 * MIB)
    assert pool.alloc(2 * MIB), "the parent's pool goes on"


def test_an_operator_sees_it_apart_and_cannot_free_it(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="64MiB")
    with daemon.connect("shown") as client:
        pool = Driven(client)
        assert pool.alloc(6 * MIB)
        [quota] = [row for row in json.loads(daemon.vramctl("quota", "list", "--json"))["quotas"] if row["tier"] == "device"]
        assert (quota["held_bytes"], quota["managed_bytes"]) == (6 * MIB, 6 * MIB)
        [shown] = json.loads(daemon.vramctl("alloc", "list", "--json"))["allocations"]
        assert (shown["charged_bytes"], shown["resident_bytes"]) == (6 * MIB, 0), "ordered, not known to be resident"
        with pytest.raises(Exception, match="end the session"):
            daemon.vramctl("alloc", "free", shown["allocation_id"])


SOURCE = """
import ctypes, json, sys, vramd
from vramd import _native
client = vramd.connect("driven")
pool = _native._ManagedPool(client, device=0, wait=0)
library = ctypes.CDLL(_native.__file__)
alloc, free = (library[name] for name in pool.symbols)
alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
cuda = ctypes.CDLL(sys.argv[1])
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
def depth():
    # Pops until no context is current, and pushes them again.
    popped = []
    while cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0:
        popped.append(context.value)
    for each in reversed(popped):
        cuda.cuCtxPushCurrent_v2(ctypes.c_void_p(each))
    return len(popped)
before, seen = depth(), []
def charged():
    client.flush()
    return sum(place.managed for place in client.quota() if place.tier == "device")
for size in map(int, sys.argv[2:]):
    address = alloc(size, 0, 0x77)
    seen.append({"there": bool(address), "charged": charged(), "refusal": str(pool.take_refusal() or "")})
    if address:
        ctypes.memset(address, 1, 4096)
        free(address, 0, 0, 0x78 if len(seen) == 1 else None)
        free(address, 0, 0, None)
    seen[-1]["left"] = charged()
print(json.dumps({"seen": seen, "failures": pool.failures, "contexts": depth() - before, "nbytes": pool.nbytes}))
"""

OLD = ("cuMemAdvise_v2", "cuMemPrefetchAsync_v2")


def driven(
    start: Callable[..., Daemon], folder: pathlib.Path, script: str, *sizes: int, without: tuple[str, ...] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Has a process allocate and free blocks over the fake driver. Returns its report, and its managed calls.

    The script and the missing functions are of the process's own copy of the driver.
    """
    places = {}
    for user, script_of in (("daemon", ""), ("client", f"note = 1\n{script}\n")):
        places[user] = library = folder / user / "libcuda.so.1"
        library.parent.mkdir()
        content = (TARGET / "debug" / "libfake_cuda.so").read_bytes()
        for name in without if user == "client" else ():
            symbol = b"\0" + name.encode() + b"\0"
            assert symbol in content, f"the fake driver has no {name}"
            content = content.replace(symbol, b"\0X" + symbol[2:])
        library.write_bytes(content)
        library.with_name("params").write_text('RegistryDwords: ""\n')
        # The same node has the same devices.
        common = f"node = {folder.name}\nmemory_mib = 8192\n"
        library.with_name("libcuda.so.1.script").write_text(common + script_of)
    daemon = start(driver=f'kind = "cuda"\n[driver.cuda]\nlibrary = "{places["daemon"]}"\nnvml_library = "{places["daemon"]}"\n')
    os.environ["VRAMD_LIBCUDA"] = str(places["client"])
    try:
        seen = json.loads(daemon.run(SOURCE, places["client"], *sizes))
    finally:
        del os.environ["VRAMD_LIBCUDA"]
    managed = ("cuMemAdvise", "cuMemPrefetch", "cuStreamSynchronize")
    lines = [line.split(" ", 1)[0] for line in places["client"].with_name("libcuda.so.1.calls").read_text().splitlines()]
    # A call with its arguments is noted beside its name.
    return seen, [
        line for line in lines if line in ("cuMemAllocManaged", "cuMemFree_v2") or (line.startswith(managed) and "(" in line)
    ]


@pytest.mark.parametrize("without", [(), OLD], ids=["cuda13", "cuda12"])
def test_recipe_is_followed_by_both_signatures(
    start: Callable[..., Daemon], tmp_path: pathlib.Path, without: tuple[str, ...]
) -> None:
    seen, calls = driven(start, tmp_path, "", 4 * MIB, 2 * GIB, without=without)
    end = "" if without else "_v2"
    assert calls == [
        "cuMemAllocManaged", f"cuMemAdvise{end}(3:1.0)", f"cuMemPrefetchAsync{end}(77:1.0)", "cuStreamSynchronize(78)",
        "cuMemFree_v2", "cuMemAllocManaged", f"cuMemAdvise{end}(3:1.0)", "cuStreamSynchronize(0)", "cuMemFree_v2",
    ], "the block of 2 GiB is not prefetched, and each free waits for its stream"  # fmt: skip
    assert [block["charged"] for block in seen["seen"]] == [4 * MIB, 2 * GIB]
    assert [block["left"] for block in seen["seen"]] == [0, 0]
    assert (seen["failures"], seen["contexts"], seen["nbytes"]) == ({}, 0, 0)


def test_cpu_may_access_it_on_coherent_platforms_alone(start: Callable[..., Daemon], tmp_path: pathlib.Path) -> None:
    _, calls = driven(start, tmp_path, "attribute.101 = 1", 4 * MIB)
    assert calls[1:3] == ["cuMemAdvise_v2(3:1.0)", "cuMemAdvise_v2(5:2.0)"]


@pytest.mark.parametrize("without", [(), OLD], ids=["cuda13", "cuda12"])
def test_failed_steps_fail_no_allocation_and_are_counted(
    start: Callable[..., Daemon], tmp_path: pathlib.Path, without: tuple[str, ...]
) -> None:
    end = "" if without else "_v2"
    script = f"fail.cuMemAdvise{end} = 1@1\nfail.cuMemPrefetchAsync{end} = 100@2\nfail.cuStreamSynchronize = 700@2"
    seen, _ = driven(start, tmp_path, script, 4 * MIB, 4 * MIB, 4 * MIB, without=without)
    assert all(block["there"] and block["left"] == 0 for block in seen["seen"])
    assert seen["failures"] == {
        "preferred location: CUDA_ERROR_INVALID_VALUE": 3,
        "prefetch: CUDA_ERROR_NO_DEVICE": 2,
        "synchronize: CUDA_ERROR_ILLEGAL_ADDRESS": 2,
    }
    assert seen["contexts"] == 0


def test_failed_allocation_is_null_and_uncharged(start: Callable[..., Daemon], tmp_path: pathlib.Path) -> None:
    seen, _ = driven(start, tmp_path, "fail.cuMemAllocManaged = 2@2", 4 * MIB, 4 * MIB)
    first, second = seen["seen"]
    assert first["there"] and not second["there"]
    assert "cuMemAllocManaged: CUDA_ERROR_OUT_OF_MEMORY" in second["refusal"]
    assert (second["charged"], second["left"], seen["contexts"]) == (0, 0, 0)


def test_memory_that_is_not_freed_stays_charged(start: Callable[..., Daemon], tmp_path: pathlib.Path) -> None:
    seen, _ = driven(start, tmp_path, "fail.cuMemFree_v2 = 700@1", 4 * MIB)
    assert seen["seen"][0]["left"] == 4 * MIB
    assert seen["failures"] == {"free: CUDA_ERROR_ILLEGAL_ADDRESS": 1}


def test_a_driver_without_managed_memory_is_told(start: Callable[..., Daemon], tmp_path: pathlib.Path) -> None:
    seen, _ = driven(start, tmp_path, "", 4 * MIB, without=("cuMemAllocManaged",))
    assert "lacks a function for managed memory" in seen["seen"][0]["refusal"]
    assert seen["seen"][0]["left"] == 0


def test_pool_of_an_unseen_device_is_refused(client: vramd.Client) -> None:
    with pytest.raises(FailedPrecondition, match="does not see device 7"):
        Driven(client, device=7)


def test_a_tag_names_one_pool_on_a_device_until_it_is_closed(client: vramd.Client) -> None:
    pool = vramd.torch.managed_pool("activations", client=client, device=0)
    assert vramd.torch.managed_pool("activations", client=client, device=0) is pool
    assert (pool.nbytes, pool.failures) == (0, {}) and "ManagedPool 'activations'" in repr(pool)
    pool.close()
    assert vramd.torch.managed_pool("activations", client=client, device=0) is not pool
