"""A real daemon for every test that asks for one, on simulated devices, in a folder that vanishes with it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import vramd

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = TARGET / "debug" / "vramd"
READY_SECONDS = 30
MIB = 1 << 20


class Daemon:
    """A daemon. Ending it fails if it has logged an error."""

    def __init__(self, *, memory: str = "256MiB", driver: str = "", more: str = "") -> None:
        assert PROGRAM.exists(), f"{PROGRAM} is missing: sdk-python/tests/run builds it"
        driver = driver or f'kind = "sim"\n[[driver.sim.devices]]\nmemory = "{memory}"\n'
        # A test that says nothing of the host tier has none, on whatever machine it runs.
        if "host_size" not in more:
            more = more.replace("[memory]\n", '[memory]\nhost_size = "0"\n')
        if "[memory]" not in more:
            more += '[memory]\nhost_size = "0"\n'
        self.folder = tempfile.TemporaryDirectory(prefix="vramd-python-", dir="/tmp")
        self.home = pathlib.Path(self.folder.name)
        self.sockets = self.home / "run"
        self.log = self.home / "log"
        self.errors_expected = False
        config = self.home / "vramd.toml"
        config.write_text(
            f'[daemon]\nsocket_dir = "{self.sockets}"\nstate_dir = "{self.home / "state"}"\n'
            f"[driver]\n{driver}{more}"
        )
        environment = {key: text for key, text in os.environ.items() if key != "VRAMD_SOCKET_DIR"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "--config", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                return self.connect().close()
            except vramd.BrokerGone:
                assert self.process.poll() is None, f"the daemon ended:\n{self.log.read_text()}"
                assert time.monotonic() < deadline, f"the daemon is not ready:\n{self.log.read_text()}"
                time.sleep(0.02)

    def connect(self, name: str | None = None, **more: object) -> vramd.Client:
        return vramd.connect(name, socket_dir=self.sockets, **more)  # type: ignore[arg-type]

    def child(self, source: str, *arguments: object) -> subprocess.Popen[str]:
        """Another Python that runs a text, with the daemon's sockets in its environment."""
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", source, *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "VRAMD_SOCKET_DIR": str(self.sockets)},
        )

    def run(self, source: str, *arguments: object) -> str:
        """The same to its end, which must be a good one; what it printed."""
        with self.child(source, *arguments) as child:
            printed, _ = child.communicate(timeout=60)
        assert child.returncode == 0, f"status {child.returncode}"
        return printed

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors_expected = True

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                assert self.process.wait(timeout=30) == 0, self.log.read_text()
            finally:
                self.process.kill()
        log = self.log.read_text()
        self.folder.cleanup()
        assert self.errors_expected or " ERROR " not in log and "panicked" not in log, log


def vramctl(daemon: Daemon, *words: str) -> str:
    """Runs an operator's command, which must succeed, and returns its output."""
    return subprocess.run(
        [PROGRAM.with_name("vramctl"), *words],
        env={"VRAMD_SOCKET_DIR": str(daemon.sockets)}, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip


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


def eventually(what: str, seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < deadline, f"not so within 20 s: {what}"
        time.sleep(0.02)
