#!/usr/bin/env python3
"""Runs what this bundle holds on the GPUs of this machine: `run [--quick] FOLDER`.

Needs an NVIDIA driver and Python's standard library. Stages run one after the other, each within its time; one that
fails or hangs does not stop the others. The folder gets contract.json, e2e.json, hand_off.json, pins.json, copies.json, leak.json, log.txt, and
core.json and rpc.json, for which no GPU is needed but a machine that is quiet. `--only residency` writes residency.json, and
residency.md, its tables; `--only tiers` tiers.json and tiers.md; `--only stream` stream.json; `--only weights` weights.json;
`--only pool` pool.json; `--only large` large.json; `--only arrays` arrays.json; `--only preload` preload.json; `--only in_place`
in_place.json; `--only turns` turns.json; `--only checkpoint` checkpoint.json. Each runs only when it is named.
The exit status is 1 if any stage failed; a benchmark that misses its target says MISSED and is no failure.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

BUNDLE = pathlib.Path(__file__).resolve().parent
BIN = BUNDLE / "bin"
# All stages together: what is left of it bounds each one.
SECONDS_MAX = 560
# Stages that run only when they are named: there is no time for them beside the others.
APART = ("residency", "tiers", "stream", "weights", "pool", "large", "arrays", "preload", "in_place", "turns", "checkpoint")
# Stages whose report has a page of tables.
PAGED = ("residency", "tiers")
# How long a stage that is ended may take to end its own processes.
GRACE_SECONDS = 10
# Of each stage's output: a daemon's whole log can be in it.
LOG_BYTES_MAX = 2 << 20
LINES_WHEN_FAILED = 25
DEMO_BYTES = (600 << 20) + 13
DRAW_BYTES = 8 << 20


class Stage:
    def __init__(self, name, seconds_max, *command):
        self.name, self.seconds_max, self.command = name, seconds_max, [str(word) for word in command]
        self.verdict, self.output = "not run", ""

    @property
    def failed(self):
        return self.verdict not in ("ok", "not run")

    def run(self, seconds_left):
        started = time.monotonic()
        seconds_max = max(1, min(self.seconds_max, int(seconds_left)))
        # A stage that is killed leaves its daemon's folder, with everything that was on the disk.
        homes = tempfile.TemporaryDirectory(prefix="vramd-gpu-", dir="/tmp", ignore_cleanup_errors=True)
        with tempfile.TemporaryFile() as output, homes as home:
            # Other users reach the sockets in it.
            os.chmod(home, 0o755)
            # A session of its own, so that what it has started can be ended with it.
            child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, "VRAMD_TESTS_HOME": home},
            )
            try:
                status = child.wait(timeout=seconds_max)
                self.verdict = "ok" if status == 0 else f"FAILED, status {status}"
            except subprocess.TimeoutExpired:
                self.verdict = f"FAILED, not done in {seconds_max} s"
            finally:
                # Also where we are ended ourselves: nothing of it is to run beside whatever comes next.
                end(child)
            self.output = read(output)
        self.seconds = time.monotonic() - started
        print(f"{self.name:9} {self.verdict} ({self.seconds:.1f} s)", flush=True)
        if self.failed:
            lines = self.output.splitlines()[-LINES_WHEN_FAILED:]
            print("".join(f"    | {line}\n" for line in lines), end="", flush=True)


def main():
    arguments = argparse.ArgumentParser(description="Runs the GPU suite of this bundle.")
    arguments.add_argument("--quick", action="store_true", help="fewer rounds")
    arguments.add_argument("--only", help="stages, separated by commas")
    arguments.add_argument("--directory", help="on the disk that tiers measures, and nobody else's; without it /tmp is")
    arguments.add_argument("folder", type=pathlib.Path, help="where the results go")
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, end_on_signal)
    for program in BIN.iterdir():
        # Not every way that a bundle travels keeps it.
        if not os.access(program, os.X_OK):
            program.chmod(0o755)
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vramd-gpu-", dir="/tmp") as scratch:
        directory = ["--directory", given.directory] if given.directory else []
        stages = plan(folder, pathlib.Path(scratch), ["--quick"] if given.quick else [], directory)
        names = given.only.split(",") if given.only else [stage.name for stage in stages if stage.name not in APART]
        unknown = set(names) - {stage.name for stage in stages}
        if unknown:
            arguments.error(f"no stage {', '.join(sorted(unknown))}: {', '.join(stage.name for stage in stages)}")
        chosen = [stage for stage in stages if stage.name in names]
        if "demo" in names:
            draw(pathlib.Path(scratch) / "file")
        started = time.monotonic()
        for stage in chosen:
            stage.run(SECONDS_MAX - (time.monotonic() - started))
    log(folder / "log.txt", chosen)
    report(folder, given)
    sign(folder, given)
    for stage in PAGED:
        page(folder, stage)
    table(folder, chosen)
    sys.exit(1 if any(stage.failed for stage in chosen) else 0)


def plan(folder, scratch, quick, directory):
    suite = BIN / "gpu-suite"
    return [
        Stage("contract", 180, BIN / "contract-cuda", "--json", folder / "contract.json"),
        Stage("e2e", 240, suite, "e2e", "--json", folder / "e2e.json", *quick),
        Stage("demo", 60, sys.executable, BUNDLE / "demo" / "demo.py", "--driver", "cuda", "--programs", BIN,
              "--file", scratch / "file"),
        Stage("hand_off", 150, suite, "hand-off", "--json", folder / "hand_off.json", *quick),
        Stage("pins", 240, suite, "pins", "--json", folder / "pins.json", *quick),
        Stage("copies", 150, suite, "copies", "--json", folder / "copies.json", *quick),
        Stage("residency", 500, suite, "residency", "--json", folder / "residency.json", *quick),
        Stage("tiers", 550, suite, "tiers", "--json", folder / "tiers.json", *quick, *directory),
        Stage("stream", 500, sys.executable, BUNDLE / "torch" / "torch_stream.py", BIN, "--json", folder / "stream.json", *quick),
        Stage("weights", 400, sys.executable, BUNDLE / "torch" / "torch_weights.py", BIN, "--json", folder / "weights.json", *quick),
        Stage("pool", 500, sys.executable, BUNDLE / "torch" / "torch_pool.py", BIN, "--json", folder / "pool.json", *quick),
        Stage("large", 200, sys.executable, BUNDLE / "torch" / "torch_large.py", BIN, "--json", folder / "large.json", *quick, *directory),
        Stage("arrays", 200, sys.executable, BUNDLE / "torch" / "array_libraries.py", BIN, "--json", folder / "arrays.json"),
        Stage("turns", 560, sys.executable, BUNDLE / "torch" / "torch_turns.py", BIN, "--json", folder / "turns.json", *quick),
        Stage("in_place", 120, suite, "e2e", "--case", "weights read in place", "--json", folder / "in_place.json"),
        Stage("preload", 400, sys.executable, BUNDLE / "torch" / "preload.py", BIN, "--json", folder / "preload.json", *quick),
        Stage("checkpoint", 120, sys.executable, BUNDLE / "torch" / "checkpoint.py", BIN, "--json", folder / "checkpoint.json", *quick),
        Stage("leak", 280, suite, "leak", "--json", folder / "leak.json", *quick),
        Stage("core", 120, BIN / "core-bench", *quick, folder / "core.json"),
        Stage("batch", 60, BIN / "bench-rpc", "batch", "--json", folder / "core.json", *quick),
        Stage("rpc", 120, BIN / "bench-rpc", "describe", "--json", folder / "rpc.json", *quick),
    ]


def draw(file):
    """Random content for the demo to share, of a size that no page divides."""
    with open(file, "wb") as out:
        for start in range(0, DEMO_BYTES, DRAW_BYTES):
            out.write(random.randbytes(min(DRAW_BYTES, DEMO_BYTES - start)))


def end_on_signal(*_):
    """Ends this program once. Further signals do not interrupt the clean-up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def end(child):
    """Asks all of a stage's processes to end, then makes them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            until = time.monotonic() + GRACE_SECONDS
            # Daemons outlive who has started them: they delete what they have on the disk.
            while time.monotonic() < until:
                child.poll()
                os.killpg(child.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return


def read(output):
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - LOG_BYTES_MAX))
    return output.read().decode(errors="replace")


def log(path, stages):
    with open(path, "w", encoding="utf-8") as out:
        for stage in stages:
            print(f"== {stage.name}: {stage.verdict}\n$ {' '.join(stage.command)}\n{stage.output}", file=out)


def report(folder, given):
    """Makes of the benchmarks' results one report, in the form of docs/benchmarks/hand_off/latest.json."""
    hand_off, leak = (load(folder / name) for name in ("hand_off.json", "leak.json"))
    if hand_off is None:
        return
    ratios = {key: hand_off.pop(key) for key in ("allocate", "create", "attach") if key in hand_off}
    leaked = {"leaked_bytes": leak["leaked_bytes"]} if leak else {}
    run = {
        "build": load(BUNDLE / "build.json"),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": "make gpu" + (" QUICK=1" if given.quick else ""),
    }
    whole = {**ratios, **leaked, **run, **hand_off, **({"leak": leak} if leak else {})}
    (folder / "hand_off.json").write_text(json.dumps(whole, indent=2) + "\n")


