#!/usr/bin/env python3
"""Unmodified programs under `vramctl run`, on a GPU: `preload.py PROGRAMS --json FILE [--quick]`.

Each check has a key in the report, with `ok` and what was seen; one that fails does not stop the others. The figures:

- `step_ratio` and `device_step_ratio`: a training step of a small model, which the host's launches bound, and of a large
  one, which the device bounds, under `vramctl run`, in times of the bare one. The aim is 1.01.
- `largest_missing_bytes`: the limit less the largest allocation that succeeds. The aim is one granule, 2 MiB.
- `alloc_us`: how long an allocation and its free take, by size, under `vramctl run` and bare.
- `launch_ns`: how long a call takes that launches, bare, under `vramctl run`, and under `vramctl run --turns` by a program
  that need not wait: of an empty kernel (`launch`), and of a launch that the driver refuses at once (`refused`), which
  shows the library's own part best. `added_by_turns` is the difference of the latter. The aim is 100.

`turns` has two programs take turns whose memory does not fit together: `--set-gib` each, on `--device-gib` of the device.
Each replays a CUDA graph in every step, captures another one in mid-run, and compares what they compute bit by bit.

PROGRAMS is the folder of `vramd`, `vramctl`, `bare` and `libvramd_preload.so`.
"""

import argparse
import ctypes
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

import torch_weights
from torch_weights import GIB, MIB

