"""Pins of some parts, and of several allocations together."""

from __future__ import annotations

import ctypes
import gc
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
from conftest import MIB, Daemon

import vramd

PART = 2 * MIB


def fill(pin: vramd.Pin, byte: int) -> None:
    """Writes as a kernel would, by the address alone."""
    ctypes.memset(pin.device_ptr, byte, pin.size)


def test_parts_are_pinned_by_their_numbers(client: vramd.Client) -> None:
    memory = client.allocate(7 * MIB, part_size="2MiB")
    assert memory.part_count == 4
    with memory.pin(parts=range(1, 3), write=True) as pin:
        assert (pin.device_ptr, pin.size, pin.parts) == (memory.device_ptr + PART, 2 * PART, range(1, 3))
        fill(pin, 7)
    assert memory.copy_to(PART - 1, 2 * PART + 2) == b"\0" + b"\7" * 2 * PART + b"\0"
    with memory.pin(parts=range(3, 4)) as last, memory.pin() as whole:
        assert (last.size, last.write) == (MIB, False), "of what was asked for"
        assert (whole.parts, whole.size, whole.device_ptr) == (range(0, 4), 7 * MIB, memory.device_ptr)
    with pytest.raises(vramd.HandleClosed):
        _ = pin.parts
    memory.free()


@pytest.mark.parametrize(
    "parts", [range(0), range(2, 1), range(3, 5), range(4, 5), range(0, 4, 2), range(3, -1, -1), range(-1, 2), range(2**40)]
)
def test_invalid_range_of_parts_is_refused(client: vramd.Client, parts: range) -> None:
    memory = client.allocate("8MiB", part_size="2MiB")
    with pytest.raises(vramd.InvalidArgument) as refused:
        memory.pin(parts=parts)
    assert (refused.value.reason, refused.value.metadata["field"]) == ("REQUEST_INVALID", "parts")
    with pytest.raises(TypeError):
        memory.pin(parts=(0, 1))  # type: ignore[arg-type]
    memory.free()


def test_allocation_larger_than_its_device_is_used_by_parts(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="16MiB", more='[memory]\nhost_size = "64MiB"\n')
    with daemon.connect("test") as client:
        memory = client.allocate("40MiB", part_size="2MiB", unpinned=True)
        assert memory.part_count == 20 and not memory.is_mapped
        for first in range(0, 20, 2):
            with memory.pin(parts=range(first, first + 2), write=True) as pin:
                fill(pin, first + 1)
        for first in range(18, -1, -2):
            with memory.pin(parts=range(first, first + 2)) as pin:
                assert pin.device_ptr == memory.device_ptr + first * PART
                assert ctypes.string_at(pin.device_ptr, pin.size) == bytes([first + 1]) * 2 * PART
        for use in (memory.pin, memory.tensor, lambda: client.pin_set([memory])):
            with pytest.raises(vramd.DeviceFull) as refused:
                use()
            assert (refused.value.tier, refused.value.asked) == ("device", 40 * MIB), "at once, and not after a wait"
        with pytest.raises(vramd.DeviceFull):
            memory.repin()
        assert not memory.has_handle_pin
        # As many as fit, of either end.
        with memory.pin(parts=range(0, 4)) as low, memory.pin(parts=range(16, 20)) as high:
            assert low.size + high.size == 16 * MIB
        memory.free()


def test_set_is_pinned_together(client: vramd.Client) -> None:
    weights, cache = client.allocate("4MiB", part_size="2MiB"), client.allocate(MIB)
    for memory in (weights, cache):
        memory.unpin()
    with client.pin_set([weights], write=[cache]) as pinned:
        reading, writing = pinned.pins
        assert (reading.write, writing.write) == (False, True)
        assert (reading.parts, reading.size, writing.size) == (range(0, 2), 4 * MIB, MIB)
        assert (reading.device_ptr, writing.device_ptr) == (weights.device_ptr, cache.device_ptr)
        assert "2" in repr(pinned)
        writing.release()
        assert not reading.is_released, "each for itself"
        with pytest.raises(vramd.Unsupported):
            pinned.unpin_after(1)
        with pytest.raises(vramd.Pinned):
            weights.free()
        cache.free()
        with pytest.raises(TypeError):
            pickle.dumps(pinned)
    assert reading.is_released
    pinned.release()
    pinned.unpin_after(1)
    with pytest.raises(vramd.HandleClosed):
        client.pin_set([weights], write=[cache])
    weights.free()
    assert client.pin_set().pins == ()


