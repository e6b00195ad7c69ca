#!/usr/bin/env python3
"""Programs that take turns on one GPU: `torch_turns.py PROGRAMS --json FILE [--quick] [--checks NAME,…]`.

- `handover`: from a program's yield to the grant of the next, whose set comes as the other's leaves, of the bare exchange:
  the same bytes by plain copies from and to pinned memory, both directions at once. Two programs of one tenant.
- `handover_across`: the same with two tenants.
- `handover_of_moved`, `handover_across_of_moved`: the same, of the bare exchange of the bytes that move. Two sets of 14 GiB on 16
  GiB have 2 GiB each that stay.
- `two_30s`, `two_5s`: how long two programs take whose sets do not fit together, of the same work one after the other,
  with a quantum of 30 s and of 5 s. `faults` beside it: the same hand-over by managed memory, whose pages come by faults.
- `two_faults_30s`, `two_faults_5s`: the same programs by managed memory, in slices of that length: how long a slice takes, of
  its steps where all pages are there. Managed memory is never larger than what is free: each program sends away, after its
  slice, what the other would push out, while the other's pages come by faults. Sending is not timed.
- `four_share`: the work of four programs at three times the device's capacity, of what one alone would do in that time;
  and how far the largest share is from a fair one.

PROGRAMS is the folder of `vramd` and `vramctl`.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

MIB, GIB = 1 << 20, 1 << 30
CAPACITY = 16 * GIB
SET = 14 * GIB
# These bytes of a set leave, and come, for the other one.
MOVED = 2 * SET - CAPACITY
QUARTER = 12 * GIB
# How long a program's step is timed before any turn: a hundred steps or more.
ALONE_S = 2
CONFIGURATION = """
[daemon]
socket_dir = "{home}/run"
state_dir = "{home}/state"
[driver]
kind = "cuda"
[memory]
device_share = "{share}"
sessions_reserved = 4
host_size = "{host}GiB"
harvest_ms = 5
[turns]
quantum_ms = {quantum}
min_quantum_ms = 100
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--checks", help="some of the checks, separated by commas")
    parser.add_argument("--child", help="the part of a program that takes turns: its order, as JSON")
    wanted = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"absent: {error}")
        return
    if not torch.cuda.is_available():
        print(f"absent: PyTorch {torch.__version__} has no GPU")
        return
    if wanted.child:
        order = json.loads(wanted.child)
        (Faulting if order.get("faults") else Program)(torch, order).run()
        return
    report = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "capacity": CAPACITY, "set": SET}
    torch.cuda.init()
    checks = {
        "bare": lambda: bare(torch, report),
        "handover": lambda: handover(wanted, report, "handover", [0, 0]),
        "handover_across": lambda: handover(wanted, report, "handover_across", [0, 20001]),
        "two_5s": lambda: two(wanted, report, "two_5s", 5),
        "four_share": lambda: four(wanted, report),
        "two_30s": lambda: two(wanted, report, "two_30s", 30),
        "faults": lambda: faults(torch),
        "two_faults": lambda: two_faults(torch, wanted, report),
    }
    names = wanted.checks.split(",") if wanted.checks else list(checks)
    assert set(names) <= checks.keys(), f"the checks are {', '.join(checks)}"
    report["checks"] = {}
    for name in names:
        begin = time.perf_counter()
        try:
            found = checks[name]()
        except BaseException:
            found = {"ok": False, "problem": traceback.format_exc()[-4000:]}
        found["took_s"] = round(time.perf_counter() - begin, 2)
        report["checks"][name] = found
        figure = f", {report[name]:.3f}" if name in report else ""
        print(f"{name}: {'ok' if found['ok'] else 'FAILED'}{figure} ({found['took_s']} s)", flush=True)
        if not found["ok"]:
            print(found.get("problem", found), flush=True)
    report["ok"] = all(found["ok"] for found in report["checks"].values())
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(not report["ok"])


