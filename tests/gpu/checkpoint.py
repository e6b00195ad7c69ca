#!/usr/bin/env python3
"""A process that the driver checkpoints and restores while its session is away: `checkpoint.py PROGRAMS --json FILE [--quick]`.

Each check freezes one child by `cuCheckpointProcessLock`, `…Checkpoint`, `…Restore` and `…Unlock`:

- `plain`: PyTorch alone. If the driver refuses this, the machine has no checkpoints: the rest is absent, with the reason.
- `away`: PyTorch and the SDK, whose session goes away before (`Workload.away`) and comes back after. Bytes and addresses are
  the same, a captured CUDA graph runs again, and meanwhile the device has no more memory in use than before the child.
- `present`: the same without going away. The report has the driver's answer, which is no failure, whatever it is.

PROGRAMS is the folder of `vramd` and `vramctl`.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

from torch_weights import GIB, MIB, Daemon

STATES = ("running", "locked", "checkpointed", "failed")
LOCK_MS = 10_000
# The driver may keep so much of a frozen child, or the daemon for its own bookkeeping.
LEFT_MAX = 64 * MIB
SETTLE_S = 10
CONFIGURATION = """
[daemon]
socket_dir = "{home}/run"
state_dir = "{home}/state"
[driver]
kind = "cuda"
[memory]
host_size = "{host}GiB"
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", choices=("plain", "session"), help="what is frozen")
    wanted = parser.parse_args()
    size = GIB if wanted.quick else 4 * GIB
    try:
        import torch
    except ImportError as error:
        return finish(wanted, {"ok": True, "absent": str(error)})
    if wanted.child:
        return serve(torch, wanted.child, size)
    try:
        driver, memory = Driver(), Memory()
    except (OSError, AttributeError) as error:
        return finish(wanted, {"ok": True, "absent": f"the driver has no checkpoints of processes: {error}"})
    report = {"ok": True, "torch": torch.__version__, "driver": memory.driver_version(), "bytes": size}
    try:
        run(wanted, driver, memory, size, report)
    except BaseException:
        report |= {"ok": False, "problem": traceback.format_exc()[-4000:]}
    finish(wanted, report)


def finish(wanted, report):
    print(f"absent: {report['absent']}" if "absent" in report else json.dumps(report, indent=2), flush=True)
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(not report["ok"])


def run(wanted, driver, memory, size, report):
    with Child(wanted, "plain", os.environ) as child:
        report["plain"] = frozen(driver, memory, child)
    if refused := report["plain"].get("refused"):
        report["absent"] = f"the driver refuses to checkpoint a process of PyTorch alone: {refused}"
        return
    with tempfile.TemporaryDirectory(prefix="vramd-checkpoint-", dir=os.environ.get("VRAMD_TESTS_HOME", "/tmp")) as home:
        with Daemon(wanted.programs, pathlib.Path(home), CONFIGURATION, host=3 * size // GIB) as daemon:
            before = memory.used()
            with Child(wanted, "session", daemon.environment) as child:
                report["away"] = away(driver, memory, child, before)
            with Child(wanted, "session", daemon.environment) as child:
                report["present"] = frozen(driver, memory, child, must_compare=False)
    report["ok"] = report["plain"]["ok"] and report["away"]["ok"]


def away(driver, memory, child, before):
    begin = time.perf_counter()
    child.ask("away")
    found = {"away_s": time.perf_counter() - begin}
    found |= frozen(driver, memory, child, before, last="back")
    found["ok"] = "refused" not in found and found["right"] and found["left_bytes"] <= LEFT_MAX
    return found


def frozen(driver, memory, child, before=None, last=None, must_compare=True):
    """Freezes and continues a child: how long each step took, and what the driver refused."""
    found = {"used_before_bytes": memory.used()}
    for step in ("Lock", "Checkpoint"):
        begin = time.perf_counter()
        refused = driver.call(step, child.pid)
        found[f"{step.lower()}_s"] = time.perf_counter() - begin
        if refused:
            found |= {"refused": refused, "state": driver.state(child.pid), "ok": not must_compare}
            # As far as it goes: a child that cannot go on is killed.
            if step == "Checkpoint":
                found["unlocked"] = driver.call("Unlock", child.pid) or "yes"
            return found
    found["state"] = driver.state(child.pid)
    found["used_frozen_bytes"] = memory.least(before)
    if before is not None:
        found["left_bytes"] = max(0, found["used_frozen_bytes"] - before)
    for step in ("Restore", "Unlock"):
        begin = time.perf_counter()
        refused = driver.call(step, child.pid)
        found[f"{step.lower()}_s"] = time.perf_counter() - begin
        if refused:
            return found | {"refused": refused, "state": driver.state(child.pid), "ok": False}
    begin = time.perf_counter()
    if last:
        child.ask(last)
        found[f"{last}_s"] = time.perf_counter() - begin
    compared = child.ask("compare")
    return found | compared | {"ok": compared["right"] or not must_compare}


class Driver:
    """The driver's calls for another process. All arguments are optional but the time to wait for the lock."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.calls = {name: getattr(self.cuda, f"cuCheckpointProcess{name}") for name in ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")}
        code = self.cuda.cuInit(0)
        if code:
            raise OSError(self.name(code))

    def call(self, step, pid):
        """The driver's name of the error, if there is one."""
        # CUcheckpointLockArgs: the time in milliseconds, then reserved words. The others are reserved words alone.
        arguments = (ctypes.c_uint * 16)(LOCK_MS if step == "Lock" else 0)
        code = self.calls[step](ctypes.c_int(pid), arguments)
        return f"{step}: {self.name(code)}" if code else None

    def state(self, pid):
        state = ctypes.c_int(-1)
        code = self.calls["GetState"](ctypes.c_int(pid), ctypes.byref(state))
        return self.name(code) if code else STATES[state.value] if 0 <= state.value < len(STATES) else str(state.value)

    def name(self, code):
        name = ctypes.c_char_p()
        self.cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        return (name.value or str(code).encode()).decode()


class Memory:
    """The memory of the first device, as NVML sees it."""

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)):
            raise OSError("NVML does not show a device")

    def used(self):
        info = self.Info()
        code = self.nvml.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(info))
        assert code == 0, f"nvmlDeviceGetMemoryInfo: {code}"
        return info.used

    def least(self, target):
        """The bytes in use, once no more than `target` are, or after a while: freed memory returns behind the calls."""
        until = time.monotonic() + (SETTLE_S if target is not None else 0)
        while (used := self.used()) > (target or 0) and time.monotonic() < until:
            time.sleep(0.02)
        return used

    def driver_version(self):
        text = ctypes.create_string_buffer(96)
        self.nvml.nvmlSystemGetDriverVersion(text, 96)
        return text.value.decode()


