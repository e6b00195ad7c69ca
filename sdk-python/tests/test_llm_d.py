"""A process's memory leaves and returns as an agent says: `snapshot` and `restore`."""

from __future__ import annotations

import ctypes
import pathlib
import random
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import vramd
import vramd.torch
from conftest import MIB, Daemon, eventually
from test_pool import LIBRARY, used_bytes
from vramd.integrations import modules
from vramd.integrations.llm_d import Workload
from vramd.torch import Pool


@pytest.fixture
def daemon(start: Callable[..., Daemon]) -> Daemon:
    """With a device of 64 MiB, and as much of the host four times."""
    return start(memory="64MiB", more='[memory]\nhost_size = "256MiB"\n')


@pytest.fixture
def client(daemon: Daemon) -> Iterator[vramd.Client]:
    with daemon.connect("workload") as client:
        yield client


@pytest.fixture
def pool(client: vramd.Client) -> Iterator[Pool]:
    pool = vramd.torch.pool("kv_cache", client=client, device=0, arena="8MiB", wait=0.0)
    yield pool
    pool.close()


def carve(pool: Pool, size: int) -> int:
    """Allocates as PyTorch does."""
    alloc = LIBRARY[pool._native.symbols[0]]
    alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    return int(alloc(size, pool.ordinal, None) or 0)


def filled(client: vramd.Client, size: int) -> tuple[vramd.Allocation, bytes]:
    content = random.Random(size).randbytes(size)
    memory = client.allocate(size)
    memory.copy_from(content)
    return memory, content


def test_all_memory_leaves_and_returns_with_bytes_and_addresses(client: vramd.Client, pool: Pool) -> None:
    memory, content = filled(client, 6 * MIB)
    address, place = carve(pool, 4 * MIB), memory.device_ptr
    ctypes.memmove(address, content, 4 * MIB)
    workload = Workload({"state": [memory]})
    assert workload.tags == ["kv_cache", "state"]
    for _ in range(3):
        workload.snapshot("offload")
        eventually("the driver has the memory back", lambda: used_bytes(client) == 0)
        workload.restore()
        assert (ctypes.string_at(address, 4 * MIB), memory.device_ptr) == (content[: 4 * MIB], place)
        assert memory.copy_to() == content and memory.has_handle_pin


def test_tags_say_what_leaves_and_returns(client: vramd.Client, pool: Pool) -> None:
    memory, content = filled(client, 6 * MIB)
    carve(pool, 4 * MIB)
    workload = Workload({"state": [memory]})
    workload.snapshot(tags=["state"])
    assert pool.is_awake and not memory.has_handle_pin
    workload.snapshot(tags=["kv_cache"])
    workload.restore(["kv_cache"])
    assert pool.is_awake and not memory.has_handle_pin
    workload.restore()
    assert memory.has_handle_pin and memory.copy_to() == content


def test_discard_drops_the_bytes_of_pools_alone(client: vramd.Client, pool: Pool) -> None:
    memory, content = filled(client, 6 * MIB)
    address = carve(pool, 8 * MIB)
    workload = Workload({"state": [memory]})
    workload.snapshot("discard")
    assert used_bytes(client, "host") == 6 * MIB
    workload.restore()
    ctypes.memset(address, 1, 8 * MIB)
    assert memory.copy_to() == content


def test_memory_in_use_stays_and_brings_the_rest_back(client: vramd.Client, pool: Pool) -> None:
    first, content = filled(client, 6 * MIB)
    second, _ = filled(client, 2 * MIB)
    workload = Workload({"state": [first, second]})
    with second.pin(), pytest.raises(vramd.Pinned):
        workload.snapshot()
    assert pool.is_awake and first.has_handle_pin and second.has_handle_pin
    assert first.copy_to() == content
    workload.snapshot()
    assert not first.has_handle_pin


def test_each_part_of_a_failed_snapshot_is_brought_back_by_itself(
    client: vramd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, _ = filled(client, 2 * MIB)
    kept, content = filled(client, 2 * MIB)
    pinned, _ = filled(client, 2 * MIB)
    workload = Workload({"state": [lost, kept, pinned]})

    def fail(_wait: float) -> None:
        raise vramd.Error("the device is full")

    monkeypatch.setattr(workload._memory["state"][0], "come_back", fail)
    with pinned.pin(), pytest.raises(vramd.Pinned) as caught:
        workload.snapshot()
    assert caught.value.__notes__ == ["and what this call had done could not all be undone: the device is full"]
    assert not lost.has_handle_pin and kept.has_handle_pin and kept.copy_to() == content


def test_without_room_nothing_returns_by_half(client: vramd.Client, pool: Pool) -> None:
    memory, content = filled(client, 20 * MIB)
    carve(pool, 24 * MIB)
    workload = Workload({"state": [memory]}, wait=0.2)
    workload.snapshot()
    other, _ = filled(client, 40 * MIB)
    with pytest.raises(vramd.Error):
        workload.restore()
    assert not pool.is_awake and not memory.has_handle_pin
    other.free()
    workload.restore()
    assert pool.is_awake and memory.copy_to() == content


def test_shared_memory_stays_for_those_that_use_it(daemon: Daemon, client: vramd.Client) -> None:
    tensor = torch.arange(MIB, dtype=torch.int32)
    weights = vramd.save({"layer": tensor}, "shared", client=client)
    workload = Workload({"weights": [weights]})
    with daemon.connect("other") as other:
        other.attach("shared")
        workload.snapshot()
        assert not weights.memory.has_handle_pin and used_bytes(client) > 0

    def has_left() -> bool:
        workload.snapshot()
        client.flush()
        return used_bytes(client) == 0

    eventually("no session uses it, so it leaves", has_left)
    workload.restore()
    assert torch.equal(weights.tensors()["layer"], tensor)


def test_shared_modules_of_engines_sleep_with_the_weights(client: vramd.Client) -> None:
    module = torch.nn.Linear(256, 256, bias=False)
    kept = module.weight.detach().clone()
    shared = modules.publish(module, "engine", "key", client=client)
    workload = Workload()
    try:
        workload.snapshot(tags=["weights"])
        assert shared._pin is None
        workload.restore(["weights"])
        assert torch.equal(module.weight, kept)
    finally:
        shared.close()


def test_block_of_the_page_runs(client: vramd.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the agent's package, which keeps what is registered."""
    page = (pathlib.Path(__file__).parents[2] / "docs/guides/engines.md").read_text()
    [block] = re.findall(r"^```python agent\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    registered: dict[str, Any] = {}
    package = types.ModuleType("timeslice.snapshot_agent")
    package.register_workload = lambda agent, **options: registered.update(options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timeslice", types.ModuleType("timeslice"))
    monkeypatch.setitem(sys.modules, "timeslice.snapshot_agent", package)
    state, content = filled(client, 6 * MIB)
    exec(block, {"state": state})
    assert registered["tags"] == ["optimizer"]
    registered["workload"].snapshot("offload", registered["tags"])
    assert not state.has_handle_pin
    registered["workload"].restore([])
    assert state.copy_to() == content


def test_a_wrong_mode_or_tag_changes_nothing(client: vramd.Client, pool: Pool) -> None:
    workload = Workload()
    with pytest.raises(ValueError, match="a mode is one of"):
        workload.snapshot("keep")
    with pytest.raises(ValueError, match="no memory with the tag weights: the tags are"):
        workload.snapshot(tags=["kv_cache", "weights"])
    assert pool.is_awake
    workload.restore()
