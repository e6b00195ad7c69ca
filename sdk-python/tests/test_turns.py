"""Working sets that do not fit on the device together, and the turns of their programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from conftest import MIB, ROOT, Daemon, eventually, layer, stop, vramctl

import vramd
import vramd.aio


@pytest.fixture
def turns(start: Callable[..., Daemon]) -> Daemon:
    """A device of 8 MiB, and a quantum that is over at once."""
    return start(
        memory="8MiB",
        more='[memory]\nhost_size = "64MiB"\nharvest_ms = 5\n[turns]\nquantum_ms = 50\nmin_quantum_ms = 10\n',
    )


def phase(daemon: Daemon, name: str) -> str | None:
    listed = json.loads(vramctl(daemon, "turn", "list", "--json"))["turns"]
    return next((entry["phase"] for entry in listed if entry["name"] == name), None)


def first_byte(memory: vramd.Memory) -> int:
    """Its turn has brought it: no pin waits."""
    with memory.pin(wait=0) as pin:
        return memoryview(pin)[0]


def test_programs_alternate(turns: Daemon) -> None:
    def use(seed: int) -> None:
        try:
            with turns.connect("program") as client:
                memory = layer(client, seed, parts=3)
                with client.working_set("set", [memory]) as working_set:
                    for _ in range(4):
                        with working_set.turn(wait=30) as turn:
                            assert first_byte(memory) == seed
                            turn.wait_ending(1)
                        assert (turn.state, turn.ending) == ("yielded", False)
                        # The other program is next.
                        granted.append(seed)
        except BaseException as error:
            failures.append(error)

    granted: list[int] = []
    failures: list[BaseException] = []
    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert sorted(granted) == [1] * 4 + [9] * 4


def test_a_turn_says_when_it_is_asked_for(turns: Daemon) -> None:
    with turns.connect("one") as one, turns.connect("other") as other:
        mine, its = layer(one, 1, parts=3), layer(other, 9, parts=3)
        working_set, other_set = one.working_set("mine", [mine]), other.working_set("its", [its])
        assert (working_set.name, repr(working_set)) == ("mine", '<vramd.WorkingSet "mine">')
        turn = working_set.turn()
        assert (turn.state, turn.ending, turn.within) == ("held", False, None)
        begun = time.monotonic()
        assert not turn.wait_ending(0.2)
        assert time.monotonic() - begun >= 0.2
        with pytest.raises(vramd.Deadline):
            other_set.turn(wait=0.2)
        waiting = threading.Thread(target=lambda: other_set.turn(wait=30).yield_now())
        waiting.start()
        assert turn.wait_ending()
        assert (turn.state, turn.ending) == ("ending", True)
        assert turn.within is not None and 0 < turn.within <= 10
        assert "ending" in repr(turn)
        turn.yield_now()
        turn.yield_now()
        waiting.join()
        working_set.close()
        working_set.close()
        with pytest.raises(vramd.HandleClosed):
            working_set.turn()
        eventually("the set is gone", lambda: phase(turns, "mine") is None)


def test_a_turn_may_follow_while_a_thread_waits_in_the_one_before(turns: Daemon) -> None:
    with turns.connect("one") as client:
        memory = layer(client, 1, parts=3)
        with client.working_set("mine", [memory]) as working_set:
            turn = working_set.turn()
            asked: list[bool] = []
            waiting = threading.Thread(target=lambda: asked.append(turn.wait_ending()))
            waiting.start()
            time.sleep(0.2)
            turn.yield_now()
            with working_set.turn() as second:
                assert (turn.state, second.state) == ("yielded", "held")
            waiting.join(10)
            assert asked == [False]


def test_dropping_a_turn_stalls_no_other_thread(turns: Daemon) -> None:
    """The daemon stands still, and its socket is full. Another thread of the program has it go on."""
    sent = 0
    dropping, goes_on = threading.Event(), threading.Event()

    def fill() -> None:
        nonlocal sent
        while sent < 10_000 and not goes_on.is_set():
            with contextlib.suppress(vramd.Error):
                full.turn(wait=0).yield_now()
            sent += 1

    def run_beside() -> None:
        dropping.wait()
        for _ in range(10):
            time.sleep(0.01)
        goes_on.set()
        os.kill(turns.pid, signal.SIGCONT)

    with turns.connect("one") as client:
        memory = layer(client, 1)
        full = client.working_set("mine", [memory])
        turn = full.turn()
        stop(turns.pid)
        # Another process, for the case that no thread of this one goes on.
        waker = subprocess.Popen(["sh", "-c", f"sleep 60; kill -CONT {turns.pid}"], start_new_session=True)
        threads = [threading.Thread(target=run) for run in (fill, run_beside)]
        for thread in threads:
            thread.start()
        last, unchanged = 0, 0
        while unchanged < 5:
            time.sleep(0.2)
            last, unchanged = sent, unchanged + 1 if sent == last > 0 else 0
        dropping.set()
        del turn
        was_first = goes_on.is_set()
        for thread in threads:
            thread.join()
        woken = waker.poll() is not None
        if not woken:
            os.killpg(waker.pid, signal.SIGKILL)
            waker.wait()
        assert was_first and not woken, "the drop waited for the daemon, and the other thread did not wait for the drop"
        full.close()


def test_a_second_turn_is_refused(turns: Daemon) -> None:
    with turns.connect("one") as client:
        memory = layer(client, 1)
        with client.working_set("mine", [memory]) as working_set, working_set.turn() as turn:
            with pytest.raises(vramd.TurnHeld, match="wait for itself") as refused:
                working_set.turn()
            assert refused.value.set == "mine"
            assert turn.state == "held"


def test_bad_sets_are_refused(turns: Daemon) -> None:
    with turns.connect("one") as client, turns.connect("other") as other:
        memory, foreign = layer(client, 1), layer(other, 2)
        pinned = client.allocate("2MiB")
        with pytest.raises(vramd.InvalidArgument):
            client.working_set("empty", [])
        with pytest.raises(vramd.InvalidArgument):
            client.working_set("foreign", [memory, foreign])
        with pytest.raises(vramd.Pinned):
            client.working_set("pinned", [pinned])
        with client.working_set("mine", [memory]) as working_set:
            with pytest.raises(vramd.InvalidArgument):
                client.working_set("mine", [memory])
            with working_set.turn() as turn:
                for object in (working_set, turn):
                    with pytest.raises(TypeError):
                        pickle.dumps(object)


def test_the_program_goes_on_when_the_daemon_ends(turns: Daemon) -> None:
    with turns.connect("one") as client:
        memory = layer(client, 1, parts=3)
        turn = client.working_set("mine", [memory]).turn()
        turns.kill()
        eventually("the turn says so", lambda: turn.state == "lost")
        assert not turn.ending
        with pytest.raises(vramd.BrokerGone):
            turn.wait_ending(1)
        assert first_byte(memory) == 1
        turn.yield_now()


def test_asyncio_takes_turns(turns: Daemon) -> None:
    async def use(seed: int) -> int:
        async with vramd.aio.connect("program", socket_dir=turns.socket_dir) as client:
            memory = await client.allocate("6MiB", part_size="2MiB", unpinned=True)
            await memory.copy_from(bytes([seed]) * (6 * MIB))
            async with client.working_set("set", [memory]) as working_set:
                assert working_set.name == "set"
                for _ in range(3):
                    async with working_set.turn(wait=30) as turn, memory.pin(wait=0) as pin:
                        assert (turn.state in ("held", "ending"), memoryview(pin)[0]) == (True, seed)
        return seed

    async def both() -> tuple[int, int]:
        return await asyncio.gather(use(1), use(9))

    assert tuple(asyncio.run(both())) == (1, 9)


def test_a_cancelled_task_waits_no_longer(turns: Daemon) -> None:
    async def main() -> None:
        async with vramd.aio.connect("other", socket_dir=turns.socket_dir) as client:
            memory = await client.allocate("6MiB", part_size="2MiB", unpinned=True)
            async with client.working_set("its", [memory]) as working_set:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await working_set.turn()
                eventually("it waits no longer", lambda: phase(turns, "its") == "idle")

    with turns.connect("one") as one:
        memory = layer(one, 1, parts=3)
        with one.working_set("mine", [memory]) as working_set, working_set.turn() as turn:
            asyncio.run(main())
            assert turn.state != "lost"


def test_the_benchmark_of_turns_measures_hand_overs(turns: Daemon) -> None:
    """It has a daemon of its own; the environment says which program that is."""
    program = ROOT / "tests/gpu/turns.py"
    words = ["--set", "6MiB", "--sim", "8MiB", "--quanta", "3", "--quantum", "0.1"]
    printed = subprocess.check_output([sys.executable, program, *words], env=turns.environment, text=True, timeout=60)
    figures = json.loads(printed)
    assert (figures["set_bytes"], figures["turns"]) == (6 * MIB, 6)
    assert figures["hand_over_s"]["median"] > 0 and 0 < figures["held_share"] <= 1