def sign(folder, given):
    """Says of which build the figures are: the programs cannot know here."""
    for name in ("core.json", "rpc.json"):
        if whole := load(folder / name):
            build = load(BUNDLE / "build.json") or {}
            for run in [whole, *(part["run"] for part in whole.values() if isinstance(part, dict) and "run" in part)]:
                run.update({key: build[key] for key in ("commit", "changed_since", "rustc") if key in run and key in build})
            (folder / name).write_text(json.dumps(whole, indent=2) + "\n")
    for stage in ("pins", "copies", "residency", "tiers", "stream", "weights", "pool", "large", "arrays", "preload", "turns", "checkpoint"):
        if found := load(folder / f"{stage}.json"):
            run = {
                "build": load(BUNDLE / "build.json"),
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "command": f"run --only {stage}" + (" --quick" if given.quick else ""),
            }
            (folder / f"{stage}.json").write_text(json.dumps({**found, **run}, indent=2) + "\n")


def page(folder, stage):
    """Writes what that stage's report says as the tables of docs/benchmarks/STAGE/README.md."""
    whole = load(folder / f"{stage}.json")
    if whole is None:
        return

    def row(name, sample):
        if "median_ratio" not in sample:
            return f"| `{name}` | {sample.get('problem') or sample.get('absent')} | | | |"
        speeds = [sample.get(f"median_{side}_gb_per_s") for side in ("ours", "bare")]
        return (
            f"| `{name}` | {sample['median_ratio']:.3f} ({sample['least_ratio']:.3f} to {sample['most_ratio']:.3f}) "
            f"| {sample['median_ours_ms']:.2f} | {sample['median_bare_ms']:.2f} "
            f"| {' / '.join(f'{speed:.1f}' for speed in speeds if speed)} |"
        )

    def rows(name, sample):
        """Of a question, or of the several that it has."""
        parts = {key: part for key, part in sample.items() if isinstance(part, dict) and "median_ratio" in part}
        return [row(f"{name}.{key}", part) for key, part in parts.items()] or [row(name, sample)]

    head = ["| | times bare, median and range | ms | bare, ms | GB/s, ours / bare |", "|---|---|---|---|---|"]
    samples = {name: sample for name, sample in whole["samples"].items() if name != "evict_clean"}
    ours = [line for name, sample in samples.items() for line in rows(name, sample)]
    # Where there is no GPU they are one line, which says so.
    peers = {name: peer for name, peer in whole.get("peers", {}).items() if isinstance(peer, dict)}
    theirs = [line for name, peer in peers.items() for line in rows(name, peer)]
    figures = [f"| `{key}` | {value:.3f} |" for key, value in sorted(whole.items()) if isinstance(value, float)]
    lines = ["| Key | |", "|---|---|", *figures, "", *head, *ours, *(["", *head, *theirs] if theirs else [])]
    (folder / f"{stage}.md").write_text("\n".join(lines) + "\n")


