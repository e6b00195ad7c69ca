#!/usr/bin/env python3
"""A transformers model whose weights are loaded once: `torch_weights.py PROGRAMS --json FILE [--quick]`.

Writes a checkpoint of random weights from a seed, in shards, with the logits that a plain model computes. A daemon then
serves it: `vramd.load` and `bind`, a second process that attaches (`--attach`), and a third one whose tenant may have a
part of the model on the device at a time (`--small`), by blocks in a declared sequence. Two more take the recipe for
transformers (`--recipe`), and publish a prepared model as the load formats of engines do (`--publish`). The logits of
all are compared bit by bit. PROGRAMS is the folder of `vramd` and `vramctl`.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

MIB, GIB = 1 << 20, 1 << 30
SEED = 29
TOKENS = 64
# Blocks are fetched by parts, so small parts bring little that a block does not need.
PART = "32MiB"
CONFIGURATION = """
[daemon]
socket_dir = "{home}/run"
state_dir = "{home}/state"
[driver]
kind = "cuda"
[memory]
host_size = "16GiB"
harvest_ms = 5
"""


def configuration(transformers, quick):
    layers = 4 if quick else 14
    return transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=32000, max_position_embeddings=512, tie_word_embeddings=False,
    )


def made(torch, transformers, config):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return transformers.AutoModelForCausalLM.from_config(config).eval()
    finally:
        torch.set_default_dtype(before)


def plain_model(torch, transformers, config):
    torch.manual_seed(SEED)
    with torch.device("cuda"):
        return made(torch, transformers, config)


def empty_model(torch, transformers, vramd, config):
    with vramd.torch.on_meta():
        return made(torch, transformers, config)


def logits_digest(torch, model):
    tokens = (torch.arange(TOKENS, device="cuda") * 37 % 32000).unsqueeze(0)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    return hashlib.sha256(logits.float().cpu().numpy().tobytes()).hexdigest()


def timed(torch, work):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    value = work()
    torch.cuda.synchronize()
    return value, time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--attach", type=pathlib.Path, help="the part of a second process: attach this checkpoint")
    parser.add_argument("--small", type=pathlib.Path, help="the part of a third one: compute by blocks")
    parser.add_argument("--recipe", type=pathlib.Path, help="the part of another one: `from_pretrained`")
    parser.add_argument("--publish", type=pathlib.Path, help="the part of another one: publish, sleep, wake, adopt")
    wanted = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"absent: {error}")
        return
    if not torch.cuda.is_available():
        print(f"absent: PyTorch {torch.__version__} has no GPU")
        return
    bundle = pathlib.Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(bundle / "python"))
    # Loaders that are measured beside ours, where the machine has none of its own.
    sys.path.append(str(bundle / "peers"))
    import vramd
    import vramd.torch

    torch.cuda.init()
    config = configuration(transformers, wanted.quick)
    if wanted.attach:
        print(json.dumps(attach(torch, transformers, vramd, config, wanted.attach)))
    elif wanted.small:
        print(json.dumps(small(torch, transformers, vramd, config, wanted.small)))
    elif wanted.recipe:
        print(json.dumps(recipe(torch, transformers, vramd, wanted.recipe)))
    elif wanted.publish:
        print(json.dumps(publish(torch, transformers, vramd, config, wanted.publish)))
    else:
        run(torch, transformers, vramd, config, wanted)


def run(torch, transformers, vramd, config, wanted):
    report = {"torch": torch.__version__, "transformers": transformers.__version__, "device": torch.cuda.get_device_name()}
    with tempfile.TemporaryDirectory(prefix="vramd-weights-", dir=os.environ.get("VRAMD_TESTS_HOME", "/tmp")) as home:
        folder = pathlib.Path(home) / "model"
        model = plain_model(torch, transformers, config)
        expected = logits_digest(torch, model)
        model.save_pretrained(folder, max_shard_size="2GB")
        del model
        torch.cuda.empty_cache()
        # The next load reads from the page cache.
        shards = sorted(folder.glob("*.safetensors"))
        report["shards"], report["bytes"] = len(shards), sum(shard.stat().st_size for shard in shards)
        report["read_gib_s"] = report["bytes"] / read_all(shards) / GIB
        report["read_threads_gib_s"] = report["bytes"] / read_in_pieces(shards) / GIB
        report["pinned_copy_gib_s"] = pinned_copy(torch)
        for name, load in PEERS.items():
            report[f"{name}_gib_s"] = speed(torch, load, shards, report["bytes"])
        with Daemon(wanted.programs, pathlib.Path(home)) as daemon:
            os.environ["VRAMD_SOCKET_DIR"] = daemon.environment["VRAMD_SOCKET_DIR"]
            client = vramd.connect("first")
            daemon.await_pinned()
            weights, report["first_load"] = loaded(torch, vramd, client, folder)
            weights.free()
            weights, report["load"] = loaded(torch, vramd, client, folder)
            bound = min(report["pinned_copy_gib_s"], report["read_threads_gib_s"])
            report["load_page_cache"] = report["bytes"] / report["load"]["s"] / GIB / bound
            model = empty_model(torch, transformers, vramd, config)
            allocated = torch.cuda.memory_allocated()
            weights.bind(model)
            report["bind_extra_bytes"] = torch.cuda.memory_allocated() - allocated
            report["first"] = logits_digest(torch, model) == expected
            report["attach"] = daemon.child("--attach", folder, wanted.quick)
            report["attach"]["same"] = report["attach"].pop("digest") == expected
            report["recipe"] = daemon.child("--recipe", folder, wanted.quick)
            report["recipe"]["same"] = report["recipe"].pop("digest") == expected
            report["publish"] = daemon.child("--publish", folder, wanted.quick)
            report["publish"]["same"] = set(report["publish"].pop("digests")) == {expected}
            report["debug"] = used_outside(torch, vramd, weights)
            del model
            weights.detach()
            limit = report["bytes"] * (3 if wanted.quick else 2) // 5
            daemon.vramctl("quota", "set", client.tenant, "--tier", "device", "--limit", str(limit))
            client.close()
            report["small"] = daemon.child("--small", folder, wanted.quick)
            report["small"]["limit"] = limit
            report["small"]["same"] = report["small"].pop("digest") == expected
    engines = [report["recipe"]["same"], report["recipe"]["generates"], report["publish"]["same"], report["publish"]["freed"]]
    report["ok"] = all([report["first"], report["attach"]["same"], report["debug"], report["small"]["same"], *engines])
    print(json.dumps(report, indent=2))
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(not report["ok"])


def loaded(torch, vramd, client, folder):
    """Loads the checkpoint: until the first and the last byte are copied, and until it is sealed."""
    moments, begin = [], time.perf_counter()
    options = {"part_size": PART, "progress": lambda _done, _all: moments.append(time.perf_counter() - begin)}
    weights, seconds = timed(torch, lambda: vramd.load(folder, name="llama", client=client, **options))
    told = {"s": seconds, "first_piece_s": min(moments), "copied_s": max(moments)}
    return weights, told


def read_all(shards):
    buffer = bytearray(64 * MIB)
    begin = time.perf_counter()
    for shard in shards:
        with open(shard, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin


def read_in_pieces(shards):
    """As a parallel reader would: by eight threads, into buffers that they keep."""
    local = threading.local()

    def read(piece):
        shard, start = piece
        if not hasattr(local, "buffer"):
            local.buffer = bytearray(16 * MIB)
        with open(shard, "rb", buffering=0) as file:
            os.preadv(file.fileno(), [local.buffer], start)

    pieces = [(shard, start) for shard in shards for start in range(0, shard.stat().st_size, 16 * MIB)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, pieces[:64]))
        begin = time.perf_counter()
        list(pool.map(read, pieces))
        return time.perf_counter() - begin


def pinned_copy(torch):
    """GiB a second of plain copies from pinned memory."""
    source, target = torch.empty(GIB, dtype=torch.uint8).pin_memory(), torch.empty(GIB, dtype=torch.uint8, device="cuda")
    target.copy_(source, non_blocking=True)
    _, seconds = timed(torch, lambda: [target.copy_(source, non_blocking=True) for _ in range(4)])
    return 4 / seconds


def speed(torch, load, shards, count):
    """GiB a second of the second load, or why there is none."""
    try:
        for _ in range(2):
            seconds = load(torch, shards)
            torch.cuda.empty_cache()
    except ImportError as error:
        return f"absent: {error}"
    return count / seconds / GIB


def by_safetensors(torch, shards):
    from safetensors.torch import load_file

    kept, seconds = timed(torch, lambda: [load_file(shard, device="cuda") for shard in shards])
    del kept
    return seconds


def by_fastsafetensors(torch, shards):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load():
        # The files lie in the page cache, and its direct storage would go around that.
        loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", nogds=True, disable_cache=False)
        loader.add_filenames({0: [str(shard) for shard in shards]})
        files = loader.copy_files_to_device()
        return files, {name: files.get_tensor(name) for name in loader.get_keys()}, loader

    (files, tensors, loader), seconds = timed(torch, load)
    del tensors
    files.close()
    loader.close()
    return seconds


def by_runai(torch, shards):
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(shard) for shard in shards])
            return {name: tensor.to("cuda") for name, tensor in streamer.get_tensors()}

    kept, seconds = timed(torch, load)
    del kept
    return seconds


PEERS = {"safetensors": by_safetensors, "fastsafetensors": by_fastsafetensors, "runai_model_streamer": by_runai}


def attach(torch, transformers, vramd, config, folder):
    torch.empty(1, device="cuda")
    client = vramd.connect("second")
    free = torch.cuda.mem_get_info()[0]
    times = []
    for _ in range(5):
        weights, seconds = timed(torch, lambda: vramd.load(folder, name="llama", client=client))
        tensors, more = timed(torch, weights.tensors)
        times.append([seconds * 1000, more * 1000])
        if len(times) < 5:
            del tensors
            weights.detach()
    beyond = free - torch.cuda.mem_get_info()[0]
    model = empty_model(torch, transformers, vramd, config)
    weights.bind(model)
    return {"ms": times, "device_bytes": beyond, "tensors": len(tensors), "digest": logits_digest(torch, model)}


def by_transformers(torch, transformers, folder):
    """The model as transformers itself loads it."""
    name = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **{name: torch.bfloat16}).cuda().eval()


def recipe(torch, transformers, vramd, folder):
    from vramd.integrations.transformers import from_pretrained

    client = vramd.connect("recipe")
    model, seconds = timed(torch, lambda: from_pretrained(folder, name="llama", client=client))
    digest = logits_digest(torch, model)
    prompt = (torch.arange(8, device="cuda") * 37 % 32000).unsqueeze(0)
    plain, plain_seconds = timed(torch, lambda: by_transformers(torch, transformers, folder))
    with torch.no_grad():
        texts = [
            each.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, pad_token_id=0)
            for each in (model, plain)
        ]
    return {"digest": digest, "generates": torch.equal(*texts), "s": seconds, "transformers_s": plain_seconds}


def publish(torch, transformers, vramd, config, folder):
    from vramd.integrations import modules

    client = vramd.connect("publish")
    model = by_transformers(torch, transformers, folder)
    before = torch.cuda.memory_allocated()
    shared, seconds = timed(torch, lambda: modules.publish(model, "published", "key", client=client))
    torch.cuda.empty_cache()
    # Buffers stay the model's own.
    freed = torch.cuda.memory_allocated() < before / 10
    digests = [logits_digest(torch, model)]
    modules.sleep_all()
    _, wake = timed(torch, modules.wake_up_all)
    digests.append(logits_digest(torch, model))
    adopted = empty_model(torch, transformers, vramd, config)
    modules.find("published", "key", client=client).adopt(adopted)
    digests.append(logits_digest(torch, adopted))
    del model, adopted
    for each in list(modules._shared):
        each.close()
    shared.weights.free()
    return {"digests": digests, "freed": freed, "s": seconds, "wake_s": wake}


def used_outside(torch, vramd, weights):
    """Whether debug mode names a tensor that is used outside of a pin."""
    name = next(iter(weights))
    tensor = weights.tensors(hold=False)[name]
    with vramd.torch.debug():
        try:
            tensor + 1
        except vramd.NotResident as refused:
            return name in str(refused)
    return False


def small(torch, transformers, vramd, config, folder):
    client = vramd.connect("third")
    weights = vramd.load(folder, name="llama", client=client, unpinned=True)
    model = empty_model(torch, transformers, vramd, config)
    weights.bind(model, hold=False)
    with vramd.torch.movable(model, weights) as moving:
        digests = {logits_digest(torch, model) for _ in range(3)}
        begin = time.perf_counter()
        for _ in range(5):
            digests.add(logits_digest(torch, model))
        seconds = (time.perf_counter() - begin) / 5
        told = repr(moving)
    return {"digest": digests.pop() if len(digests) == 1 else str(digests), "pass_s": seconds, "told": told}


class Daemon:
    def __init__(self, programs, home, configuration=CONFIGURATION, **values):
        self.programs, self.home = programs.resolve(), home
        home.mkdir(exist_ok=True)
        (home / "vramd.toml").write_text(configuration.format(home=home, **values))
        self.environment = {**os.environ, "VRAMD_SOCKET_DIR": str(home / "run")}

    def __enter__(self):
        self.log = open(self.home / "log", "wb")
        self.process = subprocess.Popen(
            [self.programs / "vramd", "--config", self.home / "vramd.toml"], stdout=self.log, stderr=self.log
        )
        for _ in range(1500):
            if subprocess.run([self.programs / "vramctl", "status"], env=self.environment, capture_output=True).returncode == 0:
                return self
            time.sleep(0.02)
        raise SystemExit((self.home / "log").read_text())

    def await_pinned(self):
        """Waits until the daemon has pinned its host tier: before that, other pinning and loads wait for it."""
        until = time.monotonic() + 120
        while "host memory is pinned ahead of need" not in (self.home / "log").read_text():
            if time.monotonic() > until:
                raise SystemExit("the host tier is not pinned after 120 s:\n" + (self.home / "log").read_text()[-3000:])
            time.sleep(0.05)

    def vramctl(self, *words):
        done = subprocess.run([self.programs / "vramctl", *words], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def child(self, what, folder, quick):
        command = [sys.executable, __file__, self.programs, what, folder, *(["--quick"] if quick else [])]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=200)
        if done.returncode != 0:
            raise SystemExit(f"{what}:\n{done.stdout}\n{done.stderr[-4000:]}\n{(self.home / 'log').read_text()[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def __exit__(self, *_error):
        self.process.terminate()
        self.process.wait(30)


if __name__ == "__main__":
    main()
