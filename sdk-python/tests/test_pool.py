"""PyTorch's allocator over memory of the daemon: its C symbols, called as PyTorch calls them, and what pools do."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Literal

import pytest
import torch
import vramd
import vramd.torch
from conftest import MIB, TARGET, Daemon, eventually, stop
from vramd import _native, _torch_pool
from vramd.errors import FailedPrecondition

LIBRARY = ctypes.CDLL(_native.__file__)
CYCLES = 1000 if os.environ.get("VRAMD_LONG_TESTS") else 150


class Driven:
    """A pool, and its symbols as PyTorch calls them."""

    def __init__(self, client: vramd.Client, *, device: int = 0, arena: str = "8MiB", wait: float = 0.0) -> None:
        self._drive(_native._Pool(client, device=device, arena=arena, wait=wait), device)

    @classmethod
    def of(cls, pool: vramd.torch.Pool) -> Driven:
        """The symbols of a pool that PyTorch would use."""
        driven = cls.__new__(cls)
        driven._drive(pool._arenas, pool.ordinal)
        return driven

    def _drive(self, native: _native._Pool, device: int) -> None:
        self.native, self.device = native, device
        alloc, free = self.native.symbols
        self._alloc, self._free = LIBRARY[alloc], LIBRARY[free]
        self._alloc.restype, self._alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def alloc(self, size: int, device: int | None = None) -> int:
        address = self._alloc(size, self.device if device is None else device, None)
        return int(address or 0)

    def free(self, address: int | None) -> None:
        self._free(address, 0, self.device, None)

    def refusal(self) -> str:
        return str(self.native.take_refusal() or "")


def filled(address: int, size: int, seed: int) -> bytes:
    content = random.Random(seed).randbytes(size)
    ctypes.memmove(address, content, size)
    return content


def used_bytes(client: vramd.Client, tier: str = "device") -> int:
    """The tenant's charge there, without memory that the daemon may reuse at once."""
    return sum(place.used - place.cached for place in client.quota() if place.tier == tier)


class MemPool:
    """In place of `torch.cuda.MemPool`, which needs a GPU."""

    used: list[MemPool] = []
    """The pools that PyTorch allocates from now."""

    def __init__(self, _allocator: object) -> None:
        pass

    def use_count(self) -> int:
        return 1 + self.used.count(self)


@contextmanager
def use_mem_pool(pool: MemPool, _device: int) -> Iterator[None]:
    """As in PyTorch, which has no protection of its own between these calls."""
    MemPool.used.append(pool)
    try:
        yield
    finally:
        MemPool.used.remove(pool)


