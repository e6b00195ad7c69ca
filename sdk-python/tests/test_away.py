"""A whole session away and back, as a process that is to be frozen needs it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import vramd
import vramd.aio
import vramd.torch
from conftest import MIB, Daemon, eventually, stop
from test_llm_d import carve, filled
from test_pool import used_bytes
from vramd.integrations.llm_d import Workload
from vramd.torch import Pool


@pytest.fixture
def daemon(start: Callable[..., Daemon]) -> Daemon:
    """With a device of 64 MiB, and as much of the host four times."""
    return start(memory="64MiB", more='[memory]\nhost_size = "256MiB"\n')


@pytest.fixture
def client(daemon: Daemon) -> Iterator[vramd.Client]:
    with daemon.connect("away") as client:
        yield client


def memory_of_process(client: vramd.Client, pid: int | str = "self") -> list[str]:
    """The mappings and descriptors of memory of the client's device, which is simulated, in a process."""
    name = f"/memfd:vramd-sim:{client.devices[0].uuid}:"
    found = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    for each in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:
            continue
    return [each for each in found if name in each]


def test_everything_leaves_and_returns_with_bytes_and_addresses(daemon: Daemon, client: vramd.Client) -> None:
    memory, content = filled(client, 6 * MIB)
    loose = client.allocate(2 * MIB, unpinned=True)
    loose.copy_from(content[: 2 * MIB])
    weights = vramd.save({"layer": torch.arange(MIB, dtype=torch.int32)}, "shared", client=client)
    with daemon.connect("reader") as reader:
        shared = reader.attach("shared")
        digest, places = shared.digest, (memory.device_ptr, loose.device_ptr, weights.memory.device_ptr)
        for _ in range(3):
            with client.away():
                assert client.is_away
                reader.detach_all()
                assert memory_of_process(client) == []
                reader.attach_all()
                assert len(memory_of_process(client)) > 0, "the reader goes on"
                eventually("the rest has left", lambda: used_bytes(reader) == 6 * MIB)
            assert not client.is_away and memory.has_handle_pin and not loose.has_handle_pin
            assert (memory.device_ptr, loose.device_ptr, weights.memory.device_ptr) == places
            assert memory.copy_to() == content and loose.copy_to() == content[: 2 * MIB]
            assert torch.equal(weights.tensors()["layer"], torch.arange(MIB, dtype=torch.int32))
        assert shared.digest == digest


def test_memory_in_use_is_named_and_nothing_changes(client: vramd.Client) -> None:
    memory = client.allocate(2 * MIB, name="cache")
    other = client.allocate(2 * MIB, name="other")
    with memory.pin(), pytest.raises(vramd.Pinned, match=r"/cache`\) has 1 pins") as caught:
        client.detach_all()
    assert "other" not in str(caught.value) and caught.value.metadata["pins"] == "1"
    buffer = memoryview(other)
    with pytest.raises(vramd.Pinned, match="/other`"), client.away():
        pytest.fail("the block is not entered")
    assert not client.is_away and memory.has_handle_pin
    buffer.release()
    with client.away():
        pass


def test_calls_of_all_threads_fail_until_the_memory_is_back(client: vramd.Client) -> None:
    memory, content = filled(client, 2 * MIB)
    client.attach_all()
    caught: list[BaseException] = []

    def use() -> None:
        try:
            memory.pin()
        except vramd.Error as error:
            caught.append(error)

    with client.away():
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert [type(error) for error in caught] == [vramd.Away]
        for call in (memory.pin, memory.copy_to, client.detach_all, lambda: memoryview(memory), lambda: client.allocate(1)):
            with pytest.raises(vramd.Away, match="call attach_all"):
                call()
        assert [info.id for info in client.list()] == [memory.id] and memory_of_process(client) == []
    assert memory.copy_to() == content
    # Another thread may bring it back.
    client.detach_all()
    thread = threading.Thread(target=client.attach_all)
    thread.start()
    thread.join()
    assert memory.copy_to() == content


def test_memory_is_freed_while_it_is_away(client: vramd.Client) -> None:
    freed, kept = client.allocate(2 * MIB), client.allocate(2 * MIB)
    with client.away():
        freed.free()
        client.flush()
        assert [info.id for info in client.list()] == [kept.id]
    assert kept.has_handle_pin


def test_without_room_all_of_it_stays_away(daemon: Daemon, client: vramd.Client) -> None:
    memory, content = filled(client, 40 * MIB)
    client.detach_all()
    with daemon.connect("other") as other:
        taken = other.allocate(40 * MIB)
        with pytest.raises(vramd.Error):
            client.attach_all(wait=0.2)
        assert client.is_away and not memory.is_mapped
        taken.free()
        client.attach_all()
    assert memory.copy_to() == content


def test_pools_must_be_asleep_and_a_workload_sees_to_it(client: vramd.Client) -> None:
    pool: Pool = vramd.torch.pool("kv_cache", client=client, device=0, arena="8MiB", wait=0.0)
    try:
        memory, content = filled(client, 6 * MIB)
        address = carve(pool, 4 * MIB)
        ctypes.memmove(address, content, 4 * MIB)
        with pytest.raises(vramd.Pinned):
            client.detach_all()
        workload = Workload({"state": [memory]})
        with workload.away(client):
            assert memory_of_process(client) == [] and not pool.is_awake
        assert pool.is_awake and memory.has_handle_pin
        assert (ctypes.string_at(address, 4 * MIB), memory.copy_to()) == (content[: 4 * MIB], content)
        guard = client.allocate(2 * MIB)
        with guard.pin(), pytest.raises(vramd.Pinned), workload.away(client):
            pytest.fail("the block is not entered")
        assert pool.is_awake and memory.has_handle_pin and not client.is_away
    finally:
        pool.close()


