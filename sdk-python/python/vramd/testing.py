"""A private daemon on simulated devices, for the tests of programs that use `vramd`. No GPU is needed.

    import vramd.testing

    with vramd.testing.Daemon(memory="64MiB") as daemon, daemon.connect() as client:
        client.allocate("2MiB").copy_from(b"hello")

With pytest, a test just takes the fixture `vramd_daemon` or `vramd_client`; the package registers both. The marker
`@pytest.mark.vramd(memory="64MiB")` has the arguments of the test's daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
import weakref
from types import TracebackType
from typing import Any, Self

import vramd

__all__ = ["Daemon", "DaemonFailed", "DaemonMissing"]

PROGRAM_VARIABLE = "VRAMD_DAEMON"
START_SECONDS = 30
STOP_SECONDS = 30
COMMAND_SECONDS = 60

_SUPERVISOR = pathlib.Path(__file__).with_name("_testing_supervisor.py")
# These would lead the daemon to another daemon's sockets, to another service manager or to a collector of telemetry.
_FOREIGN_VARIABLES = ("VRAMD_SOCKET_DIR", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "OTEL_")


class DaemonMissing(FileNotFoundError):
    """A program of vramd is not where it was looked for."""


class DaemonFailed(RuntimeError):
    """The daemon did not start, did not end well, or logged an error. The message has its log."""


class Daemon:
    """A daemon of its own, which serves once the constructor returns. As a context manager it is ended at the end.

    It has a folder of its own, so any number of daemons may run at once. It does not outlive the process that started
    it, even if that process is killed.
    """

    folder: pathlib.Path
    """Its sockets, state, disk tier and log. Gone after `end`."""
    socket_dir: pathlib.Path
    pid: int
    errors_expected: bool
    """Set it to True in a test that makes the daemon log an error: `end` then accepts that."""

    def __init__(
        self,
        *,
        devices: int = 1,
        memory: int | str = "256MiB",
        host: int | str = 0,
        disk: int | str | None = None,
        tenant: str | None = None,
        quota: int | str | None = None,
        config: str = "",
        program: str | os.PathLike[str] | None = None,
    ) -> None:
        """Starts a daemon, and waits until it serves.

        A size is a number of bytes, or a text like `"256MiB"`. There are `devices` simulated devices of so much
        `memory` each. `host` and `disk` are the bytes that each device has in the tiers below it. Memory moves only
        if there are some; they then bound all that a tenant owns.

        `tenant` names the tenant of this user's processes. `quota` is the limit of each tenant on each device.
        `config` is configuration as in the daemon's file (docs/reference/configuration.md); it goes before the other
        arguments. `program` is the daemon's program. The default is the one that the variable VRAMD_DAEMON names, or
        else `vramd` on PATH.
        """
        self.program = _find_daemon(program)
        settings = _parse(config)
        _set(settings, "driver.kind", "sim")
        if settings["driver"]["kind"] == "sim":
            _set(settings, "driver.sim.devices", [{"memory": _size("memory", memory)}] * _count("devices", devices))
        _set(settings, "memory.host_size", _size("host", host))
        if disk is not None:
            _set(settings, "disk.size", _size("disk", disk))
        if tenant is not None:
            _set(settings, "tenants", [{"tenant": tenant, "uid": os.geteuid()}])
        if quota is not None:
            _set(settings, "quota.default.limit", _size("quota", quota))
        self.errors_expected = False
        self._killed = False
        self._ended = False
        self._starter = os.getpid()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="vramd-test-"))
        self.socket_dir = self.folder / "run"
        # As a service manager: the daemon reports that it serves.
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._start(settings)
        except BaseException:
            self._reports.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _start(self, settings: dict[str, Any]) -> None:
        for name, folder in (("socket_dir", self.socket_dir), ("state_dir", self.folder / "state")):
            _set(settings, f"daemon.{name}", str(folder))
            if settings["daemon"][name] != str(folder):
                raise ValueError(f"config: daemon.{name} is chosen by vramd.testing, so that daemons do not meet")
        if "disk" in settings:
            directory = self.folder / "disk"
            directory.mkdir()
            _set(settings, "disk.directory", str(directory))
        config = self.folder / "vramd.toml"
        text = "".join(f"{name} = {_toml(value)}\n" for name, value in settings.items())
        config.write_text(text, encoding="utf-8")

        self._reports.bind(str(self.folder / "reports"))
        environment = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN_VARIABLES)}
        environment["NOTIFY_SOCKET"] = str(self.folder / "reports")
        test_process = os.pidfd_open(os.getpid())
        try:
            with open(self.folder / "log", "wb") as log:
                self._supervisor = subprocess.Popen(
                    [
                        sys.executable, "-I", "-S", str(_SUPERVISOR), str(test_process), str(self.folder),
                        self.program, "--config", str(config),
                    ],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                    pass_fds=[test_process],
                    # Ctrl-C in a terminal ends the tests first, and they end the daemon.
                    start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(test_process)
        assert self._supervisor.stdin is not None
        # The supervisor ends the daemon of a dropped object. `Popen` alone would keep the pipe open.
        weakref.finalize(self, self._supervisor.stdin.close)
        self._await_start()

    def _await_start(self) -> None:
        assert self._supervisor.stdout is not None
        first = self._supervisor.stdout.readline()
        if not first:
            self._supervisor.communicate()
            raise DaemonFailed(f"{self.program} cannot be run:\n{self.log}")
        self.pid = int(first)
        self._process = os.pidfd_open(self.pid)
        ready = _wait_for([self._reports.fileno(), self._process], START_SECONDS)
        if self._reports.fileno() not in ready:
            problem = "refuses to start" if self._process in ready else f"does not serve within {START_SECONDS} s"
            text = f"the daemon {problem}:\n{self.log}"
            self._kill()
            self._release()
            raise DaemonFailed(text)

    @property
    def log(self) -> str:
        """All that it has logged."""
        return self._last_log if self._ended else (self.folder / "log").read_text("utf-8", errors="replace")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process, changed so that `vramd.connect()` of a child finds this daemon."""
        return {**os.environ, "VRAMD_SOCKET_DIR": str(self.socket_dir)}

    @property
    def is_running(self) -> bool:
        return not self._ended and not _wait_for([self._process], 0)

    def connect(self, name: str | None = None, **options: Any) -> vramd.Client:
        """Opens a session with it. The options are those of `vramd.connect`."""
        return vramd.connect(name, socket_dir=self.socket_dir, **options)

    def vramctl(self, *words: str) -> str:
        """Runs a command of an operator, such as `vramctl("quota", "set", "team-a", "--limit", "8MiB")`.

        The result is its output. A command that fails raises `subprocess.CalledProcessError`.
        """
        ran = subprocess.run(
            [_find_vramctl(self.program), *words],
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
        )  # fmt: skip
        try:
            ran.check_returncode()
        except subprocess.CalledProcessError as failed:
            failed.add_note(ran.stderr)
            raise
        return ran.stdout

    def kill(self) -> None:
        """Kills it, as a failure would, and waits until it is dead. Its log may have errors then."""
        if not self._ended:
            self.errors_expected = self._killed = True
            self._kill()

    def end(self) -> None:
        """Stops it and removes its folder. Raises `DaemonFailed` if it logged an error or did not end well.

        Ending it again does nothing, and neither does a forked child.
        """
        if self._ended or os.getpid() != self._starter:
            return
        running = self.is_running
        if running:
            self._signal(signal.SIGTERM)
        stopped = bool(_wait_for([self._process], STOP_SECONDS))
        self._kill()
        self._last_log = self.log
        self._ended = True
        status = self._release()
        if not running and not self._killed:
            raise DaemonFailed(f"the daemon had ended by itself, with status {status}:\n{self.log}")
        if not stopped:
            raise DaemonFailed(f"the daemon did not stop within {STOP_SECONDS} s:\n{self.log}")
        if status != 0 and not self._killed:
            raise DaemonFailed(f"the daemon ended with status {status}:\n{self.log}")
        errors = [line for line in self.log.splitlines() if _is_error(line)]
        if errors and not self.errors_expected:
            raise DaemonFailed(f"the daemon logged an error: {errors[0]}\nIts log:\n{self.log}")

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        _wait_for([self._process], STOP_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        # It may be gone, process id and all, if the supervisor was killed.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def _release(self) -> int | None:
        """Lets the supervisor go once the daemon is dead, and returns the daemon's exit status."""
        # The folder goes first: until then the supervisor would remove it if this process were killed.
        shutil.rmtree(self.folder, ignore_errors=True)
        status, _ = self._supervisor.communicate("\n")
        os.close(self._process)
        self._reports.close()
        return int(status) if status else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        except DaemonFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def __repr__(self) -> str:
        return f"<vramd.testing.Daemon {self.pid} at {self.socket_dir}>"


def _find_daemon(program: str | os.PathLike[str] | None) -> str:
    named = os.environ.get(PROGRAM_VARIABLE)
    if program is not None:
        return _executable(os.fspath(program), "the argument `program`")
    if named:
        return _executable(named, f"the variable {PROGRAM_VARIABLE}")
    if found := shutil.which("vramd"):
        return found
    raise DaemonMissing(
        f"the daemon's program was not found: no argument `program`, {PROGRAM_VARIABLE} is not set, and no `vramd` is "
        f"on PATH ({os.environ.get('PATH', '')}). Install vramd, or set {PROGRAM_VARIABLE} to the path of the program"
    )


def _executable(path: str, source: str) -> str:
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        raise DaemonMissing(f"the daemon's program was not found: {source} is {path!r}, which is no executable file")
    return os.path.abspath(path)


def _find_vramctl(program: str) -> str:
    beside = os.path.join(os.path.dirname(program), "vramctl")
    found = beside if os.access(beside, os.X_OK) else shutil.which("vramctl")
    if not found:
        raise DaemonMissing(f"vramctl was not found: neither {beside} nor PATH ({os.environ.get('PATH', '')}) has it")
    return found


def _is_error(line: str) -> bool:
    return " ERROR " in line or '"ERROR"' in line or "panicked" in line


def _wait_for(descriptors: list[int], seconds: float) -> list[int]:
    """Returns those that become ready in time, at once for 0 seconds."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(seconds * 1000)]


def _size(option: str, size: object) -> str:
    """Returns a size as the daemon takes it, which judges texts itself."""
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f'{option} must be a size, a number of bytes or a text like "256MiB", not {size!r}')
    if isinstance(size, int) and size < 0:
        raise ValueError(f"{option} must not be negative, but is {size}")
    return str(size)


def _count(option: str, count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{option} must be a number of devices, not {count!r}")
    if count < 1:
        raise ValueError(f"{option} must be at least 1, but is {count}")
    return count


def _parse(config: str) -> dict[str, Any]:
    try:
        return tomllib.loads(config)
    except tomllib.TOMLDecodeError as wrong:
        raise ValueError(f"config is no TOML: {wrong}") from None


def _set(settings: dict[str, Any], path: str, value: object) -> None:
    """Sets a key unless the text of `config` has set it."""
    *tables, key = path.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):
            raise ValueError(f"config: {table} must be a table")
    settings.setdefault(key, value)


def _toml(value: object) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(name)} = {_toml(inner)}" for name, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            # A date, the one other kind of TOML. The daemon has no such setting and says so.
            return str(value)
