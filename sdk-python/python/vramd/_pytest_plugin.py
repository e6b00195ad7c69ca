"""The fixtures that pytest finds by the entry point `vramd`: a daemon and a client for each test that asks for them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import vramd
from vramd.testing import Daemon

MARKER = "vramd(**arguments): the arguments of vramd.testing.Daemon for the fixture vramd_daemon."


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def vramd_daemon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A private daemon on simulated devices. During the test `vramd.connect()` finds it, in child processes too.

    The marker `vramd` has the arguments of `vramd.testing.Daemon`. A marker of the test goes before those of its class
    and module. A daemon that logs an error fails the test.
    """
    arguments: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers("vramd"))):
        if marker.args:
            raise pytest.UsageError(f"the marker `vramd` takes named arguments only, not {marker.args[0]!r}")
        arguments |= marker.kwargs
    known = inspect.signature(Daemon).parameters
    if unknown := sorted(arguments.keys() - known):
        raise pytest.UsageError(f"the marker `vramd` has no argument {unknown[0]!r}, only {', '.join(known)}")
    daemon = Daemon(**arguments)  # type: ignore[arg-type]
    try:
        monkeypatch.setenv("VRAMD_SOCKET_DIR", str(daemon.socket_dir))
        yield daemon
    finally:
        # pytest shows it for a test that fails.
        request.node.add_report_section("teardown", "log of vramd", daemon.log)
        daemon.end()


@pytest.fixture
def vramd_client(vramd_daemon: Daemon) -> Iterator[vramd.Client]:
    """A session with the test's daemon."""
    with vramd_daemon.connect("test") as client:
        yield client