class PluggableAllocator:
    def __init__(self, *_names: str) -> None:
        pass

    def allocator(self) -> object:
        return self


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has PyTorch begin and end blocks of pools as it does on a GPU."""
    for name, value in {
        "MemPool": MemPool, "use_mem_pool": use_mem_pool, "is_available": lambda: True, "device": nullcontext,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", PluggableAllocator, raising=False)
    monkeypatch.setattr(_torch_pool, "_allocators", {})


@pytest.fixture
def tiers(start: Callable[..., Daemon]) -> Daemon:
    """A device of 64 MiB, and as much of the host four times."""
    return start(memory="64MiB", more='[memory]\nhost_size = "256MiB"\n')


@pytest.fixture
def client(tiers: Daemon) -> Iterator[vramd.Client]:
    with tiers.connect("pool") as client:
        yield client


@pytest.fixture
def pool(client: vramd.Client) -> Driven:
    return Driven(client)


def test_segments_are_carved_from_one_arena_and_coalesce(pool: Driven) -> None:
    first, second, third, fourth = (pool.alloc(2 * MIB) for _ in range(4))
    assert [second - first, third - first, fourth - first] == [2 * MIB, 4 * MIB, 6 * MIB]
    assert (pool.native.nbytes, pool.native.used) == (8 * MIB, 8 * MIB)
    pool.free(second)
    pool.free(third)
    assert pool.alloc(4 * MIB) == second, "the two neighbours are one range"
    assert pool.native.nbytes == 8 * MIB


def test_segments_are_disjoint_under_random_use(pool: Driven) -> None:
    dice = random.Random(5)
    live: dict[int, bytes] = {}
    for _ in range(300):
        if live and dice.random() < 0.5:
            address = dice.choice(list(live))
            assert ctypes.string_at(address, 8) == live.pop(address)
            pool.free(address)
        elif address := pool.alloc(dice.randint(1, 3 * MIB)):
            assert address not in live
            live[address] = dice.randbytes(8)
            ctypes.memmove(address, live[address], 8)
    for address, mark in live.items():
        assert ctypes.string_at(address, 8) == mark
        pool.free(address)
    assert pool.native.nbytes == 0


def test_an_arena_without_segments_is_given_back(client: vramd.Client, pool: Driven) -> None:
    address = pool.alloc(2 * MIB)
    assert used_bytes(client) == 8 * MIB
    pool.free(address)
    client.flush()
    assert (pool.native.nbytes, used_bytes(client)) == (0, 0)


def test_a_segment_larger_than_an_arena_has_its_own(pool: Driven) -> None:
    assert pool.alloc(21 * MIB)
    assert pool.native.nbytes == 22 * MIB


def test_an_exact_arena_is_tried_where_a_large_one_has_no_room(client: vramd.Client) -> None:
    pool = Driven(client, arena="128MiB")
    assert pool.alloc(2 * MIB)
    assert pool.native.nbytes == 2 * MIB


@pytest.mark.parametrize("size", [0, -1, -(1 << 63)])
def test_wrong_sizes_are_null_with_a_reason(pool: Driven, size: int) -> None:
    assert pool.alloc(size) == 0
    assert f"cannot have {size} bytes" in pool.refusal()
    assert pool.alloc(2 * MIB)


def test_huge_sizes_are_null_with_a_reason(pool: Driven) -> None:
    for size in (1 << 50, (1 << 63) - 1):
        assert pool.alloc(size) == 0
        assert "too small" in pool.refusal()
    assert pool.refusal() == "", "it is told once"


def test_another_device_is_null_with_a_reason(pool: Driven) -> None:
    assert pool.alloc(2 * MIB, device=1) == 0
    assert "device 1 was asked for" in pool.refusal()


def test_pools_of_two_devices_allocate_on_their_own(start: Callable[..., Daemon]) -> None:
    daemon = start(driver='kind = "sim"\n[driver.sim]\ndevices = [{ memory = "32MiB" }, { memory = "32MiB" }]\n')
    with daemon.connect() as client:
        pools = [Driven(client, device=number) for number in range(2)]
        assert [pool.native.device for pool in pools] == [device.uuid for device in client.devices]
        assert all(pool.alloc(2 * MIB) for pool in pools)
        used = {place.device: place.used for place in client.quota() if place.tier == "device"}
        assert set(used.values()) == {8 * MIB}
        with pytest.raises(FailedPrecondition, match="does not see device 7"):
            Driven(client, device=7)


def test_double_frees_and_foreign_pointers_are_ignored(pool: Driven) -> None:
    kept, freed = pool.alloc(2 * MIB), pool.alloc(2 * MIB)
    content = filled(kept, 2 * MIB, 1)
    for address in (freed, freed, kept + 4096, 4096, None, (1 << 64) - 1):
        pool.free(address)
    assert pool.native.used == 2 * MIB
    assert ctypes.string_at(kept, 2 * MIB) == content


def test_a_full_quota_is_null_and_names_tenant_and_limit(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="64MiB", more='[quota.default]\nlimit = "16MiB"\n')
    with daemon.connect() as client:
        pool = Driven(client)
        addresses = [pool.alloc(8 * MIB) for _ in range(2)]
        assert all(addresses) and pool.alloc(2 * MIB) == 0
        refusal = pool.native.take_refusal()
        assert isinstance(refusal, vramd.QuotaExceeded), refusal
        assert (refusal.tenant, refusal.limit) == (client.tenant, 16 * MIB)
        pool.free(addresses[0])
        client.flush()
        assert pool.alloc(2 * MIB), pool.refusal()


def test_out_of_memory_names_who_holds_the_device(tiers: Daemon, client: vramd.Client, as_on_gpu: None) -> None:
    """Also where the device is full, and no limit is reached."""
    with tiers.connect("other") as other:
        named = other.allocate("24MiB", name="llama")
        unnamed = other.allocate("16MiB")
        sizes = [other.allocate(f"{size}MiB") for size in (1, 1, 1, 1)]
        pool = vramd.torch.pool("kv", client=client, device=0, arena="8MiB", wait=0.2)
        address = Driven.of(pool).alloc(8 * MIB)
        with pytest.raises(_torch_pool.OutOfMemory) as failed, pool:
            assert Driven.of(pool).alloc(32 * MIB) == 0
            # As PyTorch does.
            raise _torch_pool.OutOfMemory("CUDA out of memory")
        text = str(failed.value)
        assert f"tenant `{client.tenant}`" in text and f"'kv' has {8 * MIB} B" in text
        assert f"`{named.name}` of session {other.session_id} has {24 * MIB} B" in text
        assert f"allocation {unnamed.id} of session {other.session_id} has {16 * MIB} B" in text
        assert text.count(" of session ") == 5 and "and 2 more" in text, "the largest five"
        Driven.of(pool).free(address)
        pool.close()
        del sizes


def test_an_allocation_waits_for_eviction_of_unpinned_memory(client: vramd.Client) -> None:
    other = client.allocate("48MiB", unpinned=True)
    with other.pin(write=True):
        pass
    pool = Driven(client, wait=20)
    assert pool.alloc(40 * MIB), pool.refusal()


def test_sleep_keeps_bytes_and_addresses_and_frees_the_device(client: vramd.Client, pool: Driven) -> None:
    addresses = [pool.alloc(6 * MIB) for _ in range(3)]
    contents = [filled(address, 6 * MIB, seed) for seed, address in enumerate(addresses)]
    pool.native.sleep(False)
    eventually("the driver has the memory back", lambda: used_bytes(client) == 0)
    assert not pool.native.is_awake and pool.native.contains(addresses[0])
    assert pool.alloc(2 * MIB) == 0 and "asleep" in pool.refusal()
    pool.native.sleep(False)
    pool.native.wake_up(10)
    assert used_bytes(client) == 24 * MIB
    for address, content in zip(addresses, contents):
        assert ctypes.string_at(address, 6 * MIB) == content
    assert pool.alloc(2 * MIB), "the rest of an arena is used again"


def test_bytes_written_after_a_wake_survive_the_next_sleep(pool: Driven) -> None:
    address = pool.alloc(4 * MIB)
    for seed in range(4):
        content = filled(address, 4 * MIB, seed)
        pool.native.sleep(False)
        pool.native.wake_up(10)
        assert ctypes.string_at(address, 4 * MIB) == content


def test_discarding_costs_nothing_anywhere_and_keeps_addresses(client: vramd.Client, pool: Driven) -> None:
    address = pool.alloc(6 * MIB)
    filled(address, 6 * MIB, 1)
    pool.native.sleep(True)
    client.flush()
    assert pool.native.nbytes == 0
    assert used_bytes(client) + used_bytes(client, "host") == 0
    pool.native.wake_up(10)
    assert pool.native.nbytes == 8 * MIB
    content = filled(address, 6 * MIB, 2)
    assert ctypes.string_at(address, 6 * MIB) == content
    pool.free(address)
    client.flush()
    assert used_bytes(client) == 0


def test_a_sleeping_pool_can_be_discarded(client: vramd.Client, pool: Driven) -> None:
    address = pool.alloc(6 * MIB)
    pool.native.sleep(False)
    pool.native.sleep(True)
    client.flush()
    assert used_bytes(client, "host") == 0
    pool.native.wake_up(10)
    filled(address, 6 * MIB, 2)


def test_a_failed_wake_leaves_all_asleep_and_the_next_succeeds(client: vramd.Client, pool: Driven) -> None:
    kept = pool.alloc(8 * MIB)
    content = filled(kept, 8 * MIB, 3)
    assert pool.alloc(8 * MIB)
    for discard in (False, True):
        pool.native.sleep(discard)
        others = client.allocate("56MiB")
        with pytest.raises(vramd.Error) as failed:
            pool.native.wake_up(0.3)
        assert str(failed.value)
        assert not pool.native.is_awake
        others.free()
        client.flush()
        pool.native.wake_up(10)
        if not discard:
            assert ctypes.string_at(kept, 8 * MIB) == content
    filled(kept, 8 * MIB, 4)


def test_a_failed_sleep_leaves_the_pool_awake(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="64MiB")
    with daemon.connect() as client:
        pool = Driven(client)
        address = pool.alloc(2 * MIB)
        content = filled(address, 2 * MIB, 1)
        with pytest.raises(vramd.Error):
            pool.native.sleep(False)
        assert pool.native.is_awake
        assert ctypes.string_at(address, 2 * MIB) == content
        pool.native.sleep(True)
        pool.native.wake_up(10)
        filled(address, 2 * MIB, 2)


def test_segments_freed_asleep_are_given_back(client: vramd.Client, pool: Driven) -> None:
    addresses = [pool.alloc(8 * MIB) for _ in range(3)]
    pool.native.sleep(False)
    pool.free(addresses[0])
    pool.native.sleep(True)
    pool.free(addresses[1])
    pool.native.wake_up(10)
    client.flush()
    assert pool.native.nbytes == used_bytes(client) == 8 * MIB


def test_pools_rotate_through_a_device_that_holds_one(client: vramd.Client) -> None:
    pools = [Driven(client) for _ in range(3)]
    contents = []
    for seed, pool in enumerate(pools):
        address = pool.alloc(40 * MIB)
        contents.append((address, filled(address, 40 * MIB, seed)))
        pool.native.sleep(False)
    for at in (0, 1, 2, 0, 2, 1):
        pools[at].native.wake_up(10)
        assert ctypes.string_at(contents[at][0], 40 * MIB) == contents[at][1]
        pools[at].native.sleep(False)


def test_cycles_of_sleep_and_wake_grow_nothing(client: vramd.Client, pool: Driven) -> None:
    addresses = [pool.alloc(2 * MIB) for _ in range(6)]

    def cycle(number: int) -> None:
        pool.native.sleep(number % 2 == 1)
        pool.native.wake_up(10)
        filled(addresses[number % 6], 8, number)

    def held() -> tuple[int, int, int, int]:
        client.flush()
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        return len(os.listdir("/proc/self/fd")), pages, used_bytes(client), used_bytes(client, "host")

    for number in range(20):
        cycle(number)
    before = held()
    for number in range(CYCLES):
        cycle(number)
    after = held()
    assert (after[0], *after[2:]) == (before[0], *before[2:])
    assert after[1] - before[1] < 4096, "less than 16 MiB of addresses"


def test_threads_allocate_and_free_while_the_pool_sleeps_and_wakes(client: vramd.Client) -> None:
    pool = Driven(client, arena="4MiB", wait=1)
    ended, problems = threading.Event(), []

    def use(seed: int) -> None:
        dice = random.Random(seed)
        live: list[int] = []
        try:
            while not ended.is_set():
                if live and dice.random() < 0.5:
                    pool.free(live.pop())
                elif len(live) < 4 and (address := pool.alloc(2 * MIB)):
                    live.append(address)
        except BaseException as problem:
            problems.append(problem)
        for address in live:
            pool.free(address)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        pool.native.sleep(number % 2 == 1)
        pool.native.wake_up(10)
    ended.set()
    for thread in threads:
        thread.join()
    client.flush()
    assert not problems
    assert pool.native.used == pool.native.nbytes == used_bytes(client) == 0


def test_two_threads_do_not_change_a_pool_at_once(client: vramd.Client, pool: Driven) -> None:
    assert pool.alloc(32 * MIB)
    refused = []

    def sleep() -> None:
        for _ in range(20):
            try:
                pool.native.sleep(False)
                pool.native.wake_up(10)
            except FailedPrecondition as problem:
                refused.append(str(problem))

    threads = [threading.Thread(target=sleep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another thread" in problem for problem in refused)
    pool.native.wake_up(10)
    assert pool.native.is_awake


def test_frees_after_the_client_is_closed_do_no_harm(tiers: Daemon) -> None:
    client = tiers.connect()
    pool = Driven(client)
    address = pool.alloc(2 * MIB)
    client.close()
    filled(address, 2 * MIB, 1)
    pool.free(address)
    assert pool.native.nbytes == 0


def test_memory_outlives_a_closed_pool_until_it_is_freed(client: vramd.Client) -> None:
    pool = Driven(client)
    address, symbols = pool.alloc(2 * MIB), pool.native.symbols
    pool.native.close()
    assert pool.alloc(2 * MIB) == 0 and "closed" in pool.refusal()
    assert Driven(client).native.symbols != symbols, "PyTorch may call these yet"
    filled(address, 2 * MIB, 1)
    pool.free(address)
    client.flush()
    assert used_bytes(client) == 0
    assert Driven(client).native.symbols == symbols


def test_more_pools_than_symbols_are_refused(client: vramd.Client) -> None:
    pools = []
    with pytest.raises(RuntimeError, match="64 pools"):
        for _ in range(65):
            pools.append(Driven(client))
    del pools
    assert Driven(client).alloc(2 * MIB)


def test_a_dead_daemon_is_null_with_a_reason(tiers: Daemon) -> None:
    client = tiers.connect()
    pool = Driven(client)
    address = pool.alloc(8 * MIB)
    tiers.kill()
    assert pool.alloc(2 * MIB) == 0 and pool.refusal()
    with pytest.raises(vramd.Error):
        pool.native.sleep(False)
    filled(address, 8 * MIB, 1)
    pool.free(address)


@contextmanager
def killed_meanwhile(daemon: Daemon) -> Iterator[None]:
    """A call inside cannot be answered: the daemon is stopped, and killed during the call. It must end soon."""
    stop(daemon.pid)
    timer = threading.Timer(0.3, daemon.kill)
    begun = time.monotonic()
    timer.start()
    try:
        yield
    finally:
        timer.join()
    assert 0.3 <= time.monotonic() - begun < 10


def test_daemon_killed_in_mid_call_is_told(start: Callable[..., Daemon]) -> None:
    # The first client of a process opens descriptors that stay.
    with start().connect() as client:
        client.allocate(MIB).free()
    for call in ("allocate", "alloc", "sleep", "discard", "wake_up"):
        daemon = start(memory="64MiB", more='[memory]\nhost_size = "256MiB"\n')
        before = open_files()
        client, holder = daemon.connect(), daemon.connect()
        pool = Driven(client, wait=60)
        address = pool.alloc(8 * MIB)
        content = filled(address, 8 * MIB, 1)
        if call == "wake_up":
            pool.native.sleep(False)
        if call in ("allocate", "alloc"):
            # The call is in the line when the daemon ends, and not on its way.
            held = holder.allocate("56MiB")
            timer = threading.Timer(0.5, daemon.kill)
            begun = time.monotonic()
            timer.start()
            if call == "alloc":
                assert pool.alloc(16 * MIB) == 0
                assert isinstance(pool.native.take_refusal(), vramd.BrokerGone)
            else:
                with pytest.raises(vramd.BrokerGone):
                    client.allocate("16MiB", wait=60)
            assert 0.5 <= time.monotonic() - begun < 10
            timer.join()
            del held
        else:
            with killed_meanwhile(daemon), pytest.raises(vramd.BrokerGone):
                pool.native.wake_up(60) if call == "wake_up" else pool.native.sleep(call == "discard")
        if pool.native.is_awake:
            assert ctypes.string_at(address, 8 * MIB) == content
        pool.free(address)
        pool.native.close()
        client.close()
        holder.close()
        del pool, client, holder
        eventually("all of these are closed", partial(has_at_most, before))


def open_files() -> int:
    """The descriptors of memory, sockets and files. The Rust SDK's threads have eventfds of their own."""
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return sum("eventfd" not in link for link in links)


