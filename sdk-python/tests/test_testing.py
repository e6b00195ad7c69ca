"""`vramd.testing`: private daemons for the tests of other programs."""

from __future__ import annotations

import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MIB, PROGRAM, ROOT, stop

import vramd
import vramd.testing
from vramd.testing import Daemon, DaemonFailed, DaemonMissing

GUIDE = ROOT / "docs/guides/python.md"
ERROR = "an invariant is broken: this is a bug"
# The alarm ends it if its test fails.
READY = "print(daemon.pid, flush=True); signal.alarm(120); sys.stdin.readline()"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """The folder of all daemons' folders. It is empty at the end of each test."""
    monkeypatch.setenv("VRAMD_DAEMON", str(PROGRAM))
    with tempfile.TemporaryDirectory(prefix="vramd-", dir="/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        folder = pathlib.Path(name)
        yield folder
        assert list(folder.glob("vramd-test-*")) == []


@pytest.fixture
def erring(folder: pathlib.Path) -> pathlib.Path:
    """A daemon that logs an error, and works."""
    return script(folder, f'echo "2026-01-01T00:00:00Z ERROR {ERROR}" >&2\nexec {PROGRAM} "$@"')


def script(folder: pathlib.Path, lines: str) -> pathlib.Path:
    """An executable text."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def run_pytest(folder: pathlib.Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a test file in a pytest of its own, which finds the plugin by the package's entry point."""
    (folder / "test_sample.py").write_text("import pytest, vramd\n" + source)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-q", *arguments, folder],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def start_python(source: str, then: str = "") -> subprocess.Popen[str]:
    """Starts a program that starts a daemon, prints its process id, waits for a line and goes on."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import os, signal, sys, threading, vramd.testing\n{source}\n{READY}\n{then}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def line_of(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line, "the program has ended"
    return line


def watched(daemon: int) -> list[int]:
    """Returns pidfds of the daemon and of its supervisor."""
    status = pathlib.Path(f"/proc/{daemon}/status").read_text()
    return [os.pidfd_open(int(process)) for process in (daemon, *re.findall(r"^PPid:\s+(\d+)$", status, re.MULTILINE))]


def ended(pidfd: int, seconds: float = 30) -> bool:
    """Returns whether the process ends in time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


# The daemon.


def test_daemon_has_the_devices_and_tiers_that_were_asked_for() -> None:
    with Daemon(devices=2, memory="64MiB", host=32 * MIB, disk="16MiB", tenant="team-a", quota="8MiB") as daemon:
        with daemon.connect("program") as client:
            assert client.tenant == "team-a"
            quota = [(place.device_index, place.tier, place.capacity, place.limit) for place in client.quota()]
        assert [place for place in quota if place[0] == 0] == [
            (0, "device", 64 * MIB, 8 * MIB), (0, "host", 32 * MIB, 32 * MIB), (0, "disk", 16 * MIB, 16 * MIB),
        ]  # fmt: skip
        assert {place[0] for place in quota} == {0, 1}


def test_daemon_has_one_device_and_nothing_below_it_by_default() -> None:
    with Daemon() as daemon, daemon.connect() as client:
        assert [(place.tier, place.capacity) for place in client.quota() if place.capacity] == [("device", 256 * MIB)]


def test_configuration_goes_before_the_other_arguments() -> None:
    config = '[driver.sim]\nplatform = "coherent-cdmm"\n[[driver.sim.devices]]\nmemory = "32MiB"\nname = "Ä \\"1\\""\n'
    with Daemon(memory="64MiB", config=config + "[memory]\nharvest_ms = 5\n") as daemon, daemon.connect() as client:
        assert [device.name for device in client.devices] == ['Ä "1"']
        assert client.quota()[0].capacity == 32 * MIB
        assert "coherent GPU in CDMM mode" in daemon.log


def test_daemons_at_the_same_time_do_not_meet() -> None:
    with Daemon() as one, Daemon() as other, one.connect() as first, other.connect() as second:
        sealed = [client.allocate("2MiB", name="same", lifetime="persistent").seal() for client in (first, second)]
        assert first.devices[0].uuid != second.devices[0].uuid
        assert [len(client.list()) for client in (first, second)] == [1, 1]
        del sealed


def test_environment_leads_children_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import vramd; print(vramd.connect().devices[0].uuid)"
    for variable in ("VRAMD_SOCKET_DIR", "NOTIFY_SOCKET", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(variable, "/nowhere")
    with Daemon() as daemon, daemon.connect() as client:
        printed = subprocess.run(
            [sys.executable, "-c", source], env=daemon.environment, stdout=subprocess.PIPE, text=True, timeout=60
        ).stdout
        assert printed == client.devices[0].uuid + "\n"
        variables = pathlib.Path(f"/proc/{daemon.pid}/environ").read_bytes()
        assert b"/nowhere" not in variables and b"PATH=" in variables


def test_commands_of_an_operator_reach_the_daemon() -> None:
    with Daemon() as daemon:
        daemon.vramctl("quota", "set", "team-a", "--limit", "8MiB")
        assert "team-a" in daemon.vramctl("quota", "list")
        with pytest.raises(subprocess.CalledProcessError) as failed:
            daemon.vramctl("alloc", "free", "a-1")
        assert "ALLOCATION_NOT_FOUND" in failed.value.__notes__[0]


# Its end.


def test_folder_and_process_are_gone_after_the_end(folder: pathlib.Path) -> None:
    daemon = Daemon()
    pidfd = os.pidfd_open(daemon.pid)
    assert daemon.is_running and list(folder.iterdir()) == [daemon.folder]
    assert os.getpgid(daemon.pid) != os.getpgrp(), "Ctrl-C would end the daemon before the tests"
    daemon.end()
    assert ended(pidfd)
    assert not daemon.is_running and not daemon.folder.exists()
    assert "serving" in daemon.log and "vramd stopped" in daemon.log
    daemon.kill()
    daemon.end()


def test_logged_error_fails_the_end(erring: pathlib.Path) -> None:
    with pytest.raises(DaemonFailed, match=rf"logged an error: .* ERROR {ERROR}\n[\s\S]*vramd stopped"):
        Daemon(program=erring).end()
    with Daemon(program=erring) as daemon:
        daemon.errors_expected = True
    with pytest.raises(KeyError) as kept, Daemon(program=erring):
        raise KeyError("of the test")
    assert f"ERROR {ERROR}" in kept.value.__notes__[0]


def test_killed_daemon_is_no_failure() -> None:
    with Daemon() as daemon, daemon.connect() as client:
        daemon.kill()
        assert not daemon.is_running
        with pytest.raises(vramd.BrokerGone):
            client.allocate("2MiB")


def test_daemon_that_ended_by_itself_is_a_failure() -> None:
    daemon = Daemon()
    pidfd = os.pidfd_open(daemon.pid)
    os.kill(daemon.pid, signal.SIGTERM)
    assert ended(pidfd)
    with pytest.raises(DaemonFailed, match=r"had ended by itself, with status 0:\n[\s\S]*vramd stopped"):
        daemon.end()


def test_daemon_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon()
    pidfd = os.pidfd_open(daemon.pid)
    stop(daemon.pid)
    monkeypatch.setattr(vramd.testing, "STOP_SECONDS", 0.1)
    with pytest.raises(DaemonFailed, match="did not stop within"):
        daemon.end()
    assert ended(pidfd)


def test_forked_child_does_not_end_the_daemon() -> None:
    with Daemon() as daemon:
        child = os.fork()
        if child == 0:
            try:
                daemon.end()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert daemon.is_running
        daemon.connect().close()


# The end of the test process.

MAIN = """
def start():
    return vramd.testing.Daemon()
daemon = start()
"""
THREAD = """
started = []
thread = threading.Thread(target=lambda: started.append(vramd.testing.Daemon()))
thread.start()
thread.join()
daemon = started.pop()
"""
FORKED = """
daemon = vramd.testing.Daemon()
child = os.fork()
if child == 0:
    signal.alarm(120)
    os.close(1)
    signal.pause()
print(child)
"""


@pytest.mark.parametrize("source", [MAIN, THREAD], ids=["main", "thread"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "exits"])
def test_daemon_ends_with_the_test_process(source: str, killed: bool) -> None:
    with start_python(source) as program:
        processes = watched(int(line_of(program)))
        assert not ended(processes[0], 0), "a thread that ends does not end the daemon that it started"
        if killed:
            program.kill()
        program.communicate()
    assert all(ended(process) for process in processes)


def test_dropped_daemon_ends() -> None:
    with start_python(MAIN, "del daemon; sys.stdin.readline()") as program:
        processes = watched(int(line_of(program)))
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
        # The program goes on.
        assert all(ended(process) for process in processes)
        assert program.poll() is None
        program.kill()


def test_forked_child_that_outlives_the_test_process_keeps_no_daemon() -> None:
    with start_python(FORKED) as program:
        child = os.pidfd_open(int(line_of(program)))
        processes = watched(int(line_of(program)))
        program.kill()
        program.communicate()
    assert all(ended(process) for process in processes)
    assert not ended(child, 0)
    signal.pidfd_send_signal(child, signal.SIGKILL)
    os.close(child)


def test_daemon_ends_with_its_supervisor() -> None:
    daemon = Daemon()
    [process, supervisor] = watched(daemon.pid)
    signal.pidfd_send_signal(supervisor, signal.SIGKILL)
    assert ended(process) and ended(supervisor)
    with pytest.raises(DaemonFailed, match="had ended by itself"):
        daemon.end()


# Bad input.


def test_missing_program_is_named_with_the_places(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DaemonMissing, match="the argument `program` is '/nowhere/vramd'"):
        Daemon(program="/nowhere/vramd")
    monkeypatch.setenv("VRAMD_DAEMON", str(folder))
    with pytest.raises(DaemonMissing, match=f"the variable VRAMD_DAEMON is '{folder}', which is no executable file"):
        Daemon()
    monkeypatch.delenv("VRAMD_DAEMON")
    monkeypatch.setenv("PATH", f"{folder}:/nowhere")
    with pytest.raises(DaemonMissing, match=rf"VRAMD_DAEMON is not set, .* is on PATH \({folder}:/nowhere\)"):
        Daemon()
    (folder / "vramd").symlink_to(PROGRAM)
    with Daemon() as daemon:
        assert daemon.program == str(folder / "vramd")
        with pytest.raises(DaemonMissing, match=f"neither {folder}/vramctl nor PATH"):
            daemon.vramctl("ls")
        (folder / "vramctl").symlink_to(PROGRAM.with_name("vramctl"))
        assert daemon.vramctl("ls") == "(none)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": 1.5}, 'memory must be a size, a number of bytes or a text like "256MiB", not 1.5'),
        ({"host": True}, "host must be a size"),
        ({"disk": -1}, "disk must not be negative, but is -1"),
        ({"devices": "2"}, "devices must be a number of devices, not '2'"),
        ({"devices": 0}, "devices must be at least 1, but is 0"),
        ({"memroy": "1GiB"}, "unexpected keyword argument 'memroy'"),
        ({"config": "[memory"}, "config is no TOML: Expected ']'"),
        ({"config": "driver = 3"}, "config: driver must be a table"),
        ({"config": "daemon = 3"}, "config: daemon must be a table"),
        ({"config": "driver.kind.x = 3"}, "the daemon refuses to start:\n.*driver.kind"),
        ({"config": '[daemon]\nsocket_dir = "/run/vramd"'}, "daemon.socket_dir is chosen by vramd.testing"),
        ({"memory": "256Mib"}, r"refuses to start:\n.*devices\[0\].memory: `256Mib` has an unknown unit"),
        ({"config": "[memory]\nhots_size = 0"}, "refuses to start:\n.*unknown field `hots_size`"),
        ({"config": "[memory]\nhost_size = 2026-01-01"}, "refuses to start:\n.*host_size"),
        ({"tenant": "no name"}, "refuses to start:\n.*no name"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, DaemonFailed), match=message):
        Daemon(**arguments)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("echo no luck; exit 3", "the daemon refuses to start:\nno luck"),
        ("sleep 120", "the daemon does not serve within 0.2 s"),
    ],
)
def test_program_that_is_no_daemon_is_ended(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, lines: str, message: str
) -> None:
    monkeypatch.setattr(vramd.testing, "START_SECONDS", 0.2 if "within" in message else 30)
    with pytest.raises(DaemonFailed, match=message):
        Daemon(program=script(folder, lines))


