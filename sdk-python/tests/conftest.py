"""A real daemon for every test that asks for one, on simulated devices, in a folder that vanishes with it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import vramd
import vramd.testing

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = TARGET / "debug" / "vramd"
MIB = 1 << 20


class Daemon(vramd.testing.Daemon):
    """A daemon of this tree. Ending it fails if it has logged an error."""

    def __init__(self, *, memory: str = "256MiB", driver: str = "", more: str = "") -> None:
        config = f"[driver]\n{driver}{more}" if driver else more
        super().__init__(memory=memory, config=config, program=PROGRAM)
        self.sockets = self.socket_dir

    @property
    def environment(self) -> dict[str, str]:
        """With it the guide's own daemons are this tree's too."""
        return {**super().environment, "VRAMD_DAEMON": self.program}

    def child(self, source: str, *arguments: object) -> subprocess.Popen[str]:
        """Another Python that runs a text, with the daemon's sockets in its environment."""
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", source, *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment,
        )  # fmt: skip

    def run(self, source: str, *arguments: object) -> str:
        """The same to its end, which must be a good one; what it printed."""
        with self.child(source, *arguments) as child:
            printed, _ = child.communicate(timeout=60)
        assert child.returncode == 0, f"status {child.returncode}"
        return printed


def vramctl(daemon: Daemon, *words: str) -> str:
    """Runs an operator's command, which must succeed, and returns its output."""
    return daemon.vramctl(*words)


@pytest.fixture
def start() -> Iterator[Callable[..., Daemon]]:
    """Starts daemons of any configuration."""
    with ExitStack() as stack:

        def begin(**more: str) -> Daemon:
            daemon = Daemon(**more)
            stack.callback(daemon.end)
            return daemon

        yield begin


@pytest.fixture
def daemon(start: Callable[..., Daemon]) -> Daemon:
    """One device of 256 MiB."""
    return start()


@pytest.fixture
def streaming(start: Callable[..., Daemon]) -> Daemon:
    """A device of 8 MiB, and 64 MiB of the host beside it."""
    return start(memory="8MiB", more='[memory]\nhost_size = "64MiB"\nharvest_ms = 5\n')


@pytest.fixture
def client(daemon: Daemon) -> Iterator[vramd.Client]:
    with daemon.connect("test") as client:
        yield client


def layer(client: vramd.Client, seed: int, parts: int = 1) -> vramd.Allocation:
    """Unpinned memory, each part of it filled with a number of its own from `seed` on."""
    size = 2 * MIB
    memory = client.allocate(parts * size, part_size="2MiB", unpinned=True)
    for part in range(parts):
        memory.copy_from(bytes([seed + part]) * size, offset=part * size)
    return memory


def stop(pid: int) -> None:
    """Stops a process, and waits until each of its threads has stopped: until then one may answer a call."""
    os.kill(pid, signal.SIGSTOP)

    def are_stopped() -> bool:
        try:
            stats = [task.read_text() for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
        except FileNotFoundError:
            # A thread has ended meanwhile.
            return False
        return all(stat.rpartition(") ")[2].startswith("T") for stat in stats)

    eventually("all threads have stopped", are_stopped)


def eventually(what: str, seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < deadline, f"not so within 20 s: {what}"
        time.sleep(0.02)