def test_refused_set_keeps_no_pin(client: vramd.Client, daemon: Daemon) -> None:
    memory, sealed = client.allocate(MIB), client.allocate(MIB, name="sealed").seal()
    with daemon.connect("other") as other:
        foreign = other.attach("sealed")
        for read, write in ([[memory, sealed, memory], []], [[memory], [memory]], [[memory, foreign], []]):
            with pytest.raises(vramd.InvalidArgument) as refused:
                client.pin_set(read, write=write)
            assert refused.value.metadata["field"] == "set"
        with pytest.raises(vramd.AlreadySealed):
            client.pin_set([memory], write=[sealed])
        foreign.detach()
    memory.free()
    sealed.free()


def test_nested_pins_stall_and_sets_do_not(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="4MiB", more='[memory]\nhost_size = "16MiB"\n[limits]\npin_stall_ms = 2000\n')
    with daemon.connect("test") as client:
        one, two = (client.allocate("3MiB", part_size="2MiB", unpinned=True) for _ in range(2))
        with one.pin():
            with pytest.raises(vramd.PinStalled) as stalled:
                two.pin()
        assert stalled.value.reason == "PIN_STALLED" and isinstance(stalled.value, vramd.Aborted)
        two.pin().release()
        with pytest.raises(vramd.DeviceFull):
            client.pin_set([one, two])
        one.free()
        two.free()


def test_threads_pin_sets_in_any_order(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="8MiB", more='[memory]\nhost_size = "32MiB"\n')
    with daemon.connect("test") as client:
        memories = [client.allocate("2MiB", unpinned=True) for _ in range(6)]
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for turn in range(60):
                    one, two = memories[(seed + turn) % 6], memories[(seed * 5 + turn * 3 + 1) % 6]
                    if one is two:
                        continue
                    with client.pin_set([one], write=[two]) as pinned:
                        assert [pin.device_ptr for pin in pinned.pins] == [one.device_ptr, two.device_ptr]
                    # Wants the handle for itself.
                    one.unpin()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not failures
        for memory in memories:
            memory.free()


def test_pin_of_more_parts_than_one_call_may_name_succeeds(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="4GiB")
    with daemon.connect("test") as client:
        memory = client.allocate(1025 * PART, part_size=PART, unpinned=True)
        with memory.pin() as pin:
            assert (pin.parts, pin.size, pin.device_ptr) == (range(0, 1025), 1025 * PART, memory.device_ptr)
        with pytest.raises(vramd.InvalidArgument) as refused:
            client.pin_set([memory])
        assert refused.value.reason == "BATCH_TOO_LARGE"
        memory.free()


def test_one_pinned_part_is_viewed(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="16MiB", more='[memory]\nhost_size = "64MiB"\n')
    with daemon.connect("test") as client:
        memory = client.allocate("40MiB", part_size="2MiB", unpinned=True)
        with memory.pin(parts=range(3, 5), write=True) as pin:
            tensor = pin.tensor((2, 256), "float32", offset=PART)
            assert (tensor.device_ptr, tensor.readonly) == (pin.device_ptr + PART, False)
            np.asarray(tensor)[:] = 2.5
            with memoryview(pin) as view:
                assert (len(view), len(pin), view.readonly) == (2 * PART, 2 * PART, False)
                view[0] = 7
            with pytest.raises(ValueError, match="exceeds"):
                pin.tensor(2 * PART + 1)
        with memory.pin(parts=range(3, 4)) as pin:
            assert pin.tensor().readonly and memoryview(pin).readonly, "pinned to read"
            assert bytes(memoryview(pin)[:2]) == b"\7\0"
            with pytest.raises(BufferError):
                pin.tensor().__dlpack__()
        with pytest.raises(vramd.HandleClosed):
            memoryview(pin)
        with pytest.raises(vramd.HandleClosed):
            pin.tensor()
        assert list(np.asarray(tensor)[1, :2]) == [2.5, 2.5], "the tensor keeps its part"
        with pytest.raises(vramd.Pinned):
            memory.free()
        del tensor, pin
        gc.collect()
        memory.free()


def test_tensor_pins_only_its_parts(start: Callable[..., Daemon]) -> None:
    daemon = start(memory="16MiB", more='[memory]\nhost_size = "64MiB"\n')
    with daemon.connect("test") as client:
        memory = client.allocate("40MiB", part_size="2MiB", unpinned=True)
        for number in range(10):
            # Larger than the device in all, and each fits on it.
            array = np.asarray(memory.tensor(2 * PART // 8, "int64", offset=number * 2 * PART))
            array[:] = number
            del array
        for number in range(10):
            numbers = np.from_dlpack(memory.tensor(1000, "int64", offset=number * 2 * PART + PART - 80))
            assert set(numbers) == {number}
            del numbers
        empty = memory.tensor(0, offset=40 * MIB)
        assert empty.nbytes == 0
        del empty
        memory.free()
