"""The whole path with real weights: one process fills memory, others share it, limits hold, and the dead leave nothing.

On a machine with a GPU it runs there, and one more client computes on the shared bytes by a kernel. `make demo`, or
`make demo FILE=/path/to/any/file`. Each step prints what a person would type and what was answered, and the demo
fails when a step does not show what it should. Python's standard library alone.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import time

import weights
from node import ROOT, Failed, Node, configuration, people

PROGRAMS = ["vramd", "vramctl", "scratch", "compute"]
GIB = 1 << 30
GRANULARITY_BYTES = 2 << 20
SETTLE_SECONDS = 30


def main():
    arguments = argparse.ArgumentParser(description="Shows vramd's whole path on this machine.")
    arguments.add_argument("--file", type=pathlib.Path, help="share this file in place of the model's weights")
    arguments.add_argument("--programs", type=pathlib.Path, help="take the programs from this folder, build nothing")
    arguments.add_argument("--driver", choices=["auto", "cuda", "sim"], default="auto", help="what the daemon is told")
    given = arguments.parse_args()
    named = given.file
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        if given.programs:
            programs = [given.programs.resolve(strict=True) / name for name in PROGRAMS]
        else:
            step("Build the daemon and its tool")
            programs = build()
        step("The bytes to share")
        file = named.resolve(strict=True) if named else weights.fetch(ROOT / ".demo")
        charged = charged_bytes(file.stat().st_size)
        print(f"{file}: {file.stat().st_size} bytes, {charged} when charged in steps of 2 MiB")
        users = people()
        memory_bytes = max(GIB, 4 * charged)
        with Node(programs, lambda home: configuration(home, users, given.driver, memory_bytes)) as node:
            tell(node, node.readable(file, users), charged, users)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except (Failed, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"\nthe demo FAILED: {error}")
    print("\nthe demo has shown all that it should")


def tell(node, file, charged, users):
    """The story itself; every step needs the ones before it."""
    writer, reader, other = users
    name, limit = f"{writer.tenant}/weights", charged + charged // 2

    step("Start the daemon")
    node.start()
    answer = node.ask("status")
    print(f"the driver is {answer['node']['driver']}: {answer['node']['driver_reason']}")
    print(f"from now on: export VRAMD_SOCKET_DIR={node.home}/run PATH={node.bin}:$PATH")
    if users[0] is users[1]:
        print("this user plays all parts, as one tenant; root would show three")

    step("A process puts the file into a named allocation and seals it")
    node.must(node.operator, "quota", "set", writer.tenant, "--guarantee", charged, "--limit", limit)
    readers = [flag for user in (reader, other) if user is not writer for flag in ("--reader", user.tenant)]
    node.must(writer, "put", file, "weights", *readers, progress=True)
    digest = sealed_digest(node, name)

    step("Two more processes attach it read-only at the same time and hash what they map")
    holders = [node.spawn(user, "vramctl", "verify", name, file, "--hold") for user in (reader, other)]
    for holder, user in zip(holders, (reader, other)):
        line = next((line for line in holder.stdout if "verified" in line), "").strip()
        print(f"[{user}] {line}", flush=True)
        expect(digest in line, f"{user} should have verified {digest}")
    shown = allocation(node, name)
    expect(shown["mapper_count"] == 2, f"two processes should map {name} now, not {shown['mapper_count']}")

    if answer["node"]["driver"] == "cuda":
        step("A process attaches it and computes on the mapped bytes by a kernel")
        print(node.run(reader, "compute", name), end="")

    step("Who holds what, and where")
    node.must(node.operator, "status")
    expect(held(node, writer.tenant) == charged, f"{writer.tenant} should be charged {charged} bytes, once")

    step("A tenant over its limit is refused")
    refused = node.call(writer, "put", file, "more")
    expect(refused.returncode == 1, f"that should have ended with status 1, not {refused.returncode}")
    again = node.call(writer, "--json", "put", file, "more", quiet=True)
    error = json.loads(again.stderr)["error"]
    facts = {key: error["facts"][key] for key in ("tenant", "limit", "held", "asked")}
    print(f"in bytes: {', '.join(f'{key} {value}' for key, value in facts.items())}")
    expect(error["reason"] == "QUOTA_LIMIT", "the reason should be QUOTA_LIMIT")
    expect(facts == {"tenant": writer.tenant, "limit": limit, "held": charged, "asked": charged}, "the facts are wrong")
    expect(held(node, writer.tenant) == charged, "a refusal should change nothing")

    step("A process is killed while it holds memory, and its memory comes back")
    killed(node, charged, other)

    step("The readers end, the allocation is freed")
    for holder in holders:
        holder.stdin.close()
        expect(holder.wait(timeout=SETTLE_SECONDS) == 0, "a reader should end well")
    node.must(node.operator, "alloc", "free", name)
    settle(node, writer.tenant, 0)
    node.must(node.operator, "status")

    step("Stop the daemon")
    node.stop()


def killed(node, charged, user):
    before = held(node, user.tenant)
    node.must(node.operator, "quota", "set", user.tenant, "--guarantee", 0, "--limit", before + charged)
    client = node.spawn(user, "scratch", charged)
    print(f"[{user}] {client.stdout.readline().strip()}", flush=True)
    settle(node, user.tenant, before + charged)
    print(f"$ kill -KILL {client.pid}", flush=True)
    client.kill()
    client.wait()
    settle(node, user.tenant, before)


def settle(node, tenant, wanted):
    """Waits until the tenant is charged that much, and says so."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (now := held(node, tenant)) != wanted:
        expect(time.monotonic() < deadline, f"{tenant} is charged {now} bytes, not {wanted}")
        time.sleep(0.02)
    print(f"{tenant} is charged {now} bytes now")


def held(node, tenant):
    quotas = node.ask("quota", "list", tenant)["quotas"]
    # The host tier is charged too, since the memory could move there.
    devices = [quota for quota in quotas if quota["device"] != "*" and quota["tier"] == "device"]
    return sum(quota["held_bytes"] for quota in devices)


def allocation(node, name):
    return node.ask("alloc", "show", name)["allocation"]


def sealed_digest(node, name):
    digest = allocation(node, name)["digest"]
    expect(digest.startswith("blake3:"), f"{name} should be sealed, and so have a digest")
    return digest


def charged_bytes(size):
    return -(-size // GRANULARITY_BYTES) * GRANULARITY_BYTES


def build():
    command = ["cargo", "build", "-p", "vramd", "-p", "vramctl", "-p", "vramd-client", "--bins"]
    command += ["--example", "scratch", "--example", "compute"]
    print("$", *command, flush=True)
    # The same build once more tells where the programs lie, whatever target folder is configured.
    subprocess.run(command, cwd=ROOT, check=True)
    told = subprocess.run([*command, "--message-format=json"], cwd=ROOT, check=True, capture_output=True, text=True)
    artifacts = [json.loads(line) for line in told.stdout.splitlines()]
    return [artifact["executable"] for artifact in artifacts if artifact.get("executable")]


def expect(true, otherwise):
    if not true:
        raise Failed(otherwise)


count = 0


def step(title):
    global count
    count += 1
    print(f"\n== {count}. {title}", flush=True)


if __name__ == "__main__":
    main()