def table(folder, stages):
    machine = next(filter(None, (load(folder / f"{name}.json") for name in ("hand_off", "pins", "copies", "residency", "tiers", "e2e"))), {}).get("machine")
    if machine:
        print(f"\n{', '.join(machine['gpus'])}; driver {machine['driver']}; kernel {machine['kernel']}")
    for stage in stages:
        if stage.name in ("core", "batch", "rpc"):
            print(f"-- {stage.name}: {stage.verdict}\n{stage.output}")
        elif stage.name in ("e2e", "hand_off", "pins", "copies", "residency", "tiers", "stream", "leak"):
            print(f"-- {stage.name}: {stage.verdict}")
            told = ("ok ", "absent", "FAILED", "allocate ", "create ", "attach ", "revoke ", "revocations ", "pin_unpin ",
                    "out ", "in ", "both ", "exchange ", "one_part ", "one_way_", "pin ", "pin_", "duplex", "neighbour_", "evict_clean_", "peer ",
                    "bare, ", "managed, ", "lru, ", "prefetch, ", "sequence, ", "disk_", "cascade ", "demand_", "in_place ", "leak ")
            print("".join(f"{line}\n" for line in stage.output.splitlines() if line.startswith(told)), end="")
        else:
            print(f"-- {stage.name}: {stage.verdict}")


def load(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main()
