"""Sessions and what they allocate."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
from conftest import MIB, Daemon, eventually

import vramd


def test_session_describes_itself(daemon: Daemon) -> None:
    with daemon.connect("loader", timeout=30) as client:
        assert client.is_connected and not client.is_draining
        assert client.tenant.startswith("uid-")
        assert [device.index for device in client.devices] == [0]
        assert client.devices[0].uuid.startswith("GPU-")
        assert client.daemon_version == vramd.__version__
        assert f"s-{client.session_id}" in repr(client)
    assert not client.is_connected
    assert "closed" in repr(client)
    client.close()
    with pytest.raises(vramd.HandleClosed):
        client.list()


def test_write_seal_attach(client: vramd.Client, daemon: Daemon) -> None:
    weights = client.allocate("3MiB", name="llama", lifetime="persistent", readers=["team-b"])
    assert isinstance(weights, vramd.Memory) and isinstance(weights, vramd.Allocation)
    assert (weights.size, len(weights), weights.name) == (3 * MIB, 3 * MIB, f"{client.tenant}/llama")
    assert weights.copy_to(0, 4) == bytes(4), "fresh memory is zero"
    weights.copy_from(b"hello", 7)
    weights.copy_from(memoryview(b"end"), weights.size - 3)
    address = weights.device_ptr
    sealed = weights.seal()
    assert sealed.device_ptr == address and sealed.id == weights.id
    assert sealed.digest.startswith("blake3:") and sealed.info.state == "sealed"
    assert sealed.copy_to(7, 5) == b"hello"
    assert sealed.copy_to(sealed.size - 3) == b"end"

    with daemon.connect() as other:
        for name in ("llama", f"{other.tenant}/llama", sealed.id):
            attached = other.attach(name)
            assert attached.digest == sealed.digest
            target = bytearray(5)
            attached.copy_into(target, 7)
            assert target == b"hello"
            attached.detach()
        [listed] = other.list("lla")
        assert (listed.id, listed.state, listed.lifetime) == (sealed.id, "sealed", "persistent")
        assert listed.readers == ["team-b"] and listed.size == 3 * MIB
        assert other.describe("llama").digest == sealed.digest
        assert other.list("other") == []
    released = sealed.free()
    assert released.mapper_count <= 1
    eventually("nothing is left", lambda: client.list() == [])


def test_closed_object_raises_handle_closed(client: vramd.Client) -> None:
    open_one = client.allocate(MIB)
    sealed = open_one.seal()
    for use in (open_one.seal, open_one.free, lambda: open_one.copy_from(b"x"), lambda: memoryview(open_one)):
        with pytest.raises(vramd.HandleClosed, match=f"a-{open_one.id}"):
            use()
    assert not open_one.is_mapped and sealed.is_mapped
    sealed.detach()
    with pytest.raises(vramd.HandleClosed):
        sealed.detach()
    with pytest.raises(vramd.HandleClosed):
        sealed.copy_to()


def test_dropped_memory_is_freed(client: vramd.Client, daemon: Daemon) -> None:
    one = client.allocate("200MiB")
    del one
    assert client.allocate("200MiB").size == 200 * MIB, "what was dropped makes room"
    client.flush()
    with daemon.connect() as other:
        assert other.list() == []


def test_memory_outlives_its_closed_client(daemon: Daemon) -> None:
    with daemon.connect() as client:
        one = client.allocate(MIB)
    one.copy_from(b"still here")
    assert one.copy_to(0, 10) == b"still here"
    one.free()


def test_threads_share_a_client(client: vramd.Client) -> None:
    failures: list[BaseException] = []
    shared = client.allocate(8 * MIB)

    def work(number: int) -> None:
        try:
            for _ in range(10):
                own = client.allocate(MIB)
                own.copy_from(bytes([number]) * MIB)
                shared.copy_from(bytes([number]) * MIB, number * MIB)
                sealed = own.seal()
                assert sealed.copy_to() == bytes([number]) * MIB
                sealed.free()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    for number in range(8):
        assert shared.copy_to(number * MIB, MIB) == bytes([number]) * MIB


def test_other_threads_run_while_one_waits(start) -> None:  # type: ignore[no-untyped-def]
    daemon = start(more='[[driver.sim.faults]]\non = "create"\neffect = "delay"\ndelay_ms = 600\ncount = 2\n')
    ticks = 0
    with daemon.connect() as client:
        waiting = threading.Thread(target=lambda: client.allocate(MIB))
        waiting.start()
        while waiting.is_alive():
            ticks += 1
            waiting.join(0.01)
    assert ticks > 10, "the GIL is not held while a call waits"


def test_concurrent_seal_and_free_leave_one_winner(client: vramd.Client) -> None:
    for _ in range(20):
        one = client.allocate(MIB)
        outcomes: list[object] = []

        def attempt(call: object, outcomes: list[object] = outcomes) -> None:
            try:
                outcomes.append(call())  # type: ignore[operator]
            except vramd.HandleClosed as error:
                outcomes.append(error)

        threads = [threading.Thread(target=attempt, args=(call,)) for call in (one.seal, one.free)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(outcomes) == 2
        assert sum(isinstance(outcome, vramd.HandleClosed) for outcome in outcomes) == 1


def test_objects_are_neither_pickled_nor_copied(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    for thing in (client, memory, memory.tensor(), memory.pin()):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="belongs to its process"):
                way(thing)


@pytest.mark.parametrize("size", ["24gib", "", "1.3", "50%", "-1", -1, 0, 1 << 64])
def test_invalid_sizes_are_refused(client: vramd.Client, size: int | str) -> None:
    with pytest.raises(vramd.InvalidArgument) as refused:
        client.allocate(size)
    assert refused.value.reason in ("QUANTITY_INVALID", "SIZE_INVALID")
    assert refused.value.metadata["field"].endswith(("size", "size_bytes"))
    assert isinstance(refused.value, ValueError)


def test_other_invalid_arguments_are_refused(client: vramd.Client, daemon: Daemon) -> None:
    with pytest.raises(TypeError):
        client.allocate(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        client.allocate(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="persistent"):
        client.allocate(MIB, lifetime="eternal")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        client.allocate(MIB, readers="team-b")
    with pytest.raises(vramd.InvalidArgument):
        client.allocate(MIB, part_size=12345)
    with pytest.raises(vramd.InvalidArgument):
        client.allocate(MIB, name="a b")
    with pytest.raises(vramd.InvalidArgument):
        client.allocate(MIB, lifetime="persistent")
    with pytest.raises(TypeError):
        client.attach(1.5)  # type: ignore[arg-type]
    for timeout in (0, -1, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match="timeout"):
            daemon.connect(timeout=timeout)
    for kind in (vramd.Client, vramd.Memory, vramd.Allocation, vramd.Sealed, vramd.Tensor, vramd.Pin):
        with pytest.raises(TypeError):
            kind()
    assert client.list() == []


def test_copies_outside_the_memory_are_refused(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    for copy_out in (
        lambda: memory.copy_to(MIB + 1),
        lambda: memory.copy_to(0, MIB + 1),
        lambda: memory.copy_to(1, (1 << 63) - 1),
        lambda: memory.copy_to((1 << 64) - 1, 2),
        lambda: memory.copy_from(b"xy", MIB - 1),
        lambda: memory.copy_into(bytearray(2), MIB - 1),
    ):
        with pytest.raises(vramd.CopyFailed, match="exceed its"):
            copy_out()
    for wrong in (lambda: memory.copy_to(-1), lambda: memory.copy_from(b"", -1)):
        with pytest.raises(OverflowError):
            wrong()
    assert memory.copy_to(MIB) == b""
    memory.copy_from(b"", MIB)
    memory.copy_into(bytearray(), MIB)
    with pytest.raises(TypeError):
        memory.copy_from("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        memory.copy_into(b"constant")
    with pytest.raises(BufferError):
        memory.copy_from(memoryview(b"abcdef")[::2])
    with pytest.raises(BufferError, match="same allocation"):
        memory.copy_from(memoryview(memory)[10:20])


def test_attaching_twice_shares_one_mapping(client: vramd.Client, daemon: Daemon) -> None:
    memory = client.allocate(MIB, name="model", lifetime="persistent")
    memory.copy_from(b"weights")
    sealed = memory.seal()
    again = client.attach("model")
    assert again.device_ptr == sealed.device_ptr, "what this session sealed"
    sealed.detach()
    assert again.copy_to(0, 7) == b"weights"
    with daemon.connect() as other:
        one, two = other.attach("model"), other.attach("model", unpinned=True)
        assert one.device_ptr == two.device_ptr and one.has_handle_pin and not two.has_handle_pin
        view = memoryview(two)
        one.detach()
        assert bytes(view[:7]) == b"weights"
        assert client.describe("model").mapper_count == 2, "one mapping a session"
        view.release()
        two.detach()
    eventually("the other has let go", lambda: client.describe("model").mapper_count == 1)
    again.free()


@pytest.mark.parametrize("device", [0, "0"])
def test_device_is_named_by_its_index(client: vramd.Client, device: int | str) -> None:
    memory = client.allocate(MIB, device=device)
    assert memory.device == client.devices[0].uuid
    assert client.pressure(device).device == memory.device
    with pytest.raises(vramd.DeviceUnknown):
        client.allocate(MIB, device=7)
    with pytest.raises(TypeError, match="UUID"):
        client.allocate(MIB, device=0.5)  # type: ignore[arg-type]


def test_empty_values_are_values(client: vramd.Client, daemon: Daemon) -> None:
    with pytest.raises(vramd.InvalidArgument) as refused:
        client.allocate(MIB, name="")
    assert (refused.value.reason, refused.value.metadata["name"]) == ("NAME_INVALID", "")
    with pytest.raises(vramd.DeviceUnknown):
        client.allocate(MIB, device="")
    with pytest.raises(vramd.InvalidArgument):
        client.attach("")
    with pytest.raises(vramd.DeviceUnknown):
        client.pressure("")
    assert client.list() == []


def test_quota_of_the_own_tenant(start) -> None:  # type: ignore[no-untyped-def]
    daemon = start(memory="64MiB", more='[memory]\nhost_size = "128MiB"\n[quota.default]\nlimit = "48MiB"\n')
    with daemon.connect() as client:
        memory = client.allocate("10MiB")
        device, host = client.quota()
        assert (device.device, device.device_index, device.tier) == (memory.device, 0, "device")
        assert (device.used, device.limit, device.free) == (10 * MIB, 48 * MIB, 38 * MIB)
        assert (device.guarantee, device.capacity, device.is_default) == (0, 64 * MIB, True)
        assert host.tier == "host" and host.capacity == 128 * MIB
        memory.free()
        assert client.quota()[0].used == 0
        assert "tier host of device 0" in repr(host)
