"""Ctrl-C ends a call that waits within a second, and nothing of the call arrives afterwards."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dis import opname
from functools import partial
from types import FrameType
from typing import Any, Literal, TypeVar

import pytest
import torch
from conftest import MIB, Daemon, eventually, stop, vramctl
from test_pool import Driven, MemPool, as_on_gpu, filled, use_mem_pool, used_bytes  # noqa: F401: one is a fixture

import vramd
import vramd.torch
from vramd import _native, _torch_pool

T = TypeVar("T")
BEFORE = 0.3


def interrupted(call: Callable[[], object]) -> None:
    """Runs a call that must end within a second of Ctrl-C. The second is what users notice, so it is measured."""
    timer = threading.Timer(BEFORE, os.kill, (os.getpid(), signal.SIGINT))
    begun = time.monotonic()
    timer.start()
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
    return start(memory="16MiB", more='[memory]\nhost_size = "64MiB"\nharvest_ms = 5\n')


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
"""The functions of the loader between whose instructions an interrupt may come. Of the clean-up it would be a second one."""
PACKAGE = os.path.dirname(vramd.__file__)


class InterruptAt:
    """Sends the signal of Ctrl-C at the place of that number in the package, or in these functions of it.

    The places are those where Python handles signals: at the begin of a function, after a call, and at a jump back.
    """

    def __init__(self, number: int, functions: Set[str] | None) -> None:
        self.left, self.functions = number, functions

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        is_own = code.co_filename.startswith(PACKAGE) or code is use_mem_pool.__wrapped__.__code__  # type: ignore[attr-defined]
        if not is_own or (self.functions is not None and code.co_name not in self.functions):
            return None
        frame.f_trace_opcodes = True
        handles_signals = True

        def count(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            nonlocal handles_signals
            if event == "opcode":
                name = opname[frame.f_code.co_code[frame.f_lasti]]
                # Python handles none where a call has raised an error, or returns to a function that returns.
                if handles_signals and name not in ("PUSH_EXC_INFO", "RETURN_VALUE"):
                    self.left -= 1
                    if self.left == -1:
                        # The handler runs here, unless the package has put it off.
                        signal.raise_signal(signal.SIGINT)
                handles_signals = name.startswith("CALL") or "BACKWARD" in name
            return count

        return count


def interrupted_anywhere(
    call: Callable[[str], T], check: Callable[[T | None], object], functions: Set[str] | None = None
) -> int:
    """Interrupts the call at each place of the package, and returns how many these are.

    `check` is called after each interrupt with None, and with what the call returned at last.
    """
    before = sys.gettrace()
    number = 0
    while True:
        interrupt = InterruptAt(number, functions)
        made: list[T] = []
        sys.settrace(interrupt)
        try:
            made.append(call(f"m{number}"))
        except KeyboardInterrupt:
            number += 1
        finally:
            sys.settrace(before)
        # Here the traceback is gone.
        check(made[0] if made else None)
        if made:
            assert interrupt.left >= 0, "no interrupt is lost"
            return number


def test_loader_interrupted_anywhere_leaves_nothing(
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
            load = partial(load_from, path, client)
            assert interrupted_anywhere(load, free, LOADER) > 15
            eventually("all are freed", lambda: client.list() == [])
        state = {"a": torch.ones(1000), "b": torch.zeros(3)}
        assert interrupted_anywhere(lambda name: vramd.save(state, name, client=client), free, LOADER) > 15
        eventually("all are freed", lambda: client.list() == [])


def load_from(path: pathlib.Path, client: vramd.Client, name: str) -> vramd.Weights:
    return vramd.load(path, name=name, client=client)


def free(made: vramd.Weights | None) -> None:
    if made is not None:
        made.free()


@pytest.fixture
def layers(streaming: Daemon) -> vramd.Weights:
    """Two layers of 2 MiB, which may leave their device of 8."""
    state = torch.nn.Sequential(*(torch.nn.Linear(724, 724, bias=False) for _ in range(2))).state_dict()
    return vramd.save(state, "layers", client=streaming.connect(), part_size="2MiB", unpinned=True)


def may_leave(weights: vramd.Weights) -> bool:
    """Whether all of the device can be had by others."""
    weights.client.allocate("8MiB", wait=20).free()
    return weights.client.describe("layers").resident == 0


def test_pins_interrupted_anywhere_end(layers: vramd.Weights) -> None:
    tracebacks: list[BaseException | None] = []

    def block(_name: str) -> None:
        try:
            with layers.pin():
                pass
        except KeyboardInterrupt as error:
            # As a notebook keeps the last one.
            tracebacks[:] = [error]
            raise

    def pair(_name: str) -> None:
        layers.end_pin(layers.begin_pin())

    for call in (block, pair):
        assert interrupted_anywhere(call, lambda _: layers.pinned_parts() == [] or pytest.fail("pinned")) > 5
    assert tracebacks and may_leave(layers)


def layered() -> torch.nn.Module:
    with vramd.torch.on_meta():
        return torch.nn.Sequential(*(torch.nn.Linear(724, 724, bias=False) for _ in range(2)))


@pytest.mark.parametrize("hold", [True, False])
def test_binding_interrupted_anywhere_leaves_the_module_as_it_was(layers: vramd.Weights, hold: bool) -> None:
    layers.unpin()
    module = layered()

    def check(bound: bool | None) -> None:
        is_bound = [not parameter.is_meta for parameter in module.parameters()]
        # All or none. Its last moment is when all has been done.
        assert is_bound == [bound or is_bound[0]] * 2
        assert is_bound[0] or not vramd.torch._unheld

    def bind(_name: str) -> bool:
        layers.bind(module, hold=hold)
        return True

    functions = {"bind", "tensor_of", "bytes_of", "held", "unheld", "content", "slots_of"}
    assert interrupted_anywhere(bind, check, functions) > 15
    del module
    gc.collect()
    assert may_leave(layers)


def test_building_on_meta_interrupted_anywhere_is_over(daemon: Daemon) -> None:
    def check(built: torch.nn.Module | None) -> None:
        assert not torch.nn.Linear(2, 2).weight.is_meta, "modules of later are ordinary"

    assert interrupted_anywhere(lambda _: layered(), check) > 15


def test_movable_module_interrupted_anywhere_keeps_no_pin(layers: vramd.Weights) -> None:
    module = layered()
    layers.bind(module, hold=False)
    layers.unpin()
    x = torch.ones(1, 724)
    with torch.no_grad():
        with layers.pin():
            expected = module(x)

        def check(_made: object) -> None:
            # The call that was interrupted may have kept pins; the next one has none left.
            assert torch.equal(module(x), expected) and not layers.pinned_parts()

        with vramd.torch.debug(), vramd.torch.movable(module, layers):
            assert interrupted_anywhere(lambda _: module(x), check) > 15

        def installed(_name: str) -> None:
            with vramd.torch.movable(module, layers):
                pass

        def removed(_made: object) -> None:
            with vramd.torch.debug(), pytest.raises(vramd.NotResident):
                module(x)

        assert interrupted_anywhere(installed, removed) > 15
    assert not layers.pinned_parts() and may_leave(layers)


def test_block_of_a_pool_interrupted_anywhere_is_over(full: Daemon, as_on_gpu: None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with full.connect() as client:

        def block(_name: str) -> None:
            with vramd.torch.pool("block", client=client, device=0):
                assert len(MemPool.used) == 1

        def check(_made: object) -> None:
            assert not MemPool.used and not _torch_pool._open_blocks and not _torch_pool._past_blocks
            assert signal.getsignal(signal.SIGINT) is handler
            assert signal.set_wakeup_fd(-1) == -1

        block("once")
        descriptors = len(os.listdir("/proc/self/fd"))
        assert interrupted_anywhere(block, check) > 15
        assert len(os.listdir("/proc/self/fd")) == descriptors
        vramd.torch.pool("block", client=client, device=0).close()
        assert not hasattr(torch.cuda, "mem_get_info") or torch.cuda.mem_get_info is MEM_GET_INFO


MEM_GET_INFO = getattr(torch.cuda, "mem_get_info", None)


def test_free_memory_by_the_quota_interrupted_anywhere_is_over(daemon: Daemon) -> None:
    def inside(_name: str) -> None:
        with vramd.torch.quota_as_memory(client):
            assert torch.cuda.mem_get_info is not MEM_GET_INFO

    def check(_made: object) -> None:
        assert torch.cuda.mem_get_info is MEM_GET_INFO

    with daemon.connect() as client:
        assert interrupted_anywhere(inside, check) > 15


@pytest.mark.parametrize("level", [1, 2])
def test_pools_interrupted_anywhere_sleep_and_wake(full: Daemon, level: Literal[1, 2]) -> None:
    with full.connect() as client:
        pools = [vramd.torch.pool(tag, client=client, device=0, arena="4MiB") for tag in ("weights", "kv")]
        driven = [Driven.of(pool) for pool in pools]
        addresses = [each.alloc(4 * MIB) for each in driven]
        content = [filled(address, 4096, at) for at, address in enumerate(addresses)]

        def check(states: Set[bool], wakes: bool) -> None:
            assert {pool.is_awake for pool in pools} <= states
            vramd.torch.sleep(level)
            client.flush()
            eventually("the device is free", lambda: used_bytes(client) == 0)
            assert used_bytes(client, "host") == (8 * MIB if level == 1 else 0)
            if wakes:
                return
            vramd.torch.wake_up(wait=20)
            assert level == 2 or [ctypes.string_at(address, 4096) for address in addresses] == content

        both = {True, False}
        own = {"sleep", "wake_up"}
        assert interrupted_anywhere(lambda _: vramd.torch.sleep(level), lambda _: check(both, False), own) > 5

        def wake(_name: str) -> bool:
            vramd.torch.wake_up(wait=20)
            return True

        def woken(done: bool | None) -> None:
            assert len({pool.is_awake for pool in pools}) == 1, "all or none"
            check({done} if done else both, True)

        vramd.torch.sleep(level)
        assert interrupted_anywhere(wake, woken, own) > 5
        vramd.torch.wake_up(wait=20)
        for each, address, pool in zip(driven, addresses, pools):
            each.free(address)
            pool.close()
        client.flush()
        assert used_bytes(client) + used_bytes(client, "host") == 0


@pytest.mark.parametrize("library", [ctypes.CDLL, ctypes.PyDLL], ids=["without the GIL", "with the GIL"])
def test_allocation_of_pytorch_ends_by_an_interrupt(
    full: Daemon, as_on_gpu: None, library: Callable[[str], ctypes.CDLL]
) -> None:
    with full.connect("holder") as holder, full.connect("waiter") as client:
        held = holder.allocate("16MiB")
        pool = vramd.torch.pool("waits", client=client, device=0, wait=60)
        alloc = library(_native.__file__)[pool._native.symbols[0]]
        alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        answers: list[int | None] = []

        def three_times() -> None:
            """As PyTorch tries again after it has given back what it caches. Between these Python runs no code."""
            with pool:
                answers.extend(map(alloc, [8 * MIB] * 3, [0] * 3, [None] * 3))

        for _ in range(2):
            begun = time.monotonic()
            # Another process sends the signal: with the GIL no other thread of this one runs.
            with subprocess.Popen(["sh", "-c", f"sleep {BEFORE}; kill -INT {os.getpid()}"]):
                with pytest.raises(KeyboardInterrupt):
                    three_times()
            # The pool waits for a minute.
            assert BEFORE <= time.monotonic() - begun < 20
            assert answers == [None] * 3
            answers.clear()
        eventually("no wait is left", lambda: sizes_waiting(full) == [])

        def handled_inside() -> None:
            with pool:
                interrupted(lambda: time.sleep(10))
                threading.Timer(0.3, held.free).start()
                answers.append(Driven.of(pool).alloc(8 * MIB))

        handled_inside()
        assert answers[0], "a signal that was handled ends no later allocation"
        Driven.of(pool).free(answers[0])
        pool.close()


def test_allocation_waits_on_where_ctrl_c_raises_nothing(full: Daemon, as_on_gpu: None) -> None:
    """Its handler is the program's own matter, and the allocation need not fail."""
    calls: list[int] = []
    with full.connect("holder") as holder, full.connect("waiter") as client:
        held = holder.allocate("16MiB")
        pool = vramd.torch.pool("waits", client=client, device=0, wait=60)
        before = signal.signal(signal.SIGINT, lambda number, _frame: calls.append(number))
        try:
            timers = [threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)), threading.Timer(0.6, held.free)]
            for timer in timers:
                timer.start()
            driven = Driven.of(pool)
            with pool:
                address = driven.alloc(8 * MIB)
            assert address and calls == [signal.SIGINT]
        finally:
            signal.signal(signal.SIGINT, before)
        driven.free(address)
        pool.close()


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