def has_at_most(count: int) -> bool:
    return open_files() <= count


FORK = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import vramd
from test_pool import Driven, MIB
client = vramd.connect()
pool = Driven(client)
address = pool.alloc(2 * MIB)
ctypes.memmove(address, b"parent", 6)
child = os.fork()
if child == 0:
    assert pool.alloc(2 * MIB) == 0
    pool.free(address)
    pool.native.close()
    try:
        pool.native.sleep(False)
    except vramd.Forked:
        other = Driven(vramd.connect())
        os._exit(0 if other.alloc(2 * MIB) else 2)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ctypes.string_at(address, 6) == b"parent"
assert pool.native.used == 2 * MIB
print("done")
"""

EXIT = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import vramd
from test_pool import Driven, MIB
pools = [Driven(vramd.connect()) for _ in range(2)]
assert all(pool.alloc(2 * MIB) for pool in pools)
pools[0].native.sleep(False)

def use():
    while True:
        pools[1].free(pools[1].alloc(2 * MIB))

threading.Thread(target=use, daemon=True).start()
time.sleep(0.1)
print("done")
"""


@pytest.mark.parametrize("source", [FORK, EXIT], ids=["fork", "exit"])
def test_processes_end_well_with_pools(tiers: Daemon, source: str) -> None:
    assert tiers.run(source, pathlib.Path(__file__).parent) == "done\n"


