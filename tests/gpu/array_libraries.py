#!/usr/bin/env python3
"""Memory of the daemon in each array library that is there: `array_libraries.py PROGRAMS --json FILE`.

Of CuPy, JAX, Numba and PyTorch each one reads sealed memory and, where it can, writes memory of its own, without a copy:
by DLPack, and by `__cuda_array_interface__` where the library takes that. RMM allocates through the daemon. A process for each, since each library keeps a
part of the device. PROGRAMS is the folder of `vramd` and `vramctl`.
"""

import argparse
import array
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

COUNT = 1 << 20
LIBRARIES = ("cupy", "jax", "numba", "rmm", "torch")
# The module of a library that is for GPUs, where it has one.
MODULES = {"jax": "jax.dlpack", "numba": "numba.cuda.cudaimpl"}
CONFIGURATION = '[daemon]\nsocket_dir = "{home}/run"\nstate_dir = "{home}/state"\n[driver]\nkind = "cuda"\n'


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--library", choices=LIBRARIES, help="the part of one process")
    wanted = parser.parse_args()
    bundle = pathlib.Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(bundle / "python")]
    # Behind all else: the machine's own RMM goes first.
    sys.path.append(str(bundle / "peers"))
    if wanted.library:
        print(json.dumps(tried(wanted.library)))
        return
    report = {}
    with tempfile.TemporaryDirectory(prefix="vramd-arrays-", dir=os.environ.get("VRAMD_TESTS_HOME", "/tmp")) as home:
        config = pathlib.Path(home) / "vramd.toml"
        config.write_text(CONFIGURATION.format(home=home))
        programs = wanted.programs.resolve()
        environment = {**os.environ, "VRAMD_SOCKET_DIR": f"{home}/run", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        daemon = subprocess.Popen([programs / "vramd", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while subprocess.run([programs / "vramctl", "status"], env=environment, capture_output=True).returncode != 0:
            assert daemon.poll() is None, "the daemon ended"
            time.sleep(0.02)
        for library in LIBRARIES:
            command = [sys.executable, __file__, wanted.programs, "--library", library]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
            if done.returncode == 0:
                report[library] = json.loads(done.stdout.splitlines()[-1])
            else:
                report[library] = {"failed": done.stderr[-1500:]}
        daemon.terminate()
        daemon.wait(30)
    print(json.dumps(report, indent=2))
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(any("failed" in told for told in report.values()))


def tried(library):
    if library == "numba":
        give_row_stack()
    try:
        module = importlib.import_module(library)
        importlib.import_module(MODULES.get(library, library))
    except (ImportError, AttributeError) as error:
        # Of another version of NumPy, say.
        return {"absent": f"it cannot be imported: {error}"}
    import vramd

    client = vramd.connect(library)
    numbers = array.array("f", range(COUNT))
    expected = float(sum(range(1000)))
    memory = client.allocate(4 * COUNT)
    memory.copy_from(numbers)
    sealed = memory.seal()
    scratch = client.allocate(4 * COUNT)
    scratch.copy_from(numbers)
    views = {"sealed": sealed.tensor(COUNT, "float32"), "own": scratch.tensor(COUNT, "float32")}
    ways = globals()[f"by_{library}"](module, views)
    assert scratch.copy_to(0, 4) == array.array("f", [7.0]).tobytes() or "writes" not in ways, "the write is not there"
    for way, read in ways.items():
        assert read == expected or way == "writes", (way, read)
    return {"version": module.__version__, "ways": sorted(ways)}


def give_row_stack():
    """NumPy 2.5 has no `row_stack` any more, which Numba 0.68 names while it is imported. `vstack` is the same function."""
    import numpy

    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack


def by_cupy(cupy, views):
    own = cupy.asarray(views["own"])
    ways = {
        "dlpack": float(cupy.from_dlpack(views["sealed"])[:1000].astype("float64").sum()),
        "cuda_array_interface": float(cupy.asarray(views["sealed"])[:1000].astype("float64").sum()),
    }
    own[0] = 7
    cupy.cuda.Device().synchronize()
    return {**ways, "writes": True}


def by_jax(jax, views):
    # Its arrays are immutable, so it reads alone. It speaks DLPack below 1.0, which cannot say that memory is sealed.
    return {"dlpack_of_own": float(jax.dlpack.from_dlpack(views["own"])[:1000].sum())}


def by_numba(numba, views):
    from numba import cuda

    @cuda.jit
    def total(numbers, to):
        for at in range(1000):
            to[0] += numbers[at]

    @cuda.jit
    def write(numbers):
        numbers[0] = 7

    to = cuda.to_device([0.0])
    total[1, 1](cuda.as_cuda_array(views["sealed"]), to)
    write[1, 1](cuda.as_cuda_array(views["own"]))
    cuda.synchronize()
    return {"cuda_array_interface": float(to.copy_to_host()[0]), "writes": True}


def by_rmm(rmm, views):
    import vramd.rmm

    client = vramd.connect("rmm")
    resource = vramd.rmm.resource(client)
    rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(resource, initial_pool_size=64 << 20))
    held = {info.size for info in client.list()}
    assert 64 << 20 in held, held
    buffer = rmm.DeviceBuffer.to_device(array.array("f", range(COUNT)).tobytes())
    read = sum(array.array("f", buffer.tobytes())[:1000])
    refused = False
    try:
        resource.allocate(1 << 50)
    except MemoryError:
        refused = True
    assert refused, "a petabyte fits"
    # Its pool goes with the resource.
    del buffer
    rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())
    return {"pool": float(read)}


def by_torch(torch, views):
    ways = {"dlpack": float(torch.from_dlpack(views["sealed"])[:1000].double().sum())}
    torch.from_dlpack(views["own"])[0] = 7
    torch.cuda.synchronize()
    return {**ways, "writes": True}


if __name__ == "__main__":
    main()
