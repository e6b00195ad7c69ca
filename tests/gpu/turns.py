#!/usr/bin/env python3
"""Two programs whose working sets do not fit on a device together take turns: how long the hand-overs last.

    turns.py --set 30GiB --quanta 5 --json turns.json            # on the daemon of this node, as `vramd.connect` finds it
    turns.py --set 6MiB --quanta 5 --sim 8MiB --quantum 0.2      # on a simulated device of its own

The daemon's `turns.quantum_ms` says how long a turn lasts; with `--sim` it is `--quantum`. Each program pins all of its
set to write during its turn, so the set is copied out and in at each hand-over. The figures are those of the programs: a
hand-over lasts from the moment when one yields until the other has its turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import vramd
import vramd.testing

GIB = 1 << 30


def use_in_turns(name: str, size: str, quanta: int) -> None:
    """One of the two programs. Prints when it had each turn, by a clock that both programs have in common."""
    with vramd.connect(name) as client:
        memory = client.allocate(size, unpinned=True)
        with client.working_set(name, [memory]) as working_set:
            turns = []
            for _ in range(quanta):
                asked = time.monotonic()
                with working_set.turn() as turn:
                    granted = time.monotonic()
                    with memory.pin(write=True):
                        pinned = time.monotonic()
                        # Both programs end together: the last one waits for no other.
                        turn.wait_ending(None if len(turns) + 1 < quanta else 1)
                    yielded = time.monotonic()
                turns.append({"asked": asked, "granted": granted, "pinned": pinned, "yielded": yielded})
        print(json.dumps({"bytes": memory.size, "turns": turns}), flush=True)


def run_both(arguments: argparse.Namespace, environment: dict[str, str] | None) -> list[dict[str, object]]:
    command = [sys.executable, __file__, "--set", arguments.set, "--quanta", str(arguments.quanta), "--program"]
    programs = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True, env=environment)
        for name in ("one", "other")
    ]
    said = [program.communicate()[0] for program in programs]
    if any(program.returncode for program in programs):
        sys.exit("a program failed")
    return [json.loads(text) for text in said]


def figures(programs: list[dict[str, object]], quanta: int) -> dict[str, object]:
    """The hand-overs between two programs, and how much of the time a program had its turn."""
    turns = sorted(
        ((turn["granted"], turn["yielded"], turn["pinned"], number)
         for number, program in enumerate(programs) for turn in program["turns"])
    )  # fmt: skip
    pairs = [(before, after) for before, after in zip(turns, turns[1:]) if before[3] != after[3]]
    hand_overs = [after[0] - before[1] for before, after in pairs]
    # The first brings one set from nowhere, and the last quanta may have no other program.
    span = turns[-1][1] - turns[0][0]
    held = sum(yielded - granted for granted, yielded, _, _ in turns)
    size = programs[0]["bytes"]
    middle = statistics.median(hand_overs)
    return {
        "set_bytes": size,
        "quanta_each": quanta,
        "turns": len(turns),
        "hand_over_s": {"all": hand_overs, "median": middle, "max": max(hand_overs)},
        "hand_over_gib_per_second_each_way": size / GIB / middle,
        "pin_in_turn_s_max": max(pinned - granted for granted, _, pinned, _ in turns),
        "held_share": held / span,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="1GiB", help="size of each working set")
    parser.add_argument("--quanta", type=int, default=5, help="turns of each program")
    parser.add_argument("--sim", help="memory of a simulated device; without it the daemon of this node")
    parser.add_argument("--quantum", type=float, default=1, help="seconds, with --sim")
    parser.add_argument("--host", default="64MiB", help="size of the host tier, with --sim")
    parser.add_argument("--json", help="the file that receives the figures")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        return use_in_turns(arguments.program, arguments.set, arguments.quanta)
    if arguments.sim:
        quantum = max(int(arguments.quantum * 1000), 1)
        config = f'[memory]\nhost_size = "{arguments.host}"\n'
        config += f"[turns]\nquantum_ms = {quantum}\nmin_quantum_ms = {min(quantum, 1000)}\n"
        with vramd.testing.Daemon(memory=arguments.sim, config=config) as daemon:
            programs = run_both(arguments, daemon.environment)
    else:
        programs = run_both(arguments, None)
    measured = figures(programs, arguments.quanta)
    text = json.dumps(measured, indent=2)
    print(text)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
