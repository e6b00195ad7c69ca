"""How full devices are, asked for and told."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time

import pytest
from conftest import MIB, Daemon, eventually

import vramd

BIG = 224 * MIB
"""More than four fifths of the device, and less than nine tenths."""


def test_pressure_is_known_without_a_callback(client: vramd.Client) -> None:
    uuid = client.devices[0].uuid
    eventually("the daemon has told", lambda: client.pressure().level == "normal")
    memory = client.allocate(BIG)
    eventually("it is elevated", lambda: client.pressure().level == "elevated")
    heard: list[vramd.Pressure] = []

    def foreseen() -> bool:
        heard.append(client.pressure(uuid))
        return heard[-1].full_in is not None and heard[-1].batch_factor < 1.0

    # The daemon looks once a second, and nothing grows any more after this.
    eventually("it is foreseen when the device is full", foreseen)
    pressure = heard[-1]
    assert (pressure.device, pressure.tier) == (uuid, "device")
    assert pressure.batch_factor >= 0.8, "it is to ask for less, and not for much less"
    assert pressure.full_in is not None and 0 < pressure.full_in < 300
    assert client.pressure("0").device == uuid
    assert [told.tier for told in client.pressures()] == ["device"]
    assert "elevated in tier device" in repr(pressure)
    with pytest.raises(AttributeError):
        pressure.level = "normal"  # type: ignore[misc]
    with pytest.raises(vramd.DeviceUnknown, match="GPU-none"):
        client.pressure("GPU-none")
    memory.free()
    eventually("it is normal again", lambda: client.pressure().level == "normal")
    client.close()
    with pytest.raises(vramd.HandleClosed):
        client.pressure()


def test_callback_runs_on_its_own_thread_and_delays_nothing(daemon: Daemon) -> None:
    heard: queue.Queue[tuple[str, vramd.Pressure]] = queue.Queue()
    go_on = threading.Event()

    def on_pressure(pressure: vramd.Pressure) -> None:
        heard.put((threading.current_thread().name, pressure))
        assert go_on.wait(30)

    with daemon.connect(on_pressure=on_pressure) as client:
        _, pressure = heard.get(timeout=20)
        assert (pressure.level, pressure.device) == ("normal", client.devices[0].uuid)
        # It has not come back, and the session goes on.
        memory = client.allocate(BIG)
        eventually("it is elevated", lambda: client.pressure().level == "elevated")
        memory.free()
        eventually("it is normal again", lambda: client.pressure().level == "normal")
        memory = client.allocate(248 * MIB)
        eventually("it is critical", lambda: client.pressure().level == "critical")
        go_on.set()
        assert heard.get(timeout=20)[1].level == "critical", "only the newest has waited"
        memory.free()


def test_exception_of_the_callback_is_reported_and_calls_go_on(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.put(f"{args.exc_value} {args.thread.name}"))

    def on_pressure(pressure: vramd.Pressure) -> None:
        raise RuntimeError(f"heard {pressure.level}")

    with daemon.connect(on_pressure=on_pressure) as client:
        first = reported.get(timeout=20)
        assert "heard normal" in first and "vramd-pressure" in first
        memory = client.allocate(BIG)
        while "heard elevated" not in reported.get(timeout=20):
            pass
        assert memory.copy_to(0, 4) == bytes(4)
        memory.free()


def test_callback_that_is_not_callable_is_refused(daemon: Daemon) -> None:
    with pytest.raises(TypeError, match="must be a callable"):
        daemon.connect(on_pressure=3)


@pytest.mark.parametrize("meanwhile", ["sleep(0.001)", "client.describe(memory.id)", "raise RuntimeError"])
def test_interpreter_ends_during_a_callback(daemon: Daemon, meanwhile: str) -> None:
    """The thread comes back into an interpreter that is half taken down."""
    busy = f"""
import threading, time, vramd
heard = threading.Event()
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)
slow = Slow()
def hook(raised, sleep=time.sleep):
    while True:
        sleep(0.001)
threading.excepthook = hook
def on_pressure(pressure, sleep=time.sleep):
    assert begun.wait(20)
    heard.set()
    while True:
        {meanwhile}
begun = threading.Event()
client = vramd.connect(on_pressure=on_pressure)
memory = client.allocate("2MiB")
begun.set()
assert heard.wait(20)
"""
    assert daemon.run(busy) == ""


def test_interpreter_ends_though_a_callback_does_not_return(daemon: Daemon) -> None:
    stuck = """
import threading, vramd
heard = threading.Event()
def on_pressure(pressure):
    heard.set()
    threading.Event().wait()
client = vramd.connect(on_pressure=on_pressure)
assert heard.wait(20)
"""
    assert daemon.run(stuck) == ""


def test_callback_may_close_the_session(daemon: Daemon) -> None:
    closed = threading.Event()

    def on_pressure(pressure: vramd.Pressure) -> None:
        assert connected.wait(20)
        client.close()
        closed.set()

    connected = threading.Event()
    # The thread of an earlier client may be about to end.
    before = threading.enumerate()
    client = daemon.connect(on_pressure=on_pressure)
    [thread] = [each for each in threading.enumerate() if each.name == "vramd-pressure" and each not in before]
    connected.set()
    assert closed.wait(20)
    thread.join(20)
    assert not thread.is_alive(), "it ends with the session"


def test_child_forked_during_a_callback_waits_for_no_call(daemon: Daemon) -> None:
    """The child has no thread for the callback, so it would wait forever. Hooks run in reverse order of registration."""
    forked = """
import atexit, os, threading, time
times = []
def ended():
    print(int(times[0] + 0.5 > time.monotonic()), flush=True)
atexit.register(ended)
import vramd
heard, go_on = threading.Event(), threading.Event()
def on_pressure(pressure):
    heard.set()
    go_on.wait()
client = vramd.connect(on_pressure=on_pressure)
assert heard.wait(20)
atexit.register(lambda: times.append(time.monotonic()))
child = os.fork()
if child:
    os.waitpid(child, 0)
    go_on.set()
"""
    assert daemon.run(forked) == "1\n1\n", "the child, and its parent"


def test_child_forked_in_a_callback_ends_with_it(daemon: Daemon) -> None:
    children: queue.Queue[int] = queue.Queue()

    def on_pressure(pressure: vramd.Pressure) -> None:
        if child := os.fork():
            children.put(child)

    with daemon.connect(on_pressure=on_pressure) as client:
        child = children.get(timeout=20)
        ended: list[tuple[int, int]] = []

        def has_ended() -> bool:
            ended.append(os.waitpid(child, os.WNOHANG))
            return ended[-1][0] == child

        try:
            eventually("the child has ended", has_ended)
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        assert ended[-1][1] == 0
        memory = client.allocate(BIG)
        os.waitpid(children.get(timeout=20), 0)
        memory.free()