def test_the_same_tag_is_the_same_pool(client: vramd.Client) -> None:
    pools = [vramd.torch.pool("same", client=client, arena="4MiB") for _ in range(2)]
    assert pools[0] is pools[1]
    assert repr(pools[0]).startswith("<vramd.torch.Pool 'same' on GPU-"), pools[0]
    assert vramd.torch.pool("other", client=client) is not pools[0]
    for each in (pools[0], vramd.torch.pool("other", client=client)):
        each.close()
    assert _torch_pool._pools == {}


def test_sleep_and_wake_choose_pools_by_tag(client: vramd.Client) -> None:
    weights, cache = (vramd.torch.pool(tag, client=client) for tag in ("weights", "kv"))
    vramd.torch.sleep(tags=["kv"])
    assert (weights.is_awake, cache.is_awake) == (True, False)
    vramd.torch.sleep(level=2)
    assert not weights.is_awake
    vramd.torch.wake_up(tags="kv")
    assert (weights.is_awake, cache.is_awake) == (False, True)
    vramd.torch.wake_up()
    assert weights.is_awake
    with pytest.raises(ValueError, match="no pool nothing"):
        vramd.torch.sleep(tags=["nothing"])
    with pytest.raises(ValueError, match="level"):
        vramd.torch.sleep(level=3)
    for each in (weights, cache):
        each.close()