def bare(torch, report):
    """The bytes of a set away and those of another one here, both at once, by the best plain copies."""
    piece = GIB
    here, there = (torch.empty(piece, dtype=torch.uint8, device="cuda") for _ in range(2))
    out, back = (torch.empty(piece, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    streams = [torch.cuda.Stream() for _ in range(2)]
    times = {SET: [], MOVED: []}
    for _ in range(4):
        for size, of_size in times.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(size // piece):
                with torch.cuda.stream(streams[0]):
                    out.copy_(here, non_blocking=True)
                with torch.cuda.stream(streams[1]):
                    there.copy_(back, non_blocking=True)
            torch.cuda.synchronize()
            of_size.append(time.perf_counter() - begin)
    report["bare_exchange_s"], report["bare_moved_s"] = (statistics.median(of_size[1:]) for of_size in times.values())
    del here, there, out, back
    torch.cuda.empty_cache()
    return {"ok": True, "seconds": times[SET], "moved_bytes": MOVED, "moved_seconds": times[MOVED]}


def handover(wanted, report, name, users):
    rounds = 4 if wanted.quick else 10
    with Node(wanted.programs, CAPACITY, 34, 400) as node:
        found = finish(started(node.start(bytes=SET, user=user, turns=rounds, quantum_s=0.4) for user in users))
    turns = sorted((turn for each in found for turn in each["turns"]), key=lambda turn: turn["granted"])
    # The first turn of each program brings nothing that another program's leaving has made room for.
    gaps = [after["granted"] - before["yielded"] for before, after in zip(turns[1:], turns[2:])]
    alternate = sum(a["program"] != b["program"] for a, b in zip(turns, turns[1:]))
    median = statistics.median(gaps)
    if "bare_exchange_s" in report:
        report[name] = median / report["bare_exchange_s"]
        report[f"{name}_of_moved"] = median / report["bare_moved_s"]
    overlap = sum(after["granted"] < before["yielded"] for before, after in zip(turns, turns[1:]))
    right = all(each["right"] for each in found)
    return {
        "ok": right and not overlap and alternate >= len(turns) - 2, "right": right, "overlaps": overlap,
        "seconds": gaps, "median_s": median, "turns": len(turns), "alternate": alternate,
    }


def two(wanted, report, name, quantum):
    """Both programs do a fixed number of steps; alone, each would take as long as its steps take."""
    work = quantum if wanted.quick else 2 * quantum if quantum > 10 else 6 * quantum
    with Node(wanted.programs, CAPACITY, 34, 1000 * quantum) as node:
        programs = started(node.start(bytes=SET, seconds=work) for _ in range(2))
        begin = time.monotonic()
        found = finish(programs)
    total = max(turn["yielded"] for each in found for turn in each["turns"]) - begin
    alone = sum(each["steps"] * each["step_s"] for each in found)
    report[name] = total / alone
    return {
        "ok": all(each["right"] for each in found), "total_s": total, "alone_s": alone,
        "turns": [len(each["turns"]) for each in found], "steps": [each["steps"] for each in found],
        "step_s": [each["step_s"] for each in found],
    }


def four(wanted, report):
    quantum, rounds = (2, 2) if wanted.quick else (10, 3)
    with Node(wanted.programs, CAPACITY, 4 * QUARTER // GIB + 4, 1000 * quantum) as node:
        programs = started(node.start(bytes=QUARTER, turns=rounds, quantum_s=quantum) for _ in range(4))
        begin = time.monotonic()
        found = finish(programs)
    total = max(turn["yielded"] for each in found for turn in each["turns"]) - begin
    work = [each["steps"] * each["step_s"] for each in found]
    held = [sum(turn["yielded"] - turn["granted"] for turn in each["turns"]) for each in found]
    fair = sum(held) / 4
    report["four_share"] = sum(work) / total
    report["four_share_unfair"] = max(abs(share - fair) for share in held) / fair
    return {"ok": all(each["right"] for each in found), "total_s": total, "work_s": work, "held_s": held}


def faults(torch):
    """Managed memory of one set, sent to the host and brought back by a kernel's faults. It fits with all else."""
    driver = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    size = SET
    assert torch.cuda.mem_get_info()[0] > 3 * size, "other programs use the device"
    check(driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(size), 1))
    whole = tensor(torch, address.value, size)
    whole.zero_()
    torch.cuda.synchronize()
    by_faults, by_prefetch = [], []
    for times, prefetches in ((by_faults, False), (by_prefetch, True)) * 2:
        check(driver.cuMemPrefetchAsync(address, ctypes.c_size_t(size), ctypes.c_int(-1), None))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        if prefetches:
            check(driver.cuMemPrefetchAsync(address, ctypes.c_size_t(size), ctypes.c_int(0), None))
        whole.add_(1)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    del whole
    check(driver.cuMemFree_v2(address))
    return {"ok": True, "bytes": size, "by_faults_s": by_faults, "by_prefetch_s": by_prefetch}


def two_faults(torch, wanted, report):
    """Two programs with managed memory have the device in slices, the next one as soon as the last one has it no more."""
    # A first step takes a second or more, and others must come after it.
    short, long = (3, 6) if wanted.quick else (5, 30)
    # Both sets fit with room for another one: managed memory that the device cannot hold must not be.
    assert torch.cuda.mem_get_info()[0] > 4 * SET, "other programs use the device"
    with tempfile.TemporaryDirectory(prefix="vramd-turns-", dir=os.environ.get("VRAMD_TESTS_HOME", "/tmp")) as home:
        programs = [Child(wanted.programs, pathlib.Path(home), os.environ, {"number": number, "faults": True}) for number in (0, 1)]
        try:
            for program in programs:
                assert program.line() == "ready"
            slices = []
            # The long slices differ in nothing but their length, so one stands for all.
            for number, seconds in ((0, short), (1, short), (0, short), (1, short), (0, long)):
                programs[number].go(str(seconds))
                slices.append({"seconds": seconds, **json.loads(programs[number].line())})
            right = []
            for program in programs:
                program.go("end")
                right.append(json.loads(program.line()))
        finally:
            for program in programs:
                program.process.kill()
                program.process.wait()
    for name, seconds in (("two_faults_5s", short), ("two_faults_30s", long)):
        report[name] = of_work([each for each in slices if each["seconds"] == seconds])
    free = min(each["free"] for each in slices)
    return {"ok": all(right) and free > SET, "right": right, "least_free_bytes": free, "moved_bytes": MOVED, "slices": slices}


def of_work(slices):
    """How long slices take, of their steps at the pace of the steps that fault no page: those after each first one."""
    step_s = min((each["took_s"] - each["first_step_s"]) / (each["steps"] - 1) for each in slices)
    return sum(each["took_s"] for each in slices) / (step_s * sum(each["steps"] for each in slices))


def check(status):
    assert status == 0, f"CUDA error {status}"


def tensor(torch, address, size):
    class Raw:
        __cuda_array_interface__ = {"shape": (size // 4,), "typestr": "<i4", "data": (address, False), "version": 3}

    return torch.as_tensor(Raw(), device="cuda")


def with_withheld(programs, capacity):
    """The share of the device that leaves so much to hand out: contexts and other programs' memory come out of it."""
    with Node(programs, None, 0, 1000, share=capacity) as node:
        told = subprocess.run([node.programs / "vramctl", "status", "--json"], env=node.environment, capture_output=True)
        return 2 * capacity - json.loads(told.stdout)["devices"][0]["capacity_bytes"]


class Node:
    """A daemon that hands out so much of the device."""

    def __init__(self, programs, capacity, host, quantum, share=None):
        self.programs = programs.resolve()
        share = share or with_withheld(programs, capacity)
        self.folder = tempfile.TemporaryDirectory(prefix="vramd-turns-", dir=os.environ.get("VRAMD_TESTS_HOME", "/tmp"))
        self.home = pathlib.Path(self.folder.name)
        self.home.chmod(0o755)
        text = CONFIGURATION.format(home=self.home, share=share, host=host, quantum=quantum)
        (self.home / "vramd.toml").write_text(text)
        self.environment = {**os.environ, "VRAMD_SOCKET_DIR": str(self.home / "run"), "HOME": "/tmp"}
        self.started, self.host = [], host

    def __enter__(self):
        self.log = open(self.home / "log", "wb")
        self.process = subprocess.Popen(
            [self.programs / "vramd", "--config", self.home / "vramd.toml"], stdout=self.log, stderr=self.log
        )
        until = time.monotonic() + 120
        while self.host and "host memory is pinned ahead of need" not in self.text():
            assert self.process.poll() is None and time.monotonic() < until, self.text()
            time.sleep(0.05)
        while subprocess.run([self.programs / "vramctl", "status"], env=self.environment, capture_output=True).returncode:
            assert self.process.poll() is None and time.monotonic() < until, self.text()
            time.sleep(0.05)
        return self

    def text(self):
        return (self.home / "log").read_text()

    def start(self, user=0, **order):
        order["number"] = len(self.started)
        self.started.append(Child(self.programs, self.home, self.environment, order, user, self.text))
        return self.started[-1]

    def __exit__(self, *_error):
        for child in self.started:
            child.process.kill()
        self.process.terminate()
        self.process.wait(30)
        self.folder.cleanup()


class Child:
    def __init__(self, programs, home, environment, order, user=0, text=lambda: ""):
        self.text = text
        command = [sys.executable, __file__, programs, "--child", json.dumps(order)]
        self.errors = open(home / f"errors-{order['number']}", "w+")
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            user=user or None,
        )

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise AssertionError(self.errors.read()[-3000:] + self.text()[-3000:])
        return line.strip()

    def go(self, word="go"):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()


def started(programs):
    """Waits until each has written its set, then has them all take turns."""
    programs = list(programs)
    for program in programs:
        assert program.line() == "ready"
    for program in programs:
        program.go()
    return programs


def finish(programs):
    """Collects the reports of the programs, once all have taken their turns. Then each checks its bytes."""
    found = [json.loads(program.line()) for program in programs]
    for program, each in zip(programs, found):
        program.go()
        each["right"] = json.loads(program.line())
    return found


class Program:
    """Adds one to every word of its set in each step, and takes turns for it."""

    def __init__(self, torch, order):
        self.torch, self.order = torch, order

    def run(self):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
        import vramd

        torch = self.torch
        torch.zeros(1, device="cuda")
        number = self.order["number"]
        with vramd.connect(f"program-{number}") as client:
            memory = client.allocate(self.order["bytes"], unpinned=True)
            with client.working_set("set", [memory]) as working_set:
                with working_set.turn(), client.pin_set(write=[memory]):
                    words = tensor(torch, memory.device_ptr, self.order["bytes"])
                    words.zero_()
                    torch.cuda.synchronize()
                    self.step_s = self.measured(words)
                    self.before = self.steps
                print("ready", flush=True)
                sys.stdin.readline()
                turns = self.take_turns(working_set, client, memory, words)
                found = {"steps": self.steps - self.before, "step_s": self.step_s, "turns": turns}
                print(json.dumps(found), flush=True)
                sys.stdin.readline()
                with working_set.turn(), client.pin_set(write=[memory]):
                    right = self.torch.stack([(piece == self.steps).all() for piece in words.chunk(64)]).all()
                    print(json.dumps(bool(right.item())), flush=True)

    def measured(self, words):
        """How long a step takes where nothing else runs."""
        self.steps = 0
        self.step(words)
        before, begin = self.steps, time.perf_counter()
        while time.perf_counter() - begin < ALONE_S:
            self.step(words)
        return (time.perf_counter() - begin) / (self.steps - before)

    def step(self, words):
        words.add_(1)
        self.torch.cuda.synchronize()
        self.steps += 1

    def take_turns(self, working_set, client, memory, words):
        """As many turns as are ordered, or as many as the ordered seconds of work take."""
        turns = []
        until = self.before + round(self.order["seconds"] / self.step_s) if "seconds" in self.order else None
        while len(turns) < self.order.get("turns", sys.maxsize) and (until is None or self.steps < until):
            with working_set.turn() as turn, client.pin_set(write=[memory]):
                granted = time.monotonic()
                while not turn.ending and (until is None or self.steps < until):
                    self.step(words)
                    # In its last turn there may be no program that waits for it.
                    if len(turns) + 1 == self.order.get("turns") and time.monotonic() > granted + self.order["quantum_s"]:
                        break
                yielded = time.monotonic()
            turns.append({"program": self.order["number"], "granted": granted, "yielded": yielded})
        return turns


class Faulting(Program):
    """The same work on managed memory. A slice begins with most of the set on the host, as another program's slice leaves it."""

    def run(self):
        torch, self.driver = self.torch, ctypes.CDLL("libcuda.so.1")
        torch.zeros(1, device="cuda")
        assert torch.cuda.mem_get_info()[0] > 3 * SET, "other programs use the device"
        address = ctypes.c_uint64()
        check(self.driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(SET), 1))
        self.address = address.value
        self.prefetch(SET, 0)
        words = tensor(torch, self.address, SET)
        words.zero_()
        self.steps = 0
        self.step(words)
        self.prefetch(MOVED, -1)
        print("ready", flush=True)
        for line in sys.stdin:
            if line.strip() == "end":
                break
            before, begin = self.steps, time.perf_counter()
            self.step(words)
            first_s = time.perf_counter() - begin
            while time.perf_counter() - begin < float(line):
                self.step(words)
            took = time.perf_counter() - begin
            free = torch.cuda.mem_get_info()[0]
            print(json.dumps({"took_s": took, "steps": self.steps - before, "first_step_s": first_s, "free": free}), flush=True)
            self.prefetch(MOVED, -1)
        # By faults again, piece by piece: it fits beside the other set.
        right = all(bool((piece == self.steps).all().item()) for piece in words.chunk(64))
        print(json.dumps(right), flush=True)

    def prefetch(self, size, to):
        """Sends the beginning of the set to a device, or to the host."""
        at = ctypes.c_uint64(self.address)
        check(self.driver.cuMemPrefetchAsync(at, ctypes.c_size_t(size), ctypes.c_int(to), None))
        self.torch.cuda.synchronize()


if __name__ == "__main__":
    main()
