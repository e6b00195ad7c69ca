"""Pins: memory that stays where it is, and memory that may go."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable

import numpy as np
import pytest
from conftest import MIB, ROOT, Daemon, eventually, vramctl

import vramd


def revoke(daemon: Daemon, memory: vramd.Memory) -> str:
    """Revokes the parts that no session pins, as an operator, and returns the outcome."""
    return subprocess.run(
        [
            ROOT / ".tools/bin/grpcurl", "-plaintext", "-authority", "localhost",
            "-d", json.dumps({"allocation_id": str(memory.id)}), f"unix://{daemon.sockets / 'admin.sock'}",
            "vramd.v1.AdminService/RevokeMappings",
        ],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip


def test_pin_keeps_memory_until_its_release(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    with memory.pin(write=True) as pin:
        assert (pin.device_ptr, pin.size, pin.write, pin.is_released) == (memory.device_ptr, MIB, True, False)
        assert f"a-{memory.id}" in repr(pin) and "write" in repr(pin)
        with pytest.raises(vramd.Pinned) as refused:
            memory.seal()
        assert refused.value.pins == 1
    assert pin.is_released and "released" in repr(pin)
    pin.release()
    for use in (lambda: pin.device_ptr, lambda: pin.write, lambda: pin.unpin_after(1)):
        with pytest.raises(vramd.HandleClosed):
            use()
    reading = memory.pin()
    assert not reading.write
    reading.release()
    sealed = memory.seal()
    with pytest.raises(vramd.AlreadySealed):
        sealed.pin(write=True)
    pin = sealed.pin()
    with pytest.raises(vramd.Pinned):
        sealed.free()
    del pin
    sealed.free()


def test_host_memory_has_no_streams(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    pin = memory.pin()
    with pytest.raises(vramd.Unsupported) as refused:
        pin.unpin_after(1)
    assert refused.value.reason == "STREAMS_UNSUPPORTED"
    assert not pin.is_released, "what was refused changed nothing"
    with pytest.raises(vramd.Pinned):
        memory.free()
    pin.release()
    memory.free()


def test_pin_outlives_its_object(daemon: Daemon) -> None:
    with daemon.connect() as client:
        memory = client.allocate(MIB)
        pin = memory.pin()
        del memory
    with daemon.connect() as other:
        assert len(other.list()) == 1
        pin.release()
        eventually("the last pin frees it", lambda: other.list() == [])


def test_handle_pin_is_given_up_and_taken_again(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    memory.copy_from(b"mine")
    assert memory.has_handle_pin
    memory.unpin()
    assert not memory.has_handle_pin
    assert bytes(memoryview(memory)[:4]) == b"mine", "who looks brings it back"
    assert memory.copy_to(0, 4) == b"mine"
    memory.copy_from(b"more", 4)
    with memory.pin(write=True):
        assert memory.is_mapped
    memory.repin()
    assert memory.has_handle_pin and memory.copy_to(0, 8) == b"minemore"
    memory.unpin()
    sealed = memory.seal()
    assert not sealed.has_handle_pin, "as it was before"
    assert np.from_dlpack(sealed)[:8].tobytes() == b"minemore"
    sealed.free()


def test_revoked_memory_stays_while_a_view_lives(daemon: Daemon) -> None:
    client = daemon.connect()
    memory = client.allocate(MIB)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 7
    vramctl(daemon, "session", "end", str(client.session_id))
    with pytest.raises(vramd.SessionLost):
        client.list()
    assert (array == 7).all(), "nobody pulls memory from under an array"
    array[:] = 8
    assert array.sum(dtype=np.int64) == 8 * MIB
    del array
    eventually("then it goes", lambda: not memory.is_mapped)


def test_ended_session_loses_memory_with_only_a_handle_pin(daemon: Daemon) -> None:
    client = daemon.connect()
    memory = client.allocate(MIB)
    vramctl(daemon, "session", "end", str(client.session_id))
    eventually("it is unmapped", lambda: not memory.is_mapped)
    for use in (lambda: memory.copy_to(0, 1), lambda: memoryview(memory), lambda: memory.pin()):
        with pytest.raises(vramd.Error) as gone:
            use()
        assert isinstance(gone.value, (vramd.NotMapped, vramd.SessionLost)), repr(gone.value)


def test_revoked_memory_returns_at_the_next_access(client: vramd.Client, daemon: Daemon) -> None:
    memory = client.allocate("8MiB", part_size="2MiB")
    memory.copy_from(b"the same bytes", 3 * MIB)
    view = memoryview(memory)
    memory.unpin()
    assert "PINNED" in revoke(daemon, memory), "who looks keeps"
    assert bytes(view[3 * MIB : 3 * MIB + 14]) == b"the same bytes"
    view.release()
    assert "REVOKED" in revoke(daemon, memory)
    eventually("it is unmapped", lambda: not memory.is_mapped)
    assert memory.copy_to(3 * MIB, 14) == b"the same bytes", "a copy brings it back"
    assert "REVOKED" in revoke(daemon, memory)
    array = np.from_dlpack(memory)
    assert array.ctypes.data == memory.device_ptr and array[3 * MIB : 3 * MIB + 14].tobytes() == b"the same bytes"
    assert "PINNED" in revoke(daemon, memory)


def test_threads_pin_the_same_memory(client: vramd.Client) -> None:
    memory = client.allocate("32MiB", part_size="2MiB")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(300):
                with memory.pin(write=number % 2 == 0) as pin:
                    assert pin.device_ptr == memory.device_ptr
                if number % 50 == 0:
                    memory.unpin()
                    memory.repin()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    memory.free()


def test_unpinned_memory_arrives_when_it_is_used(client: vramd.Client) -> None:
    memory = client.allocate(3 * MIB, part_size="2MiB", unpinned=True)
    assert not memory.has_handle_pin
    memory.copy_from(b"kept", 2 * MIB)
    assert memory.copy_to(2 * MIB, 4) == b"kept"
    with memory.pin(write=True) as pin:
        assert pin.device_ptr == memory.device_ptr != 0
    assert memory.__dlpack_device__() == (1, 0)
    numbers = np.frombuffer(memory, dtype=np.uint8)
    assert bytes(numbers[2 * MIB : 2 * MIB + 4]) == b"kept"
    del numbers
    memory.repin()
    assert memory.has_handle_pin and memory.is_mapped
    memory.free()
    # A program that asks for the address has the memory fetched, in any state.
    other = client.allocate(MIB, unpinned=True)
    assert other.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(other.tensor()).sum() == 0
    sealed = client.allocate(MIB, unpinned=True).seal()
    assert sealed.copy_to(0, 1) == b"\0"
    sealed.free()


def test_unpinned_attach_arrives_when_it_is_used(daemon: Daemon, client: vramd.Client) -> None:
    weights = client.allocate(MIB, name="unpinned-weights", lifetime="persistent")
    weights.copy_from(b"kept")
    sealed = weights.seal()
    with daemon.connect("reader") as reader:
        attached = reader.attach("unpinned-weights", unpinned=True)
        assert (attached.has_handle_pin, attached.is_mapped, attached.device_ptr) == (False, False, 0)
        assert attached.copy_to(0, 4) == b"kept"
        attached.repin()
        assert attached.is_mapped and bytes(memoryview(attached)[:4]) == b"kept"
        attached.detach()
    sealed.free()


def test_operator_cancels_a_wait_for_room(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="4MiB", more='[memory]\nhost_size = "8MiB"\n')
    with daemon.connect("test") as client:
        memory = client.allocate("4MiB")
        memory.copy_from(b"kept")
        memory.unpin()
        told = json.loads(vramctl(daemon, "alloc", "evict", f"a-{memory.id}", "--json"))
        assert told["parts"][0]["outcome"] == "moved"

        def room() -> bool:
            told = json.loads(vramctl(daemon, "device", "list", "--json"))
            return bool(told["devices"][0]["held_bytes"] == 0)

        eventually("the device is empty", room)
        other = client.allocate("4MiB")
        refused: list[vramd.WaitCancelled] = []

        def pin() -> None:
            with pytest.raises(vramd.WaitCancelled) as error:
                memory.pin()
            refused.append(error.value)

        pinner = threading.Thread(target=pin)
        pinner.start()

        def waits() -> list[dict[str, object]]:
            listed: list[dict[str, object]] = json.loads(vramctl(daemon, "wait", "list", "--json"))["waits"]
            return listed

        eventually("it waits", lambda: len(waits()) == 1)
        number = waits()[0]["wait_id"]
        vramctl(daemon, "wait", "cancel", str(number))
        pinner.join(timeout=60)
        assert [error.wait for error in refused] == [number]
        other.free()
        assert memory.copy_to(0, 4) == b"kept"
        memory.free()


def test_pin_waits_as_long_as_requested(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="4MiB", more='[memory]\nhost_size = "8MiB"\n')
    with daemon.connect("test") as client:
        away = client.allocate("4MiB", unpinned=True)
        other = client.allocate("4MiB", wait=60.0)
        assert not away.is_mapped
        for wait in (0.0, 0.05):
            with pytest.raises(vramd.Deadline):
                away.pin(wait=wait)
            with pytest.raises(vramd.Deadline):
                client.pin_set([away], wait=wait)
        with pytest.raises(ValueError):
            away.pin(wait=-1.0)
        with pytest.raises(ValueError):
            client.pin_set([away], wait=float("nan"))
        assert json.loads(vramctl(daemon, "wait", "list", "--json"))["waits"] == []
        other.free()
        with away.pin(wait=60.0), client.pin_set([away], wait=60.0):
            pass
        away.free()


def test_drop_count_shows_dropped_content(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="4MiB", more='[memory]\nhost_size = "2MiB"\n')
    with daemon.connect("test") as client:
        memory = client.allocate("4MiB", part_size="2MiB", discardable=True)
        memory.copy_from(b"made")
        memory.unpin()
        with memory.pin() as pin:
            assert pin.drop_count == 0

        def leaves() -> bool:
            # That a pin has ended is heard on another socket.
            told = json.loads(vramctl(daemon, "alloc", "evict", f"a-{memory.id}", "--part", "0", "--json"))
            return bool(told["parts"][0]["outcome"] == "moved")

        eventually("nobody pins it", leaves)
        pin = memory.pin(write=True)
        assert pin.drop_count == 1
        pin.release()
        with pytest.raises(vramd.HandleClosed):
            _ = pin.drop_count
        assert memory.copy_to(0, 4) == b"\0\0\0\0"
        with pytest.raises(vramd.Unsupported):
            memory.seal()
        memory.free()


@pytest.mark.parametrize("wait", [-1.0, float("nan"), float("inf")])
def test_wait_must_be_a_number_of_seconds(client: vramd.Client, wait: float) -> None:
    with pytest.raises(ValueError):
        client.allocate(MIB, wait=wait)
    with pytest.raises(vramd.InvalidArgument):
        client.allocate(MIB, wait=1e6)
    client.allocate(MIB, wait=0.5).free()


def test_memory_leaves_when_its_owner_evicts_it(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="16MiB", more='[memory]\nhost_size = "16MiB"\n')
    client = daemon.connect("owner")
    memory = client.allocate(4 * MIB)
    memory.copy_from(b"kept")
    address = memory.device_ptr
    with pytest.raises(vramd.Pinned):
        memory.evict()
    memory.unpin()
    with memory.pin(), pytest.raises(vramd.Pinned):
        memory.evict()
    memory.evict()

    def used() -> int:
        return sum(place.used - place.cached for place in client.quota() if place.tier == "device")

    eventually("the room is free", lambda: used() == 0)
    assert (memory.copy_to(0, 4), memory.device_ptr) == (b"kept", address)
    with pytest.raises(ValueError, match="tier is `device`, `host` or `disk`, not `moon`"):
        memory.evict("moon")  # type: ignore[arg-type]
    with pytest.raises(vramd.Error, match="is the device"):
        memory.evict("device")  # type: ignore[arg-type]
    sealed = memory.seal()
    sealed.unpin()
    sealed.evict()
    reader = daemon.connect("reader").attach(sealed.id)
    with pytest.raises(vramd.Error, match="own"):
        reader.evict()
    assert reader.copy_to(0, 4) == b"kept"