def test_block_of_the_page_runs(client: vramd.Client, capsys: pytest.CaptureFixture[str]) -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs/guides/engines.md").read_text()
    [block] = re.findall(r"^```python checkpoint\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    memory, content = filled(client, 2 * MIB)
    workload = Workload({"state": [memory]})
    exec(block, {"workload": workload, "client": client})
    assert capsys.readouterr().out == "ready\n" and memory.has_handle_pin and memory.copy_to() == content


CHILD = """
import os, random, sys, vramd
client = vramd.connect("frozen", socket_dir=sys.argv[1])
memory = client.allocate(4 << 20)
content = random.Random(4).randbytes(4 << 20)
memory.copy_from(content)
shared = client.attach("shared")
place = memory.device_ptr, shared.device_ptr
for line in sys.stdin:
    try:
        getattr(client, line.strip())()
        told = "done"
    except vramd.Error as error:
        told = type(error).__name__
    if told == "done" and line.strip() == "attach_all":
        assert memory.copy_to() == content and shared.copy_to() == bytes([7]) * (2 << 20)
        assert (memory.device_ptr, shared.device_ptr) == place
    if line.strip() == "detach_all" and told == "done" and os.fork() == 0:
        try:
            client.attach_all()
        except vramd.Forked:
            os._exit(0)
        os._exit(1)
    if line.strip() == "detach_all" and told == "done":
        assert os.wait()[1] == 0, "a child brings nothing back"
    print(told, flush=True)
"""


@pytest.fixture
def frozen(daemon: Daemon, client: vramd.Client) -> Iterator[Callable[[str], str]]:
    """A process that has memory of its own and of another session: how it answers a call of its client."""
    memory = client.allocate(2 * MIB, name="shared", lifetime="persistent")
    memory.copy_from(bytes([7]) * (2 * MIB))
    memory.seal()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(daemon.sockets)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None

    def ask(call: str) -> str:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(call + "\n")
        child.stdin.flush()
        return child.stdout.readline().strip()

    ask.pid = child.pid  # type: ignore[attr-defined]
    yield ask
    child.stdin.close()
    assert child.wait(30) == 0
    child.stdout.close()


def test_a_process_is_stopped_while_another_uses_the_device(
    client: vramd.Client, frozen: Callable[[str], str]
) -> None:
    pid: int = frozen.pid  # type: ignore[attr-defined]
    for _ in range(2):
        assert frozen("detach_all") == "done" and memory_of_process(client, pid) == []
        stop(pid)
        taken, content = filled(client, 58 * MIB)
        assert taken.copy_to() == content
        taken.free()
        os.kill(pid, signal.SIGCONT)
        assert frozen("attach_all") == "done"


def test_a_daemon_that_ends_meanwhile_is_told(
    daemon: Daemon, client: vramd.Client, frozen: Callable[[str], str]
) -> None:
    assert frozen("detach_all") == "done"
    daemon.kill()
    assert {frozen("attach_all"), frozen("attach_all")} == {"BrokerGone"}
    assert memory_of_process(client, frozen.pid) == []  # type: ignore[attr-defined]


def test_tasks_take_a_session_away(daemon: Daemon) -> None:
    async def main() -> None:
        async with vramd.aio.connect(socket_dir=daemon.sockets) as client:
            memory = await client.allocate(MIB)
            await memory.copy_from(b"here")
            await client.detach_all()
            with pytest.raises(vramd.Away):
                await memory.copy_to(0, 4)
            await client.attach_all(wait=60)
            assert await memory.copy_to(0, 4) == b"here"

    asyncio.run(main())


def test_random_use_by_threads_loses_no_byte(client: vramd.Client) -> None:
    """Threads pin and write while another takes the session away and back."""
    chance = random.Random(8)
    memories = [client.allocate(MIB, unpinned=chance.random() < 0.5) for _ in range(6)]
    over, failures, uses = threading.Event(), [], [0] * 6

    def use(number: int) -> None:
        written = bytes(8)
        while not over.is_set():
            try:
                with memories[number].pin(write=True) as pin, memoryview(pin) as view:
                    if bytes(view[:8]) != written:
                        failures.append(number)
                    uses[number] += 1
                    written = uses[number].to_bytes(8, "little")
                    view[:8] = written
                over.wait(0.01)
            except vramd.Away:
                over.wait(0.001)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    trips = 0
    try:
        for _ in range(200):
            try:
                client.detach_all()
            except vramd.Pinned:
                over.wait(0.002)
                continue
            assert memory_of_process(client) == []
            trips += 1
            client.attach_all()
            # On a busy machine a trip takes seconds: the threads want their memory back all the time.
            if trips == 12:
                break
    finally:
        over.set()
        for thread in threads:
            thread.join()
    with client.away():
        trips += 1
    assert failures == [] and min(uses) > 0 and trips > 1
