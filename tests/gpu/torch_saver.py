#!/usr/bin/env python3
"""Tensors that `torch_memory_saver` pauses and resumes: `torch_saver.py TENSORS BYTES KEPT`.

The package is found by PYTHONPATH. With KEPT 1 its buffers of the host are kept between rounds. A line says what is used, or
`absent` and why. For each line that comes in there is a round (new random content, a pause, a resume, a look at the content) and
one line with what both took. Ends with status 1 if a byte has changed.
"""

import json
import os
import sys
import time

TENSORS, BYTES, KEPT = (int(word) for word in sys.argv[1:4])


def main():
    try:
        import torch
        import torch_memory_saver as package
    except ImportError as error:
        return tell(absent=str(error))
    if not torch.cuda.is_available():
        return tell(absent=f"PyTorch {torch.__version__} has no GPU")
    saver = package.torch_memory_saver
    saver.hook_mode = "torch"
    saver.retain_cpu_backup = bool(KEPT)
    with saver.region(enable_cpu_backup=True):
        tensors = [torch.empty(BYTES // 8, dtype=torch.int64, device="cuda") for _ in range(TENSORS)]
    tell(torch=torch.__version__, tensors=TENSORS, bytes=BYTES)
    for number, _ in enumerate(sys.stdin):
        torch.manual_seed(number)
        for tensor in tensors:
            tensor.random_()
        sums = [int(tensor.sum()) for tensor in tensors]
        paused = timed(torch, saver.pause)
        resumed = timed(torch, saver.resume)
        if [int(tensor.sum()) for tensor in tensors] != sums:
            sys.exit("the content has changed")
        tell(paused_s=paused, resumed_s=resumed)


def timed(torch, call):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def tell(**facts):
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
    # At the interpreter's end the package aborts, though all it was asked for is done.
    sys.stdout.flush()
    os._exit(0)
