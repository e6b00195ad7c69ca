#!/usr/bin/env python3
"""PyTorch's tensors in pools of the daemon, put to sleep and woken: `torch_pool.py PROGRAMS --json FILE [--quick]`.

Each check has a key in the report, with `ok` and what was seen; one that fails does not stop the others. The figures:

- `sleep`, `wake`: the speed of a pool that leaves and returns, of the speed of a plain copy to and from pinned memory.
- `first_sleep_s`: how long its first sleep takes, with the same bytes.
- `call_us`: how long a pin from Python and its end take, with all that the Rust SDK does for them.
- `pool_miss`: how long a segment takes that needs a new arena, of the driver's bare create, map and access.
- `rotate`: the speed of a turn of four models, of which the quota holds two, of that of a plain copy both ways.

PROGRAMS is the folder of `vramd` and `vramctl`.
"""

import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from torch_weights import Daemon, configuration, logits_digest, made, timed

MIB, GIB = 1 << 20, 1 << 30
SEED = 29
CONFIGURATION = """
[daemon]
socket_dir = "{home}/run"
state_dir = "{home}/state"
[driver]
kind = "cuda"
[memory]
host_size = "{host}GiB"
harvest_ms = 5
"""
# PyTorch's largest segment of small blocks, and what an arena may hold beside it.
SEGMENT = 64 * MIB
CHILDREN = ("pool_first", "client_first", "thread_at_exit", "double_close", "forked", "module_last", "weights_first")
# These use memory of a pool that is asleep.
ASLEEP = ("asleep_tensor", "asleep_graph")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--checks", help="some of the checks, separated by commas")
    parser.add_argument("--child", choices=CHILDREN + ASLEEP, help="the part of another process")
    parser.add_argument("--trace", type=pathlib.Path, help="where the check `trace` writes the calls that PyTorch makes")
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
    if wanted.child:
        return child(torch, vramd, wanted.child)
    with tempfile.TemporaryDirectory(prefix="vramd-pool-", dir=os.environ.get("VRAMD_TESTS_HOME", "/tmp")) as home:
        with Daemon(wanted.programs, pathlib.Path(home), CONFIGURATION, host=16 if wanted.quick else 52) as daemon:
            os.environ["VRAMD_SOCKET_DIR"] = daemon.environment["VRAMD_SOCKET_DIR"]
            daemon.await_pinned()
            report = Run(torch, vramd, daemon, wanted).all()
            if not report["ok"]:
                print((pathlib.Path(home) / "log").read_text()[-4000:])
    print(json.dumps(report, indent=2))
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(not report["ok"])