@pytest.mark.parametrize("level", [1, 2])
def test_failed_wake_of_several_pools_leaves_all_as_they_were(client: vramd.Client, level: Literal[1, 2]) -> None:
    pools = [vramd.torch.pool(tag, client=client, arena="20MiB") for tag in ("weights", "kv")]
    driven = [Driven.of(pool) for pool in pools]
    addresses = [each.alloc(20 * MIB) for each in driven]
    content = filled(addresses[0], 4096, 1)
    vramd.torch.sleep(level=level)
    # It leaves room for one of the pools.
    other = client.allocate("32MiB", wait=10)
    on_host = used_bytes(client, "host")
    with pytest.raises(vramd.Error):
        vramd.torch.wake_up(wait=0.5)
    assert [pool.is_awake for pool in pools] == [False, False]
    assert used_bytes(client, "host") == on_host, "nothing that was discarded is kept"
    assert [pool.nbytes for pool in pools] == ([20 * MIB] * 2 if level == 1 else [0, 0])
    other.free()
    vramd.torch.wake_up(wait=10)
    if level == 1:
        assert ctypes.string_at(addresses[0], 4096) == content
    for each, address, pool in zip(driven, addresses, pools):
        each.free(address)
        pool.close()


@pytest.mark.parametrize("setting", ["expandable_segments:True", "max_split_size_mb:5,backend:cudaMallocAsync"])
@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_settings_that_exclude_pools_are_told(
    client: vramd.Client, monkeypatch: pytest.MonkeyPatch, name: str, setting: str
) -> None:
    monkeypatch.setenv(name, setting)
    pool = vramd.torch.pool("settings", client=client)
    with pytest.raises(RuntimeError, match=f"{name} has {setting.split(',')[-1]}"), pool:
        pass
    pool.close()


