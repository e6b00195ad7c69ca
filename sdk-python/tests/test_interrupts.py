"""Ctrl-C ends a call that waits within a second, and nothing of the call arrives afterwards."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dis import opname
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from conftest import MIB, Daemon, eventually, stop, vramctl

import vramd

BEFORE = 0.3


def interrupted(call: Callable[[], object]) -> None:
    """Runs a call that must end within a second of Ctrl-C. The second is what users notice, so it is measured."""
    timer = threading.Timer(BEFORE, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        # Of a call that has returned before. The next test must not be interrupted.
        timer.cancel()
    took = time.monotonic() - begun
    timer.join()
    assert BEFORE <= took < BEFORE + 1, took


@contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    stop(daemon.pid)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@pytest.fixture
def full(start: Callable[..., Daemon]) -> Daemon:
    return start(memory="16MiB", more='[memory]\nhost_size = "64MiB"\n')


def test_wait_for_room_ends(full: Daemon) -> None:
    with full.connect("holder") as holder, full.connect("waiter") as waiter:
        model = holder.allocate("8MiB", name="model", lifetime="persistent").seal()
        model.detach()
        mine = waiter.attach("model", unpinned=True)
        held = holder.allocate("16MiB", wait=20)
        interrupted(lambda: waiter.allocate("8MiB", wait=60))
        interrupted(lambda: waiter.allocate("8MiB", name="taken", lifetime="persistent", wait=60))
        interrupted(mine.pin)
        interrupted(mine.repin)
        interrupted(lambda: waiter.pin_set([mine]))
        interrupted(mine.tensor)
        interrupted(lambda: mine.copy_to(0, 1))
        with full.connect("reader") as reader:
            interrupted(lambda: reader.attach("model"))
        assert waiter.is_connected and not mine.has_handle_pin
        held.free()
        with mine.pin():
            pass
        mine.detach()
        eventually("nothing of the calls is left", lambda: [info.name for info in holder.list()] == [model.name])
        assert waiter.allocate("16MiB", wait=20).size == 16 * MIB


def test_wait_for_a_turn_ends(full: Daemon) -> None:
    with full.connect("holder") as holder, full.connect("waiter") as waiter:
        its = holder.allocate("12MiB", unpinned=True)
        mine = waiter.allocate("12MiB", unpinned=True)
        with holder.working_set("its", [its]).turn() as turn, waiter.working_set("mine", [mine]) as working_set:
            interrupted(working_set.turn)
            interrupted(turn.wait_ending)
            turn.yield_now()
            working_set.turn(wait=20).yield_now()


def test_interrupted_allocation_leaves_the_line(full: Daemon) -> None:
    def waits() -> list[object]:
        waits: list[object] = json.loads(vramctl(full, "wait", "list", "--json"))["waits"]
        return waits

    with full.connect("holder") as holder, full.connect("waiter") as waiter:
        held = holder.allocate("16MiB")
        interrupted(lambda: waiter.allocate("8MiB", wait=60))
        # Its own end would come after 60 s, which is longer than `eventually` looks.
        eventually("the wait has left the line", lambda: not waits())
        # The session serves other calls, and no room is reserved for the call that has ended.
        assert [info.id for info in waiter.list()] == [held.id]
        held.free()
        waiter.allocate("16MiB").free()
        assert waiter.list() == []


def test_call_of_a_daemon_that_does_not_answer_ends(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with daemon.connect() as client:
        memory, kept = client.allocate(MIB), client.allocate(MIB)
        with stopped(daemon):
            interrupted(client.list)
            interrupted(lambda: client.allocate(MIB))
            interrupted(lambda: client.load(tmp_path / "file"))
            interrupted(memory.seal)
            interrupted(kept.free)
            interrupted(daemon.connect)
        client.flush()
        assert client.is_connected
        eventually("nothing of the calls is left", lambda: len(client.list()) <= 2)


def test_handler_that_raises_nothing_ends_no_call(full: Daemon) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: calls.append(number))
    try:
        with full.connect() as client:
            held = client.allocate("16MiB")
            timers = [
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)),
                threading.Timer(0.5, held.free),
            ]
            for timer in timers:
                timer.start()
            assert client.allocate("8MiB", wait=20).size == 8 * MIB
            assert calls == [signal.SIGUSR1], "the handler ran during the call"
            for timer in timers:
                timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_deadline_ends_a_load_from_a_daemon_that_does_not_answer(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with daemon.connect(timeout=1) as client:
        with stopped(daemon):
            # The error says that the deadline ended it. Without one the load would wait for the stopped daemon.
            with pytest.raises(vramd.Deadline):
                client.load(tmp_path / "file")
        eventually("nothing of the load is left", lambda: client.list() == [])


def test_interrupt_of_another_thread_ends_its_waits(full: Daemon) -> None:
    with full.connect("holder") as holder, full.connect("waiter") as waiter:
        held = holder.allocate("16MiB")
        interrupt = vramd._native._Interrupt()
        ended: list[vramd.Allocation] = []

        def wait_for_room() -> None:
            with interrupt:
                with pytest.raises(InterruptedError):
                    waiter.allocate("8MiB", name="late", lifetime="persistent", wait=200)
                with pytest.raises(InterruptedError):
                    waiter.allocate("8MiB", wait=200)
            # Outside of the block the thread waits as ever.
            ended.append(waiter.allocate("6MiB", wait=60))

        thread = threading.Thread(target=wait_for_room)
        thread.start()
        eventually("it waits", lambda: sizes_waiting(full) == [8 * MIB])
        interrupt.set()
        eventually("both have ended, and the third waits", lambda: sizes_waiting(full) == [6 * MIB])
        held.free()
        thread.join(timeout=30)
        [arrived] = ended
        eventually("only it is left", lambda: [info.id for info in waiter.list()] == [arrived.id])


def test_load_interrupted_at_any_moment_leaves_nothing(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    """Also while the daemon hashes what is sealed already."""
    (tmp_path / "file").write_bytes(os.urandom(12 * MIB))
    with daemon.connect("loader") as client:
        for number in range(40):
            interrupt = vramd._native._Interrupt()
            timer = threading.Timer(number * 0.003, interrupt.set)
            loader = threading.Thread(target=load_under, args=(client, interrupt, tmp_path / "file", f"m{number}"))
            loader.start()
            timer.start()
            loader.join(timeout=60)
            timer.join()
        eventually("all are freed", lambda: client.list() == [])


LOADER = {"load", "load_or_attach", "place", "opened", "count_copy", "check_tensors", "save"}
"""The functions of the package between whose instructions an interrupt may come. Of the clean-up it would be a second one."""


class InterruptAt:
    """Raises KeyboardInterrupt before the instruction of that number in the loader, as the handler of a signal does."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_name not in LOADER or "/vramd/" not in code.co_filename:
            return None
        frame.f_trace_opcodes = True
        return self.count

    def count(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        # Python handles no signal between the last call of a function and its return.
        if event == "opcode" and opname[frame.f_code.co_code[frame.f_lasti]] != "RETURN_VALUE":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self.count


def instructions_interrupted(call: Callable[[str], vramd.Weights]) -> int:
    """Interrupts the call before each instruction of the loader, and returns how many these are."""
    before = sys.gettrace()
    number = 0
    while True:
        sys.settrace(InterruptAt(number))
        try:
            made = call(f"m{number}")
        except KeyboardInterrupt:
            number += 1
        else:
            sys.settrace(before)
            made.free()
            return number
        finally:
            sys.settrace(before)


def test_loader_interrupted_at_any_instruction_leaves_nothing(
    start: Callable[..., Daemon], tmp_path: pathlib.Path
) -> None:
    """Also between a call of the SDK and the statement that keeps its result."""
    aligned = tmp_path / "aligned"
    aligned.mkdir()
    write_checkpoint(aligned / "in_place.safetensors", 4096)
    copied = write_checkpoint(tmp_path / "copied.safetensors", 5000)
    daemon = start(more=f'[files]\nimmutable_paths = ["{aligned.resolve()}"]\n')
    with daemon.connect("loader") as client:
        for path in (copied, aligned / "in_place.safetensors"):
            assert instructions_interrupted(lambda name: vramd.load(path, name=name, client=client)) > 100
            eventually("all are freed", lambda: client.list() == [])
        state = {"a": torch.ones(1000), "b": torch.zeros(3)}
        assert instructions_interrupted(lambda name: vramd.save(state, name, client=client)) > 100
        eventually("all are freed", lambda: client.list() == [])


def test_loader_interrupted_by_a_signal_leaves_nothing(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    path = write_checkpoint(tmp_path / "model.safetensors", 12 * MIB)
    with daemon.connect("loader") as client:
        for number in range(30):
            timer = threading.Timer(number * 0.004, os.kill, (os.getpid(), signal.SIGINT))
            loaded: list[vramd.Weights] = []
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                # The caller owns all that has returned.
                loaded.extend(map(partial(vramd.load, client=client, name=f"m{number}"), [path]))
                time.sleep(10)
            for weights in loaded:
                weights.free()
        eventually("all are freed", lambda: client.list() == [])


def test_load_whose_daemon_stops_in_mid_copy_ends(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    path = write_checkpoint(tmp_path / "model.safetensors", 24 * MIB)
    stops: list[float] = []

    def stop_daemon(done: int, _total: int) -> None:
        if not stops:
            stop(daemon.pid)
            stops.append(time.monotonic())
            threading.Timer(BEFORE, os.kill, (os.getpid(), signal.SIGINT)).start()

    with daemon.connect("loader") as client:
        try:
            with pytest.raises(KeyboardInterrupt):
                vramd.load(path, name="m", client=client, progress=stop_daemon)
            assert time.monotonic() - stops[0] < BEFORE + 1.5
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        eventually("nothing of the load is left", lambda: client.list() == [])


def write_checkpoint(path: pathlib.Path, count: int) -> pathlib.Path:
    """A checkpoint of one tensor of bytes, which begins at a multiple of 16 bytes."""
    header = json.dumps({"t": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    header += b" " * (-(8 + len(header)) % 16)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(count))
    os.sync()
    return path


def load_under(client: vramd.Client, interrupt: vramd._native._Interrupt, path: pathlib.Path, name: str) -> None:
    try:
        with interrupt:
            loaded = client.load(path, name=name, lifetime="persistent")
    except InterruptedError:
        return
    loaded.free()


def sizes_waiting(daemon: Daemon) -> list[int]:
    waits = json.loads(vramctl(daemon, "wait", "list", "--json"))["waits"]
    return [wait["bytes"] for wait in waits]