class Run:
    def __init__(self, torch, vramd, daemon, wanted):
        self.torch, self.vramd, self.daemon, self.wanted = torch, vramd, daemon, wanted
        self.client = vramd.connect("pool")
        self.bytes = (2 if wanted.quick else 12) * GIB
        self.report = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": torch.cuda.get_device_name()}

    def all(self):
        checks = (
            self.logits, self.llama, self.streams, self.out_of_memory, self.strand, self.speed, self.pool_miss, self.rotation,
            self.cycles, self.calls, self.quota, self.debug, self.guide, self.managed,
            self.managed_orders, self.devices, self.teardown, self.asleep,
            self.dtypes, self.trace, self.saver,
        )
        if self.wanted.checks:
            names = self.wanted.checks.split(",")
            unknown = set(names) - {check.__name__ for check in checks}
            assert not unknown, f"no checks {unknown}"
            checks = [check for check in checks if check.__name__ in names]
        for check in checks:
            begin = time.perf_counter()
            try:
                found = check()
            except BaseException:
                found = {"ok": False, "problem": traceback.format_exc()[-3000:]}
            found["took_s"] = round(time.perf_counter() - begin, 2)
            self.report[check.__name__] = found
            print(f"{check.__name__}: {'ok' if found['ok'] else 'FAILED'} ({found['took_s']} s)", flush=True)
            for each in list(self.pools()):
                each.close()
            self.torch.cuda.empty_cache()
        speed, rotation, calls, miss = (self.report.get(key, {}) for key in ("speed", "rotation", "calls", "pool_miss"))
        for key in ("sleep", "wake", "first_sleep_s"):
            self.report[key] = speed.get(key)
        self.report["call_us"] = calls.get("pin_us")
        self.report["pool_miss_ratio"] = miss.get("ratio")
        if "turn_s" in rotation and "plain_back_s" in speed:
            self.report["rotate"] = (speed["plain_away_s"] + speed["plain_back_s"]) / rotation["turn_s"]
        self.report["ok"] = all(self.report[check.__name__]["ok"] for check in checks)
        return self.report

    def pools(self):
        from vramd import _torch_pool

        return [*_torch_pool._pools.values(), *_torch_pool._managed_pools.values()]

    def pool(self, tag, **options):
        return self.vramd.torch.pool(tag, client=self.client, **options)

    def free_bytes(self):
        self.client.flush()
        self.torch.cuda.synchronize()
        return self.torch.cuda.mem_get_info()[0]

    def charged(self, tier):
        self.client.flush()
        return sum(place.used - place.cached for place in self.client.quota() if place.tier == tier)

    def model(self, layers=8, width=2048):
        torch = self.torch
        torch.manual_seed(SEED)
        blocks = [torch.nn.TransformerEncoderLayer(width, 16, 4 * width, 0.0, batch_first=True) for _ in range(layers)]
        return torch.nn.Sequential(*blocks).eval()

    def logits(self):
        """A model's output is the same after sleeps of both levels, also by a graph captured before."""
        torch, tensors = self.torch, self.vramd.torch
        plain = self.model()
        pool = self.pool("model")
        with pool:
            model = self.model().cuda()
        x = torch.randn(4, 128, 2048, generator=torch.Generator().manual_seed(1)).cuda()

        def digest(value):
            return hashlib.sha256(value.float().cpu().numpy().tobytes()).hexdigest()

        with torch.inference_mode():
            for _ in range(3):
                expected = digest(model(x))
            graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            side = torch.cuda.Stream()
            side.wait_stream(before)
            with torch.cuda.stream(side):
                model(x)
            before.wait_stream(side)
            with torch.cuda.graph(graph):
                y = model(x)
            graph.replay()
            captured = digest(y)
            found = {"bytes": pool.nbytes, "in_pool": all(pool.contains(each) for each in model.parameters())}
            for level in (1, 2):
                free = self.free_bytes()
                pointers = [each.data_ptr() for each in model.parameters()]
                tensors.sleep(level, tags=["model"])
                found[f"freed_{level}"] = self.free_bytes() - free
                tensors.wake_up(tags=["model"])
                if level == 2:
                    model.load_state_dict(plain.state_dict())
                found[f"eager_{level}"] = digest(model(x)) == expected
                y.zero_()
                graph.replay()
                found[f"graph_{level}"] = digest(y) == captured
                found[f"addresses_{level}"] = pointers == [each.data_ptr() for each in model.parameters()]
        wanted = ("in_pool", "eager_1", "graph_1", "addresses_1", "eager_2", "graph_2", "addresses_2")
        freed = min(found["freed_1"], found["freed_2"]) >= pool.nbytes * 9 // 10
        return {"ok": all(found[key] for key in wanted) and freed, **found}

    def llama(self):
        """Four models of transformers, of which two fit, in rotation: each has the logits of before, bit for bit."""
        import transformers

        torch, config, models = self.torch, configuration(transformers, True), []
        try:
            for number in range(4):
                pool = self.pool(f"llama{number}", wait=30)
                torch.manual_seed(SEED + number)
                with pool, torch.device("cuda"):
                    model = made(torch, transformers, config)
                found = {"digest": logits_digest(torch, model), "bytes": pool.nbytes}
                found["in_pool"] = all(pool.contains(each) for each in model.parameters())
                found["addresses"] = [each.data_ptr() for each in model.parameters()]
                free = self.free_bytes()
                pool.sleep()
                found["freed"] = self.free_bytes() - free
                models.append((pool, model, found))
                if number == 0:
                    limit = str(2 * pool.nbytes + GIB)
                    self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", limit)
            awake, wakes, same = [], [], True
            for turn in range(12):
                pool, model, found = models[turn % 4]
                if len(awake) == 2:
                    awake.pop(0).sleep()
                wakes.append(timed(torch, lambda: pool.wake_up(60))[1])
                awake.append(pool)
                pointers = [each.data_ptr() for each in model.parameters()]
                same = same and logits_digest(torch, model) == found["digest"] and pointers == found["addresses"]
            for pool, _, _ in models:
                pool.sleep(2)
        finally:
            self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", "100%")
        each = [found for _, _, found in models]
        freed = all(found["freed"] >= found["bytes"] * 9 // 10 for found in each)
        differ = len({found["digest"] for found in each}) == 4
        ok = same and freed and differ and all(found["in_pool"] for found in each)
        return {
            "ok": ok, "transformers": transformers.__version__, "same": same, "differ": differ, "limit": int(limit),
            "bytes": [found["bytes"] for found in each], "freed": [found["freed"] for found in each], "wakes_s": wakes,
        }

    def streams(self):
        """Tensors that side streams use and free keep their content, and none is reused too early."""
        torch = self.torch
        pool, side = self.pool("streams"), torch.cuda.Stream()
        sums = []
        for number in range(40):
            # The end of each block gives back what the streams may still use.
            with pool:
                with torch.cuda.stream(side):
                    tensor = torch.full((8 * MIB,), number, dtype=torch.int64, device="cuda")
                    total = tensor.sum()
                tensor.record_stream(torch.cuda.current_stream())
                torch.cuda.current_stream().wait_stream(side)
                sums.append(total + tensor.sum())
                del tensor, total
        torch.cuda.synchronize()
        same = [int(total) == 2 * number * 8 * MIB for number, total in enumerate(sums)]
        return {"ok": all(same), "wrong": same.count(False)}

    def out_of_memory(self):
        """An allocation over the limit names tenant and limit, and the next that fits succeeds."""
        torch = self.torch
        limit = 2 * GIB
        self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", str(limit))
        try:
            text, pool = "", self.pool("small", wait=1)
            with pool:
                kept = torch.ones(GIB, dtype=torch.uint8, device="cuda")
            begin = time.perf_counter()
            try:
                with pool:
                    torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                text = str(error)
            waited = time.perf_counter() - begin
            with pool:
                more = torch.ones(512 * MIB, dtype=torch.uint8, device="cuda")
            fits = int(kept.sum()) + int(more.sum()) == GIB + 512 * MIB
        finally:
            self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", "100%")
        named = self.client.tenant in text and ("2 GiB" in text or str(limit) in text) and "'small'" in text
        return {"ok": named and fits, "text": text, "fits": fits, "waited_s": waited}

    def strand(self):
        """After a load that converts types inside of the block, the pool has no more than the tensors."""
        torch = self.torch
        pool = self.pool("strand")
        with pool:
            kept = []
            for _ in range(16):
                wide = torch.ones(64 * MIB // 4, dtype=torch.float32, device="cuda")
                kept.append(wide.to(torch.bfloat16))
                del wide
        live = sum(each.untyped_storage().nbytes() for each in kept)
        inside = {"live": live, "used": pool.used, "held": pool.nbytes}
        del kept
        pool.trim()
        self.client.flush()
        # One segment that is partly used, and the rest of one arena.
        close = live <= inside["used"] <= live + SEGMENT and inside["held"] <= live + 2 * SEGMENT
        return {"ok": close and pool.nbytes == 0, **inside, "held_at_the_end": pool.nbytes}

    def fill(self, tag, size, seed, each=256 * MIB):
        torch, pool = self.torch, self.pool(tag, wait=30)
        torch.manual_seed(seed)
        with pool:
            kept = [torch.empty(each // 8, dtype=torch.int64, device="cuda") for _ in range(size // each)]
        for tensor in kept:
            tensor.random_()
        return pool, kept, self.sums(kept)

    def sums(self, tensors):
        return [int(tensor.sum()) for tensor in tensors]

    def speed(self):
        torch = self.torch
        pool, kept, sums = self.fill("speed", self.bytes, 1)
        _, first = timed(torch, pool.sleep)
        _, _ = timed(torch, lambda: pool.wake_up(60))
        same, sleeps, wakes = self.sums(kept) == sums, [], []
        for number in range(5):
            kept[0].fill_(number)
            sums[0] = number * kept[0].numel()
            # Written again, all of it: nothing leaves without a copy.
            for tensor in kept[1:]:
                tensor.add_(1)
            sums[1:] = self.sums(kept[1:])
            sleeps.append(timed(torch, pool.sleep)[1])
            wakes.append(timed(torch, lambda: pool.wake_up(60))[1])
            same = same and self.sums(kept) == sums
        host = [torch.empty(256 * MIB // 8, dtype=torch.int64, pin_memory=True) for _ in range(4)]

        def plain(out):
            for number, tensor in enumerate(kept):
                buffer = host[number % len(host)]
                to, source = (buffer, tensor) if out else (tensor, buffer)
                to.copy_(source, non_blocking=True)

        away = statistics.median(timed(torch, lambda: plain(True))[1] for _ in range(5))
        back = statistics.median(timed(torch, lambda: plain(False))[1] for _ in range(5))
        sleep, wake = statistics.median(sleeps), statistics.median(wakes)
        clean = timed(torch, pool.sleep)[1]
        return {
            "ok": same, "bytes": self.bytes, "first_sleep_s": first, "sleep_s": sleep, "wake_s": wake,
            "plain_away_s": away, "plain_back_s": back, "sleep": away / sleep, "wake": back / wake,
            "sleeps_s": sleeps, "wakes_s": wakes, "clean_sleep_s": clean,
        }

    def pool_miss(self):
        pool = self.pool("miss")
        native, size = pool._native, 256 * MIB
        from vramd import _native

        library = ctypes.CDLL(_native.__file__)
        alloc, free = (library[name] for name in native.symbols)
        alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        ours = []
        for _ in range(20):
            begin = time.perf_counter()
            address = alloc(size, native.ordinal, None)
            ours.append(time.perf_counter() - begin)
            assert address, native.take_refusal()
            free(address, size, native.ordinal, None)
            self.client.flush()
        bare = [bare_miss(size) for _ in range(20)]
        ours_s, bare_s = statistics.median(ours), statistics.median(bare)
        return {"ok": True, "ours_us": ours_s * 1e6, "bare_us": bare_s * 1e6, "ratio": ours_s / bare_s}

    def rotation(self):
        """Four models of which two fit: each turn one sleeps and one wakes. All content stays, and nothing grows."""
        torch = self.torch
        limit = 2 * self.bytes + GIB
        self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", str(limit))
        try:
            models = []
            for number in range(4):
                models.append(self.fill(f"model{number}", self.bytes, number))
                models[-1][0].sleep()
            awake, turns, same, before = [], [], True, None
            for turn in range(12 if self.wanted.quick else 102):
                if turn == 6:
                    before = self.held()
                pool, kept, sums = models[turn % 4]

                def one_turn():
                    if len(awake) == 2:
                        awake.pop(0).sleep()
                    pool.wake_up(60)

                turns.append(timed(torch, one_turn)[1])
                awake.append(pool)
                same = same and self.sums(kept) == sums
            after = self.held()
            for pool, _, _ in models:
                pool.sleep(2)
        finally:
            self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", "100%")
        found = {"turn_s": statistics.median(turns[2:]), "turn_max_s": max(turns[2:]), "turns": len(turns), "limit": limit}
        return {"ok": same and not grown(before, after), "same": same, "before": before, "after": after, **found}

    def held(self):
        """Descriptors, address space, free memory of the device, and the charge of both tiers."""
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        descriptors = len(os.listdir("/proc/self/fd"))
        return [descriptors, pages * 4096, self.free_bytes(), self.charged("device"), self.charged("host")]

    def cycles(self):
        pool, kept, sums = self.fill("cycles", 512 * MIB, 3, each=64 * MIB)

        def cycle(number):
            pool.sleep(1)
            pool.wake_up(30)

        for number in range(10):
            cycle(number)
        before = self.held()
        for number in range(100 if self.wanted.quick else 1000):
            cycle(number)
        after = self.held()
        same = self.sums(kept) == sums
        return {"ok": same and not grown(before, after), "same": same, "before": before, "after": after}

    def calls(self):
        memory, count, rounds = self.client.allocate("2MiB"), 1000, []
        for _ in range(21):
            begin = time.perf_counter()
            for _ in range(count):
                with memory.pin(write=True):
                    pass
            rounds.append((time.perf_counter() - begin) / count * 1e6)
        memory.free()
        return {"ok": True, "pin_us": statistics.median(rounds), "rounds": len(rounds), "pins": count}

    def quota(self):
        limit = 3 * GIB
        self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", str(limit))
        try:
            with self.vramd.torch.quota_as_memory(self.client):
                free, total = self.torch.cuda.mem_get_info()
        finally:
            self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", "100%")
        return {"ok": total == limit and free <= limit, "free": free, "total": total}

    def debug(self):
        """In debug mode the use of a tensor asleep is an exception."""
        torch, pool = self.torch, self.pool("debugged")
        with pool:
            tensor = torch.ones(1000, device="cuda")
        pool.sleep()
        said = ""
        with self.vramd.torch.debug():
            try:
                tensor + 1
            except self.vramd.NotResident as refused:
                said = str(refused)
        pool.wake_up()
        return {"ok": "'debugged'" in said and float((tensor + 1).sum()) == 2000, "said": said}

    def guide(self):
        """The block of docs/guides/pytorch.md."""
        vramd, net = self.vramd, self.torch.nn.Linear(64, 64)

        def Net():
            return net

        before = net.weight.detach().clone()
        with vramd.torch.pool("weights"):
            model = Net().cuda()

        vramd.torch.sleep()                            # its bytes go to a lower tier, and the device has the room
        vramd.torch.wake_up()                          # and come back to the same addresses
        return {"ok": self.torch.equal(model.weight.cpu(), before)}

    def managed(self):
        """Managed memory is charged, computes right, is refused beyond the limit, and a small block is there at once."""
        torch, vramd = self.torch, self.vramd
        with vramd.torch.managed_pool("activations"):
            hidden = torch.empty(1 << 28, device="cuda")

        print(vramd.torch.managed_pool("activations").failures)   # {}: every advice and prefetch has worked
        is_inside = vramd.torch.managed_pool("activations").contains(hidden)
        del hidden
        vramd.torch.managed_pool("activations").trim()
        pool = vramd.torch.managed_pool("managed", client=self.client, wait=1)
        before = self.managed_bytes()
        with pool:
            tensor = torch.arange(GIB // 8, dtype=torch.int64, device="cuda")
        charged = {"tensor": GIB, "pool": pool.nbytes, "quota": self.managed_bytes() - before}
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            total = int((tensor * 2).sum())
        count = GIB // 8
        right = total == count * (count - 1) and int(tensor[-1]) == count - 1
        del tensor
        pool.trim()
        charged["afterwards"] = self.managed_bytes() - before
        is_charged = charged["tensor"] <= charged["pool"] <= charged["quota"] and charged["afterwards"] == 0
        limit, text = 2 * GIB, ""
        self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", str(limit))
        try:
            with pool:
                torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            text = str(error)
        finally:
            self.daemon.vramctl("quota", "set", self.client.tenant, "--tier", "device", "--limit", "100%")
        named = self.client.tenant in text and ("2 GiB" in text or str(limit) in text)
        first = {name: self.first_kernel(pool, size) for name, size in (("below", 2 * GIB - 64 * MIB), ("above", 2 * GIB))}
        found = {"charged": charged, "right": right, "text": text, "failures": pool.failures, "first_kernel": first}
        found["old_signatures"] = managed_by_old_signatures()
        # The pages of the block below 2 GiB need no fault; how much faster that is is the platform's matter.
        ok = is_charged and right and named and not pool.failures and not found["old_signatures"]
        return {"ok": ok and is_inside and first["below"]["bytes_s"] > first["above"]["bytes_s"], **found}

    def managed_orders(self):
        """Managed memory leaves the device and comes back by an operator's order, which this process executes."""
        torch, size = self.torch, 4 * GIB
        pool = self.vramd.torch.managed_pool("orders", client=self.client, wait=1)
        before = {allocation.id for allocation in self.client.list()}
        with pool:
            block = torch.empty(size, dtype=torch.uint8, device="cuda").fill_(7)
        (name,) = [f"a-{it.id}" for it in self.client.list() if it.id not in before and it.kind == "managed"]
        _, resident = timed(torch, lambda: block.fill_(7))
        found = {"bytes": size, "kernel_resident_s": resident}
        found["evict_s"] = self.ordered(name, "evict", "host")
        total = int(block[:: 1 << 20].sum())
        found["evict_again_s"] = self.ordered(name, "evict", "host")
        _, found["kernel_by_faults_s"] = timed(torch, lambda: block.fill_(8))
        self.ordered(name, "evict", "host")
        found["bring_in_s"] = self.ordered(name, "bring-in", "device")
        _, found["kernel_brought_s"] = timed(torch, lambda: block.add_(1))
        right = total == 7 * (size >> 20) and bool((block == 9).all())
        charged = self.managed_bytes()
        del block
        pool.trim()
        found |= {"right": right, "charged": charged, "failures": pool.failures}
        # Its free memory does not show it: the driver keeps for managed memory what it once had.
        is_moved = found["kernel_brought_s"] < found["kernel_by_faults_s"] / 10
        return {"ok": right and is_moved and charged >= size and not pool.failures, **found}

    def ordered(self, name, verb, to):
        """How long it takes until the memory has been moved there."""
        begin = time.perf_counter()
        self.daemon.vramctl("alloc", verb, name)
        shown = lambda: json.loads(self.daemon.vramctl("alloc", "show", name, "--json"))["allocation"]["managed"]
        while shown() != {"ordered": to, "under_way": None}:
            assert time.perf_counter() - begin < 30, f"{name} is not moved to the {to}"
            time.sleep(0.001)
        return time.perf_counter() - begin

    def managed_bytes(self):
        self.client.flush()
        return sum(place.managed for place in self.client.quota() if place.tier == "device")

    def first_kernel(self, pool, size):
        """How fast the first kernel writes a block of that size: bytes a second, with its prefetch before, if any."""
        torch = self.torch
        torch.cuda.synchronize()
        with pool:
            block = torch.empty(size, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        block.fill_(7)
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        _, again = timed(torch, lambda: block.fill_(8))
        del block
        pool.trim()
        return {"seconds": took, "bytes_s": size / took, "again_s": again}

    def devices(self):
        """Each device has its own pool, whose bytes leave that device and come back to it."""
        torch = self.torch
        pools = [self.pool("each", device=number) for number in range(torch.cuda.device_count())]
        kept, plain, right = [], [], []
        for number, pool in enumerate(pools):
            plain.append(torch.randint(256, (64 * MIB,), dtype=torch.uint8, generator=torch.Generator().manual_seed(number)))
            with pool:
                kept.append(plain[number].to(f"cuda:{number}"))
        for pool, tensor in zip(pools, kept):
            free = torch.cuda.mem_get_info(pool.ordinal)[0]
            pool.sleep()
            freed = torch.cuda.mem_get_info(pool.ordinal)[0] - free
            others = [other for other in pools if other is not pool]
            right.append(freed >= tensor.numel() * 9 // 10 and all(other.is_awake for other in others))
            pool.wake_up(30)
        self.vramd.torch.sleep(tags=["each"])
        self.vramd.torch.wake_up(tags=["each"])
        for number, tensor in enumerate(kept):
            is_same = torch.equal(tensor.cpu(), plain[number]) and tensor.device.index == number
            right.append(is_same and pools[number].contains(tensor))
        return {"ok": all(right), "devices": len(pools), "right": right}

    def teardown(self):
        model = self.torch.nn.Linear(256, 256)
        weights = self.vramd.save(model.state_dict(), "teardown", client=self.client)
        try:
            statuses = {order: self.run_child(order) for order in CHILDREN}
        finally:
            weights.free()
        return {"ok": all(status[:2] == [0, "done\n"] for status in statuses.values()), "statuses": statuses}

    def run_child(self, part):
        """The status of another process, what it printed, and its errors if it failed."""
        command = [sys.executable, "-X", "faulthandler", __file__, str(self.wanted.programs), "--child", part]
        done = subprocess.run(command, env=self.daemon.environment, capture_output=True, text=True, timeout=100)
        return [done.returncode, done.stdout[-1000:], done.stderr[-1000:] if done.returncode else ""]

    def asleep(self):
        """How processes end that use memory asleep without the debug mode. None computes with it, and none hangs."""
        ends = {part: self.run_child(part) for part in ASLEEP}
        return {"ok": all("computed" not in printed for _, printed, _ in ends.values()), "ends": ends}

    def dtypes(self):
        """Tensors of types that PyTorch 1.13, which the tests on the CPU have, lacks: bytes, type and shape."""
        import safetensors.torch

        torch, content, header = self.torch, bytearray(), {}
        for number, (dtype, (known, shape, count)) in enumerate(DTYPES.items()):
            data = bytes((7 * number + at) % 251 for at in range(count))
            header[dtype] = {"dtype": dtype, "shape": [2, 4], "data_offsets": [len(content), len(content) + count]}
            content += data
        text = json.dumps(header).encode()
        wrong, compared = [], []
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "types.safetensors"
            path.write_bytes(len(text).to_bytes(8, "little") + text + content)
            weights = self.vramd.load(path, client=self.client)
            tensors = weights.tensors()
            for dtype, (known, shape, count) in DTYPES.items():
                tensor, start = tensors.get(dtype), header[dtype]["data_offsets"][0]
                if tensor is None or tensor.dtype != getattr(torch, known) or tuple(tensor.shape) != shape:
                    wrong.append(f"{dtype}: {tensor!r}"[:200])
                elif bytes(tensor.view(torch.uint8).flatten().tolist()) != content[start : start + count]:
                    wrong.append(f"{dtype}: other bytes")
            try:
                theirs = safetensors.torch.load_file(path, device="cuda")
            except Exception as refused:
                # Their loader may lack one of the types, and then loads none.
                compared.append(f"not compared: {refused}"[:300])
            else:
                for dtype, tensor in theirs.items():
                    compared.append(dtype)
                    own = tensors[dtype]
                    same = (own.dtype, own.shape) == (tensor.dtype, tensor.shape)
                    if not same or not torch.equal(own.view(torch.uint8), tensor.view(torch.uint8)):
                        wrong.append(f"{dtype}: {tensor.dtype} {tuple(tensor.shape)} by safetensors")
            # Nothing may refer to its memory.
            tensors = tensor = own = None
            weights.free()
        return {"ok": not wrong, "types": list(DTYPES), "wrong": wrong, "compared": compared}

    def trace(self):
        """Records the calls that PyTorch makes to a pool's allocator while a small transformer trains and generates."""
        from vramd import _torch_pool

        torch, pool = self.torch, self.pool("trace", wait=30)
        recorder = Recorder(torch, pool)
        _torch_pool._allocators[pool._native.symbols[0]] = recorder
        side = torch.cuda.Stream()
        with pool:
            model = self.model(layers=3, width=512).cuda().train()
            head = torch.nn.Linear(512, 1000, device="cuda")
            adam = torch.optim.Adam([*model.parameters(), *head.parameters()])
        for step in range(4):
            with pool:
                x = torch.randn(16, 128 + 64 * step, 512, device="cuda")
                head(model(x)).square().mean().backward()
                adam.step()
                adam.zero_grad(set_to_none=True)
        model.eval()
        with pool, torch.inference_mode(), torch.cuda.stream(side):
            x = torch.randn(4, 64, 512, device="cuda")
            for _ in range(48):
                x = torch.cat([x, model(x)[:, -1:]], dim=1)
                head(x[:, -1]).argmax(-1)
        torch.cuda.synchronize()
        used = pool.used
        del model, head, adam, x
        # PyTorch keeps a workspace for each stream, in the pool in which it was first used.
        torch._C._cuda_clearCublasWorkspaces()
        pool.trim()
        self.client.flush()
        calls = recorder.calls
        balanced = sorted(call[3] for call in calls if call[0] == "alloc") == sorted(
            call[3] for call in calls if call[0] == "free"
        )
        made = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": torch.cuda.get_device_name(), "calls": calls}
        if self.wanted.trace:
            self.wanted.trace.write_text(json.dumps(made, separators=(",", ":")) + "\n")
        found = {"calls": len(calls), "used": used, "held_at_the_end": pool.nbytes, "streams": len(recorder.streams)}
        return {"ok": balanced and len(calls) > 10 and pool.nbytes == 0, **found}

    def saver(self):
        """`torch_memory_saver` beside it, with the same bytes, if it is installed: with buffers that it keeps, and fresh ones."""
        return {"ok": True, "bytes": self.bytes, "kept": self.one_saver(1), "fresh": self.one_saver(0)}

    def one_saver(self, kept):
        command = [sys.executable, pathlib.Path(__file__).with_name("torch_saver.py"), self.bytes // (256 * MIB), 256 * MIB, kept]
        peers = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1] / "peers")}
        done = subprocess.run(
            [str(word) for word in command], input="\n" * 4, env=peers, capture_output=True, text=True, timeout=200
        )
        rounds = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        times = [each for each in rounds if "paused_s" in each][1:]
        if not times:
            return {"absent": (rounds or [done.stderr[-300:]])[0]}
        return {key: statistics.median(each[key] for each in times) for key in ("paused_s", "resumed_s")}


# The types by their names in PyTorch, with the shape there and the bytes of a tensor of 2 rows and 4 columns.
DTYPES = {
    "F4": ("float4_e2m1fn_x2", (2, 2), 4), "F8_E4M3": ("float8_e4m3fn", (2, 4), 8), "F8_E5M2": ("float8_e5m2", (2, 4), 8),
    "F8_E8M0": ("float8_e8m0fnu", (2, 4), 8), "U16": ("uint16", (2, 4), 16), "U32": ("uint32", (2, 4), 32),
    "U64": ("uint64", (2, 4), 64),
}


class Recorder:
    """Stands between PyTorch and a pool's symbols, and notes each call: `alloc` or `free`, size, stream, segment.

    Streams and segments are numbered in the order of their first call.
    """

    def __init__(self, torch, pool):
        from vramd import _native

        library, native = ctypes.CDLL(_native.__file__), pool._native
        alloc, free = (library[name] for name in native.symbols)
        alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.calls, self.streams, segments, count = [], {}, {}, iter(range(1 << 30))

        def note_alloc(size, device, stream):
            address = alloc(size, device, stream)
            if address:
                segments[address] = next(count)
                number = self.streams.setdefault(stream or 0, len(self.streams))
                self.calls.append(["alloc", size, number, segments[address]])
            return address

        def note_free(address, size, device, stream):
            number = self.streams.setdefault(stream or 0, len(self.streams))
            self.calls.append(["free", size, number, segments.pop(address)])
            free(address, size, device, stream)

        # PyTorch has pointers to these for as long as the process lives, and so `_allocators` keeps the recorder.
        self.functions = (
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(note_alloc),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(note_free),
        )
        pointers = [ctypes.cast(function, ctypes.c_void_p).value for function in self.functions]
        self.made = torch._C._cuda_customAllocator(*pointers)

    def allocator(self):
        return self.made


def grown(before, after):
    """Whether more is held than before. Address space may grow by an arena of the C library."""
    more = after[0] > before[0] or after[1] > before[1] + 64 * MIB or after[2] < before[2] - 4 * MIB
    return more or after[3:] != before[3:]


def managed_by_old_signatures():
    """Calls the functions of CUDA 12 as the SDK does where the newer ones are missing. Returns the calls that failed."""
    cuda = ctypes.CDLL("libcuda.so.1")
    address, size, stream = ctypes.c_ulonglong(), ctypes.c_size_t(64 * MIB), ctypes.c_void_p(None)
    assert cuda.cuMemAllocManaged(ctypes.byref(address), size, ctypes.c_uint(1)) == 0
    codes = {
        "cuMemAdvise": cuda.cuMemAdvise(address, size, ctypes.c_int(3), ctypes.c_int(0)),
        "cuMemPrefetchAsync": cuda.cuMemPrefetchAsync(address, size, ctypes.c_int(0), stream),
        "cuStreamSynchronize": cuda.cuStreamSynchronize(stream),
        "cuMemFree_v2": cuda.cuMemFree_v2(address),
    }
    return {name: code for name, code in codes.items() if code}


def bare_miss(size):
    """The driver's own way to memory at an address, in seconds; it is given back outside of the time."""
    cuda = ctypes.CDLL("libcuda.so.1")

    class Property(ctypes.Structure):
        """CUmemAllocationProp: pinned memory of device 0, to be exported as a descriptor."""

        _fields_ = [
            ("kind", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int), ("device", ctypes.c_int),
            ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8),
        ]

    class Access(ctypes.Structure):
        _fields_ = [("location", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]

    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    size_t, number = ctypes.c_size_t(size), ctypes.c_ulonglong
    prop, access = Property(1, 1, 1, 0, None), Access(1, 0, 3)
    handle, address = number(), number()
    begin = time.perf_counter()
    call("cuMemCreate", ctypes.byref(handle), size_t, ctypes.byref(prop), number(0))
    call("cuMemAddressReserve", ctypes.byref(address), size_t, ctypes.c_size_t(0), number(0), number(0))
    call("cuMemMap", address, size_t, ctypes.c_size_t(0), handle, number(0))
    call("cuMemSetAccess", address, size_t, ctypes.byref(access), ctypes.c_size_t(1))
    took = time.perf_counter() - begin
    call("cuMemUnmap", address, size_t)
    call("cuMemAddressFree", address, size_t)
    call("cuMemRelease", handle)
    return took


keep_until_the_end = []


def use_asleep(torch, pool, part):
    """Uses memory of a pool asleep, and prints the exception, if it is one."""
    with pool:
        tensor = torch.ones(4 * MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    total = tensor.sum()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total = tensor.sum()
    graph.replay()
    torch.cuda.synchronize()
    pool.sleep()
    try:
        if part == "asleep_graph":
            graph.replay()
        else:
            total = tensor.sum()
        print("computed", float(total.cpu()), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {str(error)[:300]}", flush=True)


def child(torch, vramd, order):
    """Ends in an order in which something is still in use."""
    client = vramd.connect(order)
    pool = vramd.torch.pool("ends", client=client)
    if order in ASLEEP:
        return use_asleep(torch, pool, order)
    with pool:
        tensors = [torch.ones(4 * MIB, device="cuda") for _ in range(4)]
    if order == "pool_first":
        pool.close()
        del pool
        tensors.clear()
        torch.cuda.empty_cache()
    elif order == "client_first":
        client.close()
        tensors.pop()
        torch.cuda.empty_cache()
    elif order == "module_last":
        # A module in the pool, which computes until the interpreter ends.
        with pool:
            module = torch.nn.Linear(256, 256).cuda()
        x = torch.ones(2, 256, device="cuda")
        expected = module(x)
        pool.close()
        client.close()
        del pool, client
        assert torch.equal(module(x), expected)
        keep_until_the_end.append(module)
    elif order == "weights_first":
        # A module that is bound to weights, which outlives them and their client.
        weights = vramd.Weights.attach("teardown", client=client)
        with vramd.torch.on_meta():
            module = torch.nn.Linear(256, 256)
        weights.bind(module)
        x = torch.ones(2, 256, device="cuda")
        expected = module(x)
        del weights
        client.close()
        del client
        assert torch.equal(module(x), expected)
        keep_until_the_end.append(module)
    elif order == "double_close":
        pool.close()
        pool.close()
        client.close()
    elif order == "forked":
        if (inside := os.fork()) == 0:
            # CUDA cannot be used here; ending is all that a child may do.
            try:
                pool._native.sleep(False)
            except vramd.Forked:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) == 0
    else:

        def use():
            while True:
                with vramd.torch.pool("ends", client=client):
                    torch.ones(MIB, device="cuda")

        threading.Thread(target=use, daemon=True).start()
        time.sleep(0.5)
    print("done", flush=True)


if __name__ == "__main__":
    main()