def test_free_memory_is_answered_by_the_quota(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="64MiB", more='[quota.default]\nlimit = "16MiB"\n')
    original = torch.cuda.mem_get_info
    with daemon.connect() as client:
        with vramd.torch.quota_as_memory(client):
            assert torch.cuda.mem_get_info() == (16 * MIB, 16 * MIB)
            pool = Driven(client)
            assert pool.alloc(8 * MIB)
            assert torch.cuda.mem_get_info(0) == (8 * MIB, 16 * MIB)
        assert torch.cuda.mem_get_info is original


def test_debug_mode_names_a_sleeping_pool(client: vramd.Client) -> None:
    pool = vramd.torch.pool("debugged", client=client)
    alloc = LIBRARY[pool._native.symbols[0]]
    alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    free = LIBRARY[pool._native.symbols[1]]
    free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    address = alloc(2 * MIB, 0, None)
    tensor = torch.frombuffer((ctypes.c_float * 4).from_address(address), dtype=torch.float32)
    tensor.fill_(3)
    pool.sleep()
    with vramd.torch.debug(), pytest.raises(vramd.NotResident, match="'debugged'"):
        tensor + 1
    pool.wake_up()
    with vramd.torch.debug():
        assert (tensor + 1).tolist() == [4, 4, 4, 4]
    free(address, 0, 0, None)
    pool.close()


