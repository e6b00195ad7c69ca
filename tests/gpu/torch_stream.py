#!/usr/bin/env python3
"""A model that is larger than its quota, streamed from host memory: `torch_stream.py PROGRAMS --json FILE [--quick]`.

80 layers of 256 MiB go through a quota of 27 of them, pass after pass. Each layer is read once a step, by a kernel that is
calibrated so that all kernels of a pass take as long as the copies of the best plan. Every way of bringing the layers is timed
in the same process; the bytes that kernels read are checked. PROGRAMS is the folder of `vramd` and `vramctl`.

At the end the model streams through a quarter of its size, while a process of another tenant (`--neighbour`) pins memory that
has to come back each time.
"""

import argparse
import ctypes
import itertools
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
LAYERS, ROOM, LAYER_BYTES = 80, 27, 256 * MIB
# A loop of N layers with room for C misses (N - C) / (N - 1) of its uses under the best plan.
MISSES = LAYERS * (LAYERS - ROOM) / (LAYERS - 1)
# Two passes settle which layers stay.
WARM_PASSES = 2
# How often the bare plan and the sequences are timed.
ROUNDS = 3
# Another tenant beside a stream through a quarter: its parts, how many of them it may have on the device, and its user.
QUARTER = LAYERS // 4
NEIGHBOUR_PARTS, NEIGHBOUR_ROOM, NEIGHBOUR_UID = 6, 3, 20001
CONFIGURATION = """
[daemon]
socket_dir = "{home}/run"
state_dir = "{home}/state"
[driver]
kind = "cuda"
[memory]
host_size = "24GiB"
harvest_ms = 5
[[tenants]]
tenant = "stream"
uid = {uid}
"""


class Kernels:
    """Reads a layer, and then spins until the step has taken its time."""

    def __init__(self, torch, steps):
        self.torch, self.sums, self.events = torch, torch.zeros(steps, dtype=torch.int64, device="cuda"), []
        self.cycles, self.seconds = 0, 0.0

    def calibrate(self, layer, seconds):
        torch = self.torch
        self.launch(0, layer)
        read = statistics.median(self.timed(lambda: self.read(0, layer)) for _ in range(15))
        spin = 10_000_000
        per_cycle = statistics.median(self.timed(lambda: torch.cuda._sleep(spin)) for _ in range(7)) / spin
        self.cycles, self.seconds = max(0, int((seconds - read) / per_cycle)), max(seconds, read)

    def timed(self, work):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    def read(self, step, layer):
        self.torch.sum(layer, 0, out=self.sums[step])

    def launch(self, step, layer):
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.read(step, layer)
        self.torch.cuda._sleep(self.cycles)
        end.record()
        self.events.append((begin, end))
        return end

    def clear(self):
        self.sums.zero_()
        self.events.clear()
        self.torch.cuda.synchronize()

    def busy(self):
        """How long kernels ran, with the page faults that they waited for."""
        return sum(begin.elapsed_time(end) for begin, end in self.events) / 1000