def test_program_of_another_machine_cannot_be_run(folder: pathlib.Path) -> None:
    path = script(folder, "")
    path.write_bytes(b"\x7fELF")
    with pytest.raises(DaemonFailed, match=rf"{path} cannot be run:\n[\s\S]*Exec format error"):
        Daemon(program=path)


# The fixtures of pytest.


def test_module_needs_no_pytest() -> None:
    source = "import sys; sys.modules['pytest'] = None; import vramd.testing; vramd.testing.Daemon().end()"
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


def test_tests_of_the_guide_pass(folder: pathlib.Path) -> None:
    blocks = re.findall(r"^```python\n(import pytest\n.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    [block] = blocks
    ran = run_pytest(folder, block)
    assert (ran.returncode, ran.stdout.count("2 passed")) == (0, 1), ran.stdout + ran.stderr


SAMPLE = """
import os, subprocess, sys

pytestmark = pytest.mark.vramd(memory="64MiB", quota="16MiB")
folders = set()

@pytest.mark.vramd(quota="32MiB")
def test_near_marker_goes_first(vramd_daemon, vramd_client):
    [place] = [place for place in vramd_client.quota() if place.tier == "device"]
    assert (place.capacity, place.limit) == (64 << 20, 32 << 20)
    folders.add(vramd_daemon.folder)

def test_programs_find_the_daemon(vramd_daemon):
    assert vramd_daemon.folder not in folders
    assert not any(folder.exists() for folder in folders)
    assert vramd.connect().devices[0].uuid in vramd_daemon.vramctl("--uuids", "device", "list")
    subprocess.run([sys.executable, "-c", "import vramd; vramd.connect().allocate(1)"], check=True)

def test_other_tests_have_no_daemon():
    assert "VRAMD_SOCKET_DIR" not in os.environ
"""


def test_fixtures_serve_a_test_each(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VRAMD_SOCKET_DIR", raising=False)
    ran = run_pytest(folder, SAMPLE)
    assert (ran.returncode, ran.stdout.count("3 passed")) == (0, 1), ran.stdout + ran.stderr
    assert "vramd(**arguments)" in run_pytest(folder, "", "--markers").stdout


def test_fixture_fails_a_test_whose_daemon_logs_an_error(
    folder: pathlib.Path, erring: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMD_DAEMON", str(erring))
    ran = run_pytest(folder, "def test_works(vramd_client):\n    vramd_client.allocate(1)")
    assert ran.returncode == 1 and "1 passed, 1 error" in ran.stdout, ran.stdout
    assert f"DaemonFailed: the daemon logged an error: 2026-01-01T00:00:00Z ERROR {ERROR}" in ran.stdout


def test_failed_test_shows_the_log(folder: pathlib.Path) -> None:
    ran = run_pytest(folder, "def test_fails(vramd_client):\n    assert vramd_client.is_draining")
    assert ran.returncode == 1 and "1 failed" in ran.stdout and "error" not in ran.stdout, ran.stdout
    assert re.search(r"Captured log of vramd teardown -+\n.*\n[\s\S]*serving sockets=", ran.stdout), ran.stdout


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("memroy='1GiB'", "the marker `vramd` has no argument 'memroy', only devices, memory, host"),
        ("'64MiB'", "the marker `vramd` takes named arguments only, not '64MiB'"),
        ("memory='1Gib'", "the daemon refuses to start"),
    ],
)
def test_bad_marker_is_named(folder: pathlib.Path, marker: str, message: str) -> None:
    ran = run_pytest(folder, f"@pytest.mark.vramd({marker})\ndef test_runs(vramd_daemon):\n    pass")
    assert ran.returncode == 1 and "1 error" in ran.stdout and message in ran.stdout, ran.stdout


WAITING = """
import sys

def test_waits(vramd_daemon):
    print("daemon", vramd_daemon.pid, flush=True)
    sys.stdin.readline()
"""


def test_killed_pytest_leaves_no_daemon(folder: pathlib.Path) -> None:
    (folder / "test_waits.py").write_text(WAITING)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", "-q", folder / "test_waits.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        line = line_of(program)
        while not line.startswith("daemon"):
            line = line_of(program)
        processes = watched(int(line.split()[1]))
        program.kill()
        program.communicate()
    assert all(ended(process) for process in processes)
