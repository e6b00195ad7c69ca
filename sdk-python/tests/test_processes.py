"""Several processes: a model that is shared, clients that die, children that are forked."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
from conftest import MIB, Daemon, eventually

import vramd

WRITER = """
import sys, numpy, vramd
with vramd.connect("writer") as client:
    weights = client.allocate("32MiB", name="model", lifetime="persistent", part_size="2MiB")
    numbers = weights.tensor(dtype="float32")
    array = numpy.asarray(numbers)
    array[:] = numpy.arange(array.size) % 1000
    print(float(array.sum(dtype="float64")), flush=True)
    del array, numbers
    print(weights.seal().digest, flush=True)
"""

READER = """
import sys, numpy, vramd
client = vramd.connect("reader")
model = client.attach("model")
array = numpy.from_dlpack(model.tensor((1024, 8192), "float32"))
assert not array.flags.writeable
print(float(array.sum(dtype="float64")), flush=True)
print(model.digest, flush=True)
sys.stdin.readline()
"""


def test_two_processes_share_a_sealed_model(daemon: Daemon) -> None:
    written = daemon.run(WRITER)
    readers = [daemon.child(READER) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() + reader.stdout.readline() == written
    with daemon.connect() as client:
        info = client.describe("model")
        assert (info.mapper_count, info.charged) == (2, 32 * MIB), "one copy, two mappers"
        for reader in readers:
            reader.communicate("\n", timeout=30)
            assert reader.returncode == 0
        eventually("both have let go", lambda: client.describe("model").mapper_count == 0)
        client.attach("model").free()
        eventually("it is gone", lambda: client.list() == [])


VICTIM = """
import sys, numpy, vramd
client = vramd.connect("victim")
memory = client.allocate("8MiB")
array = numpy.frombuffer(memory, dtype=numpy.uint8)
print("ready", flush=True)
while True:
    array[:] = 1
    memory.copy_from(bytes(1 << 20))
    client.allocate("2MiB").seal().free()
"""


def test_killed_client_leaves_nothing(daemon: Daemon, client: vramd.Client) -> None:
    for _ in range(3):
        with daemon.child(VICTIM) as victim:
            assert victim.stdout is not None and victim.stdout.readline() == "ready\n"
            assert client.list()
            victim.send_signal(signal.SIGKILL)
            victim.wait(30)
        eventually("its memory is freed", lambda: client.list() == [])


def test_forked_child_is_refused(daemon: Daemon, client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    sealed = client.allocate(MIB).seal()
    array = np.frombuffer(sealed, dtype=np.uint8)
    tensor, pin = memory.tensor(), memory.pin(write=True)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = in_child(daemon, client, memory, sealed, tensor, pin)
        finally:
            del array
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert memory.is_mapped and sealed.is_mapped and client.is_connected, "the parent's stands"
    memory.copy_from(b"still mine")
    assert pin.device_ptr == memory.device_ptr
    assert bytes(array[:3]) == bytes(3)


def in_child(
    daemon: Daemon, client: vramd.Client, memory: vramd.Allocation, sealed: vramd.Sealed, tensor: vramd.Tensor,
    pin: vramd.Pin,
) -> int:
    uses: list[Callable[[], object]] = [
        client.list, client.flush, lambda: client.allocate(1), lambda: client.session_id, lambda: client.devices,
        memory.seal, memory.free, memory.copy_to, lambda: memory.copy_from(b"x"), lambda: memoryview(memory),
        memory.tensor, memory.pin, memory.repin, memory.unpin, lambda: pin.device_ptr, pin.unpin_after, sealed.detach, sealed.free, lambda: np.from_dlpack(sealed), lambda: memoryview(tensor),
    ]  # fmt: skip
    for number, use in enumerate(uses):
        try:
            use()
        except vramd.Forked as error:
            if error.reason != "SESSION_FOREIGN" or "connect a new client" not in str(error):
                return 10
        else:
            return 20 + number
    if client.is_connected or memory.is_mapped or "parent" not in repr(client):
        return 11
    client.close()
    with daemon.connect("child") as own:
        own.allocate(MIB).copy_from(b"a client of its own")
    pin.release()
    del memory, sealed, tensor, client, pin
    return 0


def work(sockets: str) -> int:
    with vramd.connect(socket_dir=sockets) as client:
        return sum(client.attach("shared").copy_to())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_process_pools_attach_in_each_worker(daemon: Daemon, client: vramd.Client, method: str) -> None:
    memory = client.allocate(4096, name="shared")
    memory.copy_from(bytes([1]) * 4096)
    sealed = memory.seal()
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(work, [str(daemon.sockets)] * 4) == [4096] * 4
    assert sealed.is_mapped
