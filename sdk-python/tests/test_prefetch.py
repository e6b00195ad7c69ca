"""Memory that programs ask for ahead of its use."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from conftest import Daemon, eventually, layer, vramctl

import vramd


def test_layers_stream_ahead_of_their_use(streaming: Daemon) -> None:
    with streaming.connect() as client:
        layers = [layer(client, 10 * number, parts=2) for number in range(8)]
        ready = 0
        for number, memory in enumerate(layers):
            following = layers[(number + 1) % len(layers)]
            prefetch = client.prefetch(following, within=30, priority=3)
            with memory.pin() as pin:
                assert bytes(memoryview(pin)[:1]) == bytes([10 * number])
            ready += prefetch.wait(60) == "ready"
            assert prefetch.parts_left_out == 0
        assert ready >= 6
        assert "vramd.Prefetch" in repr(prefetch)
        with pytest.raises(TypeError):
            pickle.dumps(prefetch)


def test_it_waits_for_room_and_is_cancelled(streaming: Daemon) -> None:
    with streaming.connect() as client, streaming.connect() as other:
        wanted = layer(client, 1, parts=2)
        # The parts may leave once the daemon has seen that no pin uses them.
        held = other.allocate("8MiB", part_size="2MiB", wait=30)
        prefetch = client.prefetch((wanted, range(0, 2)))
        assert (prefetch.state, prefetch.expected) == ("deferred", None)
        assert prefetch.reason in {"room", "demand", "room_on_its_way"}
        with pytest.raises(vramd.Deadline):
            prefetch.wait(0.05)
        assert (prefetch.by_operator, prefetch.by_own_tenant) == (None, None)
        prefetch.cancel()
        assert prefetch.wait() == "cancelled"
        assert (prefetch.by_operator, prefetch.by_own_tenant) == (False, None)
        by_operator = client.prefetch(wanted)
        vramctl(streaming, "prefetch", "cancel", str(client.session_id), str(by_operator.number))
        assert (by_operator.wait(), by_operator.by_operator) == ("cancelled", True)
        again = client.prefetch(wanted)
        assert again.number > prefetch.number
        held.free()
        assert again.wait(60) == "ready"
        assert again.state == "ready"
        # A program of the same tenant takes the room before a pin has used the parts.
        taken = other.allocate("8MiB", part_size="2MiB", wait=30)
        eventually("it is dropped", lambda: again.state == "dropped")
        assert (again.reason, again.by_own_tenant, again.by_operator) == ("demand", True, None)
        taken.free()


def test_bad_requests_are_refused(streaming: Daemon) -> None:
    with streaming.connect() as client:
        wanted = layer(client, 1, parts=2)
        large = client.allocate("20MiB", part_size="2MiB", unpinned=True)
        requests: list[Callable[[], vramd.Prefetch]] = [
            lambda: client.prefetch(),
            lambda: client.prefetch(wanted, wanted),
            lambda: client.prefetch((wanted, range(2, 3))),
            lambda: client.prefetch((wanted, range(0, 2, 2))),
            lambda: client.prefetch(wanted, within=0),
            lambda: client.prefetch(wanted, priority=256),
        ]
        for request in requests:
            with pytest.raises(vramd.InvalidArgument):
                request()
        with pytest.raises(vramd.ResourceExhausted):
            client.prefetch(large)
        with pytest.raises(TypeError):
            client.prefetch("weights")  # type: ignore[arg-type]
        wanted.free()
        with pytest.raises(vramd.Error):
            client.prefetch(wanted)