class Child:
    """A process that answers each line with one of JSON."""

    def __init__(self, wanted, kind, environment):
        quick = ["--quick"] if wanted.quick else []
        self.process = subprocess.Popen(
            [sys.executable, __file__, wanted.programs, "--child", kind, *quick],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        self.pid = self.process.pid

    def __enter__(self):
        self.listen("its start")
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.communicate()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.listen(line)

    def listen(self, to):
        line = self.process.stdout.readline()
        assert line, f"the child has ended at {to}: status {self.process.wait(10)}"
        return json.loads(line)


def serve(torch, kind, size):
    """The child: memory, a captured graph over it, and what is asked of it line by line."""
    state = Session(torch, size) if kind == "session" else Plain(torch, size)
    tell(ready=True)
    for line in sys.stdin:
        tell(**getattr(state, line.strip())())


class Plain:
    def __init__(self, torch, size):
        self.torch = torch
        self.make(size)
        self.steps = 0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.sum.add_(self.values)
        torch.cuda.current_stream().wait_stream(side)
        self.steps += 1
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.sum.add_(self.values)
        self.places = self.addresses()
        assert self.compare()["right"], "before it is frozen"

    def make(self, size):
        self.values = self.torch.arange(size // 16, dtype=self.torch.int64, device="cuda")
        self.sum = self.torch.zeros_like(self.values)

    def addresses(self):
        return [self.values.data_ptr(), self.sum.data_ptr()]

    def compare(self):
        """Whether all bytes and addresses are as before, and again after a run of the graph."""
        before = self.holds()
        self.graph.replay()
        self.steps += 1
        self.torch.cuda.synchronize()
        same = self.addresses() == self.places
        return {"right": before and same and self.holds(), "same_addresses": same, "graph_runs": self.steps}

    def holds(self):
        expected = self.torch.arange(len(self.values), dtype=self.torch.int64, device="cuda")
        held = bool(self.torch.equal(self.values, expected)) and bool(self.torch.equal(self.sum, expected.mul_(self.steps)))
        del expected
        self.torch.cuda.empty_cache()
        return held


class Session(Plain):
    """The tensors of the graph lie in a pool of the daemon, beside weights that are sealed."""

    def make(self, size):
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
        import vramd
        import vramd.torch
        from vramd.integrations.llm_d import Workload

        self.client = vramd.connect("frozen")
        with vramd.torch.pool("state", client=self.client):
            super().make(size)
        self.layer = self.torch.arange(size // 64, dtype=self.torch.int64)
        self.weights = vramd.save({"layer": self.layer}, f"weights-{os.getpid()}", client=self.client)
        self.workload = Workload({"weights": [self.weights]})

    def addresses(self):
        return [*super().addresses(), self.weights.memory.device_ptr]

    def holds(self):
        tensor = self.weights.tensors()["layer"]
        same = bool(self.torch.equal(tensor.cpu(), self.layer))
        del tensor
        return same and super().holds()

    def away(self):
        self.leave = self.workload.away(self.client)
        self.leave.__enter__()
        return {"away": self.client.is_away}

    def back(self):
        self.leave.__exit__(None, None, None)
        return {"away": self.client.is_away}


def tell(**facts):
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
