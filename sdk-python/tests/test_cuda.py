"""Device memory, over a CUDA driver without a GPU: what is handed to libraries that have kernels.

The driver's own allocations are memory of the process here, so that a test can look where the pointers point to.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

import pytest
from conftest import TARGET, Daemon

MIB = 1 << 20

LOOK = """
import ctypes, vramd

class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("kind", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]

class Versioned(ctypes.Structure):
    pass

Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Versioned))
Versioned._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", Deleter),
    ("flags", ctypes.c_uint64), ("tensor", Tensor),
]

def take(capsule):
    "Consumes a capsule as a library does."
    name = b"dltensor_versioned"
    get, rename = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_SetName
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    managed = ctypes.cast(get(capsule, name), ctypes.POINTER(Versioned))
    used = b"used_" + name
    take.names.append(used)
    rename(capsule, used)
    return managed
take.names = []

def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{call} was to be refused")

client = vramd.connect()
memory = client.allocate("4MiB", name="model")
assert memory.is_device_memory
assert memory.__dlpack_device__() == (2, ORDINAL), memory.__dlpack_device__()
memory.copy_from(b"hello", 5)
assert memory.copy_to(5, 5) == b"hello"
with memoryview(memory.staging_buffer(4096)) as staged:
    staged[:5] = b"HELLO"
    assert staged.obj.is_page_locked and "page-locked" in repr(staged.obj)
    memory.copy_from(staged, 8192)
assert memory.copy_to(8192, 5) == b"HELLO"
# As long as anything refers to its bytes they are locked, and no longer.
del staged
away = client.allocate("2MiB", unpinned=True)
assert not away.staging_buffer(4096).is_page_locked, "its device is not known"
away.free()
assert isinstance(refused(BufferError, lambda: memoryview(memory)), vramd.DeviceMemory)

tensor = memory.tensor((2, 3), "bfloat16", offset=16)
assert refused(AttributeError, lambda: tensor.__cuda_array_interface__)
refused(vramd.DeviceMemory, lambda: memoryview(memory.tensor()))
managed = take(tensor.__dlpack__(stream=1, max_version=(1, 1)))
about = managed.contents.tensor
assert (managed.contents.major, managed.contents.flags) == (1, 0)
assert (about.data, about.kind, about.number) == (memory.device_ptr + 16, 2, ORDINAL)
assert (about.ndim, about.code, about.bits, about.lanes, about.byte_offset) == (2, 4, 16, 1, 0)
assert (list(about.shape[:2]), list(about.strides[:2])) == ([2, 3], [3, 1])
del tensor
assert refused(vramd.Pinned, memory.seal).pins == 1
managed.contents.deleter(managed)

pin = memory.pin(write=True)
pin.unpin_after(1, 2)
assert pin.is_released

floats = memory.tensor((4,), "float32")
assert floats.__cuda_array_interface__ == {
    "shape": (4,), "typestr": "<f4", "data": (memory.device_ptr, False), "strides": None, "stream": None, "version": 3,
}
refused(BufferError, lambda: floats.__dlpack__(stream=0))
refused(BufferError, lambda: floats.__dlpack__(dl_device=(1, 0)))
refused(vramd.Pinned, memory.free)
del floats

sealed = memory.seal()
assert sealed.copy_to(5, 5) == b"hello"
refused(BufferError, lambda: sealed.__dlpack__(stream=1))
managed = take(sealed.__dlpack__(stream=1, max_version=(1, 0)))
assert managed.contents.flags == 1, "read-only"
assert managed.contents.tensor.shape[0] == 4 << 20
assert sealed.tensor().__cuda_array_interface__["data"] == (sealed.device_ptr, True)

import threading
del memory, client
kept = sealed
del sealed
refused(vramd.Pinned, kept.detach)
letting_go = threading.Thread(target=lambda: managed.contents.deleter(managed))
letting_go.start()
letting_go.join()
kept.detach()
print("done")
"""


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A driver library with two devices."""
    library = tmp_path / "libcuda.so.1"
    shutil.copy(TARGET / "debug" / "libfake_cuda.so", library)
    (tmp_path / "libcuda.so.1.script").write_text(f"node = python-{os.getpid()}-{tmp_path.name}\ndevices = 2\n")
    yield library


@pytest.mark.parametrize("device", [0, 1])
def test_libraries_get_device_memory(
    start: Callable[..., Daemon], fake: pathlib.Path, monkeypatch: pytest.MonkeyPatch, device: int
) -> None:
    daemon = start(
        driver=f'kind = "cuda"\n[driver.cuda]\nlibrary = "{fake}"\nnvml_library = "{fake}"\n',
        more='[memory]\nmargin = "0"\nsessions_reserved = 0\n',
    )
    monkeypatch.setenv("VRAMD_LIBCUDA", str(fake))
    source = LOOK.replace("ORDINAL", str(device)).replace('name="model"', f'name="model", device="{device}"')
    assert daemon.run(source) == "done\n"