class Foreign:
    """Device memory by its address, for PyTorch."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            "shape": (size // 8,), "typestr": "<i8", "data": (address, False), "version": 3,
        }


def view(torch, address, size=LAYER_BYTES):
    return torch.as_tensor(Foreign(address, size), device="cuda")


def random_layer(torch, layer):
    generator = torch.Generator(device="cuda").manual_seed(1000 + layer)
    return torch.randint(-(2**62), 2**62, (LAYER_BYTES // 8,), generator=generator, dtype=torch.int64, device="cuda")


def kept_evenly(count):
    """Layers that stay, spread over the loop."""
    return {layer for layer in range(LAYERS) if (layer + 1) * count // LAYERS > layer * count // LAYERS}


def bandwidth(torch):
    host = torch.empty(LAYER_BYTES // 8, dtype=torch.int64, pin_memory=True).random_()
    device = torch.empty_like(host, device="cuda")
    stream = torch.cuda.Stream()
    rounds = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            for _ in range(8):
                device.copy_(host, non_blocking=True)
            end.record()
        end.synchronize()
        rounds.append(8 * LAYER_BYTES / (begin.elapsed_time(end) / 1000))
    return statistics.median(rounds)


def bare(torch, kernels, passes, host):
    """The best plan without a daemon: 24 layers stay, the others go through three buffers, copied by a stream of their own."""
    kept = kept_evenly(ROOM - 3)
    stay = {layer: host[layer].to("cuda", non_blocking=True) for layer in kept}
    buffers = [torch.empty(LAYER_BYTES // 8, dtype=torch.int64, device="cuda") for _ in range(3)]
    copies, main = torch.cuda.Stream(), torch.cuda.current_stream()
    free = [torch.cuda.Event() for _ in buffers]
    for event in free:
        event.record()
    torch.cuda.synchronize()
    kernels.clear()
    began = time.perf_counter()
    turn = 0
    for step in range(passes * LAYERS):
        layer = step % LAYERS
        if layer in kept:
            last = kernels.launch(step, stay[layer])
            continue
        at = turn % len(buffers)
        turn += 1
        copies.wait_event(free[at])
        with torch.cuda.stream(copies):
            buffers[at].copy_(host[layer], non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        main.wait_event(arrived)
        last = kernels.launch(step, buffers[at])
        free[at].record()
    last.synchronize()
    return time.perf_counter() - began


class Managed:
    """Managed memory, all of it in one allocation. Layers that do not fit into the quota are sent back to the host by hand."""

    HOST = -1

    def __init__(self, torch):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        address = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(LAYERS * LAYER_BYTES), ctypes.c_uint(1))
        self.address = address.value
        self.layers = [view(torch, self.address + layer * LAYER_BYTES) for layer in range(LAYERS)]

    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {status}")

    def prefetch(self, layer, device, stream):
        self.call(
            "cuMemPrefetchAsync", ctypes.c_uint64(self.address + layer * LAYER_BYTES), ctypes.c_size_t(LAYER_BYTES),
            ctypes.c_int(device), ctypes.c_void_p(stream.cuda_stream),
        )

    def speed(self, torch, device):
        """Bytes a second of a prefetch of some layers that lie on the other side."""
        stream, some = torch.cuda.current_stream(), range(LAYERS // 5)
        rounds = []
        for _ in range(3):
            for layer in some:
                self.prefetch(layer, Managed.HOST if device == 0 else 0, stream)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for layer in some:
                self.prefetch(layer, device, stream)
            torch.cuda.synchronize()
            rounds.append(len(some) * LAYER_BYTES / (time.perf_counter() - began))
        return statistics.median(rounds)

    def free(self):
        self.layers = None
        self.call("cuMemFree_v2", ctypes.c_uint64(self.address))


def managed(torch, kernels, passes, memory, ahead):
    """The same plan by managed memory. `ahead`: layers are prefetched; without it, page faults bring them."""
    kept = kept_evenly(ROOM - 3)
    to_device, to_host, main = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    for layer in range(LAYERS):
        memory.prefetch(layer, 0 if layer in kept else Managed.HOST, to_host)
    torch.cuda.synchronize()
    kernels.clear()
    began = time.perf_counter()
    arrived, ends = {}, {}
    for step in range(passes * LAYERS):
        layer = step % LAYERS
        for soon in range(step, min(step + 3, passes * LAYERS)) if ahead else ():
            if soon % LAYERS in kept or soon in arrived:
                continue
            # Only so many layers are there at a time.
            if soon - 3 in ends:
                to_device.wait_event(ends[soon - 3])
            memory.prefetch(soon % LAYERS, 0, to_device)
            arrived[soon] = torch.cuda.Event()
            arrived[soon].record(to_device)
        if step in arrived:
            main.wait_event(arrived[step])
        end = kernels.launch(step, memory.layers[layer])
        if layer not in kept:
            to_host.wait_event(end)
            memory.prefetch(layer, Managed.HOST, to_host)
            ends[step] = torch.cuda.Event()
            ends[step].record(to_host)
    end.synchronize()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took


class Daemon:
    def __init__(self, programs):
        self.folder = tempfile.TemporaryDirectory(prefix="vramd-stream-", dir="/tmp")
        self.home, self.programs = pathlib.Path(self.folder.name), programs
        # The neighbour is another user.
        self.home.chmod(0o755)
        config = self.home / "vramd.toml"
        config.write_text(CONFIGURATION.format(home=self.home, uid=os.getuid()))
        os.environ["VRAMD_SOCKET_DIR"] = str(self.home / "run")
        self.log = open(self.home / "log", "wb")
        self.child = subprocess.Popen([programs / "vramd", "--config", config], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 90
        while self.ctl("status", check=False).returncode != 0:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.home / "log").read_text()[-3000:])
            time.sleep(0.1)
        self.limit("stream", ROOM)

    def limit(self, tenant, layers):
        self.ctl("quota", "set", tenant, "--limit", f"{layers * LAYER_BYTES}")

    def order_by(self, policy):
        self.ctl("settings", "change", "--eviction-policy", policy)

    def ctl(self, *arguments, check=True):
        done = subprocess.run([self.programs / "vramctl", *arguments], capture_output=True, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f"vramctl {arguments}: {done.stderr}")
        return done

    def end(self):
        self.child.terminate()
        self.child.wait(timeout=60)
        self.folder.cleanup()


class Brokered:
    """The layers in memory of the daemon."""

    def __init__(self, torch, vramd, part_bytes):
        self.torch, self.client = torch, vramd.connect("stream")
        self.layers, self.views = [], {}
        for layer in range(LAYERS):
            memory = self.client.allocate(LAYER_BYTES, part_size=part_bytes, unpinned=True, wait=60)
            with memory.pin(write=True) as pin:
                view(torch, pin.device_ptr).copy_(random_layer(torch, layer))
                torch.cuda.synchronize()
            self.layers.append(memory)

    def view(self, layer, pin):
        if layer not in self.views:
            self.views[layer] = view(self.torch, pin.device_ptr)
        return self.views[layer]

    def stream(self, kernels, passes, begins):
        """Goes through all layers, and calls `begins` for each step. The next layer is pinned and its kernel queued while
        this one is read. Returns how long it took, and how long pins waited."""
        steps = passes * LAYERS
        kernels.clear()
        begins(0)
        pins, ends, waited = {}, {}, 0.0
        began = time.perf_counter()
        for step in range(-1, steps):
            if step + 1 < steps:
                at = time.perf_counter()
                pins[step + 1] = self.layers[(step + 1) % LAYERS].pin(wait=60)
                waited += time.perf_counter() - at
                ends[step + 1] = kernels.launch(step + 1, self.view((step + 1) % LAYERS, pins[step + 1]))
            if step >= 0:
                ends.pop(step).synchronize()
                pins.pop(step).release()
                if step + 1 < steps:
                    begins(step + 1)
        return time.perf_counter() - began, waited

    def close(self):
        self.views.clear()
        for memory in self.layers:
            memory.free()
        self.client.close()


def fetch_again_and_again(vramd):
    """Pins parts in turn that do not all fit, until standard input ends. Prints when each pin was asked for and how long
    it took, in seconds."""
    client = vramd.connect("neighbour")
    parts = [
        client.allocate(LAYER_BYTES, part_size=LAYER_BYTES, unpinned=True, wait=60) for _ in range(NEIGHBOUR_PARTS)
    ]
    for memory in parts:
        memory.pin(write=True, wait=60).release()
    for turn in itertools.count():
        if select.select([sys.stdin], [], [], 0)[0]:
            break
        began = time.monotonic()
        parts[turn % len(parts)].pin(wait=60).release()
        print(began, time.monotonic() - began, flush=True)
    for memory in parts:
        memory.free()
    client.close()


class Neighbour:
    """That in a process of another user, whose pins are of another tenant."""

    def __init__(self, programs):
        self.child = subprocess.Popen(
            [sys.executable, __file__, programs, "--neighbour"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            user=NEIGHBOUR_UID, env={**os.environ, "HOME": "/tmp"},
        )
        self.pins = [self.next() for _ in range(3 * NEIGHBOUR_PARTS)]
        self.reader = threading.Thread(target=lambda: self.pins.extend(self.parsed(line) for line in self.child.stdout))
        self.reader.start()

    def next(self):
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError("the neighbour ended")
        return self.parsed(line)

    def parsed(self, line):
        began, took = map(float, line.split())
        return began, took

    def between(self, begin, end):
        """How long the pins took that were asked for in this time, the shortest first."""
        return sorted(took for began, took in list(self.pins) if begin <= began < end)

    def end(self):
        self.child.stdin.close()
        if self.child.wait(timeout=60) != 0:
            raise RuntimeError("the neighbour failed")
        self.reader.join()


def beside_a_neighbour(programs, brokered, daemon, kernels, passes, speed):
    """Streams by a declared sequence while another tenant fetches on demand. Returns how long it took, and the neighbour's
    pins, as shares of the link's speed that they had: alone, and beside the stream."""
    daemon.limit("stream", QUARTER)
    daemon.limit(f"uid-{NEIGHBOUR_UID}", NEIGHBOUR_ROOM)
    neighbour = Neighbour(programs)
    try:
        alone = time.monotonic()
        time.sleep(2)
        with brokered.client.sequence(brokered.layers) as sequence:
            settled = time.monotonic()
            brokered.stream(kernels, WARM_PASSES, sequence.begin)
            began = time.monotonic()
            took, waited = brokered.stream(kernels, passes, lambda step: sequence.begin(step + WARM_PASSES * LAYERS))
            ended = time.monotonic()
    finally:
        neighbour.end()

    def shares(begin, end):
        pins = neighbour.between(begin, end)
        share = [LAYER_BYTES / seconds / speed for seconds in pins]
        return {
            "pins": len(pins), "median": statistics.median(share), "lowest_of_95_percent": share[len(share) * 95 // 100],
            "lowest": share[-1],
        }

    return took, {
        "pin_seconds": waited, "neighbour_alone": shares(alone, settled), "neighbour_beside": shares(began, ended),
    }


def main():
    arguments = argparse.ArgumentParser(description="Streams a model through a quota that holds a third of it.")
    arguments.add_argument("programs", type=pathlib.Path, help="the folder of vramd and vramctl")
    arguments.add_argument("--json", type=pathlib.Path, help="where the results go")
    arguments.add_argument("--quick", action="store_true", help="fewer passes")
    arguments.add_argument(
        "--only", default="bare,managed,lru,default,prefetch,sequence,beside", help="ways, separated by commas"
    )
    arguments.add_argument("--neighbour", action="store_true", help="be the other tenant")
    given = arguments.parse_args()
    # In the bundle the package lies beside this folder.
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import vramd

    if given.neighbour:
        return fetch_again_and_again(vramd)
    if given.json is None:
        arguments.error("--json is missing")
    import torch

    passes = 6 if given.quick else 20
    few = 2 if given.quick else 6
    ways = given.only.split(",")
    torch.cuda.init()
    kernels = Kernels(torch, 20 * LAYERS)
    speed = bandwidth(torch)
    transfer = MISSES * LAYER_BYTES / speed
    first = random_layer(torch, 0)
    kernels.calibrate(first, transfer / LAYERS)
    sums = torch.stack([random_layer(torch, layer).sum() for layer in range(LAYERS)])
    del first
    rows = []
    found = {"gpu": torch.cuda.get_device_name(), "bytes_per_second": speed, "rows": rows}
    print(f"{speed / 1e9:.1f} GB/s, the best plan copies for {transfer * 1000:.0f} ms a pass", flush=True)

    def record(name, took, passes, **more):
        torch.cuda.synchronize()
        right = bool((kernels.sums[: passes * LAYERS].view(passes, LAYERS) == sums).all())
        busy, copies = kernels.busy(), more.get("transfer", transfer * passes)
        if "managed" in name:
            # Page faults are no compute.
            busy = min(busy, kernels.seconds * LAYERS * passes)
        row = {
            "name": name, "passes": passes, "seconds": took, "busy": busy, "transfer": copies, "right": right,
            "ratio": took / max(busy, copies), "overlap": 1 - (took - busy) / copies, "idle_share": 1 - busy / took, **more,
        }
        rows.append(row)
        print(f"{name:32} ratio {row['ratio']:.3f} overlap {row['overlap']:.3f} idle {row['idle_share']:.3f} "
              f"{'ok' if right else 'WRONG BYTES'} {more}", flush=True)

    if "bare" in ways:
        host = [random_layer(torch, layer).cpu().pin_memory() for layer in range(LAYERS)]
        for _ in range(ROUNDS):
            record("bare, best plan", bare(torch, kernels, passes, host), passes)
        del host
    if "managed" in ways:
        memory = Managed(torch)
        for layer in range(LAYERS):
            memory.layers[layer].copy_(random_layer(torch, layer))
        found["managed_bytes_per_second"] = {
            "to_device": memory.speed(torch, 0), "to_host": memory.speed(torch, Managed.HOST),
        }
        print(f"managed memory by prefetch: {found['managed_bytes_per_second']}", flush=True)
        record("managed, prefetched", managed(torch, kernels, few, memory, True), few)
        record("managed, by faults", managed(torch, kernels, few, memory, False), few)
        memory.free()
    torch.cuda.empty_cache()
    for part_bytes in (32 * MIB, LAYER_BYTES):
        daemon = Daemon(given.programs)
        parts = f"parts of {part_bytes // MIB} MiB"
        try:
            brokered = Brokered(torch, vramd, part_bytes)
            layers = brokered.layers
            for way, policy in (("lru", "lru"), ("default", "hit-density")):
                if way in ways and part_bytes < LAYER_BYTES:
                    daemon.order_by(policy)
                    brokered.stream(kernels, WARM_PASSES, lambda step: None)
                    took, waited = brokered.stream(kernels, few, lambda step: None)
                    record(f"{policy}, {parts}", took, few, pin_seconds=waited)
            if "prefetch" in ways and part_bytes < LAYER_BYTES:
                asked = []

                def ask(step):
                    asked.append(brokered.client.prefetch(layers[(step + 2) % LAYERS], partial=True))
                    del asked[:-4]

                took, waited = brokered.stream(kernels, few, ask)
                record(f"prefetch, {parts}", took, few, pin_seconds=waited)
                asked.clear()
            for _ in range(ROUNDS if "sequence" in ways else 0):
                with brokered.client.sequence(layers) as sequence:
                    brokered.stream(kernels, WARM_PASSES, sequence.begin)
                    took, waited = brokered.stream(
                        kernels, passes, lambda step: sequence.begin(step + WARM_PASSES * LAYERS)
                    )
                    more = {"window": sequence.window_steps, "kept": sequence.kept_bytes / LAYER_BYTES}
                    record(f"sequence, {parts}", took, passes, pin_seconds=waited, **more)
            if "beside" in ways and part_bytes < LAYER_BYTES:
                took, more = beside_a_neighbour(given.programs, brokered, daemon, kernels, few, speed)
                quarter = {"transfer": few * LAYER_BYTES * LAYERS * (LAYERS - QUARTER) / (LAYERS - 1) / speed}
                record(f"sequence beside a neighbour, {parts}", took, few, **quarter, **more)
            brokered.close()
        finally:
            daemon.end()

    def median(key):
        of_sequences = [row[key] for row in rows if row["name"].startswith("sequence, parts of 32")]
        return statistics.median(of_sequences) if of_sequences else None

    found = {
        "stream_ratio": median("ratio"), "overlap": median("overlap"), "idle_share": median("idle_share"), **found,
    }
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    if not all(row["right"] for row in rows):
        sys.exit("a kernel read wrong bytes")


if __name__ == "__main__":
    main()
