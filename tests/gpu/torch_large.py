#!/usr/bin/env python3
"""One checkpoint of 10 GiB, read from its disk and attached: `torch_large.py PROGRAMS --json FILE [--quick] [--directory DISK]`.

- `load_disk`: the speed of `vramd.load` of a file that the page cache has nothing of, of that of plain direct reads.
- `attach_ms`: how long a warm second process takes until it has the named tensors of the loaded checkpoint.

PROGRAMS is the folder of `vramd` and `vramctl`. Without DISK the file lies where the machine keeps temporary files.
"""

import argparse
import hashlib
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from torch_weights import GIB, MIB, Daemon, timed

TENSOR = 256 * MIB
PIECE = 16 * MIB
READERS = 8
ROUNDS = 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", help="on the disk to read from")
    parser.add_argument("--attach", type=pathlib.Path, help="the part of a second process: attach this checkpoint")
    wanted = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"absent: {error}")
        return
    if not torch.cuda.is_available():
        print(f"absent: PyTorch {torch.__version__} has no GPU")
        return
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import vramd
    import vramd.torch

    torch.cuda.init()
    if wanted.attach:
        print(json.dumps(attach(torch, vramd, wanted.attach)))
        return
    directory = wanted.directory or os.environ.get("VRAMD_TESTS_HOME", "/tmp")
    with tempfile.TemporaryDirectory(prefix="vramd-large-", dir=directory) as home:
        report = run(torch, vramd, wanted, pathlib.Path(home))
    print(json.dumps(report, indent=2))
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(not report["ok"])


def run(torch, vramd, wanted, home):
    file = home / "large.safetensors"
    digests = write(file, (2 if wanted.quick else 10) * GIB // TENSOR)
    report = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "bytes": file.stat().st_size}
    with Daemon(wanted.programs, home) as daemon:
        os.environ["VRAMD_SOCKET_DIR"] = daemon.environment["VRAMD_SOCKET_DIR"]
        client = vramd.connect("first")
        daemon.await_pinned()
        plain, ours, same = [], [], True
        for number in range(ROUNDS):
            forget(file)
            plain.append(read_directly(file))
            forget(file)
            weights, seconds = timed(torch, lambda: vramd.load(file, name="large", client=client))
            ours.append(seconds)
            same = same and [digest(tensor) for tensor in weights.tensors().values()] == digests
            if number < ROUNDS - 1:
                weights.free()
        report["load_s"], report["direct_reads_s"] = ours, plain
        report["load_disk"] = statistics.median(plain) / statistics.median(ours)
        report["disk_gib_s"] = report["bytes"] / GIB / statistics.median(plain)
        command = [sys.executable, __file__, wanted.programs, "--attach", file]
        done = subprocess.run(command, env=daemon.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        # The first call of a process also connects and makes a context.
        report["attach_ms"] = statistics.median(found["ms"][1:])
        report["attach"] = {"ms": found["ms"], "device_bytes": found["device_bytes"], "same": found["digests"] == digests}
        client.close()
    report["ok"] = same and report["attach"]["same"]
    return report


def write(file, count):
    """A safetensors file of random tensors, on its disk and not only in the page cache. Returns the tensors' digests."""
    header = {
        f"layer.{number:03}": {"dtype": "U8", "shape": [TENSOR], "data_offsets": [number * TENSOR, (number + 1) * TENSOR]}
        for number in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 4096)
    block, digests = bytearray(os.urandom(TENSOR)), []
    with open(file, "wb", buffering=0) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for number in range(count):
            # All differ, at both ends.
            block[:8] = block[-8:] = number.to_bytes(8, "little")
            digests.append(short_digest(block[:4096] + block[-4096:]))
            view = memoryview(block)
            while view:
                view = view[out.write(view) :]
        os.fsync(out.fileno())
    return digests


def digest(tensor):
    both = [tensor[:4096].cpu().numpy().tobytes(), tensor[-4096:].cpu().numpy().tobytes()]
    return short_digest(b"".join(both))


def short_digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


def forget(file):
    """Has the page cache drop the file."""
    with open(file, "rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_directly(file):
    """Seconds for the whole file around the page cache, by several threads into buffers that they keep."""
    size = file.stat().st_size
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    buffers = [mmap.mmap(-1, PIECE) for _ in range(READERS)]

    def reader(number):
        for start in range(number * PIECE, size, READERS * PIECE):
            os.preadv(descriptor, [buffers[number]], start)

    try:
        begin = time.perf_counter()
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(reader, range(READERS)))
        return time.perf_counter() - begin
    finally:
        os.close(descriptor)


def attach(torch, vramd, file):
    torch.empty(1, device="cuda")
    client = vramd.connect("second")
    free, times = torch.cuda.mem_get_info()[0], []
    for number in range(5):
        def call():
            weights = vramd.load(file, name="large", client=client)
            return weights, weights.tensors()

        (weights, tensors), seconds = timed(torch, call)
        times.append(seconds * 1000)
        if number < 4:
            del tensors
            weights.detach()
    beyond = free - torch.cuda.mem_get_info()[0]
    return {"ms": times, "device_bytes": beyond, "digests": [digest(tensor) for tensor in tensors.values()]}


if __name__ == "__main__":
    main()