def test_an_interrupted_wake_leaves_the_pool_asleep(tiers: Daemon) -> None:
    source = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
import vramd
from test_pool import Driven, MIB
client = vramd.connect()
pool = Driven(client)
address = pool.alloc(40 * MIB)
pool.native.sleep(False)
other = client.allocate("40MiB")
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    pool.native.wake_up(30)
except KeyboardInterrupt:
    assert not pool.native.is_awake
    other.free()
    pool.native.wake_up(30)
    print("done")
"""
    assert tiers.run(source, pathlib.Path(__file__).parent) == "done\n"


def trace() -> list[tuple[str, int, int, int]]:
    """Calls that PyTorch made to a pool's allocator: `alloc` or `free`, the size, the stream, and the segment.

    `tests/gpu/torch_pool.py --checks trace` recorded them on an H200, while a small transformer trained and generated.
    """
    calls: list[tuple[str, int, int, int]] = json.loads(TRACE.read_text())["calls"]
    return calls


TRACE = pathlib.Path(__file__).parent / "data" / "torch_trace.json"


def replay(client: vramd.Client) -> None:
    """Segments are aligned, do not overlap, and all memory is given back at the end."""
    pool = Driven(client, arena="64MiB")
    live: dict[int, tuple[int, int]] = {}
    for call, size, _stream, segment in trace():
        if call == "free":
            assert live[segment][1] == size
            pool.free(live.pop(segment)[0])
            continue
        address = pool.alloc(size)
        assert address and address % (2 * MIB) == 0, pool.refusal()
        assert all(address + size <= start or start + length <= address for start, length in live.values())
        live[segment] = address, size
        assert pool.native.used == sum(-(-length // (2 * MIB)) * 2 * MIB for _, length in live.values())
    client.flush()
    assert not live and pool.native.nbytes == 0
    eventually("the memory is given back", lambda: used_bytes(client) == 0)


def most_bytes() -> int:
    held = most = 0
    for call, size, _, _ in trace():
        held += size if call == "alloc" else -size
        most = max(most, held)
    return most


def test_calls_of_pytorch_are_replayed(start: Callable[..., Daemon]) -> None:
    with start(memory=f"{most_bytes() // MIB + 256}MiB").connect() as client:
        replay(client)


def test_calls_of_pytorch_are_replayed_on_device_memory(
    start: Callable[..., Daemon], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = on_fake(start, tmp_path, monkeypatch, devices=1, memory=most_bytes() // MIB + 256)
    source = "import sys; sys.path.insert(0, sys.argv[1])\nimport vramd\nfrom test_pool import replay\nreplay(vramd.connect())"
    assert daemon.run(source, pathlib.Path(__file__).parent) == ""


ON_FAKE = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import vramd
from conftest import eventually
from test_pool import Driven, MIB, used_bytes
cuda = ctypes.CDLL(os.environ["VRAMD_LIBCUDA"])

def copy(call, to, source, size):
    code = call(ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), ctypes.c_void_p(0))
    assert code == 0, code

def write(address, content):
    buffer = ctypes.create_string_buffer(content)
    copy(cuda.cuMemcpyHtoDAsync_v2, address, ctypes.addressof(buffer), len(content))

def read(address, size):
    buffer = ctypes.create_string_buffer(size)
    copy(cuda.cuMemcpyDtoHAsync_v2, ctypes.addressof(buffer), address, size)
    return buffer.raw

client = vramd.connect()
pools = [Driven(client, device=device) for device in range(2)]
assert [pool.native.device for pool in pools] == [device.uuid for device in client.devices]
contents = {}
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxPushCurrent_v2(context) == 0
for pool in pools:
    for size in (2, 2, 20, 6, 32):
        address = pool.alloc(size * MIB)
        assert address, pool.refusal()
        contents[address] = os.urandom(4096)
        write(address, contents[address])
for level in (False, False, True):
    for pool in pools:
        pool.native.sleep(level)
    eventually("the driver has the memory back", lambda: used_bytes(client) == 0)
    for pool in pools:
        pool.native.wake_up(10)
    for address, content in contents.items():
        if level:
            write(address, content)
        assert read(address, 4096) == content
for address in contents:
    for pool in pools:
        # The stream is asked for the end of its work before the memory can be another's.
        pool.free(address)
client.flush()
assert [pool.native.nbytes for pool in pools] == [0, 0]
eventually("the memory is given back", lambda: used_bytes(client) == 0)
print("done")
"""


def on_fake(
    start: Callable[..., Daemon], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, devices: int, memory: int
) -> Daemon:
    """A daemon on CUDA without a GPU, with devices of so many MiB."""
    library = tmp_path / "libcuda.so.1"
    shutil.copy(TARGET / "debug" / "libfake_cuda.so", library)
    script = f"node = pool-{os.getpid()}-{tmp_path.name}\ndevices = {devices}\nmemory_mib = {memory}\n"
    (tmp_path / "libcuda.so.1.script").write_text(script)
    monkeypatch.setenv("VRAMD_LIBCUDA", str(library))
    return start(
        driver=f'kind = "cuda"\n[driver.cuda]\nlibrary = "{library}"\nnvml_library = "{library}"\n',
        more='[memory]\nmargin = "0"\nsessions_reserved = 0\nhost_size = "256MiB"\n',
    )


def test_pools_on_device_memory_sleep_and_wake_at_their_addresses(
    start: Callable[..., Daemon], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = on_fake(start, tmp_path, monkeypatch, devices=2, memory=256)
    assert daemon.run(ON_FAKE, pathlib.Path(__file__).parent) == "done\n"
