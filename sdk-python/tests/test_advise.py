"""Memory that is accessed in place: what of it lies in the host's memory is mapped there, and does not come."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from conftest import MIB, Daemon, eventually, vramctl

import vramd

PART = 2 * MIB


@pytest.fixture
def small(start: Callable[..., Daemon]) -> Daemon:
    """A device of 8 MiB, and 64 MiB of the host beside it."""
    return start(memory="8MiB", more='[memory]\nhost_size = "64MiB"\n')


def written(client: vramd.Client, **more: str) -> vramd.Allocation:
    """An allocation that is larger than the device, each part of which has its own bytes."""
    memory = client.allocate("20MiB", part_size="2MiB", unpinned=True, **more)  # type: ignore[arg-type]
    for part in range(10):
        memory.copy_from(bytes([part + 1]) * PART, offset=part * PART)
    return memory


def is_intact(memory: vramd.Memory, parts: range) -> bool:
    with memory.pin(parts=parts) as pin:
        assert pin.device_ptr == memory.device_ptr + parts.start * PART
        return ctypes.string_at(pin.device_ptr, pin.size) == b"".join(bytes([part + 1]) * PART for part in parts)


def test_memory_is_accessed_in_place(small: Daemon) -> None:
    with small.connect() as client:
        memory = written(client)

        def resident() -> int:
            return client.describe(memory.id).resident

        assert not client.describe(memory.id).accessed_by_device
        eventually("the device is full", lambda: resident() == 8 * MIB)
        memory.advise("set_accessed_by")
        memory.advise("set_accessed_by")
        assert client.describe(memory.id).accessed_by_device
        # All of it at once, though it is more than the device has: six parts lie in the host, and stay there.
        for _ in range(2):
            assert is_intact(memory, range(10))
            assert resident() == 8 * MIB
        with memory.pin(parts=range(1), write=True) as pin:
            ctypes.memset(pin.device_ptr + 5, 99, 1)
        assert memory.copy_to(4, 3) == b"\1\x63\1"
        memory.copy_from(b"\1", offset=5)

        memory.advise("unset_accessed_by")
        assert not client.describe(memory.id).accessed_by_device
        with pytest.raises(vramd.DeviceFull):
            memory.pin()
        for part in range(10):
            assert is_intact(memory, range(part, part + 1))
        memory.free()


def test_next_pin_after_unset_fetches_it(small: Daemon) -> None:
    with small.connect() as client:
        memory, other = written(client), client.allocate("8MiB", unpinned=True)
        with other.pin():
            memory.advise("set_accessed_by")
            assert client.describe(memory.id).resident == 0, "the other has the device"
            assert is_intact(memory, range(10))
            assert client.describe(memory.id).resident == 0
        memory.advise("unset_accessed_by")
        # A part that no session pins leaves again, since the device is full.
        with memory.pin(parts=range(3, 5)):
            assert is_intact(memory, range(3, 5))
            assert client.describe(memory.id).resident == 2 * PART
        memory.free()
        other.free()


def test_owner_advises_sealed_memory_for_all_readers(small: Daemon) -> None:
    with small.connect("owner") as owner, small.connect("reader") as reader:
        sealed = written(owner, name="table").seal()
        attached = reader.attach("table", unpinned=True)
        with pytest.raises(vramd.NotOwner):
            attached.advise("set_accessed_by")
        sealed.advise("set_accessed_by")
        for memory in (sealed, attached):
            assert is_intact(memory, range(10))
        assert owner.describe("table").accessed_by_device and reader.describe("table").resident <= 8 * MIB
        attached.detach()
        sealed.free()
        with pytest.raises(vramd.HandleClosed):
            sealed.advise("set_accessed_by")


def test_order_of_leaving_is_advised(small: Daemon) -> None:
    with small.connect() as client:
        memory = client.allocate("8MiB", part_size="2MiB", unpinned=True)
        memory.advise("set_class", memory_class="scratch")
        memory.advise("set_importance", importance_percent=90, parts=range(2))
        memory.advise("do_not_need", parts=range(3, 4))
        for end in ("need", "unset_importance", "unset_class"):
            memory.advise(end)
        with pytest.raises(vramd.InvalidArgument) as refused:
            memory.advise("do_not_need", parts=range(3, 5))
        assert refused.value.reason == "REQUEST_INVALID"
        with pytest.raises(vramd.InvalidArgument):
            memory.advise("set_importance", importance_percent=101)
        wrong: list[dict[str, object]] = [
            {"advice": "set_importance"},
            {"advice": "set_class", "memory_class": "kv"},
            {"advice": "need", "memory_class": "cache"},
            {},
            {"advice": "will_need"},
            {"advice": "will_need", "needed_within": float("nan")},
            {"advice": "set_location", "location": "tape"},
            {"advice": "set_pattern", "pattern": "loop", "preset": "weights"},
            {"preset": "kv"},
        ]
        for arguments in wrong:
            with pytest.raises(ValueError, match=r"importance|class|needed_within|location|preset"):
                memory.advise(**arguments)  # type: ignore[arg-type]
        memory.free()


def test_advice_that_stands_is_described(small: Daemon) -> None:
    with small.connect() as client:
        memory = client.allocate("8MiB", part_size="2MiB", unpinned=True)
        assert client.describe(memory.id).advised_parts == []
        memory.advise(preset="weights", parts=range(1, 3))
        (told,) = client.describe(memory.id).advised_parts
        assert (told.memory_class, told.read_mostly, told.location, told.pattern) == ("weights", True, None, None)
        memory.advise(preset="staging", parts=range(1, 3))
        memory.advise("will_need", needed_within=3600, parts=range(1, 3))
        (told,) = client.describe(memory.id).advised_parts
        assert isinstance(told, vramd.AdvisedParts)
        assert (told.first, told.count, told.memory_class, told.location) == (1, 2, "scratch", "host")
        assert (told.pattern, told.read_mostly, told.not_needed) == ("sequential", False, False)
        assert told.importance_percent is None
        assert told.needed_within is not None and 0 < told.needed_within <= 3600
        with pytest.raises(vramd.FailedPrecondition) as refused:
            memory.advise("set_read_mostly")
        assert refused.value.reason == "ADVICE_CONTRADICTS"
        with pytest.raises(vramd.Unsupported):
            memory.advise("set_location", location="disk")
        memory.advise(preset="kv_cache", parts=range(1, 3))
        memory.advise("do_not_need", parts=range(1, 3))
        (told,) = client.describe(memory.id).advised_parts
        assert (told.memory_class, told.location, told.pattern) == ("cache", "device", None)
        assert (told.needed_within, told.not_needed) == (None, True)
        for end in ("need", "unset_class", "unset_location", "unset_read_mostly", "unset_pattern"):
            memory.advise(end)
        assert client.describe(memory.id).advised_parts == []
        memory.free()


def test_operators_overrule_advice(small: Daemon) -> None:
    with small.connect() as client:
        memory = client.allocate("8MiB", part_size="2MiB", unpinned=True)
        memory.advise("set_importance", importance_percent=90)
        vramctl(small, "alloc", "advise", str(memory.id), "--part", "3", "--class", "scratch")
        told = client.describe(memory.id).advised_parts
        assert [(it.first, it.count, it.by_operator, it.without_effect) for it in told] == [
            (0, 3, False, False),
            (3, 1, False, True),
            (3, 1, True, False),
        ]
        tenant = client.describe(memory.id).tenant
        vramctl(small, "tenant", "set", tenant, "--advice", "forbidden")
        with pytest.raises(vramd.AdviceForbidden) as refused:
            memory.advise("do_not_need")
        assert refused.value.tenant == tenant
        memory.advise("unset_importance")
        assert [it.by_operator for it in client.describe(memory.id).advised_parts] == [True]
        memory.free()


def test_impossible_advice_is_refused(small: Daemon) -> None:
    with small.connect() as client:
        memory = client.allocate("2MiB")
        with pytest.raises(ValueError, match="`accessed_by`"):
            memory.advise("read_mostly")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            memory.advise(1)  # type: ignore[arg-type]
        scratch = client.allocate("2MiB", discardable=True)
        with pytest.raises(vramd.Unsupported) as refused:
            scratch.advise("set_accessed_by")
        assert refused.value.reason == "KIND_UNSUPPORTED"
        memory.free()
        scratch.free()
