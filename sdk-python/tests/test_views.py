"""Buffers, tensors and capsules: what looks at memory keeps it, whatever becomes of the rest."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from conftest import MIB, Daemon, eventually

import vramd


def test_numpy_writes_in_place(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    numbers = np.frombuffer(memory, dtype=np.float32)
    assert numbers.size == MIB // 4 and numbers.flags.writeable and not numbers.any()
    assert numbers.ctypes.data == memory.device_ptr, "no copy"
    numbers[:] = np.arange(numbers.size)
    assert memory.copy_to(4 * 1000, 4) == np.float32(1000).tobytes()
    again = np.asarray(memory)
    assert again.dtype == np.uint8 and again.shape == (MIB,)
    memory.copy_from(np.array([7.5, 8.5], np.float32), 4)
    assert list(numbers[:4]) == [0, 7.5, 8.5, 3]
    target = np.empty(4, np.float32)
    memory.copy_into(target)
    assert list(target) == [0, 7.5, 8.5, 3]


def test_staging_buffers_are_plain_memory_without_a_gpu(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    buffer = memory.staging_buffer(1000)
    assert len(buffer) == 1000 and not buffer.is_page_locked and bytes(buffer) == bytes(1000)
    with memoryview(buffer) as view:
        view[:] = bytes([7]) * 1000
        # It lives as long as a view of it.
        del buffer
        gc.collect()
        memory.copy_from(view, 24)
    assert memory.copy_to(20, 8) == bytes(4) + bytes([7]) * 4
    with pytest.raises(vramd.InvalidArgument):
        memory.staging_buffer(1 << 63)
    sealed = memory.seal()
    with pytest.raises(vramd.Error):
        memory.staging_buffer(10)
    sealed.free()


def test_sealed_memory_is_read_only(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    memory.copy_from(b"weights")
    sealed = memory.seal()
    numbers = np.frombuffer(sealed, dtype=np.uint8)
    assert bytes(numbers[:7]) == b"weights" and not numbers.flags.writeable
    view = memoryview(sealed)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(ValueError):
        numbers[0] = 1
    with pytest.raises(ValueError):
        numbers.flags.writeable = True
    with pytest.raises(TypeError):
        (ctypes.c_char * 8).from_buffer(sealed)
    with pytest.raises(BufferError):
        sealed.copy_into(sealed)


def test_views_keep_memory_from_seal_and_free(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    view = memoryview(memory)
    array = np.frombuffer(memory, dtype=np.uint8)
    for use in (memory.seal, memory.free):
        with pytest.raises(vramd.Pinned) as refused:
            use()
        assert refused.value.pins == 2 and refused.value.allocation == f"a-{memory.id}"
        assert (refused.value.reason, refused.value.code) == ("PINNED", "FAILED_PRECONDITION")
    view[0] = 9
    assert array[0] == 9, "a refusal changes nothing"
    view.release()
    with pytest.raises(vramd.Pinned):
        memory.seal()
    del array
    sealed = memory.seal()
    with memoryview(sealed) as view:
        with pytest.raises(vramd.Pinned):
            sealed.detach()
        with pytest.raises(vramd.Pinned):
            sealed.free()
        assert view[0] == 9
    sealed.free()


def test_view_outlives_object_and_client(daemon: Daemon) -> None:
    with daemon.connect() as client:
        memory = client.allocate(MIB)
        array = np.frombuffer(memory, dtype=np.uint32)
        array[:] = 0xDEADBEEF
        del memory
    del client
    gc.collect()
    assert (array == 0xDEADBEEF).all()
    with daemon.connect() as other:
        assert len(other.list()) == 1, "it is charged while somebody looks"
        del array
        eventually("the last look frees it", lambda: other.list() == [])


def test_tensors_have_shape_and_type(client: vramd.Client) -> None:
    memory = client.allocate(4096)
    tensor = memory.tensor((2, 3), "int32", offset=8)
    assert (tensor.shape, tensor.dtype, tensor.nbytes, tensor.readonly) == ((2, 3), "int32", 24, False)
    assert tensor.device_ptr == memory.device_ptr + 8
    by_buffer, by_dlpack = np.asarray(tensor), np.from_dlpack(tensor)
    assert by_buffer.dtype == by_dlpack.dtype == np.int32 and by_buffer.shape == by_dlpack.shape == (2, 3)
    by_dlpack[1, 2] = 77
    assert by_buffer[1, 2] == 77 and memory.copy_to(8 + 20, 4) == np.int32(77).tobytes()
    view = memoryview(tensor)
    assert (view.format, view.shape, view.strides, view.nbytes) == ("i", (2, 3), (12, 4), 24)
    assert memory.tensor().shape == (4096,) and memory.tensor(dtype="float64").shape == (512,)
    assert memory.tensor(7).shape == (7,) and memory.tensor((), "int8").nbytes == 1
    assert np.asarray(memory.tensor((0, 5))).shape == (0, 5)
    for dtype in (np.float16, np.dtype("float16"), "float16"):
        assert memory.tensor(dtype=dtype).dtype == "float16"
    for dtype in ("bool", "int8", "uint16", "int64", "uint64", "float64", "complex64", "complex128"):
        assert np.from_dlpack(memory.tensor(dtype=dtype)).dtype == np.dtype(dtype)
        if not dtype.startswith("complex"):
            assert np.asarray(memory.tensor(dtype=dtype)).dtype == np.dtype(dtype)
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(memory.tensor(dtype="bfloat16"))
    assert memory.tensor(dtype="bfloat16").nbytes == 4096


def test_tensors_that_do_not_fit_are_refused(client: vramd.Client) -> None:
    memory = client.allocate(4096)
    wrong: list[tuple[int | tuple[int, ...] | None, str, int]] = [
        (4097, "uint8", 0), (-1, "uint8", 0), ((2, -2), "uint8", 0), ((1 << 40, 1 << 40), "uint8", 0),
        (1, "int32", 2), (1, "uint8", 4096), (None, "uint8", 4097), ((0, 1 << 62, 1 << 62), "uint8", 0),
        (None, "int32", 4095), ((1,) * 65, "uint8", 0),
    ]  # fmt: skip
    for shape, dtype, offset in wrong:
        with pytest.raises(ValueError):
            memory.tensor(shape, dtype, offset)
    with pytest.raises(ValueError, match="whole number"):
        client.allocate(4095).tensor(dtype="int32")
    with pytest.raises(TypeError, match="no dtype"):
        memory.tensor(dtype="int4")
    assert not hasattr(memory.tensor(), "__cuda_array_interface__"), "the memory is not CUDA's"
    memory.free()


def test_dlpack_export_obeys_its_request(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    assert memory.__dlpack_device__() == (1, 0)
    unlike: list[dict[str, Any]] = [{"dl_device": (2, 0)}, {"copy": True}, {"stream": 5}]
    for more in unlike:
        with pytest.raises(BufferError):
            memory.__dlpack__(**more)
    assert "dltensor_versioned" in repr(memory.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False))
    old = memory.__dlpack__()
    assert "dltensor" in repr(old) and "versioned" not in repr(old)
    with pytest.raises(vramd.Pinned):
        memory.free()
    del old
    array = np.from_dlpack(memory)
    assert array.flags.writeable and array.ctypes.data == memory.device_ptr
    del array
    sealed = memory.seal()
    with pytest.raises(BufferError, match="read-only"):
        sealed.__dlpack__()
    array = np.from_dlpack(sealed)
    assert not array.flags.writeable
    with pytest.raises(vramd.Pinned):
        sealed.free()
    del array
    sealed.free()


def test_threads_make_and_release_views(client: vramd.Client) -> None:
    memory = client.allocate(MIB)
    failures: list[BaseException] = []

    def look() -> None:
        try:
            for _ in range(500):
                kinds = (memoryview(memory), np.from_dlpack(memory), np.asarray(memory.tensor(16, "int32")))
                assert all(len(view) for view in kinds)
                memory.copy_to(0, 100)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            memory.free()
            break
        except vramd.Pinned:
            continue
    for thread in threads:
        thread.join(60)
    assert all(isinstance(failure, vramd.HandleClosed) for failure in failures), failures


FORGETFUL = """
import numpy, vramd
client = vramd.connect()
memory = client.allocate(1 << 20)
kept = [numpy.frombuffer(memory, dtype=numpy.uint8), memoryview(memory), memory.tensor(), numpy.from_dlpack(memory)]
unused = memory.__dlpack__(max_version=(1, 0))
class Cycle: pass
cycle = Cycle(); cycle.self, cycle.all = cycle, (client, memory, kept, unused)
import threading
threading.Thread(target=lambda: memory.copy_to(), daemon=True).start()
print(client.list()[0].state)
"""


def test_interpreter_ends_with_everything_alive(daemon: Daemon) -> None:
    for _ in range(5):
        assert daemon.run(FORGETFUL) == "open\n"
    with daemon.connect() as client:
        eventually("its memory is freed", lambda: client.list() == [])


def test_import_needs_neither_daemon_nor_numpy() -> None:
    source = "import sys, vramd; print('numpy' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout == "False False\n"
