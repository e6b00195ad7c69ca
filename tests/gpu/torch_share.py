#!/usr/bin/env python3
"""PyTorch and the SDK in one process: `torch_share.py LIBRARY GPU-UUID BYTES`.

The SDK is `libtorch_share.so` (sdk-rust/examples/torch_share). After each stage the program
prints its observations as one line of JSON. The next stage begins when a line comes in, so that the parent can look from outside
meanwhile. Ends with status 1 on a failure. If PyTorch cannot be imported, or has no GPU, it says `absent` and why.
"""

import ctypes
import json
import sys

LIBRARY, UUID, SIZE = sys.argv[1], sys.argv[2], int(sys.argv[3])
WORDS = SIZE // 4
MODULUS = 1_000_003


def main():
    try:
        import torch
    except ImportError as error:
        return tell(absent=str(error))
    if not torch.cuda.is_available():
        return tell(absent=f"PyTorch {torch.__version__} has no GPU")
    device = device_of(torch, UUID)
    torch.cuda.set_device(device)
    works(torch, device)
    before = current()
    check(before, "PyTorch leaves its context current")
    tell(stage="torch", torch=torch.__version__, cuda=torch.version.cuda, context=before)

    share = library()
    check(share.share_open(UUID.encode()) == 0, "a session opens")
    check(current() == before, "the context is the same once a session is open")
    address = share.share_allocate(SIZE)
    check(address, "memory is mapped")
    check(current() == before, "the context is the same once memory is mapped")
    shared = torch.as_tensor(Memory(address), device=f"cuda:{device}")
    check(shared.data_ptr() == address, "the tensor is the memory and no copy of it")
    check(int(shared.count_nonzero()) == 0, "fresh memory is zero")
    torch.arange(WORDS, dtype=torch.int32, device=shared.device, out=shared)
    shared.mul_(3).remainder_(MODULUS)
    expected = torch.arange(WORDS, dtype=torch.int64).mul_(3).remainder_(MODULUS)
    check(shared.data_ptr() == address, "and still is")
    check(int(shared.sum(dtype=torch.int64)) == int(expected.sum()), "a sum on the GPU is that of the CPU")
    check(torch.equal(shared.cpu().to(torch.int64), expected), "PyTorch reads back what it wrote")
    copied = torch.frombuffer(read(share, SIZE), dtype=torch.int32)
    check(torch.equal(copied.to(torch.int64), expected), "and so does the SDK")
    check(current() == before, "the context is the same after copies")
    works(torch, device)
    tell(stage="mapped", bytes=SIZE, address=address, same_context=True, sum=int(expected.sum()))

    del shared
    torch.cuda.synchronize()
    check(share.share_close() == 0, "memory is freed and the session ends")
    check(current() == before, "the context is the same once all is freed")
    works(torch, device)
    tell(stage="freed")


class Memory:
    """An address of the device, as other libraries hand theirs to PyTorch."""

    def __init__(self, address):
        self.__cuda_array_interface__ = {
            "shape": (WORDS,), "typestr": "<i4", "data": (address, False), "strides": None, "version": 3,
        }


def works(torch, device):
    """PyTorch's own memory, kernels and libraries."""
    one = torch.eye(256, device=f"cuda:{device}")
    check(torch.equal(one @ (one * 7), one * 7), "PyTorch multiplies")


def device_of(torch, uuid):
    """PyTorch's number for it."""
    bare = uuid.removeprefix("GPU-")
    for number in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(number).uuid) == bare:
            return number
    sys.exit(f"PyTorch does not see {uuid}")


def library():
    share = ctypes.CDLL(LIBRARY)
    share.share_open.argtypes = [ctypes.c_char_p]
    share.share_allocate.argtypes, share.share_allocate.restype = [ctypes.c_uint64], ctypes.c_uint64
    share.share_read.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
    return share


def read(share, size):
    buffer = bytearray(size)
    to = (ctypes.c_char * size).from_buffer(buffer)
    check(share.share_read(0, to, size) == 0, "the SDK copies")
    return buffer


def current():
    """The context that is current in this thread."""
    context = ctypes.c_void_p()
    check(ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0, "a context can be asked for")
    return context.value


def check(good, what):
    if not good:
        sys.exit(f"torch_share.py: it is not so that {what}")


def tell(**seen):
    print(json.dumps(seen), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