GRANULE = 2 * MIB
LIMIT = 6 * GIB
SEED = 31
STEP_RATIO_MAX = 1.01
LAUNCH_NS_MAX = 100
TURN_SECONDS = 10
CONFIGURATION = """
[daemon]
socket_dir = "{home}/run"
state_dir = "{home}/state"
[driver]
kind = "cuda"
[memory]
host_size = "0"
"""
WITH_TURNS = """
[daemon]
socket_dir = "{home}/run"
state_dir = "{home}/state"
[driver]
kind = "cuda"
[memory]
device_share = "{device}"
sessions_reserved = 2
host_size = "{host}"
harvest_ms = 5
[turns]
quantum_ms = 1000
min_quantum_ms = 100
[telemetry]
prometheus_listen = "127.0.0.1:{port}"
"""
# A program of the CUDA runtime, linked statically: its only way to the driver is `dlsym`, then `cuGetProcAddress`.
STATIC = r"""
#include <cstdio>
#include <cuda_runtime.h>
__global__ void add(int *to, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) to[i] += i; }
#define MUST(call) do { cudaError_t e = (call); if (e) { printf("%s: %s\n", #call, cudaGetErrorString(e)); return 1; } } while (0)
int main() {
    size_t free_bytes, total; const int n = 1 << 22; int *at, *ordered, last[2]; cudaStream_t stream;
    MUST(cudaMemGetInfo(&free_bytes, &total));
    MUST(cudaMalloc(&at, n * sizeof(int))); MUST(cudaMemset(at, 0, n * sizeof(int)));
    add<<<n / 256, 256>>>(at, n);
    MUST(cudaMemcpy(&last[0], at + n - 1, sizeof(int), cudaMemcpyDeviceToHost));
    MUST(cudaStreamCreate(&stream)); MUST(cudaMallocAsync(&ordered, n * sizeof(int), stream));
    MUST(cudaMemsetAsync(ordered, 0, n * sizeof(int), stream));
    add<<<n / 256, 256, 0, stream>>>(ordered, n);
    MUST(cudaMemcpyAsync(&last[1], ordered + n - 1, sizeof(int), cudaMemcpyDeviceToHost, stream));
    MUST(cudaFreeAsync(ordered, stream)); MUST(cudaStreamSynchronize(stream)); MUST(cudaFree(at));
    cudaPointerAttributes about; MUST(cudaMalloc(&at, 1000)); MUST(cudaPointerGetAttributes(&about, at));
    int *huge; cudaError_t refused = cudaMalloc(&huge, total + 1);
    printf("{\"total\": %zu, \"last\": [%d, %d], \"kind\": %d, \"refused\": %d}\n", total, last[0], last[1], about.type, refused);
}
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--checks", help="some of the checks, separated by commas")
    parser.add_argument("--device-gib", type=int, default=8, help="how much of the device the programs of `turns` share")
    parser.add_argument("--set-gib", type=int, default=5, help="how much each of them has")
    parser.add_argument("--child", choices=sorted(CHILDREN), help="what a program does under `vramctl run`")
    wanted = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"absent: {error}")
        return
    if wanted.child:
        given = {"set_gib": wanted.set_gib} if wanted.child == "in_turns" else {}
        print(json.dumps(CHILDREN[wanted.child](torch, wanted.quick, **given)))
        return
    with tempfile.TemporaryDirectory(prefix="vramd-preload-", dir=os.environ.get("VRAMD_TESTS_HOME", "/tmp")) as home:
        with Daemon(wanted.programs, pathlib.Path(home), CONFIGURATION) as daemon:
            report = Run(daemon, wanted).all()
            report |= {"torch": torch.__version__, "cuda": torch.version.cuda}
            if not report["ok"]:
                print((pathlib.Path(home) / "log").read_text()[-4000:])
    print(json.dumps(report, indent=2))
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(not report["ok"])


class Daemon(torch_weights.Daemon):
    def charged(self):
        """The bytes of all tenants on the device."""
        quotas = json.loads(self.vramctl("quota", "list", "--json"))["quotas"]
        of = lambda quota: (quota.get("held_bytes") or 0) - (quota.get("cached_bytes") or 0)
        return sum(of(quota) for quota in quotas if quota["tier"] == "device")


class Run:
    def __init__(self, daemon, wanted):
        self.daemon, self.wanted, self.report = daemon, wanted, {}

    def all(self):
        checks = (
            self.limit, self.out_of_memory, self.graphs, self.streams, self.asynchronous, self.expandable, self.statically_linked,
            self.largest, self.threads, self.steps, self.device_steps, self.allocations, self.nothing_left, self.launches,
            self.turns,
        )
        if self.wanted.checks:
            checks = [check for check in checks if check.__name__ in self.wanted.checks.split(",")]
        for check in checks:
            begin = time.perf_counter()
            try:
                found = check()
            except BaseException:
                found = {"ok": False, "problem": traceback.format_exc()[-3000:]}
            found["took_s"] = round(time.perf_counter() - begin, 2)
            self.report[check.__name__] = found
            print(f"{check.__name__}: {'ok' if found['ok'] else 'FAILED'} ({found['took_s']} s)", flush=True)
        steps, largest = self.report.get("steps", {}), self.report.get("largest", {})
        self.report["step_ratio"] = steps.get("ratio")
        self.report["device_step_ratio"] = self.report.get("device_steps", {}).get("ratio")
        self.report["largest_missing_bytes"] = largest.get("missing_bytes")
        self.report["alloc_us"] = self.report.get("allocations", {}).get("us")
        self.report["launch_ns"] = self.report.get("launches", {}).get("ns")
        self.report["ok"] = all(self.report[check.__name__]["ok"] for check in checks)
        return self.report

    def served(self, *command, limit=LIMIT, **environment):
        """Runs a program under `vramctl run`: what it printed last, and what was not served."""
        run = [self.daemon.programs / "vramctl", "run", "--limit", str(limit), "--report", "--", *command]
        return self.outcome(run, environment)

    def with_turns(self):
        """A second daemon, of a part of the device."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # The contexts of three processes, this one's, and what others have come out of the share.
        device, both = (self.wanted.device_gib + 3) * GIB, 2 * self.wanted.set_gib + 2
        home = self.daemon.home / "turns"
        return Daemon(self.daemon.programs, home, WITH_TURNS, device=device, host=f"{both}GiB", port=port), port

    def outcome(self, command, environment=()):
        done = subprocess.run(
            [str(word) for word in command], env={**self.daemon.environment, **dict(environment)},
            capture_output=True, text=True, timeout=200,
        )
        assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        passed = [line.removeprefix("vramd:").strip() for line in done.stderr.splitlines() if line.startswith("vramd:   ")]
        return json.loads(done.stdout.splitlines()[-1]), passed

    def child(self, name):
        quick = ["--quick"] if self.wanted.quick else []
        return [sys.executable, __file__, self.daemon.programs, "--child", name, *quick]

    def checked(self, name, **environment):
        found, passed = self.served(*self.child(name), **environment)
        return {**found, "not_served": passed}

    def limit(self):
        """The limit is the device's size, for the driver, the runtime and NVML."""
        found = self.checked("limit")
        totals = {found[key] for key in ("mem_get_info", "properties", "nvml", "nvml_v2")}
        return {"ok": totals == {LIMIT}, **found}

    def out_of_memory(self):
        found = self.checked("out_of_memory")
        return {"ok": found["raised"] and found["works_again"], **found}

    def graphs(self):
        found = self.checked("graphs")
        return {"ok": found["equal"] and not found["not_served"], **found}

    def streams(self):
        found = self.checked("streams")
        return {"ok": found["equal"] and not found["not_served"], **found}

    def asynchronous(self):
        """PyTorch's allocator of ordered memory: its graphs alone have memory that is not served."""
        found = {name: self.checked(name, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync") for name in ("streams", "graphs", "out_of_memory")}
        outside = [line for name in ("streams", "out_of_memory") for line in found[name]["not_served"] if "refused" not in line]
        is_equal = found["streams"]["equal"] and found["graphs"]["equal"] and found["out_of_memory"]["raised"]
        return {"ok": is_equal and not outside, **found}

    def expandable(self):
        """PyTorch maps this memory itself: the daemon charges it, and holds it to the limit."""
        conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        found = {name: self.checked(name, **conf) for name in ("streams", "out_of_memory", "charge")}
        is_right = found["streams"]["equal"] and found["out_of_memory"]["raised"]
        return {"ok": is_right and found["charge"]["free_less"] >= GIB, **found}

    def statically_linked(self):
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        if not pathlib.Path(nvcc).exists():
            return {"ok": True, "absent": "no nvcc"}
        source, program = self.daemon.home / "static.cu", self.daemon.home / "static"
        source.write_text(STATIC)
        subprocess.run([nvcc, "-cudart", "static", "-o", program, source], check=True, capture_output=True)
        found, passed = self.served(program)
        last, device_memory, out_of_memory = (1 << 22) - 1, 2, 2
        expected = {"total": LIMIT, "last": [last, last], "kind": device_memory, "refused": out_of_memory}
        return {"ok": found == expected and not [line for line in passed if "refused" not in line], **found, "not_served": passed}

    def largest(self):
        found = self.checked("largest")
        missing = LIMIT - found["largest_bytes"]
        return {"ok": 0 <= missing <= GRANULE, "missing_bytes": missing, **found}

    def threads(self):
        found = self.checked("threads")
        return {"ok": found["equal"], **found}

    def steps(self):
        """Steps that the host's launches bound: what the library costs there, if anything."""
        return self.compare("steps")

    def device_steps(self):
        """Steps that the device bounds, as those of large models are."""
        return self.compare("device_steps")

    def compare(self, name):
        """Alternating, so that a change of the clock meets both."""
        pairs = []
        for _ in range(2 if self.wanted.quick else 5):
            bare, _ = self.outcome(self.child(name))
            ours, _ = self.served(*self.child(name))
            pairs.append((ours["step_us"], bare["step_us"]))
        ratio = statistics.median(ours / bare for ours, bare in pairs)
        if ratio > STEP_RATIO_MAX:
            print(f"MISSED: a step takes {ratio:.4f} times the bare one, and the aim is {STEP_RATIO_MAX} ({name})")
        return {"ok": True, "ratio": ratio, "us": pairs}

    def allocations(self):
        bare, _ = self.outcome(self.child("allocations"))
        ours, _ = self.served(*self.child("allocations"))
        return {"ok": True, "us": {size: {"ours": ours[size], "bare": bare[size]} for size in bare}}

    def launches(self):
        """Alternating, so that a change of the clock meets all."""
        command = [self.daemon.programs / "bare", "launches", "100" if self.wanted.quick else "400"]
        run = [self.daemon.programs / "vramctl", "run"]
        found = {"bare": [], "run": [], "turns": []}
        node, _ = self.with_turns()
        with node:
            for _ in range(2 if self.wanted.quick else 5):
                found["bare"].append(self.outcome(command)[0])
                found["run"].append(self.outcome([*run, "--", *command], node.environment)[0])
                found["turns"].append(self.outcome([*run, "--turns", "--", *command], node.environment)[0])
        median = lambda how, key: statistics.median(each[key] for each in found[how])
        ns = {key: {how: median(how, key) for how in found} for key in ("launch", "refused")}
        ns["added_by_turns"] = ns["refused"]["turns"] - ns["refused"]["bare"]
        if ns["added_by_turns"] > LAUNCH_NS_MAX:
            print(f"MISSED: with turns a launch takes {ns['added_by_turns']:.0f} ns more, and the aim is {LAUNCH_NS_MAX}")
        return {"ok": True, "ns": ns, "runs": found}

    def turns(self):
        """Two programs whose memory does not fit together compute the right bytes, and take the device from each other."""
        node, port = self.with_turns()
        with node:
            command = [node.programs / "vramctl", "run", "--turns", "--report", "--", *self.child("in_turns")]
            command = [str(word) for word in [*command, "--set-gib", self.wanted.set_gib]]
            begin = time.perf_counter()
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running = [subprocess.Popen(command, env=node.environment, **pipes) for _ in range(2)]
            outputs = [program.communicate(timeout=150) for program in running]
            took = time.perf_counter() - begin
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        log = (node.home / "log").read_text()[-2000:]
        statuses = [program.returncode for program in running]
        assert statuses == [0, 0], f"{statuses}\n{outputs[0][1][-2000:]}\n{outputs[1][1][-2000:]}\n{log}"
        found = [json.loads(said.splitlines()[-1]) for said, _ in outputs]
        name = "vramd_turn_hand_over_duration_seconds_"
        figure = lambda key: sum(float(line.split()[-1]) for line in lines if line.startswith(name + key))
        count, seconds = figure("count"), figure("sum")
        is_right = all(each["right"] and all(each["replays"]) and not each["unequal"] for each in found)
        return {"ok": is_right and count >= 4, "hand_overs": count, "hand_over_s": seconds, "programs": found, "seconds": took}

    def nothing_left(self):
        """Programs have ended without freeing: their sessions have."""
        until = time.monotonic() + 20
        while (left := self.daemon.charged()) and time.monotonic() < until:
            time.sleep(0.2)
        return {"ok": left == 0, "charged_bytes": left}


def limit(torch, _quick):
    class Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    class MemoryV2(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint), *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used"))]

    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    first, second = Memory(), MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
    assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(first)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(second)) == 0
    return {
        "mem_get_info": torch.cuda.mem_get_info()[1], "properties": torch.cuda.get_device_properties(0).total_memory,
        "nvml": first.total, "nvml_v2": second.total,
    }


def out_of_memory(torch, _quick):
    kept = torch.ones(GIB // 4, device="cuda")
    try:
        torch.empty(LIMIT, dtype=torch.uint8, device="cuda")
        raised = False
    except torch.OutOfMemoryError:
        raised = True
    again = torch.ones(GIB // 4, device="cuda")
    return {"raised": raised, "works_again": (kept + again).sum().item() == 2 * (GIB // 4)}


def model(torch):
    torch.manual_seed(SEED)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(6)]
    return torch.nn.Sequential(*layers).cuda(), torch.randn(256, 1024, device="cuda")


def graphs(torch, _quick):
    layers, given = model(torch)
    with torch.no_grad():
        expected = layers(given)
        graph, captured = capture(torch, layers, given)
        for _ in range(20):
            graph.replay()
        # Frees with the graph alive, then another replay.
        torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        graph.replay()
        torch.cuda.synchronize()
    return {"equal": torch.equal(expected, captured)}


def capture(torch, layers, given):
    """A graph of one pass, and where a replay of it writes the result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layers(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = layers(given)
    return graph, result


def streams(torch, quick):
    """Memory that is freed and used again across streams keeps what each wrote."""
    wrong, sides = 0, [torch.cuda.Stream() for _ in range(4)]
    for round_ in range(20 if quick else 100):
        sums = []
        for number, side in enumerate(sides):
            with torch.cuda.stream(side):
                block = torch.full(((8 + number) * MIB,), round_ + number, dtype=torch.int32, device="cuda")
                sums.append((block.sum(dtype=torch.int64), (8 + number) * MIB * (round_ + number)))
                del block
        if round_ % 7 == 0:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        wrong += sum(found.item() != expected for found, expected in sums)
    return {"equal": wrong == 0, "wrong": wrong}


def charge(torch, _quick):
    torch.ones(1, device="cuda")
    before = torch.cuda.mem_get_info()[0]
    kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    return {"free_less": before - torch.cuda.mem_get_info()[0], "bytes": kept.numel()}


class Driver:
    """The driver's own calls, in the primary context."""

    def __init__(self, torch):
        torch.ones(1, device="cuda")
        self.cuda = ctypes.CDLL("libcuda.so.1")
        # A thread of its own may have no context yet.
        context = ctypes.c_void_p()
        assert self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.cuda.cuCtxSetCurrent(context) == 0

    def allocate(self, size):
        address = ctypes.c_uint64()
        code = self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        return address if code == 0 else None

    def free(self, address):
        assert self.cuda.cuMemFree_v2(address) == 0


def largest(torch, _quick):
    driver = Driver(torch)
    torch.cuda.empty_cache()
    size = LIMIT
    while (found := driver.allocate(size)) is None:
        size -= GRANULE
    free = torch.cuda.mem_get_info()[0]
    driver.free(found)
    return {"largest_bytes": size, "free_then": free}


def threads(torch, quick):
    """Threads allocate and free while one of them captures graphs."""
    import threading

    driver, wrong, rounds = Driver(torch), [], 10 if quick else 40

    def blocks():
        own = Driver(torch)
        for number in range(rounds * 5):
            address = own.allocate((1 + number % 5) * 3 * MIB)
            if address is None:
                wrong.append("no memory")
            else:
                own.free(address)

    def captures():
        layers, given = model(torch)
        with torch.no_grad():
            layers(given)
            torch.cuda.synchronize()
            for _ in range(rounds):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    captured = layers(given)
                graph.replay()
                torch.cuda.current_stream().synchronize()
                if not torch.equal(captured, layers(given)):
                    wrong.append("another result")

    def run(work):
        try:
            work()
        except BaseException:
            wrong.append(traceback.format_exc()[-1500:])

    started = [threading.Thread(target=run, args=(work,)) for work in (blocks, captures, blocks)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    driver.free(driver.allocate(MIB))
    return {"equal": not wrong, "wrong": wrong[:3]}


def steps(torch, quick):
    return timed_steps(torch, *model(torch), rounds=60 if quick else 300)


def device_steps(torch, quick):
    """Some 8 ms each on an H200."""
    wide = lambda: torch.nn.Linear(8192, 8192, device="cuda", dtype=torch.bfloat16)
    layers = torch.nn.Sequential(wide(), torch.nn.GELU(), wide(), torch.nn.GELU(), wide())
    given = torch.randn(4096, 8192, device="cuda", dtype=torch.bfloat16)
    return timed_steps(torch, layers, given, rounds=30 if quick else 60)


def timed_steps(torch, layers, given, rounds):
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    times = []
    for number in range(rounds):
        begin = time.perf_counter()
        for _ in range(10):
            optimizer.zero_grad()
            layers(given).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        if number >= 20:
            times.append((time.perf_counter() - begin) / 10)
    return {"step_us": statistics.median(times) * 1e6}


def allocations(torch, quick):
    driver, found = Driver(torch), {}
    for size in (64 << 10, 2 * MIB, 64 * MIB, GIB):
        times = []
        for _ in range(10 if quick else 40):
            begin = time.perf_counter()
            driver.free(driver.allocate(size))
            times.append(time.perf_counter() - begin)
        found[str(size)] = statistics.median(times) * 1e6
    return found


def in_turns(torch, quick, set_gib):
    """Adds 1 to all of its memory again and again. Each piece begins with another number. In each step it replays its graphs:
    one that it captured before, and from the middle of the time on another one."""
    layers, given = model(torch)
    with torch.no_grad():
        expected = layers(given)
        graphs = [capture(torch, layers, given)]
    pieces = [torch.full((GIB // 8,), number, dtype=torch.int32, device="cuda") for number in range(2 * set_gib)]
    torch.cuda.synchronize()
    seconds = TURN_SECONDS / 2 if quick else TURN_SECONDS
    steps, replays, unequal, begin = 0, [0, 0], 0, time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        if len(graphs) == 1 and passed > seconds / 2:
            with torch.no_grad():
                graphs.append(capture(torch, layers, given))
        for number, (graph, result) in enumerate(graphs):
            # So that a replay which does nothing is seen.
            result.zero_()
            graph.replay()
            replays[number] += 1
            unequal += not torch.equal(result, expected)
        for piece in pieces:
            piece.add_(1)
        torch.cuda.synchronize()
        steps += 1
    right = all(bool((piece == number + steps).all().item()) for number, piece in enumerate(pieces))
    return {"right": right, "steps": steps, "replays": replays, "unequal": unequal, "bytes": sum(piece.numel() * 4 for piece in pieces)}


CHILDREN = {
    "limit": limit, "out_of_memory": out_of_memory, "graphs": graphs, "streams": streams, "charge": charge, "largest": largest,
    "threads": threads, "steps": steps, "device_steps": device_steps, "allocations": allocations, "in_turns": in_turns,
}

if __name__ == "__main__":
    main()
