#!/usr/bin/env python3
"""One of several PyTorch processes that share a sealed model: `torch_model.py write|read GPU-UUID BYTES`.

The Python package is found by PYTHONPATH, the daemon by VRAMD_SOCKET_DIR. After each stage one line of JSON says what was
seen, and the next one begins when a line comes in. Ends with status 1 if something is not as it should be. Where it cannot be
tried (no PyTorch, no GPU for it, an old Python) it says `absent` and why.
"""

import json
import sys

ROLE, UUID, SIZE = sys.argv[1], sys.argv[2], int(sys.argv[3])
COLUMNS = 1024
MODULUS = 4093


def main():
    if sys.version_info < (3, 11):
        return tell(absent=f"the package needs Python 3.11, and this is {sys.version.split()[0]}")
    try:
        import torch
    except ImportError as error:
        return tell(absent=str(error))
    if not torch.cuda.is_available():
        return tell(absent=f"PyTorch {torch.__version__} has no GPU")
    import vramd

    rows = SIZE // (4 * COLUMNS)
    client = vramd.connect(f"torch {ROLE}", devices=[UUID])
    if ROLE == "write":
        write(torch, vramd, client, SIZE, rows)
    else:
        read(torch, vramd, client, rows)
    client.close()
    tell(stage="ended", torch=torch.__version__, python=sys.version.split()[0])


def write(torch, vramd, client, size, rows):
    def fill(tensor):
        check(tensor.data_ptr() == memory.device_ptr, "the tensor is the memory and no copy of it")
        check(tensor.shape == (rows, COLUMNS) and tensor.is_contiguous(), "it has the shape asked for")
        check(int(tensor.count_nonzero()) == 0, "fresh memory is zero")
        tensor.copy_(numbers(torch, rows, tensor.device))
        pins = 0
        try:
            memory.seal()
        except vramd.Pinned as error:
            # Not the error itself: its traceback would keep this frame, and so the tensor.
            pins = error.pins
        check(pins == 1, "it is not sealed under a tensor that lives")

    memory = client.allocate(size, name="model", lifetime="persistent")
    tensor = torch.from_dlpack(memory.tensor((rows, COLUMNS), torch.float32))
    fill(tensor)
    torch.cuda.synchronize()
    del tensor
    model = memory.seal()
    tell(stage="sealed", id=model.id, digest=model.digest, address=model.device_ptr)
    model.detach()


def read(torch, vramd, client, rows):
    model = client.attach("model")
    before = torch.cuda.memory_allocated()
    tensor = torch.from_dlpack(model.tensor((rows, COLUMNS), "float32"))
    check(torch.cuda.memory_allocated() == before, "PyTorch takes no memory for it")
    check(tensor.data_ptr() == model.device_ptr, "the tensor is the memory and no copy of it")
    expected = numbers(torch, rows, tensor.device)
    check(torch.equal(tensor, expected), "the bytes are those that the writer wrote")
    product = tensor[:COLUMNS] @ torch.eye(COLUMNS, device=tensor.device)
    check(torch.equal(product, expected[:COLUMNS]), "PyTorch multiplies with it")
    # Another look at the same bytes, in another type.
    halves = torch.from_dlpack(model.tensor((rows, COLUMNS * 2), torch.bfloat16))
    check(halves.dtype == torch.bfloat16, "bfloat16 passes")
    check(torch.equal(halves.view(torch.float32), expected), "and is the same bytes")
    pins = 0
    try:
        model.detach()
    except vramd.Pinned as error:
        pins = error.pins
    check(pins == 2, "it is kept while tensors live")
    tell(stage="mapped", digest=model.digest, address=model.device_ptr, sum=float(expected.sum(dtype=torch.float64)))
    check(torch.equal(tensor, expected), "the bytes are the same while others come and go")
    torch.cuda.synchronize()
    del tensor, halves, product, expected
    model.detach()


def numbers(torch, rows, device):
    """Returns the weights of the model, each of which a float32 represents exactly."""
    flat = torch.arange(rows * COLUMNS, dtype=torch.int64, device=device).remainder_(MODULUS)
    return flat.to(torch.float32).reshape(rows, COLUMNS)


def check(good, what):
    if not good:
        sys.exit(f"torch_model.py: it is not so that {what}")


def tell(**seen):
    print(json.dumps(seen), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
