"""A typed program. It never runs; mypy checks it in strict mode."""

from __future__ import annotations

from typing import assert_type

import numpy as np

import vramd


def load(name: str, size: int | str) -> str:
    with vramd.connect("loader", socket_dir=None, devices=["GPU-0"], timeout=2.5) as client:
        assert_type(client, vramd.Client)
        assert_type(client.pressure(), vramd.Pressure)
        weights = client.allocate(size, name=name, lifetime="persistent", readers=("a", "b"), part_size="2MiB")
        assert_type(weights, vramd.Allocation)
        weights.copy_from(np.zeros(4))
        weights.copy_from(b"x", offset=4)
        sealed = weights.seal()
        assert_type(sealed, vramd.Sealed)
        look(sealed)
        for info in client.list("prefix"):
            assert_type(info, vramd.AllocationInfo)
        return sealed.digest


def look(memory: vramd.Memory) -> None:
    view = memoryview(memory)
    array = np.frombuffer(memory, dtype=np.float32)
    tensor = memory.tensor((2, 3), np.float32)
    assert_type(tensor.shape, tuple[int, ...])
    with memory.pin(write=True) as pin:
        assert_type(pin, vramd.Pin)
        pin.unpin_after(pin.device_ptr)
        assert_type(pin.drop_count, int)
    with memory.pin(parts=range(1, 2)) as pin:
        assert_type(pin.parts, range)
    memory.advise("set_accessed_by")
    memory.advise("read_mostly")  # type: ignore[arg-type]
    assert_type(memory.info.accessed_by_device, bool)
    print(view[0], array[0], np.from_dlpack(tensor), memory.copy_to(0, 4))


def together(client: vramd.Client, weights: vramd.Sealed, cache: vramd.Allocation) -> None:
    with client.pin_set([weights, cache]) as pinned:
        assert_type(pinned, vramd.PinSet)
    reading, writing = client.pin_set([weights], write=(cache,)).pins
    assert_type(writing, vramd.Pin)
    pinned.unpin_after(reading.device_ptr)


def pressed(sizes: list[int]) -> None:
    def heard(pressure: vramd.Pressure) -> None:
        assert_type(pressure.full_in, float | None)
        sizes.append(int(pressure.batch_factor * sizes[-1]))

    client = vramd.connect(on_pressure=heard)
    vramd.connect(on_pressure=3)  # type: ignore[arg-type]
    assert_type([pressure.device for pressure in client.pressures()], list[str])


def refused(client: vramd.Client) -> int | None:
    try:
        client.allocate(1, lifetime="eternal")  # type: ignore[arg-type]
        client.attach(1.5)  # type: ignore[arg-type]
        client.attach("x").pin(parts=(0, 1))  # type: ignore[arg-type]
        client.pin_set(["x"])  # type: ignore[list-item]
        client.attach("x").copy_from(b"")  # type: ignore[attr-defined]
    except vramd.QuotaExceeded as error:
        assert_type(error.tenant, str | None)
        return error.limit
    except vramd.Error as error:
        assert_type(error.metadata, dict[str, str])
    return None
